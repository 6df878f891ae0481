"""Run reports: measurements -> figures and proofs -> one JSON document and one self-contained HTML page."""

from blackwell.report.build import build_run_report
from blackwell.report.html import render_html
from blackwell.report.inputs import AttemptInputs, LogLine, RunReportInputs
from blackwell.report.model import RunReport

__all__ = ["AttemptInputs", "LogLine", "RunReport", "RunReportInputs", "build_run_report", "render_html"]

"""Synthesis, offline: `python -m stacks.synth [KEY=VALUE ...]` writes ./cdk.out from cdk.json's context.

The same sources and settings give the same bytes. Open findings of cdk-nag and unknown settings are errors.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from blackwell.findings import FindingsError
from stacks import nag
from stacks.asset import ROOT, AssetError
from stacks.settings import STACK_NAME, load_settings
from stacks.training_stack import BlackwellTrainingStack

OUT = ROOT / "cdk.out"
REPORT = "validation-report.json"


class SynthesisError(RuntimeError):
    """cdk-nag has open findings; the message names each with its construct."""


def context_of_cdk_json() -> dict[str, Any]:
    """The context that the CDK's command line would pass on."""
    return dict(json.loads((ROOT / "cdk.json").read_text())["context"])


def add_stack(app: cdk.App) -> BlackwellTrainingStack:
    """Reads the settings from the app's context, adds the stack and turns cdk-nag on.

    Raises:
        FindingsError: for illegal settings.
        AssetError: when the Lambda asset is missing or stale.
    """
    stack = BlackwellTrainingStack(app, STACK_NAME, settings=load_settings(app.node.get_all_context()))
    nag.turn_on(app)
    return stack


def synthesise(settings: Mapping[str, Any] | None = None, into: Path = OUT) -> Path:
    """Writes the cloud assembly, for any account and region; returns its folder.

    Raises:
        FindingsError, AssetError: as `add_stack`.
        SynthesisError: for open findings of cdk-nag.
    """
    shutil.rmtree(into, ignore_errors=True)
    app = cdk.App(outdir=str(into), context={**context_of_cdk_json(), **(settings or {})}, analytics_reporting=False)
    add_stack(app)
    try:
        app.synth()
    except RuntimeError:
        if not nag_findings(into):  # it was something else
            raise
    if open_findings := nag_findings(into):
        raise SynthesisError("\n".join(open_findings))
    return into


def nag_findings(assembly: Path) -> list[str]:
    """One line for each finding that nobody acknowledged."""
    report = assembly / REPORT
    if not report.exists():
        return []
    return [
        f"{violation['ruleName']}: {', '.join(c.get('constructPath', '?') for c in violation['violatingConstructs'])}"
        for plugin in json.loads(report.read_text())["pluginReports"]
        for violation in plugin["violations"]
    ]


def main() -> int:
    settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
    try:
        path = synthesise(settings)
    except (FindingsError, AssetError, SynthesisError) as error:
        print(f"synth: {error}", file=sys.stderr)
        return 1
    print(f"synth: {path.relative_to(ROOT)}/{STACK_NAME}.template.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())

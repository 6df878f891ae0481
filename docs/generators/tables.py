"""Tables inside hand-written pages: verdicts, findings, exit codes, settings, commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blackwell.cli import COMMANDS
from blackwell.cli.common import EXIT_CODES as COMMAND_EXIT_CODES
from blackwell.findings import CATALOGUE
from blackwell.report.goodput import PARTS
from blackwell.sweep.convergence import ConvergenceVerdict
from blackwell.verdict import EXIT_CODES, RULES, Remedy
from docs.generators.text import attribute_docs, table

ROOT = Path(__file__).resolve().parents[2]


def verdicts() -> str:
    """Every verdict, what it means, what is done by itself, what a person does."""
    rows = [
        (
            f"`{verdict}`",
            rule.meaning,
            ", then ".join(f"`{remedy}`" for remedy in rule.remedies) or "none: the run ends",
            rule.advice,
        )
        for verdict, rule in RULES.items()
    ]
    return table(("verdict", "what happened", "what the workflow does", "what you do"), rows)


def remedies() -> str:
    """Every remedy in words."""
    docs = attribute_docs(Remedy)
    return table(
        ("remedy", "what it does"),
        [(f"`{remedy}`", docs.get(remedy.name, "")) for remedy in Remedy if remedy is not Remedy.NONE],
    )


def container_exit_codes() -> str:
    """The launcher's exit codes."""
    return table(("exit code", "verdict"), [(f"{code}", f"`{verdict}`") for verdict, code in EXIT_CODES.items()])


def command_exit_codes() -> str:
    """Exit codes of the command line."""
    return table(("exit code", "meaning"), [(f"{code}", text) for code, text in COMMAND_EXIT_CODES.items()])


def commands() -> str:
    """The commands, one line each."""
    return table(
        ("command", "what it does"), [(f"`python -m blackwell {name}`", text) for name, text in COMMANDS.items()]
    )


def findings() -> str:
    """Every finding's id and title."""
    return table(("id", "title"), [(f"`{identity}`", title) for identity, title in CATALOGUE.items()])


def goodput() -> str:
    """Parts of the paid time."""
    return table(("part", "what it holds"), list(PARTS.items()))


def settings() -> str:
    """The deployment's settings."""
    from stacks.settings import Settings

    docs = attribute_docs(Settings)
    rows = [
        (f"`{name}`", f"`{_shown(field.get_default(call_default_factory=True))}`", docs.get(name, ""))
        for name, field in Settings.model_fields.items()
    ]
    return table(("setting", "default", "meaning"), rows)


def _shown(value: Any) -> str:
    if hasattr(value, "model_dump"):
        value = value.model_dump(mode="json", exclude_none=True)
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def convergence_rates() -> str:
    """How often each convergence verdict came on curves with a known truth, as `benchmarks` measured it."""
    cases = json.loads((ROOT / "benchmarks" / "results" / "convergence_verdict.json").read_text())["cases"]
    rows = []
    for case in cases:
        shares = (f"{case['verdicts'][verdict] / case['trials'] * 100:.1f} %" for verdict in ConvergenceVerdict)
        rows.append((case["name"], f"{case['trials']:,}", *shares))
    printed = table(("truth", "trials", *(f"`{verdict}`" for verdict in ConvergenceVerdict)), rows)
    wrong = [
        case["verdicts"][verdict] / case["trials"] * 100
        for case in cases
        if case["name"].startswith("gap at the tolerance")
        for verdict in (ConvergenceVerdict.EQUIVALENT, ConvergenceVerdict.WORSE)
    ]
    return f"{printed}\n\nAt the tolerance each wrong verdict came in {min(wrong):.1f} to {max(wrong):.1f} % of the trials."

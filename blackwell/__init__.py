"""BlackwellTrainingStack's shared core: job specs, plans, verdicts, telemetry and reports.

Pure Python: nothing here calls AWS (but `client` and `account`), nothing imports torch, so a lambda can import it
quickly. What is named in `__all__` is the Python API (`blackwell.api`), loaded at its first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blackwell.api import Run, plan, submit
    from blackwell.client import Client
    from blackwell.findings import Finding, FindingsError
    from blackwell.planning import Plan
    from blackwell.spec import JobSpec

__all__ = ["Client", "Finding", "FindingsError", "JobSpec", "Plan", "Run", "plan", "submit"]

_WHERE = {
    "Client": "client",
    "Finding": "findings",
    "FindingsError": "findings",
    "JobSpec": "spec",
    "Plan": "planning",
    "Run": "api",
    "plan": "api",
    "submit": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'blackwell' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"blackwell.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

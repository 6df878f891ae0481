"""Structured logging: every line carries the function, and the run and attempt once they are known."""

from __future__ import annotations

from aws_lambda_powertools import Logger


def logger(name: str) -> Logger:
    """The function's logger; `name` is the folder under lambdas/."""
    return Logger(service=name, log_uncaught_exceptions=True)


def about(log: Logger, run: str, attempt: int | None = None) -> None:
    """Puts the run (and attempt) into every further line of this invocation."""
    log.append_keys(run=run, attempt=attempt)

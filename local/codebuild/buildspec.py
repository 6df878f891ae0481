"""Reads a buildspec, version 0.2, as far as this server runs it; what it cannot run it refuses by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]

PHASES = ("install", "pre_build", "build", "post_build")
_TOP_KEYS = frozenset({"version", "env", "phases", "artifacts", "reports", "cache", "batch", "proxy", "run-as"})
_ENV_KEYS = frozenset({"shell", "variables", "exported-variables", "git-credential-helper"})
_PHASE_KEYS = frozenset({"commands", "finally", "on-failure", "runtime-versions", "run-as"})
_ON_FAILURE = frozenset({"ABORT", "CONTINUE"})


class BuildspecError(ValueError):
    """The buildspec is wrong, or asks for what this server does not do."""


@dataclass(frozen=True)
class Phase:
    name: str
    commands: tuple[str, ...] = ()
    finally_commands: tuple[str, ...] = ()
    on_failure: str | None = None


@dataclass(frozen=True)
class Buildspec:
    variables: dict[str, str] = field(default_factory=dict)
    exported: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()


def parse(text: str) -> Buildspec:
    """Raises BuildspecError."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BuildspecError(f"YAML_FILE_ERROR Message: {error}") from None
    if not isinstance(data, dict):
        raise BuildspecError("YAML_FILE_ERROR Message: the buildspec is no mapping")
    _only(data, _TOP_KEYS, "the buildspec")
    if str(data.get("version")) != "0.2":
        raise BuildspecError(f"YAML_FILE_ERROR Message: version {data.get('version')!r}, expected 0.2")
    env = data.get("env") or {}
    _only(env, _ENV_KEYS, "env")
    if env.get("shell", "bash") not in ("bash", "sh", "/bin/sh"):
        raise BuildspecError(f"env.shell {env['shell']!r}: bash and sh are here")
    phases = data.get("phases")
    if not isinstance(phases, dict):
        raise BuildspecError("YAML_FILE_ERROR Message: phases is missing")
    _only(phases, frozenset(PHASES), "phases")
    return Buildspec(
        {str(k): str(v) for k, v in (env.get("variables") or {}).items()},
        tuple(env.get("exported-variables") or ()),
        tuple(_phase(name, phases[name] or {}) for name in PHASES if name in phases),
    )


def _phase(name: str, data: dict[str, Any]) -> Phase:
    _only(data, _PHASE_KEYS, f"phases.{name}")
    on_failure = data.get("on-failure")
    if on_failure not in (None, *_ON_FAILURE):
        raise BuildspecError(f"phases.{name}.on-failure {on_failure!r}: {' or '.join(sorted(_ON_FAILURE))}")
    if not (data.get("commands") or data.get("runtime-versions")):
        raise BuildspecError(f"YAML_FILE_ERROR Message: phases.{name} has no commands")
    commands = data.get("commands") or []
    return Phase(name, tuple(map(str, commands)), tuple(map(str, data.get("finally") or [])), on_failure)


def _only(data: dict[str, Any], known: frozenset[str], where: str) -> None:
    unknown = data.keys() - known
    if unknown:
        raise BuildspecError(
            f"unknown in {where}: {', '.join(sorted(map(str, unknown)))}; known: {', '.join(sorted(known))}"
        )

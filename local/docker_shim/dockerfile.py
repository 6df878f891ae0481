"""Reads a Dockerfile as far as recording an image needs it: instructions, variables, stages, ignored files."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NOTED = frozenset({"RUN", "LABEL", "USER", "SHELL", "EXPOSE", "VOLUME", "STOPSIGNAL", "HEALTHCHECK", "MAINTAINER"})
"""Instructions that are written down in the image's configuration and have no other effect here."""

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")
DEFAULT_IGNORES = ("**/__pycache__", "**/*.pyc")


class BuildError(Exception):
    """The build cannot go on; the message is what docker would print."""


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str
    line: int


@dataclass
class Stage:
    """One FROM and what follows it."""

    rootfs: Path
    base: str
    name: str = ""
    workdir: str = "/"
    env: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    entrypoint: list[str] = field(default_factory=list)
    cmd: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)

    def config(self) -> dict[str, Any]:
        """What the recorded image keeps."""
        return {
            "base": self.base,
            "workdir": self.workdir,
            "env": self.env,
            "arguments": self.arguments,
            "entrypoint": self.entrypoint,
            "cmd": self.cmd,
            "noted": self.noted,
        }


def parse(text: str) -> list[Instruction]:
    """Instructions with continuations joined, comments dropped, here-documents taken whole."""
    found: list[Instruction] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        whole = line.strip()
        while whole.endswith("\\"):
            following = next(lines, (0, ""))[1].strip()
            whole = whole[:-1] if following.startswith("#") else whole[:-1] + " " + following
            if following.startswith("#"):
                whole += "\\"
        for end in _HEREDOC.findall(whole) if whole.split()[0].upper() in ("RUN", "COPY") else ():
            for _, inner in lines:
                whole += "\n" + inner
                if inner.strip() == end:
                    break
        word, _, rest = whole.partition(" ")
        found.append(Instruction(word.upper(), rest.strip(), number))
    return found


class Builder:
    """Carries out a Dockerfile on a build context. `ask_base` is told every base image and may refuse it."""

    def __init__(self, context: Path, scratch: Path, build_arguments: Mapping[str, str], ask_base: Any) -> None:
        self._context, self._scratch = context, scratch
        self._given = dict(build_arguments)
        self._ask_base = ask_base
        self._stages: list[Stage] = []
        self._global: dict[str, str] = {}
        self._used: set[str] = set()
        self._ignored = [*DEFAULT_IGNORES, *_ignore_patterns(context)]
        self.say: Any = print

    def build(self, instructions: list[Instruction], target: str | None = None) -> Stage:
        """The last stage, or the one named `target`. Raises BuildError."""
        for instruction in instructions:
            self._do(instruction)
            self.say(
                f"Step {instruction.line}: {instruction.word} {instruction.rest.splitlines()[0] if instruction.rest else ''}"
            )
        if not self._stages:
            raise BuildError("the Dockerfile has no FROM")
        unused = self._given.keys() - self._used
        if unused:
            self.say(f"[Warning] build arguments not consumed: {', '.join(sorted(unused))}")
        if target is None:
            return self._stages[-1]
        return self._stage(target)

    def _stage(self, name: str) -> Stage:
        for index, stage in enumerate(self._stages):
            if name in (stage.name, str(index)):
                return stage
        raise BuildError(f"no build stage {name!r}")

    def _do(self, instruction: Instruction) -> None:
        word, rest = instruction.word, instruction.rest
        if word == "FROM":
            self._from(rest)
        elif word == "ARG":
            self._arg(rest)
        elif not self._stages:
            raise BuildError(f"line {instruction.line}: {word} before FROM")
        elif word in NOTED:
            self._stages[-1].noted.append(f"{word} {rest}")
        elif (act := getattr(self, f"_{word.lower()}", None)) is not None:
            act(rest)
        else:
            raise BuildError(f"dockerfile parse error on line {instruction.line}: unknown instruction: {word}")

    def _expand(self, text: str) -> str:
        stage = self._stages[-1] if self._stages else None
        values = {**self._global, **(stage.arguments if stage else {}), **(stage.env if stage else {})}
        if stage is not None:  # arguments from before FROM are known after it only when declared again
            values = {**stage.arguments, **stage.env}

        def value(match: re.Match[str]) -> str:
            known = values.get(match[1] or match[2], "")
            if match[3] == "-":
                return known or match[4]
            if match[3] == "+":
                return match[4] if known else ""
            return known

        return _VARIABLE.sub(value, text)

    def _from(self, rest: str) -> None:
        words = [w for w in rest.split() if not w.startswith("--")]
        values = dict(self._global)
        reference = _VARIABLE.sub(lambda m: values.get(m[1] or m[2], "") or (m[4] if m[3] == "-" else ""), words[0])
        name = words[2] if len(words) == 3 and words[1].lower() == "as" else ""
        rootfs = self._scratch / str(len(self._stages))
        rootfs.mkdir(parents=True)
        earlier = next((s for s in self._stages if s.name == reference), None)
        stage = Stage(rootfs, reference, name)
        if not reference:
            raise BuildError(f"base name ({words[0]}) should not be blank")
        if earlier is not None:
            shutil.copytree(earlier.rootfs, rootfs, dirs_exist_ok=True, symlinks=True)
            stage = Stage(rootfs, earlier.base, name, earlier.workdir, dict(earlier.env), {}, [*earlier.entrypoint])
        elif reference != "scratch":
            self._ask_base(reference)
        self._stages.append(stage)

    def _arg(self, rest: str) -> None:
        for word in shlex.split(rest):
            name, has_default, default = word.partition("=")
            self._used.add(name)
            known = {**self._global} if self._stages else {}
            value = self._given.get(name, self._expand(default) if has_default else known.get(name))
            if value is not None:
                (self._stages[-1].arguments if self._stages else self._global)[name] = value

    def _env(self, rest: str) -> None:
        words = shlex.split(rest)
        pairs = [w.partition("=")[::2] for w in words] if "=" in words[0] else [(words[0], " ".join(words[1:]))]
        for name, value in pairs:
            self._stages[-1].env[name] = self._expand(value)

    def _workdir(self, rest: str) -> None:
        stage = self._stages[-1]
        stage.workdir = str(Path(stage.workdir) / self._expand(rest))
        (stage.rootfs / stage.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _entrypoint(self, rest: str) -> None:
        self._stages[-1].entrypoint = _command(rest)
        self._stages[-1].cmd = []

    def _cmd(self, rest: str) -> None:
        self._stages[-1].cmd = _command(rest)

    def _add(self, rest: str) -> None:
        if any(w.startswith(("http:", "https:", "git@")) for w in rest.split()):
            self._stages[-1].noted.append(f"ADD {rest}")
        else:
            self._copy(rest)

    def _copy(self, rest: str) -> None:
        stage = self._stages[-1]
        rest = self._expand(rest)
        options = [w for w in rest.split() if w.startswith("--")]
        words = json.loads(rest[rest.index("[") :]) if rest.lstrip().endswith("]") else shlex.split(rest)
        words = [w for w in words if not w.startswith("--")]
        origin = self._context
        mode = None
        for option in options:
            name, _, value = option.partition("=")
            if name == "--from":
                origin = self._origin(value)
            elif name == "--chmod":
                mode = int(value, 8)
        *sources, target = words
        place = stage.rootfs / str(Path(stage.workdir) / target).lstrip("/")
        into_folder = target.endswith("/") or target == "." or len(sources) > 1 or place.is_dir()
        for source in sources:
            matches = sorted(origin.glob(source.lstrip("/"))) if source.strip("./") else [origin]
            if not matches:
                raise BuildError(f'COPY failed: "{source}" not found in build context')
            for match in matches:
                self._copy_one(match, place, origin, into_folder, mode)

    def _origin(self, name: str) -> Path:
        try:
            return self._stage(name).rootfs
        except BuildError:
            self._ask_base(name)
            raise BuildError(f"COPY --from={name}: the files of base images are not here") from None

    def _copy_one(self, source: Path, place: Path, origin: Path, into_folder: bool, mode: int | None) -> None:
        files = [source] if source.is_file() else [p for p in sorted(source.rglob("*")) if p.is_file()]
        for path in files:
            if origin == self._context and self._is_ignored(path.relative_to(origin).as_posix()):
                continue
            if source.is_dir():
                target = place / path.relative_to(source)
            else:
                target = place / path.name if into_folder else place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
            if mode is not None:
                target.chmod(mode)

    def _is_ignored(self, relative: str) -> bool:
        ignored = False
        for pattern in self._ignored:
            keep = pattern.startswith("!")
            if _ignore_match(pattern.lstrip("!"), relative):
                ignored = not keep
        return ignored


def _ignore_patterns(context: Path) -> list[str]:
    path = context / ".dockerignore"
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _ignore_match(pattern: str, relative: str) -> bool:
    """Whether a .dockerignore pattern matches a file or one of the folders it lies in."""
    parts = relative.split("/")
    places = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    pattern = pattern.strip("/")
    patterns = [pattern, pattern.removeprefix("**/")] if pattern.startswith("**/") else [pattern]
    return any(fnmatch.fnmatchcase(place, p) for place in places for p in patterns)


def _command(rest: str) -> list[str]:
    """Exec form as it is, shell form through /bin/sh, as docker does."""
    if rest.startswith("["):
        return [str(word) for word in json.loads(rest)]
    return ["/bin/sh", "-c", rest]

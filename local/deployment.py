"""The stack deployed on an embedded AWS of its own, with real text in its bucket: what `run` and scenarios stand on."""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackwell.client import Client
from blackwell.names import DATASETS_PREFIX
from local.demo.cdk import STACK, cdk
from local.demo.dataset import source_files
from local.server import PROJECT, LocalAws

DATASET = f"{DATASETS_PREFIX}small/"
"""What examples/jobs/tiny-scenario.json reads."""
VOCAB_SIZE = 512
TEXT_BYTES = 400_000
WAIT_SCALE = 0.02
"""Waits and retry intervals of executions take this share of their time: a minute of backoff is 1.2 s."""
GUARD_SECONDS = 3.0
"""Pause between two rounds of the guard, which its schedule calls every few minutes."""

SETTINGS = {"SFN_WAIT_SCALE": str(WAIT_SCALE)}
"""Environment of the server."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Deployment:
    """A running embedded AWS with the stack on it."""

    aws: LocalAws
    client: Client
    folder: Path


class BusyError(RuntimeError):
    """Another process has a deployment in the same folder."""


@contextlib.contextmanager
def _reserved(folder: Path) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(f"another process works in {folder}: wait for it, or end it") from None
        yield


@contextlib.contextmanager
def deployed(folder: Path, say: Say = lambda text: None) -> Iterator[Deployment]:
    """Start an embedded AWS in `folder` (emptied first), deploy the stack, upload data; end all of it afterwards.

    Raises:
        BusyError: another process uses the folder.
        local.server.LocalAwsError, local.demo.cdk.CdkError, subprocess.CalledProcessError: with the log's last lines.
    """
    with _reserved(folder):
        yield from _deployed(folder, say)


def _deployed(folder: Path, say: Say) -> Iterator[Deployment]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    assembly, log = folder / "cdk.out", folder / "cdk.log"
    with ThreadPoolExecutor(1) as beside, LocalAws(folder / "aws", environment=SETTINGS) as aws:
        data = beside.submit(_prepare, folder / "dataset", folder / "data.log")
        for text, words in (
            ("synthesising", ["synth", "--quiet", "--output", str(assembly), STACK]),
            ("bootstrapping", ["bootstrap", "--app", str(assembly)]),
            ("deploying", ["deploy", STACK, "--app", str(assembly), "--require-approval", "never"]),
        ):
            say(text)
            cdk(words, root=PROJECT, environment=aws.environment, log=log)
        client = Client.from_stack(STACK, session=aws.session())
        data.result()
        for file in sorted((folder / "dataset").iterdir()):
            client.upload(file, f"{DATASET}{file.name}")
        with _guard_rounds(aws):
            yield Deployment(aws, client, folder)


def _prepare(folder: Path, log: Path) -> None:
    """A small tokenizer and shards from the standard library's sources, by the product's own commands."""
    folder.mkdir(parents=True)
    files = [str(path) for path in source_files(TEXT_BYTES)]
    tokenizer = folder / "tokenizer.json"
    with log.open("ab") as sink:
        for words in (
            ["train-tokenizer", "--vocab-size", str(VOCAB_SIZE), "--out", str(tokenizer), *files],
            ["prepare", "--out", str(folder), "--tokenizer", str(tokenizer), *files],
        ):
            subprocess.run(
                [sys.executable, "-m", "trainer.data", *words], cwd=PROJECT, check=True, stdout=sink, stderr=sink
            )


@contextlib.contextmanager
def _guard_rounds(aws: LocalAws) -> Iterator[None]:
    """Calls the guard as its schedule does, only sooner."""
    functions = aws.client("lambda")
    name = next(
        function["FunctionName"]
        for page in functions.get_paginator("list_functions").paginate()
        for function in page["Functions"]
        if "guard" in function["FunctionName"].lower()
    )
    over = threading.Event()

    def rounds() -> None:
        while not over.wait(GUARD_SECONDS):
            with contextlib.suppress(Exception):  # the server may be ending
                functions.invoke(FunctionName=name, Payload=json.dumps({"source": "local.deployment"}))

    thread = threading.Thread(target=rounds, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


def journal(aws: LocalAws) -> dict[str, Any]:
    """Which faults happened so far."""
    answer: dict[str, Any] = aws.control("faults", method="GET")
    return answer

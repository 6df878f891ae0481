"""Lambda functions as AWS runs them: our code from the deployed asset, AWS's error types, no idle workers.

Stock ministack (1.5.33): every exception is errorType `Runtime.HandlerError`; a module that does not import is a
RuntimeError; a function that ends its process too; an exception ends the worker, so that the next call starts cold; the
first idle worker of each function stays for ever.

Named deviation: functions run on this Python with this environment's third-party packages. The asset's own are wheels
for the function's platform and Python, which need not load here; they are left out when the asset is unpacked (they
are told by the RECORD files of its `.dist-info` folders). What is ours comes from the asset and from nowhere else.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import time
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

from ministack.core import lambda_runtime
from ministack.services import lambda_svc

from local.overlay.context import OverlayContext
from local.overlay.seams import Seams

BOOTSTRAP = Path(__file__).with_name("lambda_bootstrap.py")
ERROR_MARK = "@error-document@"
"""Same mark as in `lambda_bootstrap.py`, which cannot import this module."""

CACHED_ASSETS = 4
_RECORD = re.compile(r"^[^/]+\.dist-info/RECORD$")


def install(context: OverlayContext, seams: Seams) -> None:
    """Replace the worker seams."""
    seams.take(lambda_runtime, "_PYTHON_WORKER_SCRIPT")
    header = seams.take(lambda_runtime, "INVOKE_DEPTH_BOOTSTRAP")
    seams.take(lambda_runtime.Worker, "invoke")
    spawn = seams.take(lambda_runtime.Worker, "_spawn")
    warm = seams.take(lambda_svc, "_execute_function_warm")
    seams.take(lambda_runtime, "reap_idle_workers")
    seams.take(lambda_svc, "reap_idle_workers")
    assets = OwnCode()

    def spawn_own(worker: Any) -> None:
        whole = worker.code_zip
        worker.code_zip = assets.of(whole)
        try:
            spawn(worker)
        finally:
            worker.code_zip = whole

    def execute_warm(func: dict[str, Any], event: Any, request_id: str) -> dict[str, Any]:
        result: dict[str, Any] = warm(func, event, request_id)
        return _with_error_document(result, request_id)

    lambda_runtime._PYTHON_WORKER_SCRIPT = lambda_runtime._sub_runtime_tokens(
        header + BOOTSTRAP.read_text(encoding="utf-8")
    )
    lambda_runtime.Worker._spawn = spawn_own
    lambda_svc._execute_function_warm = execute_warm
    lambda_svc.reap_idle_workers = reap_idle_workers


class OwnCode:
    """Function archives without their third-party packages; the newest few are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def of(self, archive: bytes) -> bytes:
        """The archive without every file that an installed distribution's RECORD lists."""
        digest = hashlib.sha256(archive).hexdigest()
        if digest not in self._kept:
            self._kept[digest] = without_packages(archive)
            while len(self._kept) > CACHED_ASSETS:
                self._kept.popitem(last=False)
        return self._kept[digest]


def without_packages(archive: bytes) -> bytes:
    """A zip without the files of installed distributions; the same bytes when it has none."""
    with zipfile.ZipFile(io.BytesIO(archive)) as bundle:
        names = bundle.namelist()
        records = [name for name in names if _RECORD.match(name)]
        if not records:
            return archive
        packaged = {line.rsplit(",", 2)[0].strip('"') for name in records for line in _lines(bundle, name)}
        folders = tuple(name.removesuffix("RECORD") for name in records)
        kept = [name for name in names if name not in packaged and not name.startswith(folders)]
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as own:
            for name in kept:
                own.writestr(bundle.getinfo(name), bundle.read(name))
    return target.getvalue()


def _lines(bundle: zipfile.ZipFile, name: str) -> list[str]:
    return bundle.read(name).decode().splitlines()


def _with_error_document(result: dict[str, Any], request_id: str) -> dict[str, Any]:
    """Give a failed invocation the body that AWS gives it."""
    body = result.get("body")
    if not isinstance(body, dict):
        return result
    message = str(body.get("errorMessage", ""))
    if result.get("error") and ERROR_MARK in message:  # failed while it was loaded
        body = json.loads(message[message.index("{") :])
    if ERROR_MARK in body:
        log = "\n".join(filter(None, [result.get("log"), body["trace"]]))
        return {"body": {**body[ERROR_MARK], "requestId": request_id}, "error": True, "log": log}
    if result.get("error") and message.startswith(("Worker process died", "Worker process exited")):
        text = f"RequestId: {request_id} Error: Runtime exited without providing a reason"
        result["body"] = {"errorType": "Runtime.ExitError", "errorMessage": text}
    return result


def reap_idle_workers(ttl: float | None = None) -> int:
    """End every worker that was idle for `ttl` seconds, the first of its function too; returns how many."""
    limit = lambda_runtime._LOCAL_WORKER_TTL if ttl is None else ttl
    ended = []
    with lambda_runtime._lock:
        for key, workers in list(lambda_runtime._workers.items()):
            idle = [worker for worker in workers if not worker.in_use and time.time() - worker.last_used >= limit]
            ended += idle
            left = [worker for worker in workers if worker not in idle]
            if left:
                lambda_runtime._workers[key] = left
            else:
                del lambda_runtime._workers[key]
    lambda_runtime.kill_workers(ended)
    return len(ended)

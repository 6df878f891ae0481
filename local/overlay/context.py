"""What every mended seam and every service host may use: places, events, logs, threads, services, stop hooks.

One `OverlayContext` exists per server process. Functions that touch ministack's stores must run under an account and
region: inside a request or in a thread started with `spawn` they do; elsewhere wrap the work in `scope()`.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ministack.app as ministack_app
from ministack.core import responses, router
from ministack.services import cloudwatch_logs, eventbridge

from local.identity import ACCESS_KEY, ACCOUNT, REGION, SECRET_KEY, sdk_environment
from local.identity import MARKER_ENV as MARKER_ENV
from local.overlay.clock import Clock

log = logging.getLogger("local")

DEFAULT_INSTANCE_LIMIT = 20
"""Quota of every instance type and use of a training job, unless `OverlayContext.limits` says otherwise."""

Response = tuple[int, dict[str, str], bytes]
Handler = Callable[[str, str, dict[str, str], bytes, dict[str, Any]], Awaitable[Response]]
"""ministack's service handler: (method, path, headers, body, query parameters) -> (status, headers, body)."""


def reply(data: Mapping[str, Any]) -> Response:
    """A JSON answer of a service."""
    return 200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(data).encode()


def refuse(code: str, message: str, status: int = 400) -> Response:
    """A JSON error of a service: `code` is what boto3 shows as the error code."""
    response: Response = responses.error_response_json(code, message, status)
    return response


@dataclass
class OverlayContext:
    """The server that the overlay runs in.

    `work_dir`: the server's own folder (jobs, builds, images, logs); `endpoint`: `http://127.0.0.1:<port>`;
    `clock`: the time that waits and timeouts of the overlay go by.
    """

    work_dir: Path
    endpoint: str
    clock: Clock = field(default_factory=Clock)
    routes: dict[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)
    interceptors: list[Callable[[Any], Response | None]] = field(default_factory=list)
    """See `gateway.Interceptor`: called before every API request."""
    limits: dict[str, int] = field(default_factory=dict)
    """Service quotas that differ from `DEFAULT_INSTANCE_LIMIT`, by name: `ml.c7i.2xlarge for training job usage`."""
    waiting: Any = None
    """`executions.Waiting`, once installed."""
    _stop_hooks: list[Callable[[], None]] = field(default_factory=list)

    @contextlib.contextmanager
    def scope(self, account: str = ACCOUNT, region: str = REGION) -> Iterator[None]:
        """Account and region for work that starts outside a request."""
        with responses.request_scope(account, region):
            yield

    def spawn(self, target: Callable[..., Any], *args: Any, name: str = "overlay") -> threading.Thread:
        """Start a daemon thread that sees the caller's account and region."""
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=(target, *args), daemon=True, name=name)
        thread.start()
        return thread

    def emit_event(self, source: str, detail_type: str, detail: Mapping[str, Any], resources: Iterable[str]) -> None:
        """Publish an AWS event on the default bus, as the service itself does (`source` may start with `aws.`)."""
        entry = {
            "Source": source,
            "DetailType": detail_type,
            "Detail": json.dumps(detail, default=str),
            "Resources": list(resources),
        }
        # Through the module: the overlay and the faults replace `_put_events` there.
        eventbridge._put_events({"Entries": [entry]}, allow_aws_source=True)

    def put_log(self, group: str, stream: str, lines: Iterable[str], timestamp_ms: int | None = None) -> None:
        """Append `lines` to a log stream; group and stream are created when missing. Metric filters see them."""
        now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        events = [{"timestamp": now, "message": line} for line in lines]
        if not events:
            return
        if group not in cloudwatch_logs._log_groups:
            cloudwatch_logs._create_log_group({"logGroupName": group})
        if stream not in cloudwatch_logs._log_groups[group]["streams"]:
            cloudwatch_logs._create_log_stream({"logGroupName": group, "logStreamName": stream})
        cloudwatch_logs._put_log_events({"logGroupName": group, "logStreamName": stream, "logEvents": events})

    def credentials(self) -> dict[str, str]:
        """Environment with which an SDK in a child process (job, build, function) reaches this server."""
        return {**sdk_environment(self.endpoint), MARKER_ENV: os.environ.get(MARKER_ENV, "")}

    def client(self, service: str) -> Any:
        """A boto3 client for this server; use it in threads only, never on the server's event loop."""
        import boto3

        return boto3.client(
            service,  # type: ignore[call-overload]
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name=REGION,
        )

    def register_service(
        self,
        name: str,
        handler: Handler,
        *,
        target_prefixes: Iterable[str],
        host_pattern: str,
        credential_scope: str,
        reset: Callable[[], None] = lambda: None,
    ) -> None:
        """Add (or replace) an AWS service of the JSON protocol that ministack then routes to `handler`."""
        module = types.ModuleType(f"ministack.services.{name}")
        members: dict[str, Any] = {
            "handle_request": handler,
            "reset": reset,
            "get_state": dict,
            "load_persisted_state": lambda data: None,
        }
        vars(module).update(members)
        sys.modules[module.__name__] = module
        ministack_app.SERVICE_REGISTRY[name] = {"module": name}
        ministack_app.SERVICE_HANDLERS[name] = handler
        router.SERVICE_PATTERNS[name] = {
            "target_prefixes": list(target_prefixes),
            "host_patterns": [host_pattern],
            "credential_scope": credential_scope,
        }

    def route(self, method: str, path: str, handler: Callable[[Mapping[str, Any]], Any]) -> None:
        """Serve `handler(JSON body) -> JSON-able` at `/_local/<path>`: the server's own control interface."""
        self.routes[method, f"/_local/{path}"] = handler

    def on_stop(self, hook: Callable[[], None]) -> None:
        """Run `hook` when the server stops: end the processes that you started."""
        self._stop_hooks.append(hook)

    def stop(self) -> None:
        """Run every stop hook, last registered first; a failing one does not keep the others from running."""
        while self._stop_hooks:
            hook = self._stop_hooks.pop()
            try:
                hook()
            except Exception:
                log.exception("stop hook failed: %s", hook)

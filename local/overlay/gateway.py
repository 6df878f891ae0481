"""In front of ministack's HTTP application: the control interface `/_local/...` and request interceptors (faults)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from local.overlay.context import OverlayContext, Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_CREDENTIAL = re.compile(r"Credential=[^/]+/[^/]+/[^/]+/([^/]+)/")


@dataclass(frozen=True)
class ApiCall:
    """One request: the service's signing name (`sagemaker`, `states`, ...) and the operation where the protocol says
    it (`CreateTrainingJob`), else an empty string: REST services (s3, lambda) are told by method and path."""

    service: str
    operation: str
    method: str
    path: str
    body: bytes


Interceptor = Callable[[ApiCall], Response | None]
"""Answers a call in the service's place, or returns None to let it through. Runs in a worker thread: it may wait."""


class Gateway:
    """The ASGI application that is served: ministack's, with ours in front."""

    def __init__(self, application: Any, context: OverlayContext) -> None:
        self._application = application
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
        elif scope["path"].startswith("/_local/"):
            await self._control(scope, receive, send)
        elif self._context.interceptors:
            await self._intercept(scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._context.routes.get((scope["method"], scope["path"]))
        body, _ = await _read(receive)
        if handler is None:
            known = ", ".join(f"{method} {path}" for method, path in sorted(self._context.routes))
            await _answer(send, (404, {}, json.dumps({"error": f"no such control, there are: {known}"}).encode()))
            return
        try:
            result = await asyncio.to_thread(handler, json.loads(body) if body else {})
            await _answer(send, (200, {}, json.dumps(result).encode()))
        except (ValueError, KeyError, TypeError) as error:
            await _answer(send, (400, {}, json.dumps({"error": str(error)}).encode()))

    async def _intercept(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, messages = await _read(receive)
        call = _api_call(scope, body)
        for interceptor in list(self._context.interceptors):
            response = await asyncio.to_thread(interceptor, call)
            if response is not None:
                await _answer(send, response)
                return

        async def replay() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        await self._application(scope, replay, send)


async def _read(receive: Receive) -> tuple[bytes, list[MutableMapping[str, Any]]]:
    """The whole body, and the messages it came in."""
    messages = []
    while True:
        message = await receive()
        messages.append(message)
        if message["type"] != "http.request" or not message.get("more_body"):
            break
    return b"".join(message.get("body", b"") for message in messages), messages


def _api_call(scope: Scope, body: bytes) -> ApiCall:
    headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
    signed = _CREDENTIAL.search(headers.get("authorization", ""))
    operation = headers.get("x-amz-target", "").rpartition(".")[2]
    if not operation and headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        operation = parse_qs(body.decode("utf-8", "replace")).get("Action", [""])[0]
    return ApiCall(signed.group(1) if signed else "", operation, scope["method"], scope["path"], body)


async def _answer(send: Send, response: Response) -> None:
    status, headers, body = response
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    encoded = [(key.encode(), value.encode()) for key, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})

"""Shows the runs on a page of this machine alone: HTTP on 127.0.0.1, read only, nothing beyond the standard library."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from blackwell.report.live import LiveRuns, live_policy, render_live

HOST = "127.0.0.1"
MOST_BUSY = 5
"""A look that takes long is followed by a pause so many times as long at least: AWS is asked no more than that."""

Look = Callable[[], LiveRuns]


class Latest:
    """The newest look, taken by a thread of its own every `every_seconds`; one that fails keeps the runs of the last."""

    def __init__(self, first: LiveRuns, look: Look, every_seconds: float) -> None:
        self.found = first
        self._look, self._every = look, every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="runs", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the look that is being taken, which is not waited for."""
        self._over.set()

    def renew(self) -> None:
        """Takes one look. What goes wrong is shown on the page, whatever it is: the page outlives it."""
        try:
            self.found = self._look()
        except Exception as error:
            problem = f"{datetime.now(UTC):%H:%M:%S} UTC: {type(error).__name__}: {error}"
            self.found = self.found.model_copy(update={"problem": problem})

    def _go_on(self) -> None:
        pause = self._every
        while not self._over.wait(pause):
            begun = time.monotonic()
            self.renew()
            pause = max(self._every, MOST_BUSY * (time.monotonic() - begun))


class Server(ThreadingHTTPServer):
    """`/` is the page, `/data.json` what it shows. Only this machine reaches it, and only by its own name.

    A page elsewhere whose name was pointed at 127.0.0.1 is refused by its Host header.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, port: int, latest: Latest, every_seconds: float) -> None:
        """Port 0 takes a free one. Raises OSError where the port is taken or not allowed."""
        super().__init__((HOST, port), _Handler)
        self.latest, self.every_seconds = latest, every_seconds
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    def handle_error(self, request: object, client_address: object) -> None:
        """A reader that went away is no error to print; whatever else goes wrong is."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "blackwell", ""
    timeout = 30

    def do_GET(self) -> None:
        if self.headers.get("Host") not in self.server.hosts:
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "not for this host\n")
            return
        found = self.server.latest.found
        match self.path.partition("?")[0]:
            case "/":
                page = render_live(found, every_seconds=self.server.every_seconds)
                self._answer(HTTPStatus.OK, "text/html", page)
            case "/data.json":
                self._answer(HTTPStatus.OK, "application/json", found.model_dump_json(indent=1) + "\n")
            case _:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "not found\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", f"{live_policy()}; frame-ancestors 'none'")
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class's name
        """Requests are not printed."""


_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

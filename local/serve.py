"""The server process: ministack with the overlay on 127.0.0.1, ended surely together with all that it started.

Started by `local.server`. It binds the port itself (0 = a free one), writes `server.json` into the work folder, and
ends on SIGTERM, on SIGINT, or when the pipe given by `--watch` closes, which is when its parent is gone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import NoReturn

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 6.0
"""After this long an orderly stop is given up and the process ends; the parent then kills what is left."""

EXIT_PORT_IN_USE = 3
SETTINGS = {
    "BIND_HOST": HOST,
    "SFTP_ENABLED": "0",
    "IOT_MTLS_ENABLED": "0",
    "LAMBDA_WARM_TTL_SECONDS": "120",  # a warm worker holds about 50 MB, a cold start takes most of a second
    "LAMBDA_ACCOUNT_CONCURRENCY": "24",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def main() -> None:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--stock", action="store_true", help="without the overlay, to compare")
    parser.add_argument("--watch", type=int, help="file descriptor of a pipe whose end is the end of the server")
    arguments = parser.parse_args()

    listener = _listen(arguments.port)
    port = listener.getsockname()[1]
    temporary = arguments.work_dir / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    os.environ.update(SETTINGS, GATEWAY_PORT=str(port), TMPDIR=str(temporary))

    # ministack reads its environment when it is imported.
    from ministack import app as ministack_app
    from ministack.core import lambda_runtime

    from local.overlay import install
    from local.overlay.context import OverlayContext
    from local.overlay.gateway import Gateway

    context = OverlayContext(arguments.work_dir, f"http://{HOST}:{port}")
    application = ministack_app.app
    if not arguments.stock:
        install.install_all(context)
        application = Gateway(application, context)

    def stop(*_: object) -> NoReturn:
        # Threads of executions and custom resources may be waiting for hours: no joining, no interpreter shutdown.
        threading.Timer(SHUTDOWN_SECONDS, os._exit, (1,)).start()
        context.stop()
        lambda_runtime.reset()
        os._exit(0)

    def stop_when_parent_ends(descriptor: int) -> None:
        os.read(descriptor, 1)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=stop).start())
    if arguments.watch is not None:
        threading.Thread(target=stop_when_parent_ends, args=(arguments.watch,), daemon=True).start()

    _write_state(arguments.work_dir / "server.json", {"pid": os.getpid(), "port": port, "endpoint": context.endpoint})
    asyncio.run(_serve(application, listener))


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        print(f"cannot listen on {HOST}:{port}: {error.strerror}; without a port a free one is chosen", file=sys.stderr)
        raise SystemExit(EXIT_PORT_IN_USE) from None
    listener.listen(256)
    return listener


async def _serve(application: object, listener: socket.socket) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.keep_alive_timeout = 75
    config.accesslog = None
    config.loglevel = "WARNING"
    # hypercorn would install signal handlers of its own; ours end the process.
    await serve(application, config, shutdown_trigger=asyncio.Event().wait)  # type: ignore[arg-type]


def _write_state(path: Path, state: dict[str, object]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(state))
    partial.replace(path)


if __name__ == "__main__":
    main()

"""The server's life: up, status, down, and that nothing of it survives, however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from overlay_helpers import eventually, function, invoke

from local import __main__ as command
from local.overlay import seams
from local.server import PROJECT, LocalAws, LocalAwsError, client, healthy, marked

pytestmark = pytest.mark.xdist_group("overlay")


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The command line with a place of its own, under a path with a space in it."""
    place = tmp_path / "a place"
    monkeypatch.setattr(command, "WORK_DIR", place)
    monkeypatch.setattr(command, "STATE", place / "up.json")
    return place


def test_up_status_down(own_place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["status"]) == command.EXIT_NOT_RUNNING
    capsys.readouterr()
    try:
        assert command.main(["up"]) == 0
        printed = capsys.readouterr().out
        shown = dict(line.removeprefix("export ").split("=", 1) for line in printed.splitlines() if "export" in line)
        endpoint = shown["AWS_ENDPOINT_URL"]
        assert healthy(endpoint)
        assert shown["CDK_DEFAULT_ACCOUNT"] == client(endpoint, "sts").get_caller_identity()["Account"]
        assert command.main(["up", "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["environment"]["AWS_ENDPOINT_URL"] == endpoint
        assert command.main(["up", "--port", "1"]) == command.EXIT_FAILED
        assert command.main(["status", "--json"]) == 0
    finally:
        assert command.main(["down"]) == 0
    assert not healthy(endpoint)
    assert not marked(again["marker"])
    assert command.main(["status"]) == command.EXIT_NOT_RUNNING
    assert command.main(["down"]) == 0


def test_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LocalAwsError, match=rf"cannot listen on 127.0.0.1:{port}"):
            LocalAws(tmp_path / "aws", port=port).start()


SLEEPER = "import os, time\ndef handler(event, context):\n    print(os.getpid(), flush=True)\n    time.sleep(600)\n"


def _with_a_sleeping_function(server: LocalAws) -> int:
    """Start a function that will not end by itself; how many processes the server then has."""
    name = function(server, SLEEPER, Timeout=900)
    server.client("lambda").invoke(FunctionName=name, InvocationType="Event", Payload=b"{}")
    eventually(lambda: len(marked(server.marker)) == 2)
    return 2


def test_stop_ends_everything(tmp_path: Path) -> None:
    with LocalAws(tmp_path / "aws") as server:
        _with_a_sleeping_function(server)
    assert not marked(server.marker)
    assert not (tmp_path / "aws" / "tmp").exists()


def test_stop_after_the_server_was_killed(tmp_path: Path) -> None:
    with LocalAws(tmp_path / "aws") as server:
        _with_a_sleeping_function(server)
        os.kill(server.pid, signal.SIGKILL)
        eventually(lambda: not healthy(server.endpoint))
    assert not marked(server.marker)


def test_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from local.server import LocalAws
        server = LocalAws(Path({str(tmp_path / "aws")!r})).start()
        print(server.marker, server.endpoint, flush=True)
        time.sleep(600)
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=PROJECT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    marker, endpoint = parent.stdout.readline().split()
    assert healthy(endpoint)
    parent.kill()
    parent.wait()
    eventually(lambda: not marked(marker))


def test_settings_of_a_person_do_not_leak_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with LocalAws(tmp_path / "aws") as server:
        assert "AWS_PROFILE" not in server.child_environment()
        names = "import os\ndef handler(event, context):\n    return [k for k in os.environ if k == 'AWS_PROFILE']\n"
        assert invoke(server, function(server, names)) == {"error": None, "payload": []}


def test_another_ministack_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: Any) -> None:
        """Not the function that the overlay was written against."""

    taken = seams.Seams()
    module = type(sys)("ministack.services.made_up")
    module.start = start  # type: ignore[attr-defined]
    taken.take(module, "start")
    taken.take(module, "gone")
    monkeypatch.setattr(seams, "MINISTACK_VERSION", "0.0.1")
    with pytest.raises(seams.SeamError) as caught:
        taken.check()
    message = str(caught.value)
    assert "requirements.txt pins 0.0.1" in message
    assert "ministack.services.made_up.start: its source is not the one" in message
    assert "ministack.services.made_up.gone: missing" in message


def test_clock_moves_forward_only(aws: LocalAws) -> None:
    before = aws.control("health", method="GET")["now"]
    aws.advance_clock(60)
    assert aws.control("health", method="GET")["now"] - before >= 60
    with pytest.raises(ValueError, match="forward only"):
        aws.advance_clock(-1)
    with pytest.raises(ValueError, match="no such control"):
        aws.control("nothing")


def test_unknown_service_costs_nothing(tmp_path: Path) -> None:
    grown = {}
    for overlay in (True, False):  # new servers: the flaw costs its memory once in a server's life
        with LocalAws(tmp_path / f"overlay {overlay}", overlay=overlay) as server:
            before = server.memory_mib()
            with pytest.raises(Exception, match=r"."):
                server.client("ce").list_cost_allocation_tags()
            grown[overlay] = server.memory_mib() - before
    assert grown[True] < 60
    assert grown[False] > 150

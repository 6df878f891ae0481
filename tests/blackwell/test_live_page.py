"""The dashboard: its page, its server on this machine alone, its command, and what a real browser shows."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from pages import HOSTILE, Tags, assert_named, assert_shown, in_browser, text_in_browser
from synthetic_runs import NOW, live_run, live_runs

from blackwell import cli
from blackwell.live_server import Latest, Server
from blackwell.report.live import LiveRuns, render_live
from blackwell.runs import RunStatus

EVERY = 0.2


def test_page_is_well_formed_and_asks_nobody_for_anything() -> None:
    page = render_live(live_runs())
    tags = Tags(page)
    assert {"script", "img", "iframe", "form", "button"}.isdisjoint(tags.seen)
    assert len(tags.ids) == len(set(tags.ids))
    assert not re.search(r"(?:src|href)=[\"'](?!data:)|url\(|@import|https?://", page)


def test_page_that_renews_itself_has_one_script_and_its_digest() -> None:
    page = render_live(live_runs(), every_seconds=5)
    Tags(page)
    assert page.count("<script>") == 1
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert re.search(r"script-src 'sha256-[^ ;]+'; connect-src 'self'$", policy[1])


def test_page_shows_what_is_known_of_each_run() -> None:
    page = render_live(live_runs(problem="09:31:00 UTC: no answer"))
    for text in (
        "8b-mxfp8-long", "AwaitJob · Training", "640 of 1,000 (64\N{NO-BREAK SPACE}%)", "2.5100", "209,000", "15 min 12 s",
        "$311.40 of $900.00", "diverged", "budget reached", "rejected", "12 older runs", "no answer",
    ):  # fmt: skip
        assert text in page, text


def test_page_escapes_what_comes_from_the_runs() -> None:
    changes: dict[str, Any] = {"stage": HOSTILE, "job_status": HOSTILE, "cause": HOSTILE}
    runs = [live_run(HOSTILE, status, **changes) for status in (RunStatus.RUNNING, RunStatus.FAILED)]
    page = render_live(live_runs(stack=HOSTILE, runs=runs, problem=HOSTILE))
    assert {"script", "img"}.isdisjoint(Tags(page).seen)
    assert "&lt;script&gt;" in page


def test_page_of_a_stack_without_runs() -> None:
    page = render_live(LiveRuns(stack="S", at=NOW))
    Tags(page)
    assert "No run is running." in page


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Starts a server whose looks are `look`'s; ended with the test."""
    started: list[tuple[Server, Latest, threading.Thread]] = []

    def make(look: Callable[[], LiveRuns] = live_runs, every: float = EVERY) -> Server:
        latest = Latest(live_runs(), look, every)
        server = Server(0, latest, every)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        latest.start()
        thread.start()
        started.append((server, latest, thread))
        return server

    yield make
    for server, latest, thread in started:
        latest.stop()
        server.shutdown()
        server.server_close()
        thread.join(5)


def ask(server: Server, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def test_server_gives_the_page_and_its_data(serve: Callable[..., Server]) -> None:
    server = serve()
    status, headers, page = ask(server)
    assert status == 200
    assert page == render_live(live_runs(), every_seconds=EVERY)
    assert headers["content-security-policy"].endswith("frame-ancestors 'none'")
    assert headers["content-security-policy"].split("; frame")[0] in page
    assert headers["cache-control"] == "no-store"
    status, headers, text = ask(server, "/data.json?x=1")
    assert (status, headers["content-type"]) == (200, "application/json; charset=utf-8")
    assert LiveRuns.model_validate_json(text) == live_runs()
    status, headers, text = ask(server, method="HEAD")
    assert (status, text) == (200, "")
    assert int(headers["content-length"]) == len(page.encode())


def test_server_is_on_this_machine_alone_and_read_only(serve: Callable[..., Server]) -> None:
    server = serve()
    assert server.server_address[0] == "127.0.0.1"
    assert ask(server, "/../etc/passwd")[0] == 404
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(server, method=method)[0] == 501
    assert ask(server, Host="evil.example")[0] == 403  # a name that was pointed at 127.0.0.1
    assert ask(server, Host=f"localhost:{server.server_port}")[0] == 200


def test_a_look_that_fails_keeps_the_runs_and_says_so(serve: Callable[..., Server]) -> None:
    def fail() -> LiveRuns:
        raise ConnectionError("nobody <there>")

    server = serve(fail)
    deadline = time.monotonic() + 10
    while server.latest.found.problem is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    page = ask(server)[2]
    assert "nobody &lt;there&gt;" in page
    assert "8b-mxfp8-long" in page


class PlayedClient:
    """Nothing but a list of runs."""

    def runs(self) -> list[Any]:
        return []


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    import blackwell.cli.dashboard as module

    monkeypatch.setattr(module, "connect", lambda stage, profile, region: PlayedClient())

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["dashboard", *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


def test_command_writes_the_page_once_or_prints_the_data(
    command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    file = tmp_path / "runs.html"
    assert command("--once", str(file)) == (0, f"wrote {file}\n", "")
    assert "No run is running." in file.read_text()
    code, out, _ = command("--json")
    assert code == 0
    assert LiveRuns.model_validate(json.loads(out)).stack == "BlackwellTrainingStack"
    code, _, err = command("--once", str(tmp_path / "missing" / "runs.html"))
    assert (code, "cannot be written" in err) == (2, True)


def test_command_serves_until_it_is_interrupted(command: Callable[..., tuple[int, str, str]]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    ctrl_c = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    ctrl_c.start()
    try:
        code, out, _ = command("--port", "0")
    finally:
        ctrl_c.cancel()
        signal.signal(signal.SIGINT, before)
    assert code == 0
    assert re.match(r"http://127\.0\.0\.1:\d+/\n", out)


def test_command_says_that_a_port_is_taken(
    command: Callable[..., tuple[int, str, str]], serve: Callable[..., Server]
) -> None:
    port = serve().server_port
    code, _, err = command("--port", str(port))
    assert (code, f"127.0.0.1:{port} cannot be used" in err) == (2, True)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with text_in_browser(render_live(live_runs()), tmp_path_factory.mktemp("live")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("width", "phone"), [(1280, False), (390, True), (320, True)])
def test_browser_shows_the_page_without_fault(page: Page, tmp_path: Path, width: int, phone: bool, dark: bool) -> None:
    assert_shown(page, tmp_path / "page.png", width=width, phone=phone, dark=dark)


@pytest.mark.slow
def test_browser_gives_a_screen_reader_names_for_everything(page: Page) -> None:
    assert_named(page, images=4)


@pytest.mark.slow
def test_browser_renews_the_page_until_it_is_told_to_pause(serve: Callable[..., Server], tmp_path: Path) -> None:
    looks = [0]

    def look() -> LiveRuns:
        looks[0] += 1
        return live_runs(runs=[live_run(f"look-{looks[0]}", RunStatus.RUNNING)])

    server = serve(look)
    title = "document.querySelector('#live h3')?.textContent ?? ''"

    def until(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    with in_browser(server.url, tmp_path) as opened:
        until(lambda: "look-" in opened.evaluate(title))
        first = opened.evaluate(title)
        until(lambda: opened.evaluate(title) != first)
        opened.evaluate("document.getElementById('pause').click()")
        assert opened.evaluate("document.getElementById('state').textContent") == "Paused."
        held = opened.evaluate(title)
        time.sleep(5 * EVERY)
        assert opened.evaluate(title) == held
        opened.evaluate("document.getElementById('pause').click()")
        until(lambda: opened.evaluate(title) != held)
        assert_shown(
            opened, tmp_path / "page.png", width=1280, phone=False, dark=True, asks=(server.url, "data:", "about:")
        )

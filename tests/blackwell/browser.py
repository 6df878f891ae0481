"""A real browser for page tests: headless Chromium over its DevTools protocol, no driver, nothing but a socket."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request, TextMessage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Page:
    """One open page; `messages` are console messages and exceptions, `requests` what it asked the network for."""

    def __init__(self, url: str, profile: Path) -> None:
        assert CHROMIUM is not None
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.messages: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        self._number = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._partial = ""
        port = self._port(profile)
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
            target = next(t for t in json.load(answer) if t["type"] == "page")
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._ws = WSConnection(ConnectionType.CLIENT)
        path = target["webSocketDebuggerUrl"].split(str(port), 1)[1]
        self._socket.sendall(self._ws.send(Request(host=f"127.0.0.1:{port}", target=path)))
        self._receive()
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def _port(self, profile: Path) -> int:
        file = profile / "DevToolsActivePort"
        for _ in range(300):
            if file.exists() and (lines := file.read_text().splitlines()):
                return int(lines[0])
            time.sleep(0.1)
        raise RuntimeError("Chromium did not start")

    def _receive(self) -> None:
        self._ws.receive_data(self._socket.recv(1 << 20))
        for event in self._ws.events():
            if isinstance(event, TextMessage):
                self._partial += event.data
                if event.message_finished:
                    self._message(json.loads(self._partial))
                    self._partial = ""
            else:
                assert isinstance(event, AcceptConnection)

    def _message(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        parameters = message.get("params", {})
        match message["method"]:
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.messages.append(json.dumps(parameters))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One protocol call; returns its result."""
        self._number += 1
        text = json.dumps({"id": self._number, "method": method, "params": parameters})
        self._socket.sendall(self._ws.send(TextMessage(data=text)))
        while self._number not in self._answers:
            self._receive()
        answer = self._answers.pop(self._number)
        assert "error" not in answer, answer
        return answer["result"]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def resize(self, width: int, height: int, *, dark: bool, phone: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            media="",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )

    def screenshot(self, path: Path) -> None:
        """The whole page, below the fold too."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


CONTRAST = """
(() => {
  const parse = c => { const m = c.match(/[\\d.]+/g).map(Number); return {r: m[0], g: m[1], b: m[2], a: m[3] ?? 1}; };
  const light = ({r, g, b}) => {
    const f = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const back = e => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a > 0) return c; }
    return {r: 255, g: 255, b: 255};
  };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || ['STYLE', 'TITLE', 'title', 'desc'].includes(e.tagName) || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    let under = back(e);
    if (svg && e.classList.contains('onbar')) under = parse(getComputedStyle(e.previousElementSibling).fill);
    const a = light(parse(svg ? style.fill : style.color)), b = light(under);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${e.tagName} ${e.textContent.trim().slice(0, 40)}`);
  }
  return bad;
})()
"""
"""Texts whose contrast against what is behind them is below WCAG 2.2 AA (4.5)."""

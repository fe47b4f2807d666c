"""Controls headless Chromium through its DevTools protocol."""

import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
WITHIN = 60.0  # seconds
LOGGED = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded", "Network.loadingFailed")

# the visible elements that extend beyond the left or right side of the window; not those that an element .cut clips
BEYOND = """(() => {
  const width = document.documentElement.clientWidth;
  return [...document.querySelectorAll("body *")].filter((one) => {
    const box = one.getBoundingClientRect();
    const isSeen = one.checkVisibility() && !one.closest(".cut") && box.width > 0;
    return isSeen && (box.left < -0.5 || box.right > width + 0.5);
  }).map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 40)}`);
})()"""
KEYS = {  # the code and the text of keys that have no letter
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "ArrowRight": (39, ""),
}


class Page:
    """The only tab of a browser. `messages`: its console output, including errors and failed requests."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.numbers = count(1)
        self.messages: list[Any] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (message := json.loads(self.socket.recv(WITHIN))).get("id") != number:
            self._event(message)
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def open(self, url: str, width: int) -> None:
        """Open a page, and wait until it is loaded and drawn."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=url)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    def until(self, expression: str) -> None:
        deadline = time.monotonic() + WITHIN
        while not self.value(expression):
            assert time.monotonic() < deadline, (expression, self.messages)
            time.sleep(0.05)

    def value(self, expression: str) -> Any:
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        return found["result"].get("value")

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key that is in `KEYS`, or the key of a letter."""
        code, text = KEYS.get(key, (ord(key[0].upper()), key))
        pressed = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 * shift}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def save(self, path: Path) -> None:
        """Save a screenshot of the visible part of the page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _event(self, message: dict[str, Any]) -> None:
        if message["method"] in LOGGED:
            self.messages.append(message["params"])
        elif message["method"] == "Network.requestWillBeSent":
            self.requested.append(message["params"]["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """Start a browser with an empty profile in this folder."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, "no Chromium to test with; type: sudo apt-get install chromium"
    command = [program, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    with (folder / "output.txt").open("wb") as sink:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all its processes can be killed with it
        )
    try:
        port = _port(folder / "DevToolsActivePort", process)
        # While a test does other things, no call receives. The events of the page would fill a bounded queue, so that a
        # pong behind them would not be read, and the socket would close itself after 40 seconds.
        with connect(_address(port), max_size=None, max_queue=None, ping_interval=None) as socket:
            yield Page(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _port(file: Path, process: "subprocess.Popen[bytes]") -> int:
    deadline = time.monotonic() + WITHIN
    while not (file.exists() and len(file.read_text("utf-8").splitlines()) > 1):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return int(file.read_text("utf-8").splitlines()[0])


def _address(port: int) -> str:
    from urllib.request import urlopen  # noqa: PLC0415  # where it is used, as it is used once

    with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=WITHIN) as answer:
        tabs = json.load(answer)
    (address,) = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
    return str(address)

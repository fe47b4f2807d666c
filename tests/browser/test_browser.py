"""Tests that a page in a real browser reads Retry-After of a 429 from another origin, waits and continues.

Run by `tox -e browser`. Needs Chromium, which no wheel contains.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any
from wsgiref.simple_server import make_server

import pytest

from ratelimit_mw.wsgi import RateLimitMiddleware
from test_docs import ROOT, blocks
from web_servers import serve_uvicorn

HERE = Path(__file__).resolve().parent
APPS = HERE.parent / "apps"
WITHIN = 60.0  # seconds
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def serve_page(seen: "SimpleQueue[Any]") -> Iterator[str]:
    """Serve the page, and put the results that it posts into `seen`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer((HERE / "page.html").read_bytes())

        def do_POST(self) -> None:
            seen.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.answer(b"")

        def answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def chromium(url: str, folder: Path) -> Iterator[Path]:
    """Open the page in Chromium with an empty profile. Yields the file with the browser's output."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, "no Chromium to test with; type: sudo apt-get install chromium"
    output = folder / "output.txt"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [program, *OPTIONS, f"--user-data-dir={folder / 'profile'}", url],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all its processes can be killed with it
        )
        try:
            yield output
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.mark.promise(4)
def test_page_of_another_origin_recovers_from_a_429(tmp_path: Path) -> None:
    seen: SimpleQueue[Any] = SimpleQueue()
    with (
        serve_uvicorn("cors_asgi:app", APPS) as api,
        serve_page(seen) as page,
        chromium(f"{page}/?api={api.url}/", tmp_path) as output,
    ):
        try:
            answers = seen.get(timeout=WITHIN)
        except Empty:
            pytest.fail(f"the page told nothing; {output.read_text(errors='replace')}")
    assert [answer[0] for answer in answers] == [200, 200, 429, 200], answers
    assert [answer[1].split(";t=")[0] for answer in answers] == [f'"default";r={left}' for left in (1, 0, 0, 1)]
    assert [answer[2] for answer in answers] == ['"default";q=2;w=3'] * 4
    assert [answer[3] is None for answer in answers] == [True, True, False, True]
    assert 1 <= int(answers[2][3]) <= 3
    assert [answer[4] for answer in answers if answer[0] == 200] == ["hello"] * 3
    assert json.loads(answers[2][4])["violated-policies"] == ["default"]


@contextmanager
def serve_limits(html: str, seen: "SimpleQueue[str]") -> Iterator[str]:
    """Serve a page that shows its own limits, and put the text that it shows into `seen`."""
    tell = """
<script>setInterval(() => {
  const text = document.getElementById("limits").textContent;
  if (text) fetch("/seen", {method: "POST", body: text});
}, 100)</script>"""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            seen.put(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode())
        start_response("200 OK", [("Content-Type", "text/html")])
        return [(html + tell).encode()]

    limited = RateLimitMiddleware(
        app, limits="100/hour using fixed_window", exempt=["/favicon.ico"], usage_path="/rate-limits", store="memory://"
    )
    with make_server("127.0.0.1", 0, limited) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def test_page_shows_what_is_left_of_the_limits_of_its_user(tmp_path: Path) -> None:
    """The HTML of docs/how-to/show-limits.md. The page itself took one unit."""
    (html,) = [block.text for block in blocks(ROOT / "docs/how-to/show-limits.md") if block.language == "html"]
    seen: SimpleQueue[str] = SimpleQueue()
    with serve_limits(html, seen) as url, chromium(url, tmp_path) as output:
        try:
            text = seen.get(timeout=WITHIN)
        except Empty:
            pytest.fail(f"the page told nothing; {output.read_text(errors='replace')}")
    shown = re.fullmatch(r"default: 99 of 100 left, all back in (\d+) s", text)
    assert shown, text
    assert 3500 < int(shown[1]) <= 3600

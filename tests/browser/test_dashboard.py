"""Tests the live page of an app with three workers in a real browser."""

import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from browser.devtools import BEYOND, Page, browser
from web_servers import WebServer, serve_uvicorn

pytestmark = pytest.mark.one_redis  # other tests compare what the servers keep

APPS = Path(__file__).resolve().parents[1] / "apps"
SECRET = "0123456789abcdef"
WORKERS = 3
REQUESTS = 10_000
THREADS = 8
REPORTED = 3.0  # seconds after a request, in which the page shows it
HOSTILE = "<img src=x onerror=alert(1)>"
SETTINGS = """
store = "{store}"
store_timeout = 5.0
metrics = true
remember_refused = 100
plain_keys = true
trusted_proxies = ["127.0.0.1"]
limits = "1000000/hour"

[[rules]]
name = "login"
path = "/login"
limits = "5/hour"

[[rules]]
name = "search"
path = "/search"
limits = "40/hour"

[[rules]]
name = "hostile"
path = "/hostile/{{rest:path}}"
limits = "1/hour"
"""
SCREENSHOTS = Path(__file__).resolve().parents[2] / "docs/_build/screenshots"
SUMS = "document.querySelector('#pointed').innerText"
CLOCK = "document.querySelector('#clock').innerText.slice(0, 8)"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    (folder := tmp_path / "browser").mkdir()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with browser(folder) as page:
        yield page


@pytest.fixture(params=["redis", "file", "memory"])
def settings(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Path:
    """Return the file of settings with a store; memory with a folder for the counts of all workers."""
    store = {"redis": redis_url, "file": f"sqlite://{tmp_path}/limits.db", "memory": "memory://"}[request.param]
    text = SETTINGS.format(store=store)
    if request.param == "memory":
        text = f'metrics_folder = "{tmp_path}/counts"\n{text}'
    (path := tmp_path / "limits.toml").write_text(text, "utf-8")
    return path


def serve(settings: Path, port: int = 0) -> AbstractContextManager[WebServer]:
    env = {"SETTINGS": str(settings), "SECRET": SECRET}
    options = ["--workers", str(WORKERS), "--no-proxy-headers", "--port", str(port)]
    options += ["--timeout-worker-healthcheck", "120"]  # seconds, to import the app on a busy machine
    options += ["--timeout-keep-alive", "120"]  # seconds, in which a test looks at the page
    return serve_uvicorn("dashboard_asgi:app", APPS, *options, env=env)


def sign_in(page: Page, server: WebServer) -> None:
    page.open(f"{server.url}/rate-limits/", 1300)
    assert page.value("document.activeElement.name") == "secret"
    for letter in SECRET:
        page.press(letter)
    page.messages.clear()  # the login page has the status 401, which a browser logs
    page.press("Enter")
    page.until("document.querySelectorAll('#rule-rows tr').length > 0")


def connected(server: WebServer) -> HTTPConnection:
    return HTTPConnection(urlsplit(server.url).netloc, timeout=60)


def status(connection: HTTPConnection, path: str, client: str) -> int:
    """Send a request, and return the status of its answer."""
    connection.request("GET", path, headers={"X-Forwarded-For": client})
    with connection.getresponse() as answer:
        answer.read()
        return answer.status


def until_status(connection: HTTPConnection, wanted: int) -> None:
    """Send requests to /login until one has this status."""
    deadline = time.monotonic() + 60
    while status(connection, "/login", "192.0.2.7") != wanted:
        assert time.monotonic() < deadline


def send(server: WebServer, requests: int, client: int) -> Counter[int]:
    """Send requests of a client over one connection. Return how many answers had each status."""
    seen: Counter[int] = Counter()
    paths = ("/login", "/search", "/other")
    with closing(connected(server)) as connection:
        for number in range(requests):
            seen[status(connection, paths[number % 3], f"192.0.2.{client}")] += 1
    return seen


def send_all(server: WebServer, requests: int, first: int) -> Counter[int]:
    """Send requests of several clients at once."""
    with ThreadPoolExecutor(THREADS) as pool:
        parts = pool.map(lambda client: send(server, requests // THREADS, client), range(first, first + THREADS))
        return sum(parts, Counter[int]())


def shown(seen: Counter[int]) -> str:
    assert set(seen) == {200, 429}
    return f"last 5 min: {seen[200]:,} admitted, {seen[429]:,} refused"


def wait_until_shown(page: Page, since: float) -> None:
    """Wait until the page shows the data of `REPORTED` seconds after a time."""
    time_of_day = time.strftime("%H:%M:%S", time.gmtime(since + REPORTED + 1))
    page.until(f"{CLOCK} >= '{time_of_day}' || {CLOCK} < '00:05:00' && '{time_of_day}' > '23:55:00'")


def data(page: Page) -> Any:
    return page.value("fetch('data.json?seconds=300').then((answer) => answer.json())")


def test_sums_equal_what_clients_saw(page: Page, settings: Path) -> None:
    with serve(settings) as server:
        sign_in(page, server)
        seen = send_all(server, REQUESTS, 10)
        while data(page)["processes"] < WORKERS:  # a worker reports from its first request on
            seen += send_all(server, THREADS, 10)
        wait_until_shown(page, time.time())
        assert seen.total() >= REQUESTS
        assert page.value(SUMS) == shown(seen)
        found = data(page)
        assert sum(one["admitted"] for one in found["rules"]) == seen[200]
        assert sum(one["refused"] for one in found["rules"]) == seen[429]
        assert page.messages == []
        assert [url for url in page.requested if not url.startswith((server.url, "data:"))] == []


def test_chart_goes_on_after_the_server_was_killed(page: Page, settings: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
    with serve(settings, port) as server:
        sign_in(page, server)
        seen = send_all(server, 800, 10)
        wait_until_shown(page, time.time())
        assert page.value(SUMS) == shown(seen)
        os.killpg(server.process.pid, signal.SIGKILL)
        page.until("document.querySelector('#notice').innerText.includes('has not answered since')")
    with serve(settings, port) as server:
        page.until("document.querySelectorAll('#notice .bad').length === 0")
        seen += send_all(server, 800, 30)
        wait_until_shown(page, time.time())
        assert page.value(SUMS) == shown(seen)
        seconds = [at for at, _, _ in data(page)["series"]]
        assert seconds == list(range(seconds[0], seconds[0] + 300))
    assert [one for one in page.messages if "net::ERR" not in str(one)] == []


def test_an_attack_is_found_blocked_and_let_in_again(page: Page, settings: Path) -> None:
    if "memory://" in settings.read_text("utf-8"):
        pytest.skip("changes need a store that processes share")
    with serve(settings) as server, closing(connected(server)) as connection:
        sign_in(page, server)

        assert [status(connection, "/login", "192.0.2.7") for _ in range(45)] == [200] * 5 + [429] * 40
        page.until("!!document.querySelector('[aria-label=\"Block 192.0.2.7 …\"]')")
        page.until("document.querySelector('#notice').innerText.includes('login refuses')")
        assert "192.0.2.7" in page.value("document.querySelector('#tail').innerText")
        page.value("document.querySelector('[aria-label=\"Look at 192.0.2.7\"]').click()")
        page.until("document.querySelector('#look-found').innerText.includes('0 of 5 left')")
        page.value("document.querySelector('[aria-label=\"Block 192.0.2.7 …\"]').click()")
        page.value("document.querySelector('#asking-note').value = 'guesses passwords'")
        page.value("document.querySelector('#asking form').requestSubmit()")
        until_status(connection, 403)
        page.until("document.querySelector('#in-force').innerText.includes('guesses passwords')")
        page.until("document.querySelector('#change-rows').innerText.includes('block ip=192.0.2.7')")
        page.value("[...document.querySelectorAll('#change-rows button')][0].click()")
        until_status(connection, 429)
        page.until("document.querySelector('#in-force').hidden")
        page.value("document.querySelector('[aria-label=\"Reset 192.0.2.7 in login …\"]').click()")
        page.value("document.querySelector('#asking form').requestSubmit()")
        until_status(connection, 200)
        page.save(SCREENSHOTS / "dashboard-served.png")
        assert page.messages == []


def test_limits_of_a_rule_are_changed_for_everyone(page: Page, settings: Path) -> None:
    if "memory://" in settings.read_text("utf-8"):
        pytest.skip("changes need a store that processes share")
    with serve(settings) as server, closing(connected(server)) as connection:
        sign_in(page, server)
        until_status(connection, 429)
        page.value("document.querySelector('[aria-label=\"Change the rule login …\"]').click()")
        page.until("!['', '…'].includes(document.querySelector('#preview-about').innerText)")
        page.save(SCREENSHOTS / "dashboard-served-change.png")
        limits = "Object.assign(document.querySelector('#change-limits'), {value: '900/hour'})"
        page.value(f"{limits}.dispatchEvent(new Event('input'))")
        page.value("document.querySelector('#change form').requestSubmit()")
        page.until("document.querySelector('#rule-rows').innerText.includes('900/hour')")
        page.until("document.querySelector('#in-force').innerText.includes('limits 900/hour for everyone in login')")
        until_status(connection, 200)
        assert page.messages == []


def test_hostile_path_shows_as_text(page: Page, settings: Path) -> None:
    with serve(settings) as server, closing(connected(server)) as connection:
        sign_in(page, server)
        for _ in range(3):
            status(connection, f"/hostile/{quote(HOSTILE)}", "192.0.2.9")
        page.until("document.querySelector('#client-rows').innerText.includes('hostile')")
        page.until("document.querySelector('#tail').innerText.includes('onerror')")
        assert page.value("document.images.length") == 0
        assert page.value(BEYOND) == []
        assert page.messages == []

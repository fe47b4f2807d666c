"""Tests that the examples, on their real servers, refuse, and admit again after exactly Retry-After."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from profiles import PROOF
from redis_servers import RedisServer
from web_servers import WebServer, serve_gunicorn, serve_uvicorn, serve_waitress

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

Serve = Callable[..., AbstractContextManager[WebServer]]
SERVERS: list[tuple[str, Serve]] = [
    ("starlette_app:app", serve_uvicorn),
    ("fastapi_app:app", serve_uvicorn),
    ("fastapi_dependency:app", serve_uvicorn),
    ("flask_app:app", serve_gunicorn),
    ("flask_app:app", serve_waitress),
    ("flask_extension:app", serve_gunicorn),
    ("flask_extension:app", serve_waitress),
    ("django_app:application", serve_gunicorn),
    ("django_app:asgi", serve_uvicorn),
    ("drf_app:application", serve_gunicorn),
]
# The requests that an example's rules limit to 2 per 3 seconds, and Retry-After: a token comes after 1.5 s.
STRICTER = {
    "starlette_app:app": ("POST", "/login", "3"),
    "fastapi_app:app": ("GET", "/api/reports/7", "2"),
    "fastapi_dependency:app": ("POST", "/login", "3"),
    "flask_app:app": ("POST", "/login", "3"),
    "flask_extension:app": ("POST", "/login", "3"),
    "django_app:application": ("POST", "/login", "3"),
    "django_app:asgi": ("POST", "/login", "3"),
    "drf_app:application": ("GET", "/reports/7", "2"),
}


@pytest.fixture(params=["memory", "redis"] if PROOF else ["redis"])
def redis(request: pytest.FixtureRequest) -> RedisServer | None:
    """An empty server, or None for a test with the store in memory."""
    if request.param == "memory":
        return None
    server: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
    server.ask("FLUSHALL")
    return server


@pytest.mark.promise(4)
@pytest.mark.parametrize(("app", "serve"), SERVERS, ids=lambda value: getattr(value, "__name__", value))
def test_example_refuses_and_admits_again_after_exactly_retry_after(
    app: str, serve: Serve, redis: RedisServer | None
) -> None:
    store = redis.url if redis else "memory://"
    with serve(app, EXAMPLES, env={"STORE": store}) as server, httpx.Client(base_url=server.url) as client:
        if redis:  # opening the first connection may take longer than store_timeout, on a busy machine
            client.get("/")
            redis.ask("FLUSHALL")
        method, path, retry_after = STRICTER[app]
        started = time.monotonic()
        assert statuses(client, method, path, 2) == [200] * 2
        refused_first = client.request(method, path)
        assert (refused_first.status_code, refused_first.headers["retry-after"] in waits(retry_after, started)) == (
            429,
            True,
        )
        assert statuses(client, "GET", "/", 5) == [200] * 5
        refused = client.get("/")
        assert (refused.status_code, refused.headers["retry-after"] in waits("3", started)) == (429, True)
        assert refused.headers["content-type"] == "application/problem+json"
        time.sleep(int(refused.headers["retry-after"]))
        assert client.get("/").status_code == 200
        assert client.request(method, path).status_code == 200


def waits(retry_after: str, started: float) -> list[str]:
    """Return what `Retry-After` may be: exactly `retry_after`, or less if the requests took long on a busy machine."""
    passed = int(time.monotonic() - started + 0.6)  # a wait of 1.5 seconds is shown as 2
    return [str(wait) for wait in range(max(1, int(retry_after) - passed), int(retry_after) + 1)]


def test_websocket_example_closes_after_too_many_messages() -> None:
    """tests/served/test_messages_served.py has more tests of this example."""
    with serve_uvicorn("websocket_app:app", EXAMPLES) as server:
        url = server.url.replace("http", "ws", 1)
        with connect(f"{url}/echo") as websocket:
            for number in range(6):
                websocket.send(str(number))
            assert list(websocket_until_closed(websocket)) == list("01234")
        assert (websocket.close_code, websocket.close_reason) == (1013, "Too Many Requests")


def websocket_until_closed(websocket: ClientConnection) -> Iterator[str | bytes]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            yield websocket.recv(10)


def statuses(client: httpx.Client, method: str, path: str, count: int) -> list[int]:
    return [client.request(method, path).status_code for _ in range(count)]


@pytest.mark.promise(4)
def test_job_example_waits_and_continues(redis: RedisServer | None) -> None:
    env = {**os.environ, "STORE": redis.url if redis else "memory://"}
    command = [sys.executable, str(EXAMPLES / "plain_function.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == ("to alice: one\nto alice: two\nto bob: one\nalice has to wait\nto alice: three\n")


@pytest.mark.promise(4)
def test_saas_example_sells_months_and_shows_what_is_left(redis: RedisServer | None) -> None:
    key, store = {"x-api-key": "key-of-ann"}, redis.url if redis else "memory://"
    with (
        serve_gunicorn("saas_plans:app", EXAMPLES, env={"STORE": store}) as server,
        httpx.Client(base_url=server.url, headers=key) as client,
    ):
        if redis:  # as above
            client.get("/reports")
            redis.ask("FLUSHALL")
        now = datetime.now(ZoneInfo("Europe/Berlin"))
        begin, end = (last_of(now, months) for months in ((0, 1) if last_of(now, 0) <= now else (-1, 0)))
        assert statuses(client, "GET", "/reports", 6) == [200] * 5 + [429]
        refused = client.get("/reports")
        assert 0 <= ceil((end - now).total_seconds()) - int(refused.headers["retry-after"]) < 60
        assert refused.json()["violated-policies"] == ["calls"]
        assert calls_left(client) == {"quota": 5, "window": (end - begin).total_seconds(), "remaining": 0}
        assert client.post("/plan/pro").json() == {"plan": "pro"}
        assert client.get("/reports").status_code == 200
        time.sleep(1)  # an answer is kept so long
        assert calls_left(client) == {"quota": 1000, "window": (end - begin).total_seconds(), "remaining": 994}
        assert client.get("/reports", headers={"x-api-key": "key-of-eve"}).status_code == 403


def last_of(now: datetime, months: int) -> datetime:
    """Return the begin of the last day of a month, counted from the present one, by the local clock."""
    following = now.year * 12 + now.month + months  # the month after it
    first = datetime(following // 12, following % 12 + 1, 1, tzinfo=UTC) - timedelta(days=1)
    return datetime(first.year, first.month, first.day, tzinfo=now.tzinfo).astimezone(UTC)


def calls_left(client: httpx.Client) -> dict[str, Any]:
    (shown,) = [one for one in client.get("/usage").json()["policies"] if one["name"] == "calls"]
    return {name: shown[name] for name in ("quota", "window", "remaining")}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example_has_at_most_85_lines(example: Path) -> None:
    assert len(example.read_text("utf-8").splitlines()) <= 85


@pytest.mark.promise(9)
def test_invalid_limit_stops_uvicorn_with_an_error_message() -> None:
    command = [sys.executable, "-m", "uvicorn", "--port", "0", "--app-dir", str(ROOT / "tests/apps")]
    done: Any = subprocess.run([*command, "wrong_limit:app"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "rules[0].limits[1]: '10/mfoo': unknown period 'mfoo'" in done.stderr

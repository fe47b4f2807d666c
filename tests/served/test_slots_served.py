"""Checks on every server that a slot is released when the response has ended or the client has disconnected.

The lifetime of a slot is an hour here, so nothing else releases it.
"""

import time
from collections.abc import Callable, Iterator, Mapping

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from redis_servers import RedisServer
from web.real_servers import APPS, KINDS, Kind
from web_servers import WebServer

PATIENCE = 120.0  # seconds; long, because no test here measures time
MORE = {  # options to serve two requests at once
    "gunicorn-sync": ("--workers", "2"),
    "granian-wsgi": ("--blocking-threads", "4"),
}
HTTP1 = [name for name, kind in KINDS.items() if not kind.http2]
ASGI = [name for name in HTTP1 if KINDS[name].interface == "asgi"]  # WSGI has no websockets

Get = Callable[[str], int]


@pytest.fixture(scope="module", params=HTTP1)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture(scope="module")
def store(redis_servers: Mapping[str, RedisServer]) -> Iterator[str]:
    """Run a Redis server for this file alone, and yield its URL."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running.url


@pytest.fixture(scope="module")
def server(name: str, kind: Kind, store: str) -> Iterator[WebServer]:
    options = (*kind.options, *MORE.get(name, ()))
    with kind.serve(f"slots_{kind.interface}:app", APPS, *options, env={"STORE": store}) as running:
        yield running


@pytest.fixture
def client(server: WebServer, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A client that shares no slots with other tests."""
    with httpx.Client(base_url=server.url, headers={"X-Client": request.node.name}, timeout=PATIENCE) as talking:
        yield talking


def soon(get: Callable[[], int], status: int) -> bool:
    """Repeat a request until its status is `status`; until then it must be refused. Returns False after `PATIENCE`."""
    end = time.monotonic() + PATIENCE
    while (found := get()) != status and time.monotonic() < end:
        assert found == 429
        time.sleep(0.01)
    return found == status


def test_slot_is_held_during_a_stream_and_released_at_disconnection(client: httpx.Client) -> None:
    with client.stream("GET", "/endless") as streaming:
        assert streaming.status_code == 200
        parts = streaming.iter_raw()  # closes the connection when it is garbage-collected
        assert next(parts).startswith(b"more\n")
        for _ in range(3):
            refused = client.get("/")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.headers["ratelimit-policy"] == '"default-concurrent";q=1;qu="concurrent-requests"'
        assert next(parts).startswith(b"more\n")
    assert soon(lambda: client.get("/").status_code, 200)


@pytest.mark.parametrize("path", ["/", "/file", "/error"])
def test_slot_is_released_when_the_response_ends(client: httpx.Client, path: str) -> None:
    """Requests are refused at first if they arrive before the app learns that the last response was sent."""
    status = 500 if path == "/error" else 200
    client.headers["Connection"] = "close"  # servers close it after an error, some without this header
    for _ in range(5):
        assert soon(lambda: client.get(path).status_code, status)


def opened(server: WebServer, name: str) -> ClientConnection:
    return connect(server.url.replace("http", "ws", 1) + "/echo", additional_headers={"X-Client": name})


def handshake(server: WebServer, name: str) -> int:
    """Return the status of another handshake."""
    try:
        with opened(server, name):
            return 101
    except InvalidStatus as error:
        return 429 if error.response.status_code == 403 else error.response.status_code  # refused before the handshake


@pytest.mark.parametrize("name", ASGI, indirect=True)
@pytest.mark.parametrize("leaves", ["closes", "is gone"])
def test_websocket_holds_its_slot_until_it_ends(server: WebServer, leaves: str) -> None:
    client = f"websocket that {leaves}"
    with opened(server, client) as websocket:
        websocket.send("hello")
        assert websocket.recv(PATIENCE) == "hello"
        assert [handshake(server, client) for _ in range(2)] == [429] * 2
        if leaves == "is gone":
            websocket.socket.close()
    assert soon(lambda: handshake(server, client), 101)

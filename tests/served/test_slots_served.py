"""On every server: a slot is free as soon as a response has ended, or its client has gone.

Its lifetime is an hour here, so nothing else frees it.
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

PATIENCE = 120.0  # seconds; nothing here is timed
MORE = {  # two at a time
    "gunicorn-sync": ("--workers", "2"),
    "granian-wsgi": ("--blocking-threads", "4"),
}
HTTP1 = [name for name, kind in KINDS.items() if not kind.http2]

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
    """The URL of a Redis of this file's own."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running.url


@pytest.fixture(scope="module")
def server(name: str, kind: Kind, store: str) -> Iterator[WebServer]:
    options = (*kind.options, *MORE.get(name, ()))
    with kind.serve(f"slots_{kind.interface}:app", APPS, *options, env={"STORE": store}) as running:
        yield running


@pytest.fixture
def client(server: WebServer, request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """One whose slots are this test's own."""
    with httpx.Client(base_url=server.url, headers={"X-Client": request.node.name}, timeout=PATIENCE) as talking:
        yield talking


def soon(get: Callable[[], int], status: int) -> bool:
    """Whether it is answered so before long; until then it is refused."""
    end = time.monotonic() + PATIENCE
    while (found := get()) != status and time.monotonic() < end:
        assert found == 429
        time.sleep(0.01)
    return found == status


def test_a_slot_is_held_while_the_answer_streams_and_free_when_the_client_has_gone(client: httpx.Client) -> None:
    with client.stream("GET", "/endless") as streaming:
        assert streaming.status_code == 200
        parts = streaming.iter_raw()  # which closes the connection when it goes
        assert next(parts).startswith(b"more\n")
        for _ in range(3):
            refused = client.get("/")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.headers["ratelimit-policy"] == '"default-concurrent";q=1;qu="concurrent-requests"'
        assert next(parts).startswith(b"more\n")
    assert soon(lambda: client.get("/").status_code, 200)


@pytest.mark.parametrize("path", ["/", "/file", "/error"])
def test_answers_that_end_free_their_slots(client: httpx.Client, path: str) -> None:
    """One after the other: the next one may be there before the app is told that the last one has gone out."""
    status = 500 if path == "/error" else 200
    client.headers["Connection"] = "close"  # as servers do after an error, some without saying so
    for _ in range(5):
        assert soon(lambda: client.get(path).status_code, status)


def opened(server: WebServer, name: str) -> ClientConnection:
    return connect(server.url.replace("http", "ws", 1) + "/echo", additional_headers={"X-Client": name})


def handshake(server: WebServer, name: str) -> int:
    """How one more handshake is answered."""
    try:
        with opened(server, name):
            return 101
    except InvalidStatus as error:
        return 429 if error.response.status_code == 403 else error.response.status_code  # a close before it is accepted


@pytest.mark.parametrize("leaves", ["closes", "is gone"])
def test_a_websocket_holds_its_slot_until_it_ends(kind: Kind, server: WebServer, leaves: str) -> None:
    if kind.interface == "wsgi":
        return  # there are none
    name = f"websocket that {leaves}"
    with opened(server, name) as websocket:
        websocket.send("hello")
        assert websocket.recv(PATIENCE) == "hello"
        assert [handshake(server, name) for _ in range(2)] == [429] * 2
        if leaves == "is gone":
            websocket.socket.close()
    assert soon(lambda: handshake(server, name), 101)

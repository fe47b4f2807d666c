"""Tests message limits on a real uvicorn with a real client: examples/websocket_app.py."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from redis_servers import RedisServer
from web_servers import WebServer, serve_uvicorn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(params=["memory", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[WebServer]:
    if request.param == "memory":
        with serve_uvicorn("websocket_app:app", EXAMPLES) as served:
            yield served
        return
    redis: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
    with serve_uvicorn("websocket_app:app", EXAMPLES, env={"STORE": redis.url}) as served:
        with opened(served, "/echo"):  # opening the first connection may take longer than store_timeout
            pass
        redis.ask("FLUSHALL")
        yield served


def opened(server: WebServer, path: str) -> ClientConnection:
    return connect(server.url.replace("http", "ws", 1) + path)


def answers(websocket: ClientConnection, *texts: str) -> list[str | bytes]:
    """Send the texts one after another, and return the reply to each."""
    found = []
    for text in texts:
        websocket.send(text)
        found.append(websocket.recv(10))
    return found


def in_order(server: WebServer) -> None:
    """Check that neither the app nor the server has logged an error."""
    assert "Traceback" not in server.output()
    assert "ERROR" not in server.output()


def end_of(websocket: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        websocket.recv(10)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_too_many_messages_close_each_websocket_of_the_client(server: WebServer) -> None:
    with opened(server, "/echo") as first, opened(server, "/echo") as second:
        assert answers(first, "a", "b", "c") == ["a", "b", "c"]
        assert answers(second, "d", "e") == ["d", "e"]
        first.send("f")
        assert end_of(first) == (1013, "Too Many Requests")
        second.send("g")
        assert end_of(second) == (1013, "Too Many Requests")
    in_order(server)


def test_dropped_messages_get_no_reply_and_keep_the_websocket_open(server: WebServer) -> None:
    with opened(server, "/ticks") as websocket, opened(server, "/echo") as other:
        assert answers(websocket, "a", "b") == ["a", "b"]
        for text in "cdefgh":
            websocket.send(text)
            assert websocket.ping().wait(10), "the server has read it"
        assert answers(other, "x") == ["x"], "the rule has a bucket of its own"
        websocket.close()
        assert list(websocket) == []
        assert websocket.close_code == 1000
    in_order(server)


def test_handshakes_are_limited_separately_from_messages(server: WebServer) -> None:
    for _ in range(4):
        with opened(server, "/echo") as websocket:
            assert websocket.close_code is None
    with pytest.raises(InvalidStatus) as caught, opened(server, "/echo"):
        pass
    assert caught.value.response.status_code == 429
    assert "Traceback" not in server.output()  # uvicorn itself logs an error after each such response

"""Tests on every ASGI server that a client that disconnects while its request waits for a slot does not block others.

Its request does not reach the app. For a request with a body, this needs a server that passes the body in one message,
because no more is read while the request waits.
"""

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from web.real_servers import APPS, KINDS
from web_servers import WebServer

PATIENCE = 120.0  # seconds; nothing here is timed
ASGI1 = [name for name, kind in KINDS.items() if kind.interface == "asgi" and not kind.http2]
IN_ONE = ("uvicorn", "uvicorn-standard")  # others pass the end of the body in a second message
GET = b"GET /touch HTTP/1.1\r\nHost: server\r\n\r\n"
POST = b"POST /touch HTTP/1.1\r\nHost: server\r\nContent-Length: 4\r\n\r\nbody"


@pytest.fixture(scope="module", params=ASGI1)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(scope="module")
def server(name: str, store: str) -> Iterator[WebServer]:
    kind = KINDS[name]
    with kind.serve("queue_asgi:app", APPS, *kind.options, env={"STORE": store}) as running:
        yield running


def until(client: httpx.Client, says: str) -> None:
    """Wait until the app reports these facts."""
    end = time.monotonic() + PATIENCE
    while (found := client.get("/facts").text) != says and time.monotonic() < end:
        time.sleep(0.01)
    assert found == says


@pytest.mark.promise(11)
def test_disconnected_request_in_the_queue_does_not_reach_the_app(name: str, server: WebServer) -> None:
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        for ask in (GET, POST) if name in IN_ONE else (GET,):
            _leave(client, ask)


def _leave(client: httpx.Client, ask: bytes) -> None:
    """Disconnect a waiting request while another request has the slot."""
    served = int(client.get("/facts").text.split()[2])
    with client.stream("GET", "/hang") as working:
        parts = working.iter_raw()  # closes the connection when it is deleted
        assert next(parts) == b"begun"
        with socket.create_connection((client.base_url.host, client.base_url.port), PATIENCE) as waiting:
            waiting.sendall(ask)
            until(client, f"1 wait, {served} touched")
            assert client.get("/touch").status_code == 429
        until(client, f"0 wait, {served} touched")
    assert client.get("/touch").status_code == 200  # this request waits until the slot is free
    until(client, f"0 wait, {served + 1} touched")

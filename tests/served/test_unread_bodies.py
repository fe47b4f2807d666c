"""Checks on every server that a refusal arrives although it reads no body.

The unread body must not be parsed as the next request.
"""

import socket
from collections.abc import Iterator
from http.client import HTTPResponse

import httpx
import pytest

from web.real_servers import APPS, KINDS, Kind
from web_servers import WebServer

pytestmark = pytest.mark.promise(11)

LARGE = b"x" * 1_000_000  # more than the socket buffers of client and server hold
BODY = b"GET / HTTP/1.1\r\nHost: app\r\nX-Client: smuggler\r\n\r\n"


# Over HTTP/2 a body has a stream of its own. There hypercorn 0.18 drops the connection if the app does not read the
# body, and httpx drops a response that arrives before the whole body is sent.
@pytest.fixture(scope="module", params=[name for name, kind in KINDS.items() if not kind.http2])
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def server(kind: Kind) -> Iterator[WebServer]:
    with kind.serve(f"{kind.interface}_app:app", APPS, *kind.options, env={"STORE": "memory://"}) as running:
        yield running


def test_refusal_leaves_an_arrived_body_unparsed(kind: Kind, server: WebServer) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=120) as connection:

        def post(client: str) -> tuple[int, bytes]:
            head = f"POST /length HTTP/1.1\r\nHost: app\r\nX-Client: {client}\r\nContent-Length: {len(BODY)}\r\n\r\n"
            connection.sendall(head.encode() + BODY)  # in one piece, so that the whole body has arrived
            with HTTPResponse(connection, method="POST") as answer:
                answer.begin()
                return answer.status, answer.read()

        length = (200, str(len(BODY)).encode())
        if kind.keeps_alive:
            assert [post("first") for _ in range(2)] == [length] * 2
            assert [post("first")[0] for _ in range(2)] == [429] * 2
            assert post("second") == length
        else:
            assert post("first") == length
            assert connection.recv(1) == b""


def test_refusal_reaches_a_client_that_still_sends_its_body(server: WebServer) -> None:
    answers = []
    for name in ("third", "third", "third", "fourth"):
        with httpx.Client(timeout=120) as client:  # a server may close the connection
            answers.append(client.post(f"{server.url}/length", content=LARGE, headers={"X-Client": name}))
    assert [answer.status_code for answer in answers] == [200, 200, 429, 200]
    refused = answers[2]
    assert refused.headers["retry-after"] == "3600"
    assert refused.json()["status"] == 429

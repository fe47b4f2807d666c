"""Tests reuse of connections, streamed responses and files on every server, and refusals over HTTP/2.

Admissions and refusals over HTTP/1 are tested in test_scenarios_served.py.
"""

import os
import ssl
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import httpx
import pytest

from web.real_servers import APPS, KINDS, OF_THE_SERVER, Kind
from web.scenario import Answer, no
from web_servers import WebServer

pytestmark = pytest.mark.promise(11)

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx's default context reads all certificates, for each client
Connect = Callable[[], httpx.Client]
POLICY = '"default";q=2;w=3600'
REFUSED = no(3600, "default")
OVER_HTTP2 = pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.http2], indirect=True)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A FIFO that a streaming response waits for: opening one end blocks until the other end is open."""
    path = tmp_path_factory.mktemp("gate") / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture(scope="module")
def server(kind: Kind, store: str, gate: Path) -> Iterator[WebServer]:
    env = {"STORE": store, "GATE": str(gate)}
    with kind.serve(f"{kind.interface}_app:app", APPS, *kind.options, env=env) as running:
        yield running


@pytest.fixture
def connect(kind: Kind, server: WebServer, request: pytest.FixtureRequest) -> Connect:
    """Returns new clients, which are not connected yet. Each test has its own bucket."""
    name, http2 = {"X-Client": request.node.name}, kind.http2
    return lambda: httpx.Client(
        base_url=server.url, headers=name, timeout=120, http1=not http2, http2=http2, verify=NO_TLS
    )


@pytest.fixture
def client(connect: Connect) -> Iterator[httpx.Client]:
    with connect() as talking:
        yield talking


def admitted(answer: httpx.Response, left: int) -> bool:
    """Return whether the response is a 200 that has each of the two fields once, with these values."""
    fields = [answer.headers.get_list(name) for name in ("ratelimit", "ratelimit-policy")]
    return (answer.status_code, fields) == (200, [[f'"default";r={left};t=3600'], [POLICY]])


def seen(status: int, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
    """Return the response without the headers that the server adds."""
    lines = [(name.lower(), value) for name, value in headers]
    return Answer(status, sorted(line for line in lines if line[0] not in OF_THE_SERVER), body)


def refused(answer: httpx.Response) -> bool:
    return seen(answer.status_code, answer.headers.multi_items(), answer.content) == refusal(answer.request.method)


def refusal(method: str = "GET") -> Answer:
    fields = {"ratelimit": '"default";r=0;t=3600', "ratelimit-policy": POLICY, **REFUSED.plain_headers}
    return Answer(429, sorted(fields.items()), b"" if method == "HEAD" else REFUSED.body)


@OVER_HTTP2
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_http2_requests_are_admitted_and_refused(client: httpx.Client, method: str) -> None:
    for left in (1, 0):
        answer = client.request(method, "/")
        assert admitted(answer, left)
        assert answer.http_version == "HTTP/2"
        assert answer.headers["content-length"] == "5"
        assert answer.content == (b"" if method == "HEAD" else b"hello")
    assert refused(client.request(method, "/"))


def test_connection_is_reused_after_refusals(client: httpx.Client, kind: Kind) -> None:
    other = {"X-Client": f"not {client.headers['x-client']}"}
    connections = []
    client.event_hooks = {"response": [lambda answer: connections.append(connection_of(answer))]}
    assert admitted(client.get("/"), 1)
    assert admitted(client.get("/"), 0)
    for method in ("GET", "HEAD", "DELETE", "GET"):  # POST: test_unread_bodies.py
        assert refused(client.request(method, "/"))
    assert admitted(client.post("/length", content=b"1234", headers=other), 1)
    assert admitted(client.head("/", headers=other), 0)
    assert len(connections) == 8
    assert (len(set(connections)) == 1) == kind.keeps_alive


def connection_of(answer: httpx.Response) -> int:
    return id(answer.extensions["network_stream"])


def test_response_is_streamed_part_by_part(client: httpx.Client, gate: Path) -> None:
    with client.stream("GET", "/stream") as answer:
        parts = answer.iter_raw()
        assert admitted(answer, 1)
        assert next(parts) == b"one"
        gate.write_bytes(b"go on")
        assert list(parts) == [b"two"]


def test_file_is_sent_completely(client: httpx.Client, kind: Kind) -> None:
    answer = client.get("/file")
    assert admitted(answer, 1)
    assert answer.content == (APPS / f"{kind.interface}_app.py").read_bytes()


@OVER_HTTP2
def test_error_of_the_app_is_charged_and_gets_a_500_of_the_server(connect: Connect) -> None:
    for _ in range(2):
        with connect() as client:  # a server may close the connection after an error
            answer = client.get("/error")
        assert answer.status_code == 500
        assert [name for name in answer.headers if name.startswith("ratelimit") or name == "retry-after"] == []
    with connect() as client:
        assert refused(client.get("/"))

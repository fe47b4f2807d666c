"""Runs the scenarios on real servers, each with a framework that is usually run on it.

Each server runs all scenarios whose result may depend on the server (methods, failures, work after the response), and
an eighth of the others; in the proof, all of them.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPResponse
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from profiles import PROOF
from ratelimit_mw.testing import Clock
from redis_servers import RedisServer
from web.real_servers import APPS, KINDS, OF_THE_SERVER
from web.scenario import Answer, Scenario, Step
from web.scenarios import SCENARIOS
from web.scenarios_settlements import AFTER
from web.table import ALL_ROWS, check
from web_servers import WebServer

pytestmark = pytest.mark.promise(11)

ADDED = (
    *OF_THE_SERVER,
    "transfer-encoding",
    "x-asked",
    "x-settled",
)  # headers added by servers, and by the app around the middleware
NO_FRAMEWORK = ("asgi", "wsgi")  # the server responds to an error, so the app around the middleware adds no headers


@dataclass(frozen=True)
class Stand:
    """A server, the integration and store that it runs, and options that the scenarios need."""

    kind: str
    face: str
    store: str = "memory"
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {self.face} {self.store}"


# waitress removes the headers of proxies unless it is configured to read or to keep them: how-to/proxies.md
KEPT = ("--no-clear-untrusted-proxy-headers",)
STANDS = (
    Stand("uvicorn", "fastapi"),
    Stand("uvicorn", "fastapi", "redis"),
    Stand("uvicorn", "asgi"),
    Stand("uvicorn-standard", "starlette", "redis"),
    Stand("hypercorn", "starlette"),
    Stand("granian", "django async"),
    Stand("granian-wsgi", "wsgi"),
    Stand("gunicorn-sync", "django"),
    Stand("gunicorn-sync", "django", "redis"),
    Stand("gunicorn-gthread", "flask extension"),
    Stand("waitress", "flask", options=KEPT),
)


@dataclass(frozen=True)
class Unsent:
    """A part of a request that servers do not pass on unchanged. The app around the middleware restores it."""

    kinds: tuple[str, ...]
    part: str  # path or headers
    steps: Callable[[Step], bool]
    refused: bool = False  # the server itself responds with 400


def has_two_hosts(step: Step) -> bool:
    return [name for name, _ in step.all_headers].count("Host") > 1


def has_slashes_in_front(step: Step) -> bool:
    return step.path.startswith("//")


def is_not_ascii(step: Step) -> bool:
    return not all(value.isascii() for _, value in step.all_headers)


UNSENT = (
    # RFC 9112, 3.2: a server must reject it; granian, waitress and httptools pass both headers on
    Unsent(("uvicorn", "hypercorn", "gunicorn-sync", "gunicorn-gthread"), "headers", has_two_hosts, refused=True),
    # this server merges them into one slash
    Unsent(("waitress",), "path", has_slashes_in_front),
    # over WSGI it replaces such a value with an empty string: emmett-framework/granian#335
    Unsent(("granian-wsgi",), "headers", is_not_ascii),
)


@pytest.fixture(scope="module")
def redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """Run a Redis server for this file alone."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running


def is_for_every_server(scenario: Scenario) -> bool:
    return scenario in AFTER or any(step.fails or step.broken or step.method != "GET" for step in scenario.steps)


PAIRS = [
    pytest.param(stand, *row.values, id=f"{stand}-{row.id}", marks=row.marks)
    for number, stand in enumerate(STANDS if PROOF else STANDS[::3])
    for place, row in enumerate(ALL_ROWS)
    if is_for_every_server(row.values[0]) or PROOF or (number + place) % 8 == 0
]


@pytest.fixture(scope="module")
def stand(request: pytest.FixtureRequest) -> Stand:
    chosen: Stand = request.param
    return chosen


@pytest.fixture(scope="module")
def server(stand: Stand, redis: RedisServer) -> Iterator[WebServer]:
    kind = KINDS[stand.kind]
    store = "memory://" if stand.store == "memory" else redis.url
    env = {"FACE": stand.face, "STORE": store, "PYTHONPATH": str(APPS.parent)}
    app = f"scenarios_app:{kind.interface}"
    with kind.serve(app, APPS, *kind.options, *stand.options, env=env) as running:
        yield running


@pytest.mark.parametrize(("stand", "scenario"), PAIRS, indirect=["stand"], scope="module")
def test_server_gives_the_expected_responses_of_each_scenario(
    stand: Stand, server: WebServer, scenario: Scenario, redis: RedisServer
) -> None:
    redis.flush()
    clock = Clock()
    settled = 0  # settlements of the previous step
    for number, step in enumerate(scenario.steps):
        clock.advance(step.wait)
        answer = played(stand, server, step, f"{(*SCENARIOS, *AFTER).index(scenario)} {number}")
        where = f"step {number}: {answer}"
        if not (step.fails and stand.face in NO_FRAMEWORK):
            assert answer.field("x-asked") == [",".join(["take"] * step.asked)], where
            assert not number or answer.field("x-settled") == [str(settled)], where
        settled = step.settled
        own = [line for line in answer.headers if line[0] not in ADDED]
        check(stand.face, step, Answer(answer.status, own, answer.body), clock.now, where)


def played(stand: Stand, server: WebServer, step: Step, number: str) -> Answer:
    unsent = [line for line in UNSENT if stand.kind in line.kinds and line.steps(step)]
    if any(line.refused for line in unsent):
        by_itself = asked(server, step.method, step.path, step.all_headers)
        assert (by_itself.status, by_itself.field("x-asked")) == (400, [])
    parts = [line.part for line in unsent]
    path = "/" if "path" in parts else step.path
    headers = [] if "headers" in parts else step.all_headers
    return asked(server, step.method, path, [("X-Step", " ".join([number, *parts])), *headers])


def asked(server: WebServer, method: str, path: str, headers: Sequence[tuple[str, str]]) -> Answer:
    """Send a request over a raw socket, so that no client library changes it, and return the response."""
    host = [] if "Host" in dict(headers) else [("Host", "app")]
    fields = [f"{name}: {value}" for name, value in (*host, ("Connection", "close"), *headers)]
    text = "\r\n".join([f"{method} {quote(path)} HTTP/1.1", *fields, "", ""])
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=120) as connection:
        connection.sendall(text.encode("latin-1"))
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    stream: Any = SimpleNamespace(makefile=lambda *_: BytesIO(received))
    with HTTPResponse(stream, method=method) as answer:
        answer.begin()
        # `HTTPResponse` reads no body of a response to HEAD, even if the server sent one
        body = received.partition(b"\r\n\r\n")[2] if method == "HEAD" else answer.read()
        return Answer(answer.status, [(name.lower(), value) for name, value in answer.getheaders()], body)

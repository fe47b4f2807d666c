"""Calls an ASGI app as a server does, and sets up the middleware with its defaults."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, MutableMapping
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final

from benchmarks import web
from benchmarks.lab import Lab
from benchmarks.runner import Batch, Contender
from benchmarks.web import IETF, PLENTY, Answer
from ratelimit_mw.asgi import RateLimitMiddleware

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SCOPE: Final[Mapping[str, Any]] = {  # as uvicorn makes it for a browser without a proxy
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "server": ("127.0.0.1", 8000),
    "client": ("198.51.100.7", 52100),
    "scheme": "http",
    "method": "GET",
    "root_path": "",
    "path": "/items/42",
    "raw_path": b"/items/42",
    "query_string": b"q=shoes&page=2",
    "headers": [
        (b"host", b"127.0.0.1:8000"),
        (b"connection", b"keep-alive"),
        (b"user-agent", b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
        (b"accept", b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
        (b"accept-language", b"en-US,en;q=0.5"),
        (b"accept-encoding", b"gzip, deflate, br"),
        (b"referer", b"http://127.0.0.1:8000/"),
        (b"cookie", b"sid=0123456789abcdef; theme=dark"),
    ],
}
_OK: Final = 200


class Answers:
    """Counts the responses of an app, in place of a server."""

    def __init__(self) -> None:
        self.admitted = self.refused = 0
        self.status = 0  # of the last response, like its headers
        self.headers: list[tuple[bytes, bytes]] = []

    async def send(self, message: Message) -> None:
        """Count a message of the app. See the ASGI specification."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = message["headers"]
            if self.status == _OK:
                self.admitted += 1
            else:
                self.refused += 1


async def bare(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer with `hello`, as the smallest app."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def receive() -> Message:
    """Return the message of a request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def drive(app: App, scopes: Iterable[Mapping[str, Any]]) -> Batch:
    """Send a request of each scope, sequentially, in the running event loop."""
    answers = Answers()
    send = answers.send
    started = perf_counter_ns()
    for scope in scopes:
        await app({**scope, "state": {}}, receive, send)  # servers make one per request
    return Batch(perf_counter_ns() - started, answers.admitted, answers.refused)


async def requests(app: App, calls: int) -> Batch:
    """Send that many equal requests."""
    return await drive(app, repeat(SCOPE, calls))


def contender(lab: Lab, app: App) -> Contender:
    """Return a contender that sends equal requests to `app`."""
    return lambda calls: lab.wait(requests(app, calls))


async def ask(app: App) -> Answer:
    """Send one request."""
    answers = Answers()
    await app({**SCOPE, "state": {}}, receive, answers.send)
    return Answer(answers.status, {name.decode().lower() for name, _ in answers.headers})


def held(lab: Lab, make: Callable[[int], App], fields: Collection[str] = IETF) -> Contender:
    """Return a contender that sends equal requests to the app of `make`, which admits them. See `web.held`."""
    return contender(lab, web.held(make, lambda app: lab.wait(ask(app)), fields))


def spent(lab: Lab, make: Callable[[int], App]) -> Contender:
    """Return a contender that sends equal requests to the app of `make`, which refuses them. See `web.spent`."""
    return contender(lab, web.spent(make, lambda app: lab.wait(ask(app))))


def floor(lab: Lab) -> Contender:
    """Return a contender for the app without any middleware."""
    return contender(lab, bare)


def limited(lab: Lab) -> Contender:
    """Return a contender for the middleware with one limit, a memory store and headers."""
    app = RateLimitMiddleware(bare, limits=f"{PLENTY}/hour")
    assert lab.wait(ask(app)).fields >= IETF
    return contender(lab, app)

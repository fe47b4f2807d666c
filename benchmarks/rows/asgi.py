"""What ASGI middleware adds to a request, called as a server calls it."""

from collections.abc import Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.runner import Batch, Contender, Race, Row
from ratelimit_mw.asgi import App, Message, RateLimitMiddleware, Receive, Scope, Send

_PLENTY: Final = 10**9
_SCOPE: Final[dict[str, Any]] = {  # as uvicorn makes it for a browser behind no proxy
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


def fresh_scope() -> Scope:
    """A request of its own: servers make one for each."""
    return {**_SCOPE, "state": {}}


class Answers:
    """Counts what is sent, as the server that sends it."""

    def __init__(self) -> None:
        self.admitted = self.refused = 0
        self.headers: list[tuple[bytes, bytes]] = []  # of the last response

    async def send(self, message: Message) -> None:
        """See the ASGI specification."""
        if message["type"] == "http.response.start":
            self.headers = message["headers"]
            if message["status"] == _OK:
                self.admitted += 1
            else:
                self.refused += 1


async def bare(_scope: Scope, _receive: Receive, send: Send) -> None:
    """An app that does nothing else."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def receive() -> Message:
    """A request without a body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def requests(app: App, calls: int) -> Batch:
    """That many requests, one after the other, in the loop that runs."""
    answers = Answers()
    send = answers.send
    started = perf_counter_ns()
    for _ in repeat(None, calls):
        await app(fresh_scope(), receive, send)
    return Batch(perf_counter_ns() - started, answers.admitted, answers.refused)


def _contender(lab: Lab, app: App) -> Contender:
    return lambda calls: lab.wait(requests(app, calls))


def _bare(lab: Lab) -> Contender:
    return _contender(lab, bare)


def _ours(lab: Lab) -> Contender:
    app = RateLimitMiddleware(bare, limits=f"{_PLENTY}/day")
    answers = Answers()
    lab.wait(app(fresh_scope(), receive, answers.send))
    assert {b"ratelimit", b"ratelimit-policy"} <= {name for name, _ in answers.headers}
    return _contender(lab, app)


def _asgi_ratelimit(lab: Lab) -> Contender:
    ratelimit = package("ratelimit", "asgi-ratelimit")
    backend = package("ratelimit.backends.simple", "asgi-ratelimit").MemoryBackend()

    async def who(scope: Scope) -> tuple[str, str]:  # its own `client_ip` parses the address on every request
        return scope["client"][0], "default"

    return _contender(lab, ratelimit.RateLimitMiddleware(bare, who, backend, {r"^/": [ratelimit.Rule(day=_PLENTY)]}))


ROWS: Final[Sequence[Row]] = [
    Race(
        name="asgi",
        what="added to a request, headers on / asgi-ratelimit, no headers",
        ours=_ours,
        peer=_asgi_ratelimit,
        floor=_bare,
        target=1.0,
    ),
]

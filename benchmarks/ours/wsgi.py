"""Calls a WSGI app as a server does, and sets up the middleware with its defaults."""

from collections.abc import Callable, Collection, Iterable
from io import BytesIO
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final

from benchmarks import web
from benchmarks.lab import Lab
from benchmarks.runner import Batch, Contender
from benchmarks.web import IETF, PLENTY, Answer
from ratelimit_mw.wsgi import RateLimitMiddleware

ENVIRON: Final[dict[str, Any]] = {  # as gunicorn makes it for a browser without a proxy
    "wsgi.version": (1, 0),
    "wsgi.url_scheme": "http",
    "wsgi.input": BytesIO(),
    "wsgi.errors": None,
    "wsgi.multithread": True,
    "wsgi.multiprocess": True,
    "wsgi.run_once": False,
    "SERVER_SOFTWARE": "gunicorn",
    "SERVER_NAME": "127.0.0.1",
    "SERVER_PORT": "8000",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "REMOTE_ADDR": "198.51.100.7",
    "REMOTE_PORT": "52100",
    "REQUEST_METHOD": "GET",
    "SCRIPT_NAME": "",
    "PATH_INFO": "/items/42",
    "QUERY_STRING": "q=shoes&page=2",
    "HTTP_HOST": "127.0.0.1:8000",
    "HTTP_CONNECTION": "keep-alive",
    "HTTP_USER_AGENT": "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0",
    "HTTP_ACCEPT": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "HTTP_ACCEPT_LANGUAGE": "en-US,en;q=0.5",
    "HTTP_ACCEPT_ENCODING": "gzip, deflate, br",
    "HTTP_REFERER": "http://127.0.0.1:8000/",
    "HTTP_COOKIE": "sid=0123456789abcdef; theme=dark",
}

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Answers:
    """Counts the responses of an app, in place of a server."""

    def __init__(self) -> None:
        self.admitted = self.refused = 0
        self.status = ""  # of the last response, like its headers
        self.headers: list[tuple[str, str]] = []

    def start_response(self, status: str, headers: list[tuple[str, str]], _: Any = None) -> Callable[[bytes], object]:
        """Count a response of the app. See PEP 3333."""
        self.status, self.headers = status, headers
        if status == "200 OK":
            self.admitted += 1
        else:
            self.refused += 1
        return _write


def _write(_: bytes) -> None:
    """Do nothing. `start_response` returns it, and no app here calls it."""


def bare(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Answer with `hello`, as the smallest app."""
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


def contender(app: App) -> Contender:
    """Return a contender that sends equal requests to `app`."""

    def batch(calls: int) -> Batch:
        answers = Answers()
        start_response = answers.start_response
        started = perf_counter_ns()
        for _ in repeat(None, calls):
            answer(app, ENVIRON, start_response)
        return Batch(perf_counter_ns() - started, answers.admitted, answers.refused)

    return batch


def ask(app: App) -> Answer:
    """Send one request."""
    answers = Answers()
    answer(app, ENVIRON, answers.start_response)
    return Answer(int(answers.status.partition(" ")[0]), {name.lower() for name, _ in answers.headers})


def held(make: Callable[[int], App], fields: Collection[str] = IETF, refusal: int = 429) -> Contender:
    """Return a contender that sends equal requests to the app of `make`, which admits them. See `web.held`."""
    return contender(web.held(make, ask, fields, refusal))


def spent(make: Callable[[int], App]) -> Contender:
    """Return a contender that sends equal requests to the app of `make`, which refuses them. See `web.spent`."""
    return contender(web.spent(make, ask))


def floor(_: Lab) -> Contender:
    """Return a contender for the app without any middleware."""
    return contender(bare)


def limited(_: Lab) -> Contender:
    """Return a contender for the middleware with one limit, a memory store and headers."""
    app = RateLimitMiddleware(bare, limits=f"{PLENTY}/hour")
    assert ask(app).fields >= IETF
    return contender(app)


def answer(app: App, environ: dict[str, Any], start_response: Any) -> None:
    """Send one request, as a server does."""
    body = app({**environ}, start_response)
    for _ in body:
        pass
    if hasattr(body, "close"):
        body.close()

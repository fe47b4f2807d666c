"""Calls a WSGI app with one request, without a server."""

from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

from ratelimit_mw import MemoryStore
from ratelimit_mw.testing import Clock
from ratelimit_mw.wsgi import RateLimitMiddleware

OWN = [("RateLimit-Policy", '"default";q=1;w=60'), ("RateLimit", '"default";r=0;t=60')]
PLAIN = ("Content-Type", "text/plain")
ANSWER = [b"hello"]


class Server:
    """The server's side of one request. Records the calls of `start_response`; `write` must not be called."""

    def __init__(self, **environ: Any) -> None:
        self.environ: dict[str, Any] = {"REMOTE_ADDR": "192.0.2.1", "QUERY_STRING": ""}
        setup_testing_defaults(self.environ)
        self.environ |= environ
        self.started: list[tuple[Any, ...]] = []

    def write(self, data: bytes) -> object:
        raise AssertionError(data)

    def start_response(self, *given: Any) -> Callable[[bytes], object]:
        self.started.append(given)
        return self.write

    def ask(self, app: Any) -> Any:
        return app(self.environ, self.start_response)


def hello(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [PLAIN])
    return ANSWER


def limited(app: Any = hello, **settings: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, **{"limits": "1/minute", "store": MemoryStore(clock=Clock()), **settings})


def read(parts: Any) -> bytes:
    """Read and close a body, as a server does."""
    try:
        return b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()

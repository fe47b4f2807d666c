"""Rows of the time that a limit adds to a request to Litestar, which is called as a server calls it."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.ours.asgi import App, contender, held
from benchmarks.runner import Contender, Race, Row
from benchmarks.web import IETF
from ratelimit_mw.asgi import RateLimitMiddleware

_HISTORY: Final = 100  # requests; Litestar's limiter keeps the times of all, as JSON that each request reads and writes


def _app(*middleware: Any) -> Any:
    litestar = package("litestar")

    async def item(number: str) -> str:
        return number

    route = litestar.get("/items/{number:str}")(item)
    return litestar.Litestar(route_handlers=[route], middleware=[*middleware], openapi_config=None)


def _ours(quota: int) -> Any:
    def middleware(app: Any) -> Any:
        return RateLimitMiddleware(app, limits=f"{quota}/hour")

    return _app(middleware)


def _theirs(lab: Lab) -> Contender:
    """Return a contender for Litestar's limiter, with a new client after every hundred requests.

    The time it takes grows with the number of requests of a client.
    """
    config = package("litestar.middleware.rate_limit", "litestar").RateLimitConfig
    requests = count()

    def who(_: Any) -> str:
        return str(next(requests) // _HISTORY)

    def make(quota: int) -> App:
        app: App = _app(config(rate_limit=("hour", quota), identifier_for_request=who).middleware)
        return app

    return held(lab, make, {*IETF, "ratelimit-limit"} - {"ratelimit"})


ROWS: Final[Sequence[Row]] = [
    Race(
        name="asgi-litestar",
        what=f"added to a request to Litestar, headers on / its own, {_HISTORY} requests of a client, headers on",
        ours=lambda lab: held(lab, _ours),
        peer=_theirs,
        floor=lambda lab: contender(lab, _app()),
        calls=500,
    ),
]

"""Apps with one route for servers with several workers. Without a store in `BENCHMARKED_STORE` they have no limit."""

import os
from typing import Any

from benchmarks.lab import package
from benchmarks.ours.served import starlette
from benchmarks.web import PLENTY
from ratelimit_mw.asgi import RateLimitMiddleware

STORE = "BENCHMARKED_STORE"


def asgi() -> Any:
    """Return a Starlette app."""
    app = starlette()
    if store := os.environ.get(STORE):
        app.add_middleware(RateLimitMiddleware, limits=f"{PLENTY}/hour", store=store)
    return app


def flask() -> Any:
    """Return a Flask app."""
    app = package("flask").Flask("benchmarked")

    def item(number: str) -> str:
        return number

    app.add_url_rule("/items/<number>", view_func=item)
    if store := os.environ.get(STORE):
        package("ratelimit_mw.flask").RateLimiter(app, limits=f"{PLENTY}/hour", store=store)
    return app

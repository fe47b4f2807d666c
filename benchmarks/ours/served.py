"""Apps for real servers: with one route, with and without a limit, and one that only sends an empty response.

`asgi` and `flask` are for servers with several workers. Without a store in `BENCHMARKED_STORE` they have no limit.
"""

import os
import sqlite3
from threading import Lock
from typing import Any

from benchmarks.lab import package
from benchmarks.web import PLENTY
from ratelimit_mw.asgi import RateLimitMiddleware

STORE = "BENCHMARKED_STORE"
UPDATE = "update:"  # and the path of a file: no limit, but an UPDATE for each request
_START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]}
_END = {"type": "http.response.body", "body": b""}


def starlette() -> Any:
    """Return an app with one route."""
    answer = package("starlette.responses").PlainTextResponse

    async def item(request: Any) -> Any:
        return answer(request.path_params["number"])

    route = package("starlette.routing").Route("/items/{number}", item)
    return package("starlette.applications").Starlette(routes=[route])


def bare(_quota: str, _url: str) -> Any:
    """Return the app without any middleware."""
    return starlette()


def limited(quota: str, url: str) -> Any:
    """Return the app with the middleware and its defaults. `url`: of a store."""
    app = starlette()
    app.add_middleware(RateLimitMiddleware, limits=f"{quota}/hour", store=url)
    return app


def empty() -> Any:
    """Return an ASGI app that sends an empty response, with which the decision service is compared."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send(_START)
            await send(_END)

    return app


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
    store = os.environ.get(STORE, "")
    if store.startswith(UPDATE):
        _add_update(app, store.removeprefix(UPDATE))
    elif store:
        package("ratelimit_mw.flask").RateLimiter(app, limits=f"{PLENTY}/hour", store=store)
    return app


def _add_update(app: Any, path: str) -> None:
    """Let each request update a row of a file, and add two constant header fields: the least that a limit costs."""
    lock = Lock()
    cursors: list[sqlite3.Cursor] = []
    fields = [("RateLimit-Policy", f'"default";q={PLENTY};w=3600'), ("RateLimit", f'"default";r={PLENTY};t=0')]

    def update() -> None:
        with lock:
            if not cursors:  # after the fork
                connection = sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute("CREATE TABLE IF NOT EXISTS states (key BLOB PRIMARY KEY, state) WITHOUT ROWID")
                connection.execute("INSERT OR IGNORE INTO states VALUES (?, 0)", (b"key",))
                cursors.append(connection.cursor())
            cursors[0].execute("UPDATE states SET state = state + 1 WHERE key = ?", (b"key",))

    def add(response: Any) -> Any:
        response.headers[len(response.headers) :] = fields
        return response

    app.before_request(update)
    app.after_request(add)

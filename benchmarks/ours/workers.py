"""Apps with one route for servers with several workers. Without a store in `BENCHMARKED_STORE` they have no limit."""

import os
import sqlite3
from threading import Lock
from typing import Any

from benchmarks.lab import package
from benchmarks.ours.served import starlette
from benchmarks.web import PLENTY
from ratelimit_mw.asgi import RateLimitMiddleware

STORE = "BENCHMARKED_STORE"
UPDATE = "update:"  # and the path of a file: no limit, but an UPDATE for each request


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

"""Serves a small app behind middleware that is kept between requests, so that a store keeps its connections."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ratelimit_mw import asgi, wsgi
from web.asgi_talk import HTTP, App200, Talk

Answer = tuple[int, str, str]  # status; the verdict's source, as the app saw it; RateLimit
Send = Callable[..., Answer]  # requests / from the given address
Serving = Callable[..., AbstractContextManager[Send]]
CLIENT = "192.0.2.1"


@contextmanager
def over_asgi(**settings: Any) -> Iterator[Send]:
    """Serve an ASGI app in an event loop that is kept between requests."""
    app = App200()
    middleware = asgi.RateLimitMiddleware(app, **settings)

    async def request(client: str) -> Answer:
        app.scopes.clear()
        spoken = await Talk().with_app(middleware, HTTP, client=(client, 50000))
        await asyncio.sleep(0.01)  # lets the event loop open connections
        start = spoken.sent[0]
        source = app.scopes[0]["state"]["ratelimit"].verdict.source if app.scopes else ""
        return start["status"], source, dict(start["headers"]).get(b"ratelimit", b"").decode()

    with asyncio.Runner() as runner:
        try:
            yield lambda client=CLIENT: runner.run(request(client))
        finally:
            runner.run(middleware._gate.close())


@contextmanager
def over_wsgi(**settings: Any) -> Iterator[Send]:
    """Serve a WSGI app."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("X-Source", environ["ratelimit_mw"].verdict.source)])
        return []

    middleware = wsgi.RateLimitMiddleware(app, **settings)

    def request(client: str = CLIENT) -> Answer:
        environ: dict[str, Any] = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": client}
        got: list[Any] = []
        middleware(environ, lambda *started: got.append(started))  # type: ignore[arg-type]  # the app does not use write()
        ((status, fields),) = got
        headers = dict(fields)
        return int(status[:3]), headers.get("X-Source", ""), headers.get("RateLimit", "")

    try:
        yield request
    finally:
        middleware.close()

"""An app with slots per client and slots that all clients share. Requests may wait for both."""

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ratelimit_mw import Concurrency
from ratelimit_mw.asgi import RateLimitMiddleware

working = 0


async def quick(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def hang(scope: Scope, receive: Receive, send: Send) -> None:
    """Stay in progress until the client disconnects."""
    global working  # noqa: PLW0603  # of this process
    working += 1
    try:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
    finally:
        working -= 1


class Hang:
    """`hang` as a class, because Starlette's routes take functions for request handlers, not for ASGI apps."""

    async def __call__(self, *given: Any) -> None:
        await hang(*given)


async def facts(_: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{working} work, {sum(map(len, app._gate._queues._queues.values()))} wait")


app = RateLimitMiddleware(
    Starlette(routes=[Route("/hang", Hang()), Route("/quick", quick), Route("/facts", facts)]),
    limits="1000/minute",
    key="ip",
    concurrent=2,
    app_limits=[{"limit": Concurrency(5, 3600), "key": "all"}],
    queue=8,
    queue_timeout=60,
    slot_lifetime=3600,
    penalty="30 refusals per minute: 1 hour",
    exempt=["/facts"],
    store=os.environ["STORE"],
    store_timeout=5,  # on a busy machine
    on_store_error="deny",
)

"""An app with one slot and a queue of one. `/facts` shows how many requests wait, and how often `/touch` was called."""

import os
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ratelimit_mw.asgi import RateLimitMiddleware

touched: list[str] = []


async def touch(request: Request) -> PlainTextResponse:
    touched.append(request.method)
    return PlainTextResponse("hello")


async def hang(scope: Scope, receive: Receive, send: Send) -> None:
    """Stay in progress until the client disconnects."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


class Hang:
    """`hang` as a class, because Starlette's routes take functions for request handlers, not for ASGI apps."""

    async def __call__(self, *given: Any) -> None:
        await hang(*given)


async def facts(_: Request) -> PlainTextResponse:
    lines = app._gate._queues._queues
    return PlainTextResponse(f"{sum(map(len, lines.values()))} wait, {len(touched)} touched")


app = RateLimitMiddleware(
    Starlette(routes=[Route("/hang", Hang()), Route("/touch", touch, methods=["GET", "POST"]), Route("/facts", facts)]),
    limits=[],
    exempt=["/facts"],
    concurrent=1,
    queue=1,
    queue_timeout=3600,
    slot_lifetime=3600,
    store=os.environ["STORE"],
    store_timeout=2,  # on a busy machine
    on_store_error="deny",
)

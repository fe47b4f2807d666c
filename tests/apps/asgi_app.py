"""An ASGI app behind the middleware, with responses of all kinds."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from limited import GATE, settings
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.stores.redis import AsyncRedisStore


async def hello(request: Request) -> PlainTextResponse:
    answer = PlainTextResponse("hello")
    if request.method == "HEAD":
        answer.body = b""  # granian would send the body over HTTP/2, where HEAD allows none
    return answer


async def length(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def stream(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.to_thread(Path(GATE).read_bytes)
        yield b"two"

    return StreamingResponse(parts(), media_type="text/plain")


async def file(_: Request) -> FileResponse:
    return FileResponse(__file__, media_type="text/plain")


async def error(_: Request) -> PlainTextResponse:
    raise RuntimeError("the app's own error")


app = Starlette(
    routes=[
        Route("/", hello),
        Route("/length", length, methods=["POST"]),
        Route("/stream", stream),
        Route("/file", file),
        Route("/error", error),
    ],
    middleware=[Middleware(RateLimitMiddleware, settings(AsyncRedisStore))],
)

"""An app that allows one concurrent request per client.

It has an endless response, a file, a response that waits for `/release`, an error, and a WebSocket.
"""

import asyncio
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from limited import slots
from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def endless(_: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"more\n"
            await asyncio.sleep(0.02)

    return StreamingResponse(parts(), media_type="text/plain")


async def file(_: Request) -> FileResponse:
    return FileResponse(__file__, media_type="text/plain")


go = asyncio.Event()


async def held(_: Request) -> PlainTextResponse:
    await go.wait()
    return PlainTextResponse("more")


async def release(_: Request) -> PlainTextResponse:
    go.set()
    return PlainTextResponse("released")


async def error(_: Request) -> PlainTextResponse:
    raise RuntimeError("the app's own error")


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


app = Starlette(
    routes=[
        Route("/", hello),
        Route("/endless", endless),
        Route("/file", file),
        Route("/held", held),
        Route("/release", release),
        Route("/error", error),
        WebSocketRoute("/echo", echo),
    ],
    middleware=[Middleware(RateLimitMiddleware, slots())],
)

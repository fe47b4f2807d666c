"""An app that is under load for minutes, with limits in Redis that refuse, and short windows."""

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


app = Starlette(routes=[Route("/", hello), Route("/login", hello, methods=["POST"])])
app.add_middleware(
    RateLimitMiddleware,
    limits="20/second",
    rules=[
        {
            "path": "/login",
            "limits": ["3/2 seconds using sliding_window_log", "6/4 seconds using gcra"],
        }
    ],
    key="header:X-Client",
    missing_key="deny",
    store=os.environ["STORE"],
    store_timeout=2,  # on a busy machine; the test measures growth, not time
    on_store_error="deny",
)

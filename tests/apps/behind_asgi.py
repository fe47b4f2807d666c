"""An app behind a proxy on loopback."""

from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(_: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


app = Starlette(
    routes=[Route("/{rest:path}", hello)],
    middleware=[
        Middleware(
            RateLimitMiddleware,
            limits="1000/hour",
            key="ip",
            trusted_proxies=["127.0.0.1"],
            rules=[
                {"path": "/login", "limits": "5/hour"},
                {"path": "/forged", "limits": "5/hour"},
                {"path": "/spelt", "limits": "5/hour"},
            ],
        )
    ],
)

"""uvicorn examples.starlette_app:app"""

import os

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.state.ratelimit.remaining} left\n")


async def login(_: Request) -> PlainTextResponse:
    return PlainTextResponse("welcome\n")


app = Starlette(
    routes=[Route("/", home), Route("/login", login, methods=["POST"])],
    middleware=[
        Middleware(
            RateLimitMiddleware,
            limits="5 per 3 seconds; 1000/hour",
            rules=[{"path": "/login", "methods": ["POST"], "limits": "2 per 3 seconds", "key": "ip"}],
            store=os.environ.get("STORE", "memory://"),
        )
    ],
)

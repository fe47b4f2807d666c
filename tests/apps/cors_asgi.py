"""An API for pages from other origins."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


app = Starlette(
    routes=[Route("/", hello)],
    middleware=[
        Middleware(
            CORSMiddleware,
            allow_origins=["*"],
            allow_headers=["X-Page"],
            expose_headers=["RateLimit", "RateLimit-Policy", "Retry-After"],
        ),
        Middleware(RateLimitMiddleware, limits="2 per 3 seconds using fixed_window"),
    ],
)

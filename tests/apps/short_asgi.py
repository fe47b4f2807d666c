"""An app with a window that is short enough to wait for its end."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def hello(_: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


app = Starlette(routes=[Route("/", hello, methods=["GET", "POST"])])
app.add_middleware(RateLimitMiddleware, limits="2 per 3 seconds using fixed_window")

"""An app with the live page below /rate-limits. Every other path answers with the path.

`SETTINGS`: the file of settings. `SECRET`: that of the page.
"""

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.dashboard import dashboard
from ratelimit_mw.settings import Settings

FILE = os.environ["SETTINGS"]


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.url.path)


app = RateLimitMiddleware(
    Starlette(
        routes=[
            Mount("/rate-limits", dashboard(FILE, secret=os.environ["SECRET"], write=True)),
            Route("/{path:path}", echo, methods=["GET", "POST"]),
        ]
    ),
    Settings.load(FILE),
)

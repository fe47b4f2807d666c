"""An app that counts the requests it receives. SETTINGS has the settings of its limits, as JSON."""

import json
import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware

served: list[str] = []


async def send(request: Request) -> PlainTextResponse:
    served.append(request.url.path)
    return PlainTextResponse("sent")


async def facts(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(served)))


app = Starlette(routes=[Route("/send", send, methods=["POST"]), Route("/facts", facts)])
app.add_middleware(RateLimitMiddleware, exempt=["/facts"], **json.loads(os.environ["SETTINGS"]))

"""An app below two hosts, each with a quota of its own, made of Starlette's or FastAPI's routes."""

import os

from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Route

from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.starlette import RateLimitMiddleware, limit

KEY = ["ip", "route"]


async def page(request: Request) -> PlainTextResponse:
    return PlainTextResponse("page")


with_fastapi = FastAPI()
with_fastapi.add_api_route("/page", page, dependencies=[Depends(RateLimit("3/hour", key=KEY))])
with_starlette = Starlette(routes=[Route("/page", limit("3/hour", key=KEY)(page))])
below = {"fastapi": with_fastapi, "starlette": with_starlette}[os.environ["ROUTES"]]
app = Starlette(routes=[Host("a.test", below), Host("b.test", below)])
app.add_middleware(RateLimitMiddleware, limits=[])

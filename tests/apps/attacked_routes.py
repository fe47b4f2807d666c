"""The FastAPI routes of the apps that are attacked. Each limiter adds its own limits."""

import logging
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request

logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")  # as apps do, so that the tests see the log


async def login(request: Request) -> str:
    return "in"


async def item(request: Request, id: str) -> str:  # noqa: A002  # the name in the path
    return "an item"


async def keyed(request: Request) -> str:
    return "yours"


async def spend(request: Request) -> str:
    return "spent"


async def page(request: Request) -> str:
    return "a page"


async def deep(request: Request) -> str:
    return "a page"


async def health(request: Request) -> str:
    return "well"


Limited = Callable[[Any], Any]


def make(on: dict[Any, Limited] | None = None) -> FastAPI:
    """Return the app. `on`: decorators of a limiter, by endpoint."""
    app = FastAPI()
    around = {endpoint: limited(endpoint) for endpoint, limited in (on or {}).items()}
    routes = (
        ("/login", login, "POST"),
        ("/items/{id}", item, "GET"),
        ("/keyed", keyed, "GET"),
        ("/spend", spend, "POST"),
        ("/page/", page, "GET"),
        ("/health", health, "GET"),
    )
    for path, endpoint, method in routes:
        app.add_api_route(path, around.get(endpoint, endpoint), methods=[method])
    router = APIRouter()
    router.add_api_route("/page", deep)
    for depth in range(10, 0, -1):
        outer = APIRouter()
        outer.include_router(router, prefix=f"/{depth}")
        router = outer
    app.include_router(router)
    return app

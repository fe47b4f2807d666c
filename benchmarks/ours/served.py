"""A Starlette app with one route, with and without a limit, for a real server."""

from typing import Any

from benchmarks.lab import package
from ratelimit_mw.asgi import RateLimitMiddleware


def starlette() -> Any:
    """Return an app with one route."""
    answer = package("starlette.responses").PlainTextResponse

    async def item(request: Any) -> Any:
        return answer(request.path_params["number"])

    route = package("starlette.routing").Route("/items/{number}", item)
    return package("starlette.applications").Starlette(routes=[route])


def bare(_quota: str, _url: str) -> Any:
    """Return the app without any middleware."""
    return starlette()


def limited(quota: str, url: str) -> Any:
    """Return the app with the middleware and its defaults. `url`: of a store."""
    app = starlette()
    app.add_middleware(RateLimitMiddleware, limits=f"{quota}/hour", store=url)
    return app

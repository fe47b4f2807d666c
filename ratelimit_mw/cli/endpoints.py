"""Finds the limits on an endpoint of Starlette or FastAPI, for a request that no server has received."""

import sys
from collections.abc import Iterator, Sequence
from inspect import isclass
from typing import Any

from ratelimit_mw.checks.endpoints import limits_of_route
from ratelimit_mw.http.routes import all_routes, routes_below
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette.enforcement import AsgiEndpointLimit, EndpointCheck, asgi_limits_on, checks_on_endpoint
from ratelimit_mw.starlette.route_limits import RateLimit

Checks = tuple[Sequence[EndpointCheck], str | None]  # of limits that are enforced together; the template of the route


def checks_at(around: Any, scope: dict[str, Any]) -> Iterator[Checks]:
    """Yield the checks of a `RateLimit`, or, if `around` is None, of the matched endpoint and its dependencies."""
    if around is not None:
        if isinstance(around, RateLimit) and (checks := around.checks_on(scope)) is not None:
            yield checks
        return
    if (fastapi := sys.modules.get("ratelimit_mw.fastapi")) is not None:
        yield from fastapi.dependency_checks(scope)
    for endpoint in _endpoints(scope):
        if limits := asgi_limits_on(endpoint):
            yield checks_on_endpoint(scope, limits, endpoint)


def _endpoints(scope: dict[str, Any]) -> Iterator[Any]:
    """Yield the endpoint, and the method of a class that handles the request."""
    endpoint = scope.get("endpoint")
    yield endpoint
    if isclass(endpoint):
        names = ["on_connect"] if scope["type"] == "websocket" else [scope["method"].lower()]
        names += ["get"] * (names == ["head"])
        yield next((found for name in names if (found := getattr(endpoint, name, None)) is not None), None)


def own_settings_below(app: Any) -> Iterator[Settings]:
    """Yield the settings of each limit on an endpoint that has a store which processes share."""
    for info in all_routes(routes_below(app)):
        for limit in limits_of_route(info):
            if isinstance(limit, AsgiEndpointLimit) and limit.standalone_settings.store != "memory://":
                yield limit.standalone_settings

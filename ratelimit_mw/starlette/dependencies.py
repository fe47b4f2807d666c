"""Limits among the dependencies of FastAPI's routes: which are asked in one step, worked out once per route."""

from collections.abc import Container, Iterator, Sequence
from functools import cache
from typing import Any, Final

from ratelimit_mw.asgi.routes import (
    RouteInfo,
    app_cache,
    first_match,
    matched_route,
    route_info,
    route_infos,
    route_leaf,
)
from ratelimit_mw.asgi.send import Scope
from ratelimit_mw.rules.endpoint_limits import EndpointLimit, is_exempt
from ratelimit_mw.starlette.enforcement import (
    AsgiEndpointLimit,
    EndpointCheck,
    callable_name,
    display_name,
    endpoint_checks,
)


class RouteContext:
    """The limits of a route in one place, worked out once: marks put somewhere later are found too, and new routes.

    `template`: None where the place is not known. `checks`: what is asked when FastAPI calls one: those of its run, in
    which no other dependency stands between them. `scope_key`: what the scope has named the route by, so that nothing
    else gets their ids.
    """

    __slots__ = (
        "_all_limits",
        "_name",
        "_runs",
        "_shown",
        "checks",
        "endpoint",
        "exempt",
        "latest",
        "scope_key",
        "template",
    )

    def __init__(self, scope: Scope, info: RouteInfo | None, overrides: Container[Any] = ()) -> None:
        self.latest: Final = EndpointLimit.version
        self.scope_key: Final = scope.get("route"), route_leaf(scope)
        self.endpoint: Final = scope.get("endpoint")
        self.exempt: Final = is_exempt(self.endpoint)
        self.template: Final = None if info is None else info.template
        self._name: Final = callable_name(self.endpoint) if info is None else info.name
        self._shown: Final = display_name(info, self.endpoint)
        self._runs: Final = _runs(matched_route(scope), overrides)
        self._all_limits: Final = tuple(dict.fromkeys(one for run in self._runs for one in run))
        self.checks: Final = cache(self._checks_for)

    def _checks_for(self, one: AsgiEndpointLimit) -> Sequence[EndpointCheck]:
        # one that is in no run is in a route whose dependencies this FastAPI does not show
        run = next((run for run in self._runs if one in run), (one,))
        return endpoint_checks(run, self._name, self._shown, self._all_limits if one in self._all_limits else run)


def route_context(scope: Scope) -> RouteContext:
    """What stands around the endpoint that a request found."""
    if overrides := getattr(scope.get("app"), "dependency_overrides", None):  # in tests
        return RouteContext(scope, route_info(scope), overrides)
    contexts = app_cache(scope.get("router"), "around")
    scope_key: tuple[Any, ...] = id(scope.get("route")), id(route_leaf(scope))
    context: RouteContext | None = contexts.get(scope_key)
    if context is None or context.latest != EndpointLimit.version or context.endpoint is not scope.get("endpoint"):
        context = _find_context(scope, scope_key, contexts)
    return context


def _find_context(scope: Scope, scope_key: tuple[Any, ...], contexts: dict[Any, Any]) -> RouteContext:
    infos = route_infos(scope)
    info = first_match(infos, scope)
    if len(infos) > 1 and info is not None:  # which of them it is depends on the request
        scope_key = (*scope_key, info.template)
    context: RouteContext | None = contexts.get(scope_key)
    if context is None or context.latest != EndpointLimit.version or context.endpoint is not scope.get("endpoint"):
        context = RouteContext(scope, info)
        if info is not None:
            contexts[scope_key] = context
    return context


def _runs(route: Any, overrides: Container[Any]) -> Sequence[tuple[AsgiEndpointLimit, ...]]:
    """Those that stand one after the other, with no others between."""
    leaf = getattr(route, "starlette_route", None) or route  # that of a websocket in a router
    runs: list[list[AsgiEndpointLimit]] = [[]]
    for call in _dependency_calls(getattr(leaf, "dependant", None), overrides):
        if isinstance(call, AsgiEndpointLimit):
            runs[-1].append(call)
        else:
            runs.append([])
    return [tuple(dict.fromkeys(run)) for run in runs]


def _dependency_calls(dependant: Any, overrides: Container[Any]) -> Iterator[Any]:
    """What FastAPI calls, in that order."""
    for one in getattr(dependant, "dependencies", ()):
        if one.call in overrides:
            yield None
        else:
            yield from _dependency_calls(one, overrides)
            yield one.call

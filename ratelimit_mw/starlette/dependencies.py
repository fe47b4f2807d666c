"""Groups the limits among the dependencies of a FastAPI route into steps, once per route."""

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
    bucket_name_of,
    display_name,
    endpoint_checks,
)


class RouteContext:
    """The limits of one route, grouped once; replaced when limits or routes are added.

    A *run* is a series of limits with no other dependency between them. `template`: None if the place of the route is
    unknown. `checks(limit)`: returns the checks of the run that contains it. `scope_key`: the objects that identify the
    route in the scope; referenced, so that no other object gets their ids.
    """

    __slots__ = (
        "_all_limits",
        "_name",
        "_runs",
        "_shown",
        "checks",
        "endpoint",
        "exempt",
        "scope_key",
        "template",
        "version",
    )

    def __init__(self, scope: Scope, info: RouteInfo | None, overrides: Container[Any] = ()) -> None:
        self.version: Final = EndpointLimit.version
        self.scope_key: Final = scope.get("route"), route_leaf(scope)
        self.endpoint: Final = scope.get("endpoint")
        self.exempt: Final = is_exempt(self.endpoint)
        self.template: Final = None if info is None else info.template
        self._name: Final = bucket_name_of(self.endpoint) if info is None else info.name
        self._shown: Final = display_name(info, self.endpoint)
        self._runs: Final = _runs(matched_route(scope), overrides)
        self._all_limits: Final = tuple(dict.fromkeys(one for run in self._runs for one in run))
        self.checks: Final = cache(self._checks_for)

    def _checks_for(self, one: AsgiEndpointLimit) -> Sequence[EndpointCheck]:
        # a limit without a run is in a route whose dependencies this version of FastAPI does not expose
        run = next((run for run in self._runs if one in run), (one,))
        return endpoint_checks(run, self._name, self._shown, self._all_limits if one in self._all_limits else run)


def route_context(scope: Scope) -> RouteContext:
    """Return the dependency limits of the matched route."""
    if overrides := getattr(scope.get("app"), "dependency_overrides", None):  # set by tests
        return RouteContext(scope, route_info(scope), overrides)
    contexts = app_cache(scope.get("router"), "around")
    scope_key: tuple[Any, ...] = id(scope.get("route")), id(route_leaf(scope))
    context: RouteContext | None = contexts.get(scope_key)
    if context is None or context.version != EndpointLimit.version or context.endpoint is not scope.get("endpoint"):
        context = _find_context(scope, scope_key, contexts)
    return context


def _find_context(scope: Scope, scope_key: tuple[Any, ...], contexts: dict[Any, Any]) -> RouteContext:
    infos = route_infos(scope)
    info = first_match(infos, scope)
    if len(infos) > 1 and info is not None:  # the request decides which place it is
        scope_key = (*scope_key, info.template)
    context: RouteContext | None = contexts.get(scope_key)
    if context is None or context.version != EndpointLimit.version or context.endpoint is not scope.get("endpoint"):
        context = RouteContext(scope, info)
        if info is not None:
            contexts[scope_key] = context
    return context


def _runs(route: Any, overrides: Container[Any]) -> Sequence[tuple[AsgiEndpointLimit, ...]]:
    """Return the runs of limits that no other dependency separates."""
    leaf = getattr(route, "starlette_route", None) or route  # the former for a websocket of an included router
    runs: list[list[AsgiEndpointLimit]] = [[]]
    for call in _dependency_calls(getattr(leaf, "dependant", None), overrides):
        if isinstance(call, AsgiEndpointLimit):
            runs[-1].append(call)
        else:
            runs.append([])
    return [tuple(dict.fromkeys(run)) for run in runs]


def _dependency_calls(dependant: Any, overrides: Container[Any]) -> Iterator[Any]:
    """Yield the dependencies in the order of FastAPI's calls; None for an overridden one."""
    for one in getattr(dependant, "dependencies", ()):
        if one.call in overrides:
            yield None
        else:
            yield from _dependency_calls(one, overrides)
            yield one.call

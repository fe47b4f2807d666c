"""Finds the full templates of Starlette's and FastAPI's routes. Reads the routes of an app once."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from ratelimit_mw.http.apps import nested_apps
from ratelimit_mw.http.request import strip_root

Scope = Mapping[str, Any]
_ATTRIBUTE: Final = "__remembered_by_ratelimit_mw__"


_NO_APP: Final = SimpleNamespace()  # owns the caches without an app


def app_cache(owner: object, what: str) -> dict[Any, Any]:
    """Return the owner's dictionary named `what`. None and all objects without attributes share one owner."""
    try:  # fast path
        cache: dict[Any, Any] = owner.__dict__[_ATTRIBUTE][what]
    except (AttributeError, KeyError):
        return _create(owner, what)
    return cache


def _create(owner: object, what: str) -> dict[Any, Any]:
    own = getattr(owner, "__dict__", {})
    if _ATTRIBUTE not in own:
        try:
            setattr(owner, _ATTRIBUTE, {})
        except (AttributeError, TypeError):
            return app_cache(_NO_APP, what)
    caches: dict[str, dict[Any, Any]] = own[_ATTRIBUTE]
    return caches.setdefault(what, {})


_MAX_DEPTH: Final = 20  # nested mounts
_NAMED: Final = re.compile(r"\(\?P<\w+>")
_REST: Final = "/{path}", "/(?:.*)$"  # Starlette appends these to the template and pattern of a mount


class RouteInfo(NamedTuple):
    """One place of a route in an app; a route may be mounted at several.

    `template`: `/shops/{shop}/items/{item}`, with the mounts above. `methods`: empty for all. `endpoint`: the function,
    class or mounted app. `parents`: the mounts and hosts above, the outermost first. `name`: `GET /items/{item}`,
    unique among the routes of the app.
    """

    template: str
    methods: tuple[str, ...]
    endpoint: Any
    pattern: re.Pattern[str]
    route: Any
    parents: tuple[Any, ...]
    name: str

    def has(self, path: str, scope: Scope) -> bool:
        """Return whether a path and the host of its request belong to this place, if the route has several.

        Starlette matches the host, because its versions cut the port differently, and only some ignore case.
        """
        hosts = [one for one in self.parents if hasattr(one, "host_regex")]
        return self.pattern.match(path) is not None and all(one.matches(scope)[0].name == "FULL" for one in hosts)


def all_routes(
    routes: Sequence[Any], parents: tuple[Any, ...] = (), host: str = "", above: Any = ("", "")
) -> Iterator[RouteInfo]:
    """Yield all routes and mounts, including nested ones."""
    for one, leaf in _leaves(routes):
        if (name := getattr(one, "host_format", None)) is not None:
            yield from all_routes(_child_routes(one), (*parents, one), name, above)
        if not hasattr(one, "path_format") or not hasattr(one, "path_regex"):
            continue
        is_mount = hasattr(one, "routes")
        methods = () if is_mount else tuple(sorted(set(getattr(one, "methods", None) or ()) - {"HEAD"}))
        form, pattern = one.path_format, _NAMED.sub("(?:", one.path_regex.pattern).removeprefix("^")
        if is_mount:
            form, pattern = form.removesuffix(_REST[0]), pattern.removesuffix(_REST[1])
        template, whole = above[0] + form, above[1] + pattern
        endpoint = getattr(one, "app" if is_mount else "endpoint", None)
        full = re.compile(whole + "(?:/|$)" if is_mount else whole)
        shown = host + template or "/"
        yield RouteInfo(shown, methods, endpoint, full, leaf, parents, " ".join([*methods, shown]))
        if is_mount and len(parents) < _MAX_DEPTH:
            yield from all_routes(_child_routes(one), (*parents, one), host, (template, whole))


def _leaves(routes: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each route twice, as a pair: the object that Starlette matches, and the object in the scope.

    They differ in FastAPI, which nests included routers.
    """
    for route in routes:
        branch = getattr(route, "effective_route_contexts", None)
        for leaf in branch() if branch is not None else (route,):
            yield starlette_route(leaf), leaf


def _child_routes(one: Any) -> Sequence[Any]:
    routes = getattr(one, "routes", None)
    return routes if isinstance(routes, (list, tuple)) else ()  # otherwise another framework's attribute


def route_leaf(scope: Scope) -> Any:
    """Return the leaf of FastAPI's tree that matched last. It may be a mount around the route."""
    fastapi = scope.get("fastapi")
    return fastapi.get("effective_route_context") if isinstance(fastapi, dict) else None


def matched_route(scope: Scope) -> Any:
    """Return the matched route, as `all_routes` yields it; None if the framework does not record it."""
    route, leaf = scope.get("route"), route_leaf(scope)
    endpoint = scope.get("endpoint", route)
    if getattr(route, "endpoint", endpoint) is not endpoint or route is None:
        return None  # that route is an outer mount
    if leaf is not None and (leaf.original_route is route or leaf.starlette_route is route):
        return leaf
    return route


def starlette_route(route: Any) -> Any:
    """Return the route that Starlette matches: another object for a leaf of FastAPI's tree, else the route itself."""
    return getattr(route, "starlette_route", None) or route


class _RouteTable:
    """The places of all routes of one app. `by_id`: keyed by the id of a route or an endpoint."""

    def __init__(self, routes: Sequence[Any], unknown: Sequence[Any] = ()) -> None:
        self.unknown: Final = unknown  # not in `routes`; referenced, so that no other object gets their ids
        self.by_id: Final[dict[int, list[RouteInfo]]] = {id(one): [] for one in unknown}
        for info in all_routes(routes):
            for one in {id(one): one for one in (info.route, starlette_route(info.route), info.endpoint)}.values():
                if one is not None:
                    self.by_id.setdefault(id(one), []).append(info)


def route_info(scope: Scope) -> RouteInfo | None:
    """Return the matched route with the mounts above it; None if it is unknown."""
    infos = route_infos(scope)
    return infos[0] if len(infos) == 1 else first_match(infos, scope)


def route_infos(scope: Scope) -> Sequence[RouteInfo]:
    """Return all places of the matched route, which may be mounted more than once."""
    router, route = scope.get("router"), matched_route(scope)
    thing = scope.get("endpoint") if route is None else route
    if router is None or thing is None:
        return ()
    tables = app_cache(router, "routes")
    table: _RouteTable | None = tables.get("table")
    if table is None or id(thing) not in table.by_id:  # the first request, or a route added since
        unknown = () if table is None else table.unknown
        table = _RouteTable(_child_routes(router), unknown)
        tables["table"] = table = (
            table if id(thing) in table.by_id else _RouteTable(_child_routes(router), (*unknown, thing))
        )
    return table.by_id[id(thing)]


def first_match(infos: Sequence[RouteInfo], scope: Scope) -> RouteInfo | None:
    """Return the first place that matches the request's path and host, or else the first place."""
    if len(infos) > 1:
        path = strip_root(scope.get("app_root_path", scope.get("root_path", "")), scope["path"])
        infos = [info for info in infos if info.has(path, scope)] or infos
    return infos[0] if infos else None


def routes_below(app: Any) -> Sequence[Any]:
    """Return the routes of the app inside its middleware; empty if it has none."""
    for inner in nested_apps(app, "app"):
        if routes := _child_routes(inner) or _child_routes(getattr(inner, "__self__", None)):
            return routes
    return ()


def endpoint_below(routes: Sequence[Any], scope: Scope) -> Any:
    """Return the endpoint to which the router will pass a request; None if it is unknown."""
    route, inner = full_match(routes, scope)
    if route is None:
        return None
    inside = _child_routes(route)
    return endpoint_below(inside, inner) if inside else inner.get("endpoint")


def full_match(routes: Sequence[Any], scope: Scope) -> tuple[Any, dict[str, Any]]:
    """Return the route to which a router passes a request, and the scope that it passes on; None if there is none.

    Included routers of FastAPI are searched, too. The scope has what the functions of this module read.
    """
    for route, leaf in _leaves(routes):
        if not hasattr(leaf, "matches"):  # of a framework with other routes
            continue
        match, more = leaf.matches({**scope})
        if match.name == "FULL":
            return route, _scope_at(leaf, scope, more)
    return None, {**scope}


def every_match(routes: Sequence[Any], scope: Scope) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield what `full_match` returns for each of the routes, if it is the one that matches."""
    for route, leaf in _leaves(routes):
        if hasattr(leaf, "matches"):
            yield route, _scope_at(leaf, scope, {"endpoint": getattr(leaf, "endpoint", getattr(route, "app", None))})


def _scope_at(leaf: Any, scope: Scope, more: Scope) -> dict[str, Any]:
    context = {"fastapi": {"effective_route_context": leaf}} if hasattr(leaf, "original_route") else {}
    return {**scope, "route": getattr(leaf, "original_route", leaf), **context, **more}

"""Routes of Starlette, and of FastAPI, where they are a tree: their full templates. Looked through once per app."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_mw.faces.asgi_send import Scope
from ratelimit_mw.faces.remember import remembered
from ratelimit_mw.request import below

_DEEPEST: Final = 20  # mounts in mounts
_NAMED: Final = re.compile(r"\(\?P<\w+>")
_PORT: Final = re.compile(r":\d*$")
_REST: Final = "/{path}", "/(?:.*)$"  # what Starlette puts behind a mount's path


class Place(NamedTuple):
    """Where a route stands. `template`: `/shops/{shop}/items/{item}`, with the mounts above; `methods`: empty for all.

    `endpoint`: the function, class or mounted app. `within`: the mounts and hosts above, the outermost first. `name`:
    `GET /items/{item}`, which tells it apart from the other routes of the app.
    """

    template: str
    methods: tuple[str, ...]
    endpoint: Any
    pattern: re.Pattern[str]
    route: Any
    within: tuple[Any, ...]
    name: str

    def has(self, path: str, host: str) -> bool:
        """Whether a request is for it, as far as one of several places of the same route is concerned."""
        hosts = [one.host_regex for one in self.within if hasattr(one, "host_regex")]
        return self.pattern.match(path) is not None and all(regex.match(host) for regex in hosts)


def places(
    routes: Sequence[Any], within: tuple[Any, ...] = (), host: str = "", above: Any = ("", "")
) -> Iterator[Place]:
    """All routes and mounts, those inside of others too."""
    for one, leaf in _leaves(routes):
        if (name := getattr(one, "host_format", None)) is not None:
            yield from places(_inside(one), (*within, one), name, above)
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
        yield Place(shown, methods, endpoint, full, leaf, within, " ".join([*methods, shown]))
        if is_mount and len(within) < _DEEPEST:
            yield from places(_inside(one), (*within, one), host, (template, whole))


def _leaves(routes: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Each route as it is matched, and as the scope names it. FastAPI keeps routers that are included as branches."""
    for route in routes:
        branch = getattr(route, "effective_route_contexts", None)
        for leaf in branch() if branch is not None else (route,):
            yield getattr(leaf, "starlette_route", None) or leaf, leaf


def _inside(one: Any) -> Sequence[Any]:
    found = getattr(one, "routes", None)
    return found if isinstance(found, (list, tuple)) else ()  # else it is no Starlette's


def leaf_of(scope: Scope) -> Any:
    """The leaf of FastAPI's tree that was found last, which may stand further out than the route."""
    fastapi = scope.get("fastapi")
    return fastapi.get("effective_route_context") if isinstance(fastapi, dict) else None


def matched(scope: Scope) -> Any:
    """The route that was found, as `places` names it; None where the framework does not say."""
    route, leaf = scope.get("route"), leaf_of(scope)
    endpoint = scope.get("endpoint", route)
    if getattr(route, "endpoint", endpoint) is not endpoint or route is None:
        return None  # it is that of a mount further out
    if leaf is not None and (leaf.original_route is route or leaf.starlette_route is route):
        return leaf
    return route


def _of(leaf: Any) -> Any:
    return getattr(leaf, "starlette_route", None)


class _Table:
    """The places of one app. `by`: the id of a route or an endpoint."""

    def __init__(self, routes: Sequence[Any], strangers: Sequence[Any] = ()) -> None:
        self.strangers: Final = strangers  # which stand nowhere; kept, so that nothing else gets their ids
        self.by: Final[dict[int, list[Place]]] = {id(one): [] for one in strangers}
        for place in places(routes):
            for one in {id(one): one for one in (place.route, _of(place.route), place.endpoint)}.values():
                if one is not None:
                    self.by.setdefault(id(one), []).append(place)


def place_of(scope: Scope) -> Place | None:
    """Where the route stands that a request found, with the mounts above; None where that cannot be said."""
    found = places_of(scope)
    return found[0] if len(found) == 1 else first_of(found, scope)


def places_of(scope: Scope) -> Sequence[Place]:
    """All places of that route, which may be mounted more than once."""
    router, route = scope.get("router"), matched(scope)
    thing = scope.get("endpoint") if route is None else route
    if router is None or thing is None:
        return ()
    tables = remembered(router, "routes")
    table: _Table | None = tables.get("table")
    if table is None or id(thing) not in table.by:  # the first request, or a route that was added since
        strangers = () if table is None else table.strangers
        table = _Table(_inside(router), strangers)
        tables["table"] = table = table if id(thing) in table.by else _Table(_inside(router), (*strangers, thing))
    return table.by[id(thing)]


def first_of(found: Sequence[Place], scope: Scope) -> Place | None:
    """Of several places that which the request's path is of."""
    if len(found) > 1:
        path = below(scope.get("app_root_path", scope.get("root_path", "")), scope["path"])
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        host = _PORT.sub("", hosts[0]) if hosts else ""
        found = [place for place in found if place.has(path, host)] or found
    return found[0] if found else None


def routes_below(app: Any) -> Sequence[Any]:
    """The routes that an app has inside of the middleware around it; none if it has no such thing."""
    found: Sequence[Any] = ()
    for _ in range(_DEEPEST):
        if app is None or (found := _inside(app) or _inside(getattr(app, "__self__", None))):
            break
        app = getattr(app, "app", None)
    return found


def endpoint_below(routes: Sequence[Any], scope: Scope) -> Any:
    """What a request will find, as its router will look for it; None for nothing, or where that cannot be said."""
    for route in routes:
        match, more = route.matches(dict(scope))
        if match.name == "FULL":
            inside = _inside(route)
            return endpoint_below(inside, {**scope, **more}) if inside else more.get("endpoint")
    return None

"""Startup checks for endpoint limits and exemptions that nothing enforces."""

import re
from collections.abc import Iterable, Iterator, Sequence
from inspect import isfunction
from typing import Any, Final

from ratelimit_mw.checks.routes import RouteShape, no_effect_methods, route_findings
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.http.apps import nested_apps
from ratelimit_mw.http.routes import RouteInfo, all_routes, routes_below, starlette_route
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import WRAPPED, AsgiLimit, EndpointLimit, HonorsExempt, is_exempt, limits_on

_OF_ONE_SEGMENT: Final = {  # Starlette's converters without slashes, by their patterns
    "(?:[^/]+)": "",
    "(?:[0-9]+(\\.[0-9]+)?)": ":float",
    "(?:[0-9]+)": ":int",
    "(?:[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12})": ":uuid",
}
_CONVERTED: Final = re.compile("|".join(map(re.escape, _OF_ONE_SEGMENT)))
_PARAMETER: Final = re.compile(r"(?<=\w)\}")


def check_routes(app: Any, settings: Settings) -> None:
    """Report routes whose limits or exemptions nothing enforces, and rules for paths or methods that no route has.

    Raises `ConfigError` for a limit made by another framework's decorator, even if not `strict`: nothing else reports
    this mistake.
    """
    apps = list(nested_apps(app, "app"))
    layers = [one.cls for inner in apps for one in getattr(inner, "user_middleware", ())] + [type(one) for one in apps]
    around_all = any(isinstance(layer, type) and issubclass(layer, HonorsExempt) for layer in layers)
    infos = list(all_routes(routes_below(app)))
    if foreign := [text for info in infos for text in _foreign_limits(info)]:
        raise ConfigError(*foreign, code="RL-063")
    unenforced = [finding for info in infos for finding in _unenforced(info, around_all=around_all)]
    warn_or_fail([*unenforced, *_no_effect_methods(infos), *_rule_findings(infos, settings)], strict=settings.strict)


def _foreign_limits(info: RouteInfo) -> Iterator[str]:
    found = [limit for limit in limits_on(info.endpoint) if not (limit.rule.exempt or isinstance(limit, AsgiLimit))]
    if found:
        yield (
            f"{info.template}: the limit on {callable_name(info.endpoint)} is by the decorator for another framework, "
            "so nothing enforces it here: use limit of ratelimit_mw.starlette or ratelimit_mw.fastapi"
        )


def _unenforced(info: RouteInfo, *, around_all: bool) -> Iterator[Finding]:
    if isfunction(info.endpoint) and info.endpoint in WRAPPED:
        yield Finding(
            f"{info.template} has no limit: its route was registered before `limit` wrapped "
            f"{callable_name(info.endpoint)}; put `limit` below the decorator that registers the route",
            code="RL-101",
        )
    if is_exempt(info.endpoint) and not (around_all or any(_enforcers(info))):
        yield Finding(
            f"{info.template} is exempt, but no RateLimit is around it, and RateLimitMiddleware decides before "
            "routing: give the middleware a rule with this path and exempt=True",
            weakens_limits=False,
            code="RL-102",
        )


def _no_effect_methods(infos: Iterable[RouteInfo]) -> Iterator[Finding]:
    """Yield a finding for each limit whose `methods` do not occur in any of its routes."""
    routes: dict[EndpointLimit, list[RouteInfo]] = {}
    for info in infos:
        for limit in limits_of_route(info):
            routes.setdefault(limit, []).append(info)
    for limit, limited in routes.items():
        subject, methods = f"{limited[0].template}: its limit", [info.methods for info in limited]
        yield from no_effect_methods(subject, limit.rule, "its routes", methods)


def limits_of_route(info: RouteInfo) -> Iterable[EndpointLimit]:
    """Return the limits on the endpoint of a route, in middleware around it, and among its dependencies.

    None for a mount with routes, which are places of their own.
    """
    if getattr(info.route, "routes", ()):
        return ()
    around = [limit for enforcer in _enforcers(info) for limit in enforcer.limits_around]
    return dict.fromkeys([*limits_on(info.endpoint), *around])


def _rule_findings(infos: Sequence[RouteInfo], settings: Settings) -> Iterator[Finding]:
    """Yield the findings of `route_findings`; none without routes, and for routes of some hosts only."""
    parents = [parent for info in infos for parent in info.parents]
    if not infos or any(hasattr(parent, "host_regex") for parent in parents):
        return
    # A mount with known routes has the paths of these. Any other mount, such as one of files, has all paths below it.
    known = {id(parent) for parent in parents}
    reachable = [info for info in infos if id(starlette_route(info.route)) not in known]
    shapes = [shape for info in reachable for shape in _shapes_of(info)]

    def has_route(path: str) -> bool:
        root = path.rstrip("/")
        return any(
            info.pattern.match(path) and (root != info.template.rstrip("/") or _has_root(info)) for info in reachable
        )

    yield from route_findings(settings, shapes, has_route)


def _shapes_of(info: RouteInfo) -> Iterator[RouteShape]:
    """Yield the shape of a route or mount for `route_findings`. A mount, and an unknown converter, match slashes.

    A mount also yields its root with and without a slash, because Starlette redirects from one to the other. Its
    StaticFiles without `html` has nothing there.
    """
    pattern = info.pattern.pattern.removesuffix("(?:/|$)")
    is_mount = pattern != info.pattern.pattern
    if "(" in _CONVERTED.sub("", pattern):
        yield RouteShape(info.template.partition("{")[0] + "{x:path}", frozenset(info.methods))
        return
    converters = map(_OF_ONE_SEGMENT.__getitem__, _CONVERTED.findall(pattern))
    template = _PARAMETER.sub(lambda _: f"{next(converters, '')}}}", info.template)
    yield RouteShape(template + "/{x:path}" * is_mount, frozenset(info.methods))
    if is_mount and _has_root(info):
        yield from (RouteShape(template), RouteShape(f"{template}/"))


def _has_root(info: RouteInfo) -> bool:
    """Return whether a mount may have a response at its own path. StaticFiles without `html` has none."""
    return bool(getattr(info.endpoint, "html", True))


def _enforcers(info: RouteInfo) -> Iterator[HonorsExempt]:
    """Yield the middleware and the dependencies that enforce limits on a route."""
    leaf = starlette_route(info.route)
    for around in (getattr(leaf, "app", None), *(getattr(one, "app", None) for one in info.parents)):
        for layer in nested_apps(around, "middleware_stack", "app"):
            if isinstance(layer, HonorsExempt):
                yield layer
    yield from _dependencies_on_limits(getattr(leaf, "dependant", None))


def _dependencies_on_limits(dependant: Any) -> Iterator[HonorsExempt]:
    call = getattr(dependant, "call", None)
    if isinstance(call, HonorsExempt):
        yield call
    for inner in getattr(dependant, "dependencies", ()):
        yield from _dependencies_on_limits(inner)

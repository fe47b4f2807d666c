"""Startup checks for endpoint limits and exemptions that nothing enforces."""

from collections.abc import Iterable, Iterator, Sequence
from inspect import isfunction
from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.asgi.routes import RouteInfo, all_routes, has_root, routes_below, shapes_of, starlette_route
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.rules.deployment_checks import nested_apps
from ratelimit_mw.rules.endpoint_limits import EndpointLimit, is_exempt, limits_on
from ratelimit_mw.rules.route_checks import no_effect_methods_finding, route_findings
from ratelimit_mw.settings import Settings

WRAPPED: Final = WeakSet[Any]()  # functions that `limit` has wrapped; only the wrapper enforces the limit


class _MiddlewareRegistry:
    """All middleware of this process, and whether it must track every response."""

    def __init__(self) -> None:
        self.tracking_required = False
        self._middleware: Final[WeakSet[Any]] = WeakSet()

    def register(self, middleware: Any) -> bool:
        """Add a middleware, whose `track_all` may be called later. Return whether it must track from the start."""
        self._middleware.add(middleware)
        return self.tracking_required

    def require_tracking(self) -> None:
        """Make all middleware track responses, because an endpoint limit needs it."""
        self.tracking_required = True
        for middleware in list(self._middleware):
            middleware.track_all()


MIDDLEWARE_REGISTRY: Final = _MiddlewareRegistry()


class AsgiLimit:
    """Base class of endpoint limits that the integrations of ASGI frameworks enforce."""

    __slots__ = ()


class HonorsExempt:
    """Base class of limits that are placed around endpoints, and skip exempt endpoints."""

    __slots__ = ()

    @property
    def limits_around(self) -> Iterable[EndpointLimit]:
        """The limits that it enforces."""
        return ()


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
        if getattr(info.route, "routes", ()):
            continue  # a mount; `infos` also contains its routes
        around = [limit for enforcer in _enforcers(info) for limit in enforcer.limits_around]
        for limit in dict.fromkeys([*limits_on(info.endpoint), *around]):
            routes.setdefault(limit, []).append(info)
    for limit, limited in routes.items():
        methods = limit.rule.all_methods
        # a mounted app, a websocket and a class of endpoints have no methods of their own
        if methods and all(info.methods and methods.isdisjoint(info.methods) for info in limited):
            accepted = {method for info in limited for method in info.methods}
            yield no_effect_methods_finding(f"{limited[0].template}: its limit", limit.rule, "its routes", accepted)


def _rule_findings(infos: Sequence[RouteInfo], settings: Settings) -> Iterator[Finding]:
    """Yield the findings of `route_findings`; none without routes, and for routes of some hosts only."""
    parents = [parent for info in infos for parent in info.parents]
    if not infos or any(hasattr(parent, "host_regex") for parent in parents):
        return
    # A mount with known routes has the paths of these. Any other mount, such as one of files, has all paths below it.
    known = {id(parent) for parent in parents}
    reachable = [info for info in infos if id(starlette_route(info.route)) not in known]
    shapes = [shape for info in reachable for shape in shapes_of(info)]

    def has_route(path: str) -> bool:
        root = path.rstrip("/")
        return any(
            info.pattern.match(path) and (root != info.template.rstrip("/") or has_root(info)) for info in reachable
        )

    yield from route_findings(settings, shapes, has_route)


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

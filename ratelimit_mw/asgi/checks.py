"""Startup checks for endpoint limits and exemptions that nothing enforces."""

from collections.abc import Iterator
from inspect import isfunction
from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.asgi.routes import RouteInfo, all_routes, routes_below
from ratelimit_mw.core.log import Finding, warn_or_fail, warn_throttled
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.rules.endpoint_limits import is_exempt

_NOT_TRACKED: Final = (
    "settle and count_status on endpoints need RateLimitMiddleware around the app, which sees the response; "
    "without it, charges are not corrected"
)


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


def warn_not_tracked() -> None:
    """Warn that no middleware tracks the response."""
    warn_throttled("endpoint", _NOT_TRACKED, code="RL-230")


_MAX_DEPTH: Final = 20  # nested apps
WRAPPED: Final = WeakSet[Any]()  # undecorated functions, whose limits only their wrappers enforce


class HonorsExempt:
    """Base class of limits that are placed around endpoints and skip those that are exempt."""

    __slots__ = ()


def warn_of_unenforced(app: Any, *, strict: bool) -> None:
    """Report routes whose limits or exemptions nothing enforces."""
    warn_or_fail(_unenforced(app), strict=strict)


def _unenforced(app: Any) -> Iterator[Finding]:
    layers = [one.cls for one in getattr(app, "user_middleware", ())]
    around_all = any(isinstance(layer, type) and issubclass(layer, HonorsExempt) for layer in layers)
    for info in all_routes(routes_below(app)):
        if isfunction(info.endpoint) and info.endpoint in WRAPPED:
            yield Finding(
                f"{info.template} has no limit, though {callable_name(info.endpoint)} has one: put the decorator "
                "below the one that registers the route",
                code="RL-101",
            )
        if is_exempt(info.endpoint) and not (around_all or _is_enforced(info)):
            yield Finding(
                f"{info.template} is exempt, but no RateLimit is around it, and RateLimitMiddleware decides before "
                "routing: give the middleware a rule with this path and exempt=True",
                weakens_limits=False,
                code="RL-102",
            )


def _is_enforced(info: RouteInfo) -> bool:
    leaf = getattr(info.route, "starlette_route", None) or info.route
    around = [getattr(leaf, "app", None), *(getattr(one, "app", None) for one in info.parents)]
    return any(map(_honors_exempt, around)) or _depends_on_limit(getattr(leaf, "dependant", None))


def _honors_exempt(app: Any) -> bool:
    for _ in range(_MAX_DEPTH):
        if app is None or isinstance(app, HonorsExempt):
            break
        app = getattr(app, "middleware_stack", None) or getattr(app, "app", None)
    return isinstance(app, HonorsExempt)


def _depends_on_limit(dependant: Any) -> bool:
    inner = getattr(dependant, "dependencies", ())
    return isinstance(getattr(dependant, "call", None), HonorsExempt) or any(map(_depends_on_limit, inner))

"""Limits and exemptions in the code that nothing heeds, looked for when a server starts."""

from inspect import isfunction
from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.calls import name_of
from ratelimit_mw.faces.routes import Place, places, routes_below
from ratelimit_mw.marks import is_exempt
from ratelimit_mw.notices import logger

_DEEPEST: Final = 20  # layers around one app
wrapped: Final = WeakSet[Any]()  # functions whose limits are held by what was made of them


class Heeding:
    """A limit around endpoints, which passes those that are exempt."""

    __slots__ = ()


def warn_of_unheeded(app: Any) -> None:
    """Warn of routes that an app has without the limits that stand on them, or whose exemption nothing looks at."""
    layers = [one.cls for one in getattr(app, "user_middleware", ())]
    around_all = any(isinstance(layer, type) and issubclass(layer, Heeding) for layer in layers)
    for place in places(routes_below(app)):
        if isfunction(place.endpoint) and place.endpoint in wrapped:
            logger.warning(
                "ratelimit_mw: %s has no limit, though one stands on %s: let it stand below what registers the route",
                place.template,
                name_of(place.endpoint),
            )
        if is_exempt(place.endpoint) and not (around_all or _is_heeded(place)):
            logger.warning(
                "ratelimit_mw: %s is exempt, but no RateLimit is around it, and RateLimitMiddleware decides before it "
                "is found: give that a rule with this path and exempt=True",
                place.template,
            )


def _is_heeded(place: Place) -> bool:
    leaf = getattr(place.route, "starlette_route", None) or place.route
    around = [getattr(leaf, "app", None), *(getattr(one, "app", None) for one in place.within)]
    return any(map(_has, around)) or _depends(getattr(leaf, "dependant", None))


def _has(app: Any) -> bool:
    for _ in range(_DEEPEST):
        if app is None or isinstance(app, Heeding):
            break
        app = getattr(app, "middleware_stack", None) or getattr(app, "app", None)
    return isinstance(app, Heeding)


def _depends(dependant: Any) -> bool:
    inner = getattr(dependant, "dependencies", ())
    return isinstance(getattr(dependant, "call", None), Heeding) or any(map(_depends, inner))

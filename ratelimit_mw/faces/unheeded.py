"""Limits and exemptions in the code that nothing heeds, looked for when a server starts."""

from collections.abc import Iterator
from inspect import isfunction
from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.callables import name_of
from ratelimit_mw.faces.routes import Place, places, routes_below
from ratelimit_mw.marks import is_exempt
from ratelimit_mw.notices import Finding, warn_or_fail

_DEEPEST: Final = 20  # layers around one app
wrapped: Final = WeakSet[Any]()  # functions whose limits are held by what was made of them


class Heeding:
    """A limit around endpoints, which passes those that are exempt."""

    __slots__ = ()


def warn_of_unheeded(app: Any, *, strict: bool) -> None:
    """Report routes that an app has without the limits that are on them, or whose exemption nothing looks at."""
    warn_or_fail(_unheeded(app), strict=strict)


def _unheeded(app: Any) -> Iterator[Finding]:
    layers = [one.cls for one in getattr(app, "user_middleware", ())]
    around_all = any(isinstance(layer, type) and issubclass(layer, Heeding) for layer in layers)
    for place in places(routes_below(app)):
        if isfunction(place.endpoint) and place.endpoint in wrapped:
            yield Finding(
                f"{place.template} has no limit, though one stands on {name_of(place.endpoint)}: let it stand below "
                "what registers the route"
            )
        if is_exempt(place.endpoint) and not (around_all or _is_heeded(place)):
            yield Finding(
                f"{place.template} is exempt, but no RateLimit is around it, and RateLimitMiddleware decides before it "
                "is found: give that a rule with this path and exempt=True",
                limits_less=False,
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

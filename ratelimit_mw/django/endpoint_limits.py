"""Limits that stand on views: how they get there, and how they are found."""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakKeyDictionary

from django.conf import settings
from django.core.signals import request_started

from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import check_parentheses
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.django.gates import SETTING_NAME
from ratelimit_mw.rules.endpoint_limits import EndpointLimit, limits_on
from ratelimit_mw.rules.rule_table import EndpointLevel
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsSpec

View = TypeVar("View", bound=Callable[..., Any])
EndpointLimits = tuple[EndpointLimit, ...]

LOCATIONS: Final[WeakKeyDictionary[EndpointLimit, str]] = (
    WeakKeyDictionary()
)  # file and line of every limit that stands somewhere
_MAX_NAMED: Final = 3  # places, in a message
MIDDLEWARE_LOADED: Final = Event()  # set once there is a middleware
_EXEMPT: Final = EndpointLimit.exemption()


@check_arguments(EndpointLimitOptions)
def limit(limits: LimitsSpec, **options: Unpack[EndpointLimitOptions]) -> Callable[[View], View]:
    """A decorator: these limits on a view, instead of the default ones; the middleware enforces them.

    On functions, classes and methods of classes, on viewsets, by `method_decorator`, or in urlpatterns; the order of
    decorators does not matter. `limits` and `options`: as in a rule of the settings. Without a `name`, each view has a
    bucket of its own. Raises `ConfigError` where it stands for what is wrong.
    """
    check_parentheses(limits)
    endpoint_limit = EndpointLimit(limits, **options)
    caller = sys._getframe(2)  # noqa: SLF001  # as warnings do, to say where
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"

    def put(view: View) -> View:
        LOCATIONS.setdefault(endpoint_limit, place)
        if not MIDDLEWARE_LOADED.is_set():
            request_started.connect(_warn, dispatch_uid=_warn)
        # on this very object: method_decorator hands over wrappers of methods that all views inherit
        return endpoint_limit.attach(view, deep=False)

    return put


def exempt(view: View) -> View:
    """A decorator: no default limits on this view. Rules that match its path, and `app_limits`, stay."""
    return _EXEMPT.attach(view, deep=False)


def _warn(**_: Any) -> None:
    """At the first request, when all middleware is there; with `strict` at each one, as an error."""
    if not MIDDLEWARE_LOADED.is_set():
        warn_or_fail([Finding(unenforced())], strict=is_strict())
    request_started.disconnect(dispatch_uid=_warn)


def is_strict() -> bool:
    """Whether the project's settings are strict, where no middleware has read them."""
    return Settings.strict_setting(getattr(settings, SETTING_NAME, None))


def unenforced() -> str:
    """What is said of limits on views when the middleware is not there."""
    return (
        f"{len(LOCATIONS)} limits stand on views ({', '.join(sorted(LOCATIONS.values())[:_MAX_NAMED])}), and nothing "
        "enforces them: add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE"
    )


def limits_by_level(view: Any, method: str, route: str) -> Iterator[EndpointLevel]:
    """Find the marks of a view for requests of one method.

    Marks without a name share one bucket per view, wherever it is routed; only a view without an import path of its
    own has one per route. Clients see the route as the name of their limits.
    """
    bare = view
    while isinstance(bare, partial):
        bare = bare.func
    kind = getattr(bare, "view_class", None) or getattr(bare, "cls", None)  # Django's, REST framework's viewsets'
    if not isinstance(kind, type):
        yield limits_on(view), _path(bare, route), route
        return
    handler = _handler(bare, kind, method.lower())
    of_handler = limits_on(handler)
    of_kind = _excluding(dict.fromkeys([*limits_on(kind), *limits_on(getattr(kind, "dispatch", None))]), of_handler)
    path = _path(kind, route)
    yield _excluding(limits_on(view), (*of_kind, *of_handler)), route, route
    yield of_kind, path, route
    if _hides_function(kind):
        yield of_handler, path, route
    else:
        yield of_handler, f"{path}.{getattr(handler, '__name__', '')}", f"{method} {route}"


def _excluding(endpoint_limits: Any, others: EndpointLimits) -> EndpointLimits:
    return tuple(endpoint_limit for endpoint_limit in endpoint_limits if endpoint_limit not in others)


def _handler(view: Any, kind: type, method: str) -> Any:
    """The method of a class that answers, or the function that REST framework's `api_view` calls in it."""
    names: Any = getattr(view, "actions", None)  # of a viewset: which of its methods is for which of HTTP's
    if names is None:
        names = {word: word for word in getattr(kind, "http_method_names", ())}
    name = names.get(method)
    if method == "head" and getattr(kind, name or "", None) is None:
        name = names.get("get")
    handler = getattr(kind, name or "", None)
    if _hides_function(kind) and inspect.isfunction(handler):
        return inspect.getclosurevars(handler).nonlocals.get("func", handler)
    return handler


def _hides_function(kind: type) -> bool:
    """Whether it was made by REST framework's `api_view`, which leaves no other trace of the function."""
    return kind.__qualname__ == "WrappedAPIView"


def _path(thing: Any, route: str) -> str:
    """Where it is imported from. `route` for what is made in a function, or a lambda: many have the same name."""
    thing = inspect.unwrap(thing)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    name: str = named.__qualname__
    if not name.endswith(named.__name__):  # api_view renames its classes, but not all the way
        name = named.__name__
    return route if "<" in name else f"{named.__module__}.{name}"

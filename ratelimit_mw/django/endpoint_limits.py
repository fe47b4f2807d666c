"""Limits on Django's views: the decorators, and the search for limits on a view."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Event
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakKeyDictionary

from django.conf import settings
from django.core.signals import request_started

from ratelimit_mw.checks.decorators import applied_at, check_parentheses
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import explain_exempt
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import EndpointLevel, EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import EndpointLimit, limits_on
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsValue

View = TypeVar("View", bound=Callable[..., Any])
EndpointLimits = tuple[EndpointLimit, ...]

SETTING_NAME: Final = "RATELIMIT_MW"
LOCATIONS: Final[WeakKeyDictionary[EndpointLimit, str]] = WeakKeyDictionary()  # file and line of each attached limit
_MAX_NAMED: Final = 3  # places in a message
MIDDLEWARE_LOADED: Final = Event()  # set by the first middleware
_EXEMPT: Final = EndpointLimit.exemption()


@check_arguments(EndpointLimitOptions)
def limit(limits: LimitsValue, **options: Unpack[EndpointLimitOptions]) -> Callable[[View], View]:
    """Return a decorator that gives a view its own limits, in place of the default limits. The middleware enforces it.

    For functions, classes, methods of classes and viewsets; with `method_decorator` or in urlpatterns, too. The order
    of decorators does not matter. `limits` and `options` are those of a rule in the settings. Without a `name`, each
    view has its own bucket. Raises `ConfigError` for invalid limits or options, in the line of the call.
    """
    check_parentheses(limits)
    endpoint_limit = EndpointLimit(limits, **options)
    place = applied_at()

    def decorate(view: View) -> View:
        LOCATIONS.setdefault(endpoint_limit, f"{place.file}:{place.line}")
        if not MIDDLEWARE_LOADED.is_set():
            request_started.connect(_warn, dispatch_uid=_warn)
        # not on the wrapped function: method_decorator passes wrappers of methods that all views inherit
        return endpoint_limit.attach(view, deep=False)

    return decorate


@check_arguments(explain=explain_exempt)
def exempt(view: View) -> View:
    """Exempt a view from the default limits. Rules that match its path, and `app_limits`, still apply."""
    return _EXEMPT.attach(view, deep=False)


def _warn(**_: Any) -> None:
    """Warn at the first request, when all middleware is loaded. With `strict`, raise at each request."""
    if not MIDDLEWARE_LOADED.is_set():
        warn_or_fail([Finding(unenforced_message(), code="RL-103")], strict=is_strict())
    request_started.disconnect(dispatch_uid=_warn)


def is_strict() -> bool:
    """Return whether the project's settings are strict, if no middleware has read them."""
    return Settings.strict_setting(getattr(settings, SETTING_NAME, None))


def unenforced_message() -> str:
    """Return the message for limits on views without the middleware."""
    return (
        f"{len(LOCATIONS)} limits on views ({', '.join(sorted(LOCATIONS.values())[:_MAX_NAMED])}) are not "
        "enforced: add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE"
    )


def limits_by_level(view: Any, method: str, route: str) -> Iterator[EndpointLevel]:
    """Yield the limits on a view for requests of one method.

    Limits without a name have one bucket per view, whatever its routes. A view without an import path has one bucket
    per route. To clients, the name of these limits is the route.
    """
    bare = view
    while isinstance(bare, partial):
        bare = bare.func
    kind = getattr(bare, "view_class", None) or getattr(bare, "cls", None)  # the latter for viewsets of REST framework
    if not isinstance(kind, type):
        yield limits_on(view), _path(bare, route), route
        return
    handler = _handler(bare, kind, method.lower())
    of_handler = limits_on(handler)
    of_kind = _excluding(dict.fromkeys([*limits_on(kind), *limits_on(getattr(kind, "dispatch", None))]), of_handler)
    path = _path(kind, route)
    yield _excluding(limits_on(view), (*of_kind, *of_handler)), route, route
    yield of_kind, path, route
    if _made_by_api_view(kind):
        yield of_handler, path, route
    else:
        yield of_handler, f"{path}.{getattr(handler, '__name__', '')}", f"{method} {route}"


def compile_limits(rule_set: RuleSet, levels: Iterable[EndpointLevel]) -> EndpointRules:
    """Compile the limits of a view or of its throttles."""
    rules: EndpointRules = ()
    for endpoint_limits, name, shown in levels:
        rules += rule_set.compile_endpoint_limits(endpoint_limits, name, shown, siblings=rules)
    return rules


def report_limits(rule_set: RuleSet, levels: Iterable[EndpointLevel]) -> EndpointRules:
    """Compile the limits of a view or of its throttles, and warn of likely mistakes in them."""
    return rule_set.report_endpoint(compile_limits(rule_set, levels))


def _excluding(endpoint_limits: Any, others: EndpointLimits) -> EndpointLimits:
    return tuple(endpoint_limit for endpoint_limit in endpoint_limits if endpoint_limit not in others)


def _handler(view: Any, kind: type, method: str) -> Any:
    """Return the method of a class that handles the request, or the function inside REST framework's `api_view`."""
    names: Any = getattr(view, "actions", None)  # for a viewset, the names of its methods by HTTP method
    if names is None:
        names = {word: word for word in getattr(kind, "http_method_names", ())}
    name = names.get(method)
    if method == "head" and getattr(kind, name or "", None) is None:
        name = names.get("get")
    handler = getattr(kind, name or "", None)
    if _made_by_api_view(kind) and inspect.isfunction(handler):
        return inspect.getclosurevars(handler).nonlocals.get("func", handler)
    return handler


def _made_by_api_view(kind: type) -> bool:
    """Return whether REST framework's `api_view` made this class around a function. Its name is the only sign of it."""
    return kind.__qualname__ == "WrappedAPIView"


def _path(thing: Any, route: str) -> str:
    """Return the import path. For local functions and lambdas, whose names may be the same, return `route`."""
    thing = inspect.unwrap(thing)
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    name: str = named.__qualname__
    if not name.endswith(named.__name__):  # api_view sets __name__ of its classes, but not __qualname__
        name = named.__name__
    return route if "<" in name else f"{named.__module__}.{name}"

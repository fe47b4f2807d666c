"""Limits on Flask's views and blueprints, and a warning if nothing enforces them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakKeyDictionary, WeakSet

from ratelimit_mw.checks.decorators import check_parentheses
from ratelimit_mw.checks.routes import no_effect_methods
from ratelimit_mw.core.errors import ConfigError, require
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.signatures import callable_name, explain_exempt
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.rules.rule_table import EndpointLevel
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import EndpointLimit, limits_on, unwrap_chain
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsValue
from ratelimit_mw.stores.lifecycle import fork_safe_lock

with require("flask"):
    from flask import Blueprint, Flask, request_started

Target = TypeVar("Target", bound=Callable[..., Any] | Blueprint)

CONFIG: Final = "RATELIMIT_MW"  # the settings in an app's config
_NO_APP: Final = Finding(
    "a RateLimiter has settings and no app, so it limits nothing; call its init_app(app)", code="RL-108"
)
_NOT_ENFORCED: Final = (
    "nothing enforces it, because it is not on a view or blueprint of an app with a RateLimiter; register a route or "
    "blueprint with it, put it below a decorator that hides it, or remove it"
)
_IMPLICIT_METHODS: Final = {"HEAD", "OPTIONS"}  # Flask adds them
_limited_apps: Final[WeakSet[Flask]] = WeakSet()  # the apps that have a RateLimiter
_unchecked: Final[WeakKeyDictionary[EndpointLimit, str]] = (
    WeakKeyDictionary()
)  # limits not yet known to be enforced, with the names of their places
_without_app: Final[WeakKeyDictionary[Any, bool]] = (
    WeakKeyDictionary()
)  # RateLimiters with settings and without an app, and whether they are strict
_lock: Final = fork_safe_lock()


@check_arguments(EndpointLimitOptions)
def limit(limits: LimitsValue, **options: Unpack[EndpointLimitOptions]) -> Callable[[Target], Target]:
    """Limit a view, a view class, a method of one, or all views of a blueprint.

    The decorator works above and below `@app.route`. `limits` and `options` are those of a rule in the settings.
    Without a name, each endpoint has its own bucket. Limits of the same name share one. The nearest limits apply: those
    of the method, the view, the blueprint, an outer blueprint, or else the default limits. With `final=False`, the
    outer limits apply as well.

    Raises `ConfigError` for invalid limits or options and for async callables, and `TypeError` for other targets.
    """
    check_parentheses(limits)
    EndpointLimit(limits, **options).reject_async_callables()  # raises here, in the line of the mistake

    def decorate(target: Target) -> Target:
        return _attach(EndpointLimit(limits, **options), target, "limit")

    return decorate


@check_arguments(explain=explain_exempt)
def exempt(target: Target) -> Target:
    """Exempt a view, view class or blueprint from the default limits and those of outer blueprints.

    The blueprints nested in an exempt one are not exempt. `app_limits`, and rules of the settings whose path matches,
    still apply. Raises `TypeError` for other targets.
    """
    return _attach(EndpointLimit.exemption(), target, "exempt")


def levels_of(
    view: object, endpoint: str, route: str, methods: Iterable[str], method: str, blueprints: Iterable[object]
) -> Sequence[EndpointLevel]:
    """Return the limits on a view and on the blueprints around it, the nearest first.

    `blueprints`: the nearest first, which is the only one whose exemption applies to the view. Limits without a name
    have one bucket per endpoint. To clients, their name is the route.
    """
    shown = " ".join([*sorted({*methods} - _IMPLICIT_METHODS), route])
    of_view, kind = limits_on(view), _class_of(view)
    found: list[EndpointLevel] = []
    if kind is not None:
        if method == "HEAD" and not hasattr(kind, "head"):
            method = "GET"  # MethodView answers HEAD with get()
        found.append((_limits_of_method(kind, method), f"{endpoint}.{method}", f"{method} {route}"))
        of_view += _limits_of_method(kind, "dispatch_request")
    nearest, *outer = [*map(limits_on, blueprints)] or [()]
    of_outer = [tuple(one for one in of_blueprint if not one.rule.exempt) for of_blueprint in outer]
    found += [(endpoint_limits, endpoint, shown) for endpoint_limits in (of_view, nearest, *of_outer)]
    return [level for level in found if level[0]]


def register_app(app: Flask, extension: object) -> None:
    """Record that this RateLimiter enforces the limits in this app."""
    _limited_apps.add(app)
    _without_app.pop(extension, None)


def warn_unless_limits_app(extension: object, *, strict: bool) -> None:
    """Warn at the first request to any app, unless `register_app` is called for this RateLimiter first.

    `strict`: raise an error instead.
    """
    _without_app[extension] = strict
    request_started.connect(_check_enforced)


def _attach(endpoint_limit: EndpointLimit, target: Target, word: str) -> Target:
    others = [one for one in limits_on(target) if not isinstance(target, type) or one in vars(target).values()]
    if any(other.rule.exempt != endpoint_limit.rule.exempt for other in others):
        raise ConfigError(
            f"@{word} on {_name_of(target)}: got @limit and @exempt, expected one of them; a limit on a view replaces "
            "the default limits, and @exempt is for views without limits",
            code="RL-024",
        )
    endpoint_limit.attach(target)
    _unchecked[endpoint_limit] = f"@{word} on {_name_of(target)}"
    request_started.connect(_check_enforced)
    return target


def _name_of(target: Callable[..., Any] | Blueprint) -> str:
    if isinstance(target, Blueprint):
        return f"blueprint {target.name}"
    return f"{target.__module__}.{callable_name(target)}"


def _check_enforced(sender: Flask, **_: object) -> None:
    """Report limits that no app enforces, and extensions without an app.

    Runs at the first request to any app after a limit was attached or a RateLimiter was created. Requests to an app
    with `strict` fail until every limit is enforced.
    """
    with _lock:
        findings = enforcement_findings()
        strict = is_strict(sender)
        if findings and not strict and any(map(_is_strict, list(_limited_apps))):
            return  # only requests to the strict app fail
        warn_or_fail(findings, strict=strict)
        _unchecked.clear()
        _without_app.clear()
        request_started.disconnect(_check_enforced)


def enforcement_findings() -> Sequence[Finding]:
    """Return a finding for each limit that no app enforces, and one for extensions without an app.

    Limits that an earlier request found enforced are not examined again. Call it when all routes are registered.
    """
    enforced = {endpoint_limit for app in list(_limited_apps) for endpoint_limit in _limits_in(app)}
    idle = sorted(
        (name, not endpoint_limit.rule.exempt)
        for endpoint_limit, name in _unchecked.items()
        if endpoint_limit not in enforced
    )
    findings = [
        Finding(f"{name}: {_NOT_ENFORCED}", code="RL-109", weakens_limits=weakens_limits)
        for name, weakens_limits in idle
    ]
    findings += [finding for app in list(_limited_apps) for finding in _no_effect_methods(app)]
    return findings + [_NO_APP] * bool(_without_app)


def is_strict(app: Flask) -> bool:
    """Return whether the findings of `enforcement_findings` are errors in requests to this app."""
    return _is_strict(app) or any(_without_app.values())


def _no_effect_methods(app: Flask) -> Iterator[Finding]:
    """Yield a finding for each unchecked limit whose `methods` do not occur in any of its routes."""
    methods: dict[EndpointLimit, list[Collection[str]]] = {}
    for rule in app.url_map.iter_rules():
        names = [name for name in app.blueprints if rule.endpoint.startswith(f"{name}.")]
        for owner in (app.view_functions.get(rule.endpoint), *(app.blueprints[name] for name in names)):
            for endpoint_limit in limits_on(owner):
                methods.setdefault(endpoint_limit, []).append(rule.methods or ())
    for endpoint_limit, of_routes in methods.items():
        if endpoint_limit in _unchecked:
            yield from no_effect_methods(_unchecked[endpoint_limit], endpoint_limit.rule, "its routes", of_routes)


def _is_strict(app: Flask) -> bool:
    if (hooks := app.extensions.get("ratelimit_mw")) is not None:
        strict: bool = hooks.gate.settings.strict
        return strict
    return Settings.strict_setting(app.config.get(CONFIG))


def _limits_in(app: Flask) -> Iterator[EndpointLimit]:
    for owner in (*app.view_functions.values(), *app.blueprints.values()):
        yield from limits_on(owner)
        kind = _class_of(owner)
        for method in () if kind is None else ("dispatch_request", *(getattr(kind, "methods", None) or ())):
            yield from _limits_of_method(kind, method)


def _class_of(view: object) -> type | None:
    """Return the class of a class-based view; None for other views."""
    return next((one for one in unwrap_chain(view) if isinstance(one, type)), None)


def _limits_of_method(kind: type | None, method: str) -> tuple[EndpointLimit, ...]:
    return limits_on(getattr(kind, method.lower(), None))


def blueprints_around(endpoint: str) -> Sequence[str]:
    """Return the names of the blueprints of an endpoint, the nearest first, as `request.blueprints` has them."""
    names = endpoint.split(".")[:-1]
    return [".".join(names[:end]) for end in range(len(names), 0, -1)]

"""Limits on Flask's views and blueprints, and a warning where nothing enforces them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakKeyDictionary, WeakSet

from ratelimit_mw.callables import check_parentheses, name_of
from ratelimit_mw.faces.missing import needs
from ratelimit_mw.marks import Mark, layers, marks_of
from ratelimit_mw.matching import Level
from ratelimit_mw.notices import Finding, warn_or_fail
from ratelimit_mw.rules import LimitsSpec, MarkOptions
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.words import answered

with needs("flask"):
    from flask import Blueprint, Flask, request_started

Target = TypeVar("Target", bound=Callable[..., Any] | Blueprint)

CONFIG: Final = "RATELIMIT_MW"  # the settings in an app's config
_NO_APP: Final = Finding("a RateLimiter has settings and no app, so it limits nothing; call its init_app(app)")
_SILENT: Final = {"HEAD", "OPTIONS"}  # methods that Flask adds by itself
_limited: Final[WeakSet[Flask]] = WeakSet()  # the apps that have a RateLimiter
_unseen: Final[WeakKeyDictionary[Mark, str]] = WeakKeyDictionary()  # marks of which it is not known who enforces them
_homeless: Final[WeakSet[Any]] = WeakSet()  # extensions with settings that no app has had yet
_looking: Final = lock()


@answered(MarkOptions)
def limit(limits: LimitsSpec, **options: Unpack[MarkOptions]) -> Callable[[Target], Target]:
    """Limit a view, a view class, a method of one, or all views of a blueprint; above or below `@app.route`.

    `limits` and `options`: as in a rule of the settings. Without a name, each endpoint has a bucket of its own; all
    that bear one name share one. What is nearest counts: method, view, blueprint, the blueprint around it, and the
    default limits for all else; `final=False` leaves what is further out to count besides.

    Raises `ConfigError` for what no rule may say, and for async callables; `TypeError` for what bears no limit.
    """
    check_parentheses(limits)
    Mark(limits, **options).without_awaiting()  # a mistake is told where it stands

    def decorate(target: Target) -> Target:
        return _put(Mark(limits, **options), target, "limit")

    return decorate


def exempt(target: Target) -> Target:
    """Keep the default limits, and those of the blueprints around, from a view, a view class or a blueprint.

    `app_limits`, and rules of the settings whose path matches, still count. Raises `TypeError` as `limit` does.
    """
    return _put(Mark.exempting(), target, "exempt")


def levels_of(
    view: object, endpoint: str, route: str, methods: Iterable[str], method: str, blueprints: Iterable[object]
) -> Sequence[Level]:
    """Find the marks on a view and on the blueprints around it, the nearest first.

    Marks without a name have one bucket per endpoint; clients see the route as the name of their limits.
    """
    shown = " ".join([*sorted({*methods} - _SILENT), route])
    own, kind = marks_of(view), _class_of(view)
    found: list[Level] = []
    if kind is not None:
        if method == "HEAD" and not hasattr(kind, "head"):
            method = "GET"  # as MethodView answers it
        found.append((_marks_of_method(kind, method), f"{endpoint}.{method}", f"{method} {route}"))
        own += _marks_of_method(kind, "dispatch_request")
    found += [(marks, endpoint, shown) for marks in (own, *map(marks_of, blueprints))]
    return [level for level in found if level[0]]


def watch(app: Flask) -> None:
    """Take what stands in this app for enforced."""
    _limited.add(app)


def expect_app(extension: object) -> None:
    """Warn at the first request to any app, unless `has_app` was called for this extension before."""
    _homeless.add(extension)
    request_started.connect(_look)


def has_app(extension: object) -> None:
    """Take this extension for one that limits an app."""
    _homeless.discard(extension)


def _put(mark: Mark, target: Target, word: str) -> Target:
    mark.put_on(target)
    name = f"blueprint {target.name}" if isinstance(target, Blueprint) else f"{target.__module__}.{name_of(target)}"
    _unseen[mark] = f"@{word} on {name}"
    request_started.connect(_look)
    return target


def _look(asked: Flask, **_: object) -> None:
    """At the first request after marks or extensions were made, to any app: report those that no app enforces.

    With `strict` every request raises the error until all of them are enforced.
    """
    with _looking:
        enforced = {mark for app in list(_limited) for mark in _marks_in(app)}
        idle = sorted((name, not mark.rule.exempt) for mark, name in _unseen.items() if mark not in enforced)
        text = "nothing enforces it; it stands on no view or blueprint of an app with a RateLimiter"
        findings = [Finding(f"{name}: {text}", limits_less) for name, limits_less in idle]
        findings += [_NO_APP] * bool(_homeless)
        warn_or_fail(findings, strict=any(map(_is_strict, {asked, *_limited})))
        _unseen.clear()
        _homeless.clear()
        request_started.disconnect(_look)


def _is_strict(app: Flask) -> bool:
    if (hooks := app.extensions.get("ratelimit_mw")) is not None:
        strict: bool = hooks.gate.settings.strict
        return strict
    return Settings.strictness(app.config.get(CONFIG))


def _marks_in(app: Flask) -> Iterator[Mark]:
    for bearer in (*app.view_functions.values(), *app.blueprints.values()):
        yield from marks_of(bearer)
        kind = _class_of(bearer)
        for method in () if kind is None else ("dispatch_request", *(getattr(kind, "methods", None) or ())):
            yield from _marks_of_method(kind, method)


def _class_of(view: object) -> type | None:
    """The class of a view that is made of one."""
    return next((one for one in layers(view) if isinstance(one, type)), None)


def _marks_of_method(kind: type | None, method: str) -> tuple[Mark, ...]:
    return marks_of(getattr(kind, method.lower(), None))

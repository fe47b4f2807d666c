"""Limits that stand on Flask's views and blueprints, and a word where nothing enforces them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakKeyDictionary, WeakSet

from ratelimit_mw.calls import name_of
from ratelimit_mw.faces.missing import needs
from ratelimit_mw.marks import Mark, layers, marks_of
from ratelimit_mw.matching import Level
from ratelimit_mw.notices import logger
from ratelimit_mw.rules import LimitsSpec, MarkOptions

with needs("flask"):
    from flask import Blueprint, Flask, request_started

Target = TypeVar("Target", bound=Callable[..., Any] | Blueprint)

_limited: Final[WeakSet[Flask]] = WeakSet()  # the apps that have a RateLimiter
_unseen: Final[WeakKeyDictionary[Mark, str]] = WeakKeyDictionary()  # marks of which it is not known who enforces them


def limit(limits: LimitsSpec, **options: Unpack[MarkOptions]) -> Callable[[Target], Target]:
    """Limit a view, a view class, a method of one, or all views of a blueprint; above or below `@app.route`.

    `limits` and `options`: as in a rule of the settings. Without a name, each endpoint has a bucket of its own; all
    that bear one name share one. What is nearest counts: method, view, blueprint, the blueprint around it, and the
    default limits for all else; `final=False` leaves what is further out to count besides.

    Raises `ConfigError` for what no rule may say, and for async callables; `TypeError` for what bears no limit.
    """
    Mark(limits, **options).without_awaiting()  # a mistake is told where it stands

    def decorate(target: Target) -> Target:
        return _put(Mark(limits, **options), target, "limit")

    return decorate


def exempt(target: Target) -> Target:
    """Keep the default limits, and those of the blueprints around, from a view, a view class or a blueprint.

    `app_limits`, and rules of the settings whose path matches, still count. Raises `TypeError` as `limit` does.
    """
    return _put(Mark.exempting(), target, "exempt")


def levels_of(view: object, endpoint: str, method: str, blueprints: Iterable[object]) -> Sequence[Level]:
    """What stands on the view of a request, and on what it belongs to, the nearest first."""
    own, kind = marks_of(view), _class_of(view)
    found: list[Level] = []
    if kind is not None:
        if method == "HEAD" and not hasattr(kind, "head"):
            method = "GET"  # as MethodView answers it
        found.append((_marks_of_method(kind, method), f"{endpoint}.{method}"))
        own += _marks_of_method(kind, "dispatch_request")
    found += [(own, endpoint), *((marks_of(blueprint), endpoint) for blueprint in blueprints)]
    return [level for level in found if level[0]]


def watch(app: Flask) -> None:
    """Take what stands in this app for enforced."""
    _limited.add(app)


def _put(mark: Mark, target: Target, word: str) -> Target:
    mark.put_on(target)
    name = f"blueprint {target.name}" if isinstance(target, Blueprint) else f"{target.__module__}.{name_of(target)}"
    _unseen[mark] = f"@{word} on {name}"
    request_started.connect(_look)
    return target


def _look(_: Flask, **__: object) -> None:
    """At the first request after marks were made, to any app: warn of those that no app enforces."""
    request_started.disconnect(_look)
    enforced = {mark for app in list(_limited) for mark in _marks_in(app)}
    idle = []
    while _unseen:
        try:
            mark, name = _unseen.popitem()
        except KeyError:  # another thread looks too
            break
        if mark not in enforced:
            idle.append(name)
    for name in sorted(idle):
        logger.warning(
            "ratelimit_mw: %s: nothing enforces it; it stands on no view or blueprint of an app with a RateLimiter",
            name,
        )


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

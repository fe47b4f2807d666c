"""Finds REST framework throttles without effect, in `manage.py check` or at a request."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.urls import get_resolver

from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.django.endpoint_limits import is_strict

_MAX_NAMED: Final = 3  # views in a message
RATES: Final = "DEFAULT_THROTTLE_RATES"
FIX: Final = (
    f"set `throttle_scope` on the views, with a rate in {RATES}, or use a subclass of Throttle with `limits` or `scope`"
)


class Idle(NamedTuple):
    """A throttle class without effect on some views, with the text that reports it."""

    throttle: type
    views: Sequence[type]
    text: str


class Use(NamedTuple):
    """One throttle of one view.

    `options`: attributes of the view, as its route sets them. `declared`: the view itself names the throttle.
    """

    throttle: type
    view: type
    options: Any
    declared: bool


def views_of(patterns: Sequence[Any]) -> Iterator[Any]:
    """Yield all views of these URL patterns and of those that they include."""
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from views_of(pattern.url_patterns)
        else:
            yield pattern.callback


def uses_of(views: Sequence[Any], base: type) -> Iterator[Use]:
    """Yield each throttle that inherits from `base`, with each view that names it."""
    for view in views:
        kind = getattr(view, "cls", None)
        if not isinstance(kind, type):
            continue
        initkwargs: dict[str, Any] = getattr(view, "initkwargs", {})  # e.g. of an action of a viewset
        options = SimpleNamespace(
            throttle_scope=initkwargs.get("throttle_scope", getattr(kind, "throttle_scope", None))
        )
        throttles = initkwargs.get("throttle_classes", getattr(kind, "throttle_classes", ()))
        inherited = getattr(super(kind, kind), "throttle_classes", None)
        for throttle in throttles:
            if isinstance(throttle, type) and issubclass(throttle, base):
                yield Use(throttle, kind, options, throttles is not inherited)


def idle_throttles(views: Sequence[Any], base: type) -> Iterator[Idle]:
    """Yield throttles with neither limits nor scope, on views without `throttle_scope`.

    A throttle that all views inherit may be meant for those with a `throttle_scope`. So views without one count only if
    no view has one, or if the view names the throttle itself.
    """
    by_throttle: dict[type, list[Use]] = {}
    for use in uses_of(views, base):
        throttle: Any = use.throttle
        decides = throttle.allow_request is base.allow_request  # type: ignore[attr-defined]  # it is Throttle
        if decides and not throttle.limits_itself():
            by_throttle.setdefault(throttle, []).append(use)
    for throttle, uses in by_throttle.items():
        scoped = any(use.options.throttle_scope for use in uses)
        idle = [use for use in uses if not use.options.throttle_scope and (use.declared or not scoped)]
        kinds = list(dict.fromkeys(use.view for use in idle if _has_usual_throttles(use.view)))
        if kinds:
            names = ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds[:_MAX_NAMED])
            more = f" and {len(kinds) - _MAX_NAMED} more" if len(kinds) > _MAX_NAMED else ""
            text = (
                f"{throttle.__module__}.{throttle.__qualname__} throttles nothing on {names}{more}: it has neither "
                "`limits` nor `scope`, and the views have no `throttle_scope`"
            )
            yield Idle(throttle, kinds, text)


def report_idle(throttle: type, view: object, base: type) -> None:
    """Report a throttle without effect: once for all of its views, or with `strict` as an error each time."""
    idle = _idle_of(getattr(settings, "ROOT_URLCONF", None), base).get((throttle, type(view)))
    if idle is None:
        return
    strict = is_strict()
    if strict or idle.text not in _reported:
        _reported.add(idle.text)
        warn_or_fail([Finding(f"{idle.text}; {FIX}")], strict=strict)


@lru_cache(maxsize=16)
def _idle_of(urls: Any, base: type) -> dict[tuple[type, type], Idle]:
    views = list(views_of(get_resolver(urls).url_patterns))
    return {(idle.throttle, view): idle for idle in idle_throttles(views, base) for view in idle.views}


_reported: Final[set[str]] = set()


def _has_usual_throttles(kind: type) -> bool:
    """Return whether REST framework builds the view's throttles. A view that does so may set their scope."""
    module: str = getattr(getattr(kind, "get_throttles", None), "__module__", "")
    return module.startswith("rest_framework.")

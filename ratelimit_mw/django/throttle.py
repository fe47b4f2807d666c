"""A throttle for Django REST framework: its views ask it; nothing of the framework is imported."""

from collections.abc import Mapping, Sequence
from functools import cache
from inspect import isfunction, isroutine, signature
from math import isinf
from typing import Any, ClassVar, Final

from asgiref.sync import async_to_sync
from django.conf import settings

from ratelimit_mw.django.answers import Turn
from ratelimit_mw.django.gates import alone
from ratelimit_mw.django.idle import RATES, report_idle
from ratelimit_mw.django.request import DjangoRequest
from ratelimit_mw.errors import ConfigError, located
from ratelimit_mw.faces.loops import inside_a_loop
from ratelimit_mw.following import following
from ratelimit_mw.gate import AsyncGate, Gate
from ratelimit_mw.marks import Mark
from ratelimit_mw.matching import Marked
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.peers import word_here
from ratelimit_mw.request import user_id
from ratelimit_mw.rules import MarkOptions
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.words import close_to, unknown_word

_PENDING: Final = "_ratelimit_mw_throttles"


class Throttle:
    """For `throttle_classes` of a view, or `DEFAULT_THROTTLE_CLASSES`. Subclasses say what is limited.

    `limits`, `key`, `cost`, `name` and the rest: as in a rule of the settings; callables take the request alone.
    Without `limits`: the rate that `DEFAULT_THROTTLERATES` has for `scope`, or for the view's `throttle_scope`. All
    views of a throttle, or of a scope, share a bucket; add `route` to the key for one each. `user` is whom REST
    framework knows.

    All throttles of a view are asked in one step, all or nothing, in the store of the middleware. Raises `ConfigError`
    for wrong limits, where the class stands; for a scope without a rate, when a view is asked.
    """

    limits: ClassVar[Any] = None
    scope: ClassVar[str | None] = None
    _mark: ClassVar[Mark | None] = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        with located(cls.__qualname__):
            _check_attributes(vars(cls))
        cls._mark = None if cls.limits is None else cls._made(cls.limits)

    def __init__(self) -> None:
        self._wait = 0.0  # seconds

    def allow_request(self, request: Any, view: Any) -> bool:
        """Whether a request may pass. The first of a view's throttles is asked for all of them."""
        pending: list[type[Throttle]] = vars(request).setdefault(_PENDING, [])
        if type(self) in pending:
            pending.remove(type(self))
            return True
        raw = getattr(request, "_request", request)
        outcome = getattr(raw, "ratelimit", None)
        if not isinstance(outcome, Outcome):
            outcome = None
        elif outcome.verdict is not None and not outcome.verdict.allowed:
            return self._said(outcome.verdict, outcome)
        together = self._together(view)
        pending += [kind for kind in together if kind is not type(self)]
        limits = _limits_of(together, view)
        if not limits:
            return True
        gate = _gate(outcome)
        marked: Marked = ()
        for mark, name, shown in limits:
            marked += gate.compiled((mark,), name, shown, beside=marked)
        seen = _Asked(raw, outcome, request)
        verdict = _admitted(gate, seen, marked)
        if verdict is None:
            return True
        if outcome is not None:
            outcome.add(verdict, gate)
        if seen.followers is not None:
            _have_followed(raw, seen, outcome)
        return self._said(verdict, outcome)

    def wait(self) -> float | None:
        """Seconds until a refused request would pass, exactly; None when nobody knows, or never."""
        return self._wait if self._wait > 0 and not isinf(self._wait) else None

    def _said(self, verdict: Verdict, outcome: Outcome | None) -> bool:
        self._wait = max(verdict.retry_after, 0.0 if outcome is None else outcome.wait)
        return verdict.allowed

    def _together(self, view: Any) -> "list[type[Throttle]]":
        """Those of a view's throttles that are asked in one step: none that decides in its own way."""
        throttles = view.get_throttles() if hasattr(view, "get_throttles") else ()
        alike = [type(one) for one in throttles if getattr(type(one), "allow_request", None) is Throttle.allow_request]
        return list(dict.fromkeys(alike)) if type(self) in alike else [type(self)]

    @classmethod
    def limits_itself(cls) -> bool:
        """Whether it has limits or a scope of its own; else it limits views with a `throttle_scope` only."""
        return cls._mark is not None or bool(cls.scope)

    @classmethod
    def limits_of(cls, view: Any) -> tuple[Mark | None, str, str]:
        """The limits, what identifies their bucket, and the name that clients see."""
        if cls._mark is not None:
            return cls._mark, f"{cls.__module__}.{cls.__qualname__}", cls.scope or cls.__name__
        scope = cls.scope or getattr(view, "throttle_scope", None)
        if not scope:
            return None, "", ""
        rates = getattr(settings, "REST_FRAMEWORK", {}).get(RATES, {})
        if scope not in rates:
            raise ConfigError(f"{RATES}: found no rate for {scope!r}, the scope of {cls.__qualname__}")
        return (None if rates[scope] is None else cls._scoped(rates[scope])), scope, scope

    @classmethod
    @cache
    def _scoped(cls, rate: str) -> Mark:
        with located(RATES):
            return cls._made(rate)

    @classmethod
    def _made(cls, limits: Any) -> Mark:
        options: dict[str, Any] = {}
        with located(cls.__qualname__):
            for word in MarkOptions.__annotations__:
                if (value := getattr(cls, word, None)) is not None:
                    options[word] = value
                    if isfunction(value) and "self" in signature(value).parameters:
                        raise ConfigError(f"{word}: found a method, allowed is a function of the request, as static")
            return Mark(limits, **options).without_awaiting().without_slots()


def _check_attributes(own: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for attributes of a throttle that look like settings and are none."""
    known = ["limits", "scope", *MarkOptions.__annotations__]
    likely: list[str] = []
    for name, value in own.items():
        if name in known or name in vars(Throttle) or name.startswith("_"):
            continue
        here, _ = word_here(name) or ("", "")
        if here in known or (not isroutine(value) and close_to(name, known)):
            likely.append(name)
    if likely:
        raise ConfigError(*[unknown_word(name, known) for name in likely])


def _limits_of(throttles: Sequence[type[Throttle]], view: Any) -> Sequence[tuple[Mark, str, str]]:
    """The limits of those throttles that have any. A throttle that limits no view is reported."""
    found: list[tuple[Mark, str, str]] = []
    for throttle in throttles:
        mark, name, shown = throttle.limits_of(view)
        if mark is not None:
            found.append((mark, name, shown))
        elif not name:
            report_idle(throttle, view, Throttle)
    return found


class _Asked(DjangoRequest):
    """A view of Django's request. `user`: whom REST framework has found, which may read tokens that Django does not."""

    __slots__ = ("_user",)

    def __init__(self, raw: Any, outcome: Outcome | None, request: Any) -> None:
        super().__init__(raw, outcome)
        self._user = user_id(getattr(request, "user", None))

    @property
    def user(self) -> str | None:
        """Whom REST framework has found."""
        return self._user


def _have_followed(raw: Any, seen: _Asked, outcome: Outcome | None) -> None:
    """By the middleware, which sees the response."""
    turns: dict[Any, Turn] = getattr(raw, "_ratelimit_mw", {})
    if outcome is None or not turns:
        warn_rarely("throttle", "settle and count_status need the middleware, which sees the response")
    elif (begun := following(seen, outcome)) is not None:
        next(iter(turns.values())).following = begun


def _gate(outcome: Outcome | None) -> Gate | AsyncGate:
    """The middleware's, wherever it stands; else one of this process."""
    gate = alone() if outcome is None or outcome.gate is None else outcome.gate
    if isinstance(gate, AsyncGate) and gate.inner.immediate is None and inside_a_loop():
        warn_rarely(
            "throttle", "is asked inside of a running loop, where it cannot wait for the store: it counts alone"
        )
        gate = alone()
    inner: Gate | AsyncGate = gate.inner
    return inner


def _admitted(gate: Gate | AsyncGate, seen: DjangoRequest, marked: Marked) -> Verdict | None:
    if not isinstance(gate, AsyncGate):
        return gate.admit(seen, marked)
    return gate.immediate.admit(seen, marked) if gate.immediate else async_to_sync(gate.admit)(seen, marked)

"""A throttle for Django REST framework, and a search for throttles without effect.

Imports nothing from the framework.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from inspect import isfunction, isroutine, signature
from math import isinf
from types import SimpleNamespace
from typing import Any, ClassVar, Final, NamedTuple

from asgiref.sync import async_to_sync
from django.conf import settings
from django.urls import get_resolver

from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.log import Finding, warn_or_fail, warn_throttled
from ratelimit_mw.core.runtime import in_event_loop
from ratelimit_mw.core.validation import closest_match, translate_option, unknown_key_message
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.django.endpoint_limits import SETTING_NAME, compile_limits, is_strict, report_limits
from ratelimit_mw.django.middleware import build_gate
from ratelimit_mw.django.request import DjangoRequest, joined_route
from ratelimit_mw.django.responses import RequestContext
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.reload import reloader
from ratelimit_mw.engine.response_tracking import track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import user_id
from ratelimit_mw.rules.rule_table import EndpointLevel, EndpointRules
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.settings.rule import EndpointLimitOptions
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_PENDING: Final = "_ratelimit_mw_throttles"
_MAX_NAMED: Final = 3  # views in a message
RATES: Final = "DEFAULT_THROTTLE_RATES"
FIX: Final = (
    f"set `throttle_scope` on the views, with a rate in {RATES}, or use a subclass of Throttle with `limits` or `scope`"
)
_NO_MIDDLEWARE: Final = Finding(
    "Throttle has neither RateLimitMiddleware nor RATELIMIT_MW, so it counts in each process alone; "
    "add ratelimit_mw.django.RateLimitMiddleware to MIDDLEWARE",
    code="RL-104",
)
_lock: Final = fork_safe_lock()
_standalone: list["_Standalone"] = []
_reported: Final[set[str]] = set()  # texts of `Idle`


class Throttle:
    """A throttle for `throttle_classes` or `DEFAULT_THROTTLE_CLASSES`. Subclasses define the limits.

    `limits`, `key`, `cost`, `name` and the other options are those of a rule in the settings. Callables take only the
    request. Without `limits`, the rate is that of `scope`, or of the view's `throttle_scope`, in
    `DEFAULT_THROTTLE_RATES`. All views of a throttle, or of a scope, share a bucket; for one bucket per route, add
    `route` to the key. The key `user` reads the user of REST framework.

    All throttles of a view are decided in one step, all or nothing, in the middleware's store. Raises `ConfigError` for
    invalid limits when the class is defined, and for a scope without a rate at a request.
    """

    limits: ClassVar[Any] = None
    scope: ClassVar[str | None] = None
    _endpoint_limit: ClassVar[EndpointLimit | None] = None

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        with error_location(cls.__qualname__):
            _check_attributes(vars(cls))
        cls._endpoint_limit = None if cls.limits is None else cls._build(cls.limits)

    def __init__(self) -> None:
        self._wait = 0.0  # seconds

    def allow_request(self, request: Any, view: Any) -> bool:
        """Return whether a request may pass. A view's first throttle decides for all of them."""
        pending: list[type[Throttle]] = vars(request).setdefault(_PENDING, [])
        if type(self) in pending:
            pending.remove(type(self))
            return True
        raw = getattr(request, "_request", request)
        state = getattr(raw, "ratelimit", None)
        if not isinstance(state, RateLimitState):
            state = None
        elif state.verdict is not None and state.is_refused:
            return self._record_wait(state.verdict, state, view)
        shared = self._shared_throttles(view)
        pending += [kind for kind in shared if kind is not type(self)]
        limits = _limits_of(shared, view)
        if not limits:
            return True
        gate = _gate(state)
        endpoint_rules: EndpointRules = gate.compiled[report_limits, gate.rule_set, tuple(limits)]
        django_request = _ThrottleRequest(raw, state, request)
        verdict = _admit(gate, django_request, endpoint_rules)
        if verdict is None:
            return True
        if state is not None:
            state.record(verdict, gate)
        if django_request.on_end is not None:
            _track(raw, django_request, state)
        return self._record_wait(verdict, state, view)

    def wait(self) -> float | None:
        """Return the seconds until a refused request would pass, for the 429 that REST framework builds.

        Returns None if it never would pass, or before a decision.
        """
        return self._wait if self._wait > 0 and not isinf(self._wait) else None

    def _record_wait(self, verdict: Verdict, state: RateLimitState | None, view: Any) -> bool:
        self._wait = max(verdict.retry_after, 0.0 if state is None else state.wait)
        if not verdict.allowed and hasattr(view, "throttled"):
            view.throttled = partial(_raise_throttled, view.throttled, verdict)  # a view serves one request
        return verdict.allowed

    def _shared_throttles(self, view: Any) -> "list[type[Throttle]]":
        """Return the view's throttles that are decided in one step: those that do not override `allow_request`."""
        throttles = view.get_throttles() if hasattr(view, "get_throttles") else ()
        alike = [type(one) for one in throttles if getattr(type(one), "allow_request", None) is Throttle.allow_request]
        return list(dict.fromkeys(alike)) if type(self) in alike else [type(self)]

    @classmethod
    def limits_itself(cls) -> bool:
        """Return whether it has its own limits or scope. If not, it limits only views with a `throttle_scope`."""
        return cls._endpoint_limit is not None or bool(cls.scope)

    @classmethod
    def limits_of(cls, view: Any) -> tuple[EndpointLimit | None, str, str]:
        """Return the limits, the text that identifies their bucket, and the name that clients see."""
        if cls._endpoint_limit is not None:
            return cls._endpoint_limit, f"{cls.__module__}.{cls.__qualname__}", cls.scope or cls.__name__
        scope = cls.scope or getattr(view, "throttle_scope", None)
        if not scope:
            return None, "", ""
        rates = getattr(settings, "REST_FRAMEWORK", {}).get(RATES, {})
        if scope not in rates:
            raise ConfigError(f"{RATES}: got no rate for {scope!r}, the scope of {cls.__qualname__}", code="RL-050")
        return (None if rates[scope] is None else cls._scoped(rates[scope], scope)), scope, scope

    @classmethod
    @cache
    def _scoped(cls, rate: str, scope: str) -> EndpointLimit:
        try:
            return cls._build(rate)
        except ConfigError as error:  # the rate is not written in the class
            own, place = f"{cls.__qualname__}.limits", f"{RATES}[{scope!r}]"
            problems = [f"{place}{text.removeprefix(own)}" if text.startswith(own) else text for text in error.problems]
            raise ConfigError(*problems) from None

    @classmethod
    def _build(cls, limits: Any) -> EndpointLimit:
        options: dict[str, Any] = {}
        with error_location(cls.__qualname__):
            for word in EndpointLimitOptions.__annotations__:
                if (value := getattr(cls, word, None)) is not None:
                    options[word] = value
                    if isfunction(value) and "self" in signature(value).parameters:
                        raise ConfigError(
                            f"{word}: got a method, expected a function of the request, as static", code="RL-050"
                        )
            return EndpointLimit(limits, **options).reject_async_callables().reject_concurrency()


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for attributes of a throttle that look like misspelled options."""
    known = ["limits", "scope", *EndpointLimitOptions.__annotations__]
    likely: list[str] = []
    for name, value in attributes.items():
        if name in known or name in vars(Throttle) or name.startswith("_"):
            continue
        here, _ = translate_option(name) or ("", "")
        if here in known or (not isroutine(value) and closest_match(name, known)):
            likely.append(name)
    if likely:
        raise ConfigError(*[unknown_key_message(name, known) for name in likely], code="RL-001")


def _raise_throttled(throttled: Callable[[Any, Any], Any], verdict: Verdict, request: Any, wait: Any) -> None:
    """Let a view raise its error, `Throttled`, with the verdict."""
    try:
        throttled(request, wait)
    except Exception as error:
        vars(error)["verdict"] = verdict
        raise


def _limits_of(throttles: Sequence[type[Throttle]], view: Any) -> Sequence[EndpointLevel]:
    """Return the limits of those throttles that have limits. Reports a throttle that limits no view."""
    found: list[EndpointLevel] = []
    for throttle in throttles:
        endpoint_limit, name, shown = throttle.limits_of(view)
        if endpoint_limit is not None:
            found.append(((endpoint_limit,), name, shown))
        elif not name:
            _report_idle(throttle, view)
    return found


def throttle_rules(view: Any, gate: Gate | AsyncGate) -> EndpointRules:
    """Return the limits of the throttles that a view of the URLs names. Raises `ConfigError` for an invalid one."""
    limits = [limit for use in uses_of([view]) for limit in _limits_of([use.throttle], use.options)]
    return compile_limits(gate.rule_set, dict.fromkeys(limits))


class _ThrottleRequest(DjangoRequest):
    """A request whose user comes from REST framework, which may read tokens that Django does not."""

    __slots__ = ("_user",)

    def __init__(self, raw: Any, state: RateLimitState | None, request: Any) -> None:
        super().__init__(raw, state)
        self._user = user_id(getattr(request, "user", None))

    @property
    def user(self) -> str | None:
        """The id of the user that REST framework has found."""
        return self._user


def _track(raw: Any, django_request: _ThrottleRequest, state: RateLimitState | None) -> None:
    """Let the middleware track the response to its end. Logs a warning without a middleware."""
    context: RequestContext | None = getattr(raw, "_ratelimit_mw", None)
    if state is None or context is None:
        warn_throttled(
            "throttle",
            "charges are not corrected: settle and count_status need the middleware, which sees the response",
            code="RL-231",
        )
    elif (tracker := track_response(django_request, state)) is not None:
        while context.outer is not None:
            context = context.outer
        context.tracker = tracker


def _gate(state: RateLimitState | None) -> Gate | AsyncGate:
    """Return the gate nested in the middleware's gate, or in the standalone gate of this process.

    The standalone gate is used without a middleware, and in an event loop if the middleware's gate has to await.
    """
    gate = _standalone_gate() if state is None or state.gate is None else state.gate
    if isinstance(gate, AsyncGate) and gate.nested.sync_gate is None and in_event_loop():
        warn_throttled(
            "throttle",
            "runs inside an event loop and cannot wait for the store, so it counts in this process alone",
            code="RL-232",
        )
        gate = _standalone_gate()
    nested: Gate | AsyncGate = gate.nested
    return nested


def _standalone_gate() -> Gate | AsyncGate:
    """Return the gate for throttles that run without the middleware. It is built once, from the same settings."""
    value = getattr(settings, SETTING_NAME, None)
    with _lock:
        if not _standalone or _standalone[0].value is not value:
            if value is None:
                warn_or_fail([_NO_MIDDLEWARE], strict=is_strict())
            _standalone[:] = [_Standalone(value)]
        return _standalone[0].gate


class _Standalone:
    """A gate for throttles without the middleware, which takes over changed settings. `value`: that of the setting."""

    def __init__(self, value: Any) -> None:
        self.value: Final = value
        self.gate = self._build({"limits": []} if value is None else value)
        self._reloader: Final = reloader(self.gate.settings, self._build, self._use)
        if self._reloader is not None:
            self._reloader.start()

    def _build(self, value: Any) -> Gate | AsyncGate:
        gate = build_gate(value, is_async=False, before=vars(self).get("gate"))
        gate.guard = None  # it sees no response
        return gate

    def _use(self, gate: Gate | AsyncGate) -> None:
        self.gate = gate


def _admit(gate: Gate | AsyncGate, django_request: DjangoRequest, endpoint_rules: EndpointRules) -> Verdict | None:
    if not isinstance(gate, AsyncGate):
        return gate.admit(django_request, endpoint_rules)
    return (
        gate.sync_gate.admit(django_request, endpoint_rules)
        if gate.sync_gate
        else async_to_sync(gate.admit)(django_request, endpoint_rules)
    )


class Idle(NamedTuple):
    """A throttle class without effect on some views, with the text that reports it."""

    throttle: type[Throttle]
    views: Sequence[type]
    text: str


class Use(NamedTuple):
    """One throttle of one view.

    `options`: the attributes of the view that its route sets. `declared`: whether the view itself names the throttle.
    """

    throttle: type[Throttle]
    view: type
    options: Any
    declared: bool


def views_of(patterns: Sequence[Any], *above: Any) -> Iterator[tuple[Any, str]]:
    """Yield all views of these URL patterns and of those that they include, with the route to each."""
    for pattern in patterns:
        if hasattr(pattern, "url_patterns"):
            yield from views_of(pattern.url_patterns, *above, pattern)
        else:
            yield pattern.callback, joined_route(*above, pattern)


def uses_of(views: Sequence[Any]) -> Iterator[Use]:
    """Yield each use of a `Throttle`, with the view that names it."""
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
            if isinstance(throttle, type) and issubclass(throttle, Throttle):
                yield Use(throttle, kind, options, throttles is not inherited)


def idle_throttles(views: Sequence[Any]) -> Iterator[Idle]:
    """Yield throttles with neither limits nor scope, on views without `throttle_scope`.

    A throttle that all views inherit may be meant only for views with a `throttle_scope`. So a view without one counts
    only if no view has one, or if the view itself names the throttle.
    """
    by_throttle: dict[type[Throttle], list[Use]] = {}
    for use in uses_of(views):
        if use.throttle.allow_request is Throttle.allow_request and not use.throttle.limits_itself():
            by_throttle.setdefault(use.throttle, []).append(use)
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


def _report_idle(throttle: type[Throttle], view: object) -> None:
    """Report a throttle without effect: once for all its views or, with `strict`, as an error each time."""
    idle = _idle_of(getattr(settings, "ROOT_URLCONF", ())).get((throttle, type(view)))
    if idle is None:
        return
    strict = is_strict()
    if strict or idle.text not in _reported:
        _reported.add(idle.text)
        warn_or_fail([Finding(f"{idle.text}; {FIX}", code="RL-106")], strict=strict)


@lru_cache(maxsize=16)
def _idle_of(urls: Any) -> dict[tuple[type[Throttle], type], Idle]:
    views = [view for view, _ in views_of(get_resolver(urls).url_patterns)]
    return {(idle.throttle, view): idle for idle in idle_throttles(views) for view in idle.views}


def _has_usual_throttles(kind: type) -> bool:
    """Return whether REST framework builds the view's throttles. A view that does so may set their scope."""
    module: str = getattr(getattr(kind, "get_throttles", None), "__module__", "")
    return module.startswith("rest_framework.")

"""Limits that stand at an endpoint, and who holds a request to them: a middleware's gate, or one of the app's own."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Unpack
from weakref import ref

from msgspec import Struct

from ratelimit_mw.asgi.checks import MIDDLEWARE_REGISTRY, warn_not_tracked, warn_of_unenforced
from ratelimit_mw.asgi.routes import RouteInfo, app_cache
from ratelimit_mw.asgi.send import STATE_KEY, Scope, Send, with_headers
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.response import HeaderList, RawFields, headers, raw, raw_headers
from ratelimit_mw.http.views import AsgiRequest
from ratelimit_mw.rules.endpoint_limits import EndpointLimit, limits_on
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsSpec

_NONE: Final[dict[str, Any]] = {"limits": [], "app_limits": (), "rules": ()}  # those of the environment are a server's
_NO_MIDDLEWARE: Final = Finding(
    "limits on endpoints count in this process alone; add RateLimitMiddleware, whose store and settings "
    "they share, or give them a store"
)


class EndpointOptions(EndpointLimitOptions, total=False):
    """What limits on an endpoint may say. `store`: a URL or an AsyncStore of their own."""

    store: Any


class AsgiEndpointLimit(EndpointLimit):
    """A mark that may have a store of its own. Raises `ConfigError` for what is wrong, the environment included.

    `standalone_settings`: the settings where there is no middleware. `store_id`: what tells stores apart.
    """

    __slots__ = ("standalone_settings", "store", "store_id")

    @check_arguments(EndpointLimitOptions)
    def __init__(self, limits: LimitsSpec, *, store: Any = None, **options: Unpack[EndpointLimitOptions]) -> None:
        super().__init__(limits, **options)
        self.reject_concurrency()
        self.store: Final = store
        self.store_id: Final[object] = store if isinstance(store, str) else id(store)
        self.standalone_settings: Final = Settings.of(_NONE, {} if store is None else {"store": store})
        if self.rule.settles:
            MIDDLEWARE_REGISTRY.require_tracking()
        if self.standalone_settings.store != "memory://":
            AsyncGate(self.standalone_settings)  # what is wrong with a store is told now, not to a client


def asgi_limits_on(endpoint: object) -> tuple[AsgiEndpointLimit, ...]:
    """Those of an endpoint's marks that stand there to be held."""
    return tuple(
        endpoint_limit for endpoint_limit in limits_on(endpoint) if isinstance(endpoint_limit, AsgiEndpointLimit)
    )


def callable_name(endpoint: Any) -> str:
    """What its limits are called, where they have no name."""
    if endpoint is None:  # FastAPI's frontends, which have dependencies too
        return "no_endpoint"
    named = endpoint if hasattr(endpoint, "__qualname__") else type(endpoint)
    return f"{named.__module__}.{named.__qualname__}"


def display_name(info: RouteInfo | None, endpoint: Any) -> str:
    """The name that clients see of limits without one: the route, else the bare name of the function or class."""
    return callable_name(endpoint).rpartition(".")[2] if info is None else info.name


class CompiledCheck(NamedTuple):
    """Who decides, and on what. `sync_gate`: who does it without a coroutine, if that can be."""

    gate: AsyncGate
    endpoint_rules: EndpointRules
    sync_gate: Gate | None


class EndpointCheck:
    """Marks of an endpoint that are decided in one step, as one store has them. Made once, and kept by whoever asks.

    `among`: all marks of the endpoint. `name`, `shown`: see `RuleSet.compile_endpoint_limits`.
    """

    __slots__ = ("_last", "among", "endpoint_limits", "name", "shown")

    def __init__(
        self,
        endpoint_limits: tuple[AsgiEndpointLimit, ...],
        among: tuple[AsgiEndpointLimit, ...],
        name: str,
        shown: str,
    ) -> None:
        self.endpoint_limits: Final = endpoint_limits
        self.among: Final = among
        self.name: Final = name
        self.shown: Final = shown
        self._last: tuple[Any, CompiledCheck] | None = None  # of the middleware or app that asked last

    def compiled_for(self, scope: Scope, state: RateLimitState | None) -> CompiledCheck:
        """By whom the marks are held, and what they are there."""
        outer = None if state is None else state.gate
        owner = scope.get("router") if outer is None else outer
        if (last := self._last) is not None and last[0]() is owner:
            return last[1]
        gate = _gate_for(scope, outer, self.endpoint_limits[0])
        compiled = CompiledCheck(
            gate, *gate.compile_for_endpoint(self.endpoint_limits, self.among, self.name, self.shown)
        )
        if owner is not None:
            self._last = (ref(owner, self._forget), compiled)
        return compiled

    def _forget(self, _: object) -> None:
        """What was held for an app goes when the app goes."""
        self._last = None


def endpoint_checks(
    endpoint_limits: Sequence[AsgiEndpointLimit], name: str, shown: str = "", among: Sequence[AsgiEndpointLimit] = ()
) -> tuple[EndpointCheck, ...]:
    """Group marks into one step for each store. `among`: all marks of the endpoint, if these are some."""
    groups: dict[object, list[AsgiEndpointLimit]] = {}
    for endpoint_limit in endpoint_limits:
        groups.setdefault(endpoint_limit.store_id, []).append(endpoint_limit)
    return tuple(EndpointCheck(tuple(group), tuple(among or endpoint_limits), name, shown) for group in groups.values())


def _gate_for(scope: Scope, outer: AsyncGate | None, endpoint_limit: AsgiEndpointLimit) -> AsyncGate:
    """Who decides: the middleware's gate, or else one for the app; with a store of its own, one for that store."""
    if outer is not None and endpoint_limit.store is None:
        return outer.nested
    app = scope.get("router", scope.get("app"))  # the outermost router, where apps are mounted
    gates, info = app_cache(outer or app, "gates"), endpoint_limit.store_id
    if info not in gates:
        if endpoint_limit.store is None and endpoint_limit.standalone_settings.store == "memory://":
            warn_or_fail([_NO_MIDDLEWARE], strict=endpoint_limit.standalone_settings.strict)
        if outer is None and not gates:  # a middleware would have looked when the server started
            warn_of_unenforced(app, strict=endpoint_limit.standalone_settings.strict)
        gates[info] = (
            AsyncGate(endpoint_limit.standalone_settings) if outer is None else outer.nested_with(endpoint_limit.store)
        )
    found: AsyncGate = gates[info]
    return found


_ENFORCED: Final = "ratelimit_mw.asked"  # key of the scope: the marks that this request was held to


class EndpointDecision(Struct, gc=False):
    """What came of it. `verdict`: None where nothing was limited; `state`: with what others found."""

    request: AsgiRequest
    gate: AsyncGate
    verdict: Verdict | None
    state: RateLimitState | None

    @property
    def refusing_verdict(self) -> Verdict | None:
        """The verdict, if it refuses."""
        return self.verdict if self.verdict is not None and not self.verdict.allowed else None

    @property
    def fields(self) -> HeaderList:
        """How it stands with all that was charged, for the answer's headers; none if one further out shows them."""
        state = self.state
        return [] if state is None or state.headers_shown else headers(state.verdict, self.gate.settings.headers)

    @property
    def raw_fields(self) -> RawFields:
        """The same, as ASGI has them."""
        state = self.state
        if state is None or state.headers_shown or state.verdict is None:
            return []
        style = self.gate.settings.headers
        return raw_headers(state.verdict) if style == "ietf" else raw(headers(state.verdict, style))

    def with_headers(self, send: Send) -> Send:
        """A `send` that adds these, and whatever is charged by then, to the answer's headers."""
        state, style = self.state, self.gate.settings.headers
        if state is None or state.headers_shown or style == "none" or self.request.raw["type"] != "http":
            return send
        self.mark_headers_shown()
        return with_headers(state, style, send)

    def mark_headers_shown(self) -> None:
        """Somebody shows the fields, so nobody further in does."""
        if self.state is not None:
            self.state.headers_shown = True


async def enforce(
    scope: Scope, checks: Sequence[EndpointCheck], route: str | None = None, verdict: Verdict | None = None
) -> EndpointDecision | None:
    """Hold a request to marks that it was not held to before; None if there are none.

    `route`: the template. `verdict`: that of `admit_by_address`. The app finds the state where it finds a middleware's.
    """
    decision: EndpointDecision | None = None
    for check in checks:
        state: RateLimitState | None = scope.get(STATE_KEY)
        gate, endpoint_rules, sync_gate = check.compiled_for(scope, state)
        if enforced := scope.get(_ENFORCED, ()):
            endpoint_limits = tuple(
                endpoint_limit for endpoint_limit in check.endpoint_limits if endpoint_limit not in enforced
            )
            if not endpoint_limits:
                continue
            endpoint_rules, sync_gate = gate.compile_for_endpoint(
                endpoint_limits, check.among, check.name, check.shown
            )  # what is left of them
        scope[_ENFORCED] = enforced + check.endpoint_limits
        client = scope.get("client")
        request = AsgiRequest(scope, client[0] if client else None, state, route)
        if verdict is None:
            verdict = (
                sync_gate.admit(request, endpoint_rules) if sync_gate else await gate.admit(request, endpoint_rules)
            )
        if verdict is not None:
            if state is None:
                state = scope[STATE_KEY] = RateLimitState(verdict, entries=[(gate, verdict)])
            else:
                state.record(verdict, gate)
            scope.setdefault("state", {})["ratelimit"] = state
            if request.on_end is not None:
                _track(request, state)
        decision = EndpointDecision(request, gate, verdict, state)
        if verdict is not None and not verdict.allowed:
            break
        verdict = None
    return decision


def _track(request: AsgiRequest, state: RateLimitState) -> None:
    if state.tracker is None:
        warn_not_tracked()
    else:
        state.tracker.add(request.on_end)


def admit_by_address(scope: Scope, checks: Sequence[EndpointCheck]) -> Verdict | None:
    """The verdict where nothing but the client's address counts, and nobody was asked before.

    None where more has to be looked at. Of one that refuses `enforce` is to be told.
    """
    if len(checks) != 1 or STATE_KEY in scope or "user" in scope or scope["type"] != "http" or _ENFORCED in scope:
        return None
    gate, endpoint_rules, sync_gate = checks[0].compiled_for(scope, None)
    if sync_gate is None or gate.settings.headers != "ietf":
        return None
    client = scope.get("client")
    verdict = sync_gate.admit_by_address(client[0] if client else None, scope.get("method"), endpoint_rules)
    if verdict is not None and verdict.allowed:
        scope[_ENFORCED] = checks[0].endpoint_limits
        state = scope[STATE_KEY] = RateLimitState(verdict, entries=[(gate, verdict)])
        scope.setdefault("state", {})["ratelimit"] = state
    return verdict

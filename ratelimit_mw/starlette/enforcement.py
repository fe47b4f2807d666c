"""Enforces limits on ASGI endpoints, with the middleware's gate, or without a middleware."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Unpack
from weakref import ref

from msgspec import Struct

from ratelimit_mw.asgi.send import STATE_KEY, Receive, Scope, Send, adds_in, send_refusal, with_headers
from ratelimit_mw.asgi.tracking import MIDDLEWARE_REGISTRY
from ratelimit_mw.checks.endpoints import check_routes
from ratelimit_mw.core.log import Finding, warn_or_fail, warn_throttled
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.core.verdict import RefusedCharge, Verdict
from ratelimit_mw.engine.base_gate import NESTED_GATES
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.response import HeaderList, RawFields, headers, raw, raw_headers
from ratelimit_mw.http.routes import RouteInfo, app_cache, route_info
from ratelimit_mw.http.views import AsgiRequest, peer_of
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import AsgiLimit, EndpointLimit, limits_on
from ratelimit_mw.settings.rule import EndpointLimitOptions, LimitsValue

# takes precedence over limits in the environment, which are meant for a middleware
_NO_LIMITS: Final[dict[str, Any]] = {"limits": [], "app_limits": (), "rules": (), "latency_goal": 0.0}
_ENFORCED: Final = "ratelimit_mw.enforced"  # key in the scope, of the endpoint limits enforced on this request so far
_MAX_CACHED_PLACES: Final = 4096  # endpoints and routes of one limit
_NO_MIDDLEWARE: Final = Finding(
    "limits on endpoints count in this process alone; add RateLimitMiddleware, whose store and settings "
    "they share, or give them a store",
    code="RL-105",
)
_NOT_TRACKED: Final = (
    "settle and count_status on endpoints need RateLimitMiddleware around the app, which sees the response; "
    "without it, charges are not corrected"
)


class EndpointOptions(EndpointLimitOptions, total=False):
    """Options of a limit on an endpoint. `store`: the limit's own store, as a URL or an AsyncStore."""

    store: Any


class AsgiEndpointLimit(EndpointLimit, AsgiLimit):
    """An endpoint limit that may have its own store. Raises `ConfigError` if it or the environment is invalid.

    `standalone_settings`: the settings to use without a middleware. `store_id`: identifies the store. `cached_checks`:
    the checks of groups of limits that begin with this limit; see `endpoint_checks`.
    """

    __slots__ = ("cached_checks", "standalone_settings", "store", "store_id")

    elsewhere: ClassVar[Mapping[str, str]] = {
        **EndpointLimit.elsewhere,
        **dict.fromkeys(
            ("concurrent", "queue", "queue_timeout", "fair_share"), "into a rule of the middleware's settings"
        ),
    }

    @check_arguments(EndpointLimitOptions)
    def __init__(self, limits: LimitsValue, *, store: Any = None, **options: Unpack[EndpointLimitOptions]) -> None:
        super().__init__(limits, **options)
        self.reject_concurrency()
        self.store: Final = store
        self.store_id: Final[object] = store if isinstance(store, str) else id(store)
        self.cached_checks: Final = lru_cache(_MAX_CACHED_PLACES)(_group_by_store)
        self.standalone_settings: Final = Settings.of(_NO_LIMITS, {} if store is None else {"store": store})
        if self.rule.settles:
            MIDDLEWARE_REGISTRY.require_tracking()
        if self.standalone_settings.store != "memory://":
            AsyncGate(self.standalone_settings)  # raises for an invalid store here, not at a request


def asgi_limits_on(endpoint: object) -> tuple[AsgiEndpointLimit, ...]:
    """Return those limits on an endpoint that this package's ASGI integrations enforce."""
    return tuple(
        endpoint_limit for endpoint_limit in limits_on(endpoint) if isinstance(endpoint_limit, AsgiEndpointLimit)
    )


def bucket_name_of(endpoint: Any) -> str:
    """Return the dotted name of an endpoint, which identifies the bucket of unnamed limits."""
    if endpoint is None:  # FastAPI's frontends have dependencies but no endpoint
        return "no_endpoint"
    named = endpoint if hasattr(endpoint, "__qualname__") else type(endpoint)
    return f"{named.__module__}.{named.__qualname__}"


def display_name(info: RouteInfo | None, endpoint: Any) -> str:
    """Return the name that clients see for unnamed limits: the route, or the endpoint's bare name."""
    return bucket_name_of(endpoint).rpartition(".")[2] if info is None else info.name


class CompiledCheck(Struct):
    """The gate and rules of a check.

    `sync_gate`: decides the same without an await; None if an await is needed. `takes_short_way`: whether its
    requests may take the short way.
    """

    gate: AsyncGate
    endpoint_rules: EndpointRules
    sync_gate: Gate | None
    takes_short_way: bool


class EndpointCheck:
    """Limits on an endpoint that share a store and are decided in one step. Callers create and keep one object.

    `all_limits`: all limits on the endpoint. `name`, `shown`: see `RuleSet.compile_endpoint_limits`.
    """

    __slots__ = ("_last", "all_limits", "endpoint_limits", "name", "shown")

    def __init__(
        self,
        endpoint_limits: tuple[AsgiEndpointLimit, ...],
        all_limits: tuple[AsgiEndpointLimit, ...],
        name: str,
        shown: str,
    ) -> None:
        self.endpoint_limits: Final = endpoint_limits
        self.all_limits: Final = all_limits
        self.name: Final = name
        self.shown: Final = shown
        self._last: tuple[Any, CompiledCheck] | None = None  # for the most recent middleware or app

    def compiled_for(self, scope: Scope, state: RateLimitState | None) -> CompiledCheck:
        """Return the gate that enforces the limits on this request, and their compiled rules."""
        outer = None if state is None else state.gate
        owner = scope.get("router") if outer is None else outer
        if (last := self._last) is not None and last[0]() is owner:
            return last[1]
        gate = _gate_for(scope, outer, self.endpoint_limits[0])
        place = self.endpoint_limits, self.all_limits, self.name, self.shown
        endpoint_rules, sync_gate = gate.compiled[gate.compile_for_endpoint, *place]
        takes_short_way = gate.has_short_way and gate.settings.headers == "ietf"
        compiled = CompiledCheck(gate, endpoint_rules, sync_gate, takes_short_way)
        if owner is not None:
            self._last = (ref(owner, self._forget), compiled)
        return compiled

    def _forget(self, _: object) -> None:
        """Drop the compiled check of an app that is garbage-collected."""
        self._last = None


def endpoint_checks(
    endpoint_limits: tuple[AsgiEndpointLimit, ...],
    name: str,
    shown: str = "",
    all_limits: tuple[AsgiEndpointLimit, ...] = (),
) -> Sequence[EndpointCheck]:
    """Group limits into one check per store, cached. `all_limits`: all limits of the endpoint, if these are a part."""
    return endpoint_limits[0].cached_checks(endpoint_limits, name, shown, all_limits or endpoint_limits)


def _group_by_store(
    endpoint_limits: tuple[AsgiEndpointLimit, ...], name: str, shown: str, all_limits: tuple[AsgiEndpointLimit, ...]
) -> Sequence[EndpointCheck]:
    groups: dict[object, list[AsgiEndpointLimit]] = {}
    for endpoint_limit in endpoint_limits:
        groups.setdefault(endpoint_limit.store_id, []).append(endpoint_limit)
    return [EndpointCheck(tuple(group), all_limits, name, shown) for group in groups.values()]


def _gate_for(scope: Scope, outer: AsyncGate | None, endpoint_limit: AsgiEndpointLimit) -> AsyncGate:
    """Return the middleware's gate. Without one, or for a limit with its own store, return a cached gate."""
    if outer is not None and endpoint_limit.store is None:
        return outer.nested
    app = scope.get("router", scope.get("app"))  # the outermost router, if apps are mounted
    gates, store_id = app_cache(outer or app, NESTED_GATES), endpoint_limit.store_id
    if store_id not in gates:
        if endpoint_limit.store is None and endpoint_limit.standalone_settings.store == "memory://":
            warn_or_fail([_NO_MIDDLEWARE], strict=endpoint_limit.standalone_settings.strict)
        if outer is None and not gates:  # without a middleware, which would have checked this at startup
            check_routes(app, endpoint_limit.standalone_settings)
        gates[store_id] = (
            AsyncGate(endpoint_limit.standalone_settings) if outer is None else outer.nested_with(endpoint_limit.store)
        )
    found: AsyncGate = gates[store_id]
    return found


class EndpointDecision(Struct):
    """The result of endpoint limits. `verdict`: None if nothing was limited. `state`: includes outer decisions."""

    request: AsgiRequest
    gate: AsyncGate
    verdict: Verdict | None
    state: RateLimitState | None

    @property
    def refusing_verdict(self) -> Verdict | None:
        """The verdict, if it refuses."""
        return self.verdict if self.verdict is not None and not self.verdict.allowed else None

    async def send_refusal(self, receive: Receive, send: Send) -> bool:
        """Send the refusal to the server. Return False, and send nothing, if the request is admitted."""
        if self.verdict is None or self.verdict.allowed:
            return False
        await send_refusal(self.request, self.verdict, self.gate, receive, send)
        return True

    @property
    def fields(self) -> HeaderList:
        """The headers, for everything charged so far; empty if an outer middleware adds them."""
        state = self.state
        return [] if state is None or state.headers_claimed else headers(state.verdict, self.gate.settings.headers)

    @property
    def raw_fields(self) -> RawFields:
        """The same headers as bytes, for ASGI."""
        state = self.state
        if state is None or state.headers_claimed or state.verdict is None:
            return []
        style = self.gate.settings.headers
        return raw_headers(state.verdict, {}) if style == "ietf" else raw(headers(state.verdict, style))

    def with_headers(self, send: Send) -> Send:
        """Return a `send` that adds the headers, for everything charged when the response starts."""
        state, style = self.state, self.gate.settings.headers
        if state is None or state.headers_claimed or style == "none" or self.request.raw["type"] != "http":
            return send
        self.claim_headers()
        return with_headers(state, adds_in(style), send)

    def claim_headers(self) -> None:
        """Record that this decision adds the headers, so that inner middleware does not."""
        if self.state is not None:
            self.state.headers_claimed = True


def checks_on_endpoint(
    scope: Scope, endpoint_limits: tuple[AsgiEndpointLimit, ...], endpoint: Any, name: str | None = None
) -> tuple[Sequence[EndpointCheck], str | None]:
    """Return the checks of limits on the endpoint of the matched route, and the template of the route, if known.

    `name`: see `EndpointCheck`; None: the endpoint's name.
    """
    info = route_info(scope)
    checks = endpoint_checks(
        endpoint_limits, bucket_name_of(endpoint) if name is None else name, display_name(info, endpoint)
    )
    return checks, None if info is None else info.template


async def enforce_on_endpoint(
    scope: Scope, endpoint_limits: tuple[AsgiEndpointLimit, ...], endpoint: Any, name: str | None = None
) -> EndpointDecision | None:
    """Enforce limits on the endpoint of the matched route. The arguments are those of `checks_on_endpoint`."""
    return await enforce(scope, *checks_on_endpoint(scope, endpoint_limits, endpoint, name))


async def enforce(
    scope: Scope,
    checks: Sequence[EndpointCheck],
    route: str | None = None,
    verdict: Verdict | None = None,
    client: str | None = None,
) -> EndpointDecision | None:
    """Enforce those of the limits that were not yet enforced on this request. Return None if none are left.

    Every refusal by an endpoint limit of Starlette or FastAPI passes through this function. It sends nothing: its
    callers (`limit`, and the `RateLimit` of Starlette and of FastAPI) respond to the refusal. Like the middleware, it
    stores the request's `RateLimitState` in the scope. `route`: the template. `verdict`, `client`: those of
    the short way, if it refused.
    """
    decision: EndpointDecision | None = None
    for check in checks:
        state: RateLimitState | None = scope.get(STATE_KEY)
        compiled = check.compiled_for(scope, state)
        gate, endpoint_rules, sync_gate = compiled.gate, compiled.endpoint_rules, compiled.sync_gate
        if enforced := scope.get(_ENFORCED, ()):
            endpoint_limits = tuple(
                endpoint_limit for endpoint_limit in check.endpoint_limits if endpoint_limit not in enforced
            )
            if not endpoint_limits:
                continue
            # with only the limits that are left
            endpoint_rules, sync_gate = gate.compiled[
                gate.compile_for_endpoint, endpoint_limits, check.all_limits, check.name, check.shown
            ]
        scope[_ENFORCED] = enforced + check.endpoint_limits
        request = AsgiRequest(scope, peer_of(scope) if verdict is None else client, state, route)
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
        warn_throttled("endpoint", _NOT_TRACKED, code="RL-230")
    else:
        state.tracker.add(request.on_end)


def decision_on_charge(scope: Scope, error: RefusedCharge) -> EndpointDecision:
    """Return the decision on a request whose charge was refused. Raises the error if a middleware will respond."""
    state: RateLimitState | None = scope.get(STATE_KEY)
    if state is None or state.gate is not None:
        raise error
    gate = state.verdicts_by_gate[0][0]
    request = AsgiRequest(scope, peer_of(scope), state)
    gate.rule_set.find_client(request)
    return EndpointDecision(request, gate, state.refusal_of(error, gate), state)


def short_way_check(scope: Scope, checks: Sequence[EndpointCheck]) -> CompiledCheck | None:
    """Return the compiled check of a request that may take the short way, as no limit has decided before; else None."""
    if len(checks) != 1 or STATE_KEY in scope or "user" in scope or scope["type"] != "http" or _ENFORCED in scope:
        return None
    compiled = checks[0].compiled_for(scope, None)
    return compiled if compiled.takes_short_way else None


def record_admission(scope: Scope, check: EndpointCheck, gate: AsyncGate, verdict: Verdict | None) -> RawFields:
    """Record that the short way has admitted a request. Returns the headers as bytes; none without a verdict."""
    scope[_ENFORCED] = check.endpoint_limits
    if verdict is None:
        return []
    state = scope[STATE_KEY] = RateLimitState(verdict, entries=[(gate, verdict)])
    scope.setdefault("state", {})["ratelimit"] = state
    return raw_headers(verdict, {})

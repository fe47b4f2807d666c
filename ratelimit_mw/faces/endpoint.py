"""Limits that stand at an endpoint, and who holds a request to them: a middleware's gate, or one of the app's own."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Unpack
from weakref import ref

from ratelimit_mw.faces.asgi_send import Scope
from ratelimit_mw.faces.inside import MIDDLEWARE_REGISTRY
from ratelimit_mw.faces.remember import app_cache
from ratelimit_mw.faces.routes import RouteInfo
from ratelimit_mw.faces.unheeded import warn_of_unenforced
from ratelimit_mw.gate import AsyncGate, Gate
from ratelimit_mw.marks import EndpointLimit, limits_on
from ratelimit_mw.matching import EndpointRules
from ratelimit_mw.notices import Finding, warn_or_fail
from ratelimit_mw.outcome import RateLimitState
from ratelimit_mw.rules import EndpointLimitOptions, LimitsSpec
from ratelimit_mw.settings import Settings
from ratelimit_mw.words import check_arguments

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

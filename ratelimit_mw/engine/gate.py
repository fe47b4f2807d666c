"""The two gates: `Gate` decides requests in threads, `AsyncGate` in asyncio. See `engine.flow`."""

import asyncio
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, Final, Self

from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import drain, run
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.engine.flow import Flow
from ratelimit_mw.engine.observation import is_observed
from ratelimit_mw.engine.offenders import LoopReporter, ThreadReporter
from ratelimit_mw.engine.runtime import AsyncioRuntime, Sleep, ThreadRuntime, async_sleep
from ratelimit_mw.engine.settlement import MAY_BE_LOST, SettlementQueue
from ratelimit_mw.engine.slots import ASYNC_SLOT_RENEWER
from ratelimit_mw.http.request import Request
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import check_no_async_callables
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.lifecycle import PerLoop
from ratelimit_mw.stores.url import open_async_store, open_store

_MAX_CACHED_ENDPOINTS: Final = 4096  # endpoints whose compiled limits are cached


@cache
def _observed_class(cls: type[Any], observer: type[Any]) -> type[Any]:
    """Return `cls` with the methods of `observer` before its own; `cls` itself if it derives from `observer`."""
    bases = (observer,) if issubclass(observer, cls) else (observer, cls)
    return cls if issubclass(cls, observer) else type(cls.__name__, bases, {})


class Gate(Flow):
    """Decides requests in threads. `admit` does not raise, whatever the client sends."""

    _store: Store
    runtime: ThreadRuntime
    _awaits_callables = False
    _handler_kinds: tuple[str, ...] = ("wsgi", "plain")
    _default_max_waiting = 2  # requests; each blocks a thread of the server, and waitress has 4
    _expected_handler = "a WSGI app, or a callable (request, verdict)"
    _sees_no_messages = "a limiter under WSGI"

    def __new__(cls, settings: Settings, *_: object, **__: object) -> Self:
        """Return a gate of the class that observes what the settings want. Gates that observe less are faster."""
        observed = ObservedGate if settings.span_attributes == "all" else CountingGate
        return super().__new__(_observed_class(cls, observed) if is_observed(settings) else cls)

    def __init__(
        self,
        settings: Settings,
        rules: RuleSet | None = None,
        fallback: FallbackStore | None = None,
        *,
        is_nested: bool = False,
    ) -> None:
        super().__init__(settings, rules, fallback, is_nested=is_nested)
        if rules is None:  # if rules are passed, an AsyncGate made them, and awaits their callables
            check_no_async_callables(self.rule_set.limit_sets)
        store = self._open(open_store)
        if not isinstance(store, Store):
            raise ConfigError(
                f"store: got {type(store).__name__}, expected a URL or a Store with take(); WSGI cannot await",
                code="RL-040",
            )
        self._use_store(store)
        self.runtime = ThreadRuntime(store)

    def admit(self, request: Request, endpoint_rules: EndpointRules = ()) -> Verdict | None:
        """Return the verdict on a request; None if no limit applies. `endpoint_rules`: the limits of its endpoint."""
        return run(self._admit(request, endpoint_rules))

    def admit_by_address(
        self, client: str | None, method: str | None, endpoint_rules: EndpointRules = ()
    ) -> Verdict | None:
        """Return the verdict if it depends on the client address only; None if the request needs `admit`.

        This is the fast path. It takes a quarter of the time of `admit`. The request must have neither a user nor
        charges of an outer middleware. `endpoint_rules`: the limits of its endpoint.
        """
        plans_by_address = (
            self.rule_set.plans_by_address_at(endpoint_rules) if endpoint_rules else self.rule_set.plans_by_address
        )
        if plans_by_address is None or client is None or method == "OPTIONS" or self._on_decision is not None:
            return None
        return self.admit_plan(plans_by_address[client])

    def admit_plan(self, charge_plan: Plan) -> Verdict | None:
        """Return the verdict on a plan by address. See `admit_by_address`."""
        try:
            if charge_plan.is_single:
                charges = charge_plan.charges
                (decision,) = decisions = self._store.take(charges)
                if decision.allowed and not self._needs_fallback:  # _conclude_single(), inlined
                    return Verdict(True, charges, decisions, charge_plan.match.rule, "store", charge_plan.policies)
                verdict: Verdict | None = self._conclude_single(charge_plan, decisions)
            else:
                verdict = run(self._take_once(charge_plan.match, charge_plan))
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            verdict = self._without_store(charge_plan.match, charge_plan, error)
        if verdict is not None and not verdict.allowed:
            self.report_refusal(verdict)
        return verdict

    def settle(self, source: Source, charges: Sequence[Charge], loop: object = None) -> None:  # noqa: ARG002  # used by AsyncGate
        """Settle the charges of a request, once its true cost is known. A failure of the store is logged."""
        self._settle_now(source, charges)

    def close(self) -> None:
        """Send the latest refusals, then close the store if this gate created it."""
        if isinstance(self.reporter, ThreadReporter):
            self.reporter.flush()
        if self._owns_store:
            self._store.close()


class ObservedGate(Gate):
    """A gate that passes each decision of the fast path to `_observe`. On the general path, `Flow.decide` does that."""

    def admit_plan(self, charge_plan: Plan) -> Verdict | None:
        """See `Gate.admit_plan`."""
        verdict = super().admit_plan(charge_plan)
        if verdict is not None:
            self._observe_verdict(verdict)
        return verdict

    def _observe_verdict(self, verdict: Verdict) -> None:
        if self._observe is not None:
            self._observe(verdict)


class CountingGate(ObservedGate):
    """A gate that only counts the requests that the fast path admits, and passes its refusals to `_observe`."""

    def admit_plan(self, charge_plan: Plan) -> Verdict | None:
        """See `Gate.admit_plan`. Its first case is inlined: counting takes 0.06 µs, and a call would add 0.1 µs."""
        if not charge_plan.is_single or self._needs_fallback:
            return super().admit_plan(charge_plan)
        match = charge_plan.match
        try:
            (decision,) = decisions = self._store.take(charge_plan.charges)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            verdict = self._without_store(match, charge_plan, error)
        else:
            if decision.allowed:
                COUNTS.count_admitted(match.rule)
                return Verdict(True, charge_plan.charges, decisions, match.rule, "store", charge_plan.policies)
            verdict = Verdict(False, charge_plan.charges, decisions, match.rule, "store", charge_plan.policies)
        self._observe_verdict(verdict)
        if not verdict.allowed:
            self.report_refusal(verdict)
        return verdict


class AsyncGate(Flow):
    """Decides requests in asyncio.

    `sync_gate`: a `Gate` that decides without an await, in the thread of the event loop. None if the store suspends, or
    a rule delays or queues requests or calls a callable.

    `store_awaits`: whether the store must be awaited. `may_hold`: whether a rule may delay a request or let it wait for
    a slot.
    """

    _store: AsyncStore
    runtime: AsyncioRuntime
    _awaits_callables = True
    _handler_kinds: tuple[str, ...] = ("asgi", "plain")
    _default_max_waiting = 1000
    _expected_handler = "an ASGI app, or a callable (request, verdict)"

    def __new__(cls, settings: Settings, **_: object) -> Self:
        """See `Gate.__new__`."""
        return super().__new__(_observed_class(cls, ObservedAsyncGate) if is_observed(settings) else cls)

    def __init__(self, settings: Settings, *, is_nested: bool = False) -> None:
        super().__init__(settings, is_nested=is_nested)
        store = self._open(open_async_store)
        if not isinstance(store, AsyncStore):
            raise ConfigError(
                f"store: got {type(store).__name__}, expected a URL or an AsyncStore with atake(): ASGI awaits",
                code="RL-040",
            )
        self._use_store(store)
        suspends = self._declared.suspends
        limit_sets = self.rule_set.limit_sets
        needs_coroutine = suspends or any(limit_set.may_await for limit_set in limit_sets)
        self.store_awaits: Final = suspends
        self.may_hold: Final = any(limit_set.may_delay or limit_set.has_queue for limit_set in limit_sets)
        # `max_waiting=0`, because a delay would block the loop
        sync_settings = replace(settings, store=store, on_refused=None, max_waiting=0, remember_refused=0)
        self.sync_gate: Final = None if needs_coroutine else Gate(sync_settings, self.rule_set, self._fallback)
        if self.sync_gate is not None:
            self.sync_gate.runtime.slot_renewer = ASYNC_SLOT_RENEWER  # it runs in the thread of the loop
            self.sync_gate.reporter = self.reporter
        self.compile_for_endpoint: Final = lru_cache(_MAX_CACHED_ENDPOINTS)(self._compile_for_endpoint)
        self._settlement_queues: Final = PerLoop(lambda: SettlementQueue(store, settings.store_timeout))
        self.runtime = AsyncioRuntime(store, settings.store_timeout, self._wake_waiters)

    def _compile_for_endpoint(
        self,
        endpoint_limits: tuple[EndpointLimit, ...],
        all_limits: tuple[EndpointLimit, ...],
        name: str,
        display_name: str,
    ) -> tuple[EndpointRules, Gate | None]:
        """Compile some limits of an endpoint. Returns `sync_gate` as well, if nothing must be awaited for them.

        `all_limits`: all limits of the endpoint. `name`, `display_name`: see `RuleSet.compile_endpoint_limits`.
        """
        all_rules = self.rule_set.report_endpoint(self.compile_endpoint_limits(all_limits, name, display_name))
        compiled = zip(all_limits, all_rules, strict=True)
        endpoint_rules = tuple(rule for endpoint_limit, rule in compiled if endpoint_limit in endpoint_limits)
        needs_await = any(rule.limit_set.may_await for rule in endpoint_rules)
        return endpoint_rules, None if needs_await else self.sync_gate

    async def admit(
        self, request: Request, endpoint_rules: EndpointRules = (), sleep: Sleep = async_sleep
    ) -> Verdict | None:
        """Return the verdict on a request; None if no limit applies. `endpoint_rules`: the limits of its endpoint.

        `sleep`: delays the request. An exception that it raises ends the delay, and passes through to the caller.
        """
        return await self._admit(request, endpoint_rules, sleep)

    async def admit_plan(self, charge_plan: Plan) -> Verdict | None:
        """See `Gate.admit_plan`."""
        if charge_plan.is_single:
            try:
                decisions = await self.runtime.take(charge_plan.charges)
                verdict: Verdict | None = self._conclude_single(charge_plan, decisions)
            except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                verdict = self._without_store(charge_plan.match, charge_plan, error)
        else:
            verdict = await self._take_once(charge_plan.match, charge_plan)
        if verdict is not None and not verdict.allowed:
            self.report_refusal(verdict)
        return verdict

    def settle(self, source: Source, charges: Sequence[Charge], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """See `Gate.settle`. Returns at once; a task of the loop batches and sends settlements that must be awaited."""
        if source == "local" or not self.store_awaits:
            self._settle_now(source, charges)
            return
        try:
            queue = self._settlement_queues.get()
        except RuntimeError:  # a thread without a loop, e.g. the thread of a sync endpoint
            loop = loop or self._declared.loop or self.runtime.loop
            if loop is None or loop.is_closed():
                warn_throttled("settle", MAY_BE_LOST, "no event loop is running", code="RL-206")
            else:
                loop.call_soon_threadsafe(lambda: self._settlement_queues.get().add(charges))
        else:
            queue.add(charges)

    async def close(self) -> None:
        """Send pending refunds, settlements and refusals, then close the store if this gate created it."""
        await drain(self.settings.store_timeout)
        await self._settlement_queues.get().drain()
        if isinstance(self.reporter, LoopReporter):
            await self.reporter.flush()
        if self._owns_store:
            await self._store.aclose()


class ObservedAsyncGate(AsyncGate):
    """An `AsyncGate` that reports each decision of the fast path. See `ObservedGate`."""

    async def admit_plan(self, charge_plan: Plan) -> Verdict | None:
        """See `Gate.admit_plan`."""
        verdict = await super().admit_plan(charge_plan)
        if verdict is not None and self._observe is not None:
            self._observe(verdict)
        return verdict

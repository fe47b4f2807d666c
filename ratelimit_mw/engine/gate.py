"""The gate for asyncio: it matches a request, plans its charges, takes them from the store and concludes.

`engine.sync_gate` does the same for threads; the two differ in their `await`s.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from inspect import isawaitable
from time import perf_counter
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.verdict import Answer, Source, Verdict
from ratelimit_mw.engine.acquire import Sleep, async_sleep, cancel_safe
from ratelimit_mw.engine.base_gate import BaseGate
from ratelimit_mw.engine.delays import pending_refund, refused_for_capacity
from ratelimit_mw.engine.queue_steps import PauseStep, SlotWait, TakeStep, slot_demand
from ratelimit_mw.engine.refusal_log import log_refusal
from ratelimit_mw.engine.runtime import drain, run_to_completion
from ratelimit_mw.engine.settlement import PendingSettlement, settled_charges
from ratelimit_mw.engine.settlement_queue import NOT_SENT, OnSettled, SettlementQueue, discard_settled
from ratelimit_mw.engine.slots import HeldSlots, renew_in_loop
from ratelimit_mw.engine.sync_gate import CALLABLE_RAISED, NO_RESULTS, NOT_REFUNDED, Gate, ReportingGate
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.endpoint_limits import EndpointLimit
from ratelimit_mw.rules.plan import Match, Plan, conclude, plan, without_charged
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import AsyncStore
from ratelimit_mw.stores.lifecycle import PerLoop
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.url import open_async_store

__all__ = ["AsyncGate", "Gate", "Sleep"]

_MAX_CACHED_ENDPOINTS: Final = 4096  # endpoints whose compiled limits are cached


class AsyncGate(BaseGate):
    """Decides requests in asyncio. `BaseGate._without_store` decides a request when the store fails.

    `sync_gate`: a gate that decides without a coroutine; None unless the store is in memory and no rule can wait.

    `store_awaits`: whether the store must be awaited. `may_delay`: whether a rule may delay a request or let it wait
    for a slot.
    """

    _store: AsyncStore
    _handler_kinds: tuple[str, ...] = ("asgi", "plain")
    _default_max_waiting = 1000
    _expected_handler = "an ASGI app, or a callable (request, verdict)"
    renew_slots = staticmethod(renew_in_loop)

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        store = (
            open_async_store(settings.store, settings.store_timeout)
            if isinstance(settings.store, str)
            else settings.store
        )
        if not isinstance(store, AsyncStore):
            raise ConfigError(
                f"store: got {type(store).__name__}, expected a URL or an AsyncStore with atake(): ASGI awaits"
            )
        self._use_store(store)
        # a subclass may await in its own atake()
        is_memory = isinstance(store, MemoryStore) and type(store).atake is MemoryStore.atake
        needs_coroutine = not is_memory or self._rules.callables or self._rules.may_delay or self._rules.has_queue
        self.store_awaits: Final = not is_memory
        self.may_delay: Final = self._rules.may_delay or self._rules.has_queue
        sync_settings = replace(settings, store=store, on_refused=None, max_waiting=0)  # a delay would block the loop
        gate_class = Gate if settings.on_decision is None else ReportingGate
        self.sync_gate: Final = None if needs_coroutine else gate_class(sync_settings, self._rules, self._fallback)
        if self.sync_gate is not None:
            self.sync_gate.renew_slots = renew_in_loop
        self.compile_for_endpoint: Final = lru_cache(_MAX_CACHED_ENDPOINTS)(self._compile_for_endpoint)
        self._settlement_queues: Final = PerLoop(lambda: SettlementQueue(store, settings.store_timeout))
        self._loop: asyncio.AbstractEventLoop | None = None  # loop of the latest take, if the store has no own timeout
        self._take: Final = store.atake if getattr(store, "has_own_timeout", False) else self._take_in_time
        self._take_cancel_safe: Final = cancel_safe(store, self._take, self._wake_waiters)

    def _compile_for_endpoint(
        self,
        endpoint_limits: tuple[EndpointLimit, ...],
        all_limits: tuple[EndpointLimit, ...],
        name: str,
        display_name: str,
    ) -> tuple[EndpointRules, Gate | None]:
        """Compile some limits of an endpoint. Returns `sync_gate` as well, if nothing must be awaited for them.

        `all_limits`: those of the whole endpoint. `name`, `display_name`: see `RuleSet.compile_endpoint_limits`.
        """
        compiled = zip(all_limits, self.compile_endpoint_limits(all_limits, name, display_name), strict=True)
        endpoint_rules = tuple(rule for endpoint_limit, rule in compiled if endpoint_limit in endpoint_limits)
        needs_await = any(
            rule.limit_set.callables or rule.limit_set.may_delay or rule.limit_set.has_queue for rule in endpoint_rules
        )
        return endpoint_rules, None if needs_await else self.sync_gate

    async def admit(
        self, request: Request, endpoint_rules: EndpointRules = (), sleep: Sleep = async_sleep
    ) -> Verdict | None:
        """Return the verdict on a request; None if no limit applies. `endpoint_rules`: the limits of its endpoint.

        `sleep`: delays the request; an exception that it raises ends the delay, and is raised again.
        """
        match = self._rules.match(request, endpoint_rules)
        if match is None:
            return None
        request.messages = match.messages
        if match.callables and match.may_read_user:
            # Read the user now: in Django this may raise UserNotLoaded, and the retry must not call the callables twice
            request.user  # noqa: B018
        charge_plan = await self.plan(match, request)
        if (outer := request.state) is not None and outer.verdict is not None:
            charge_plan = without_charged(charge_plan, outer.charged)
        verdict = await self.decide(match, charge_plan, request, sleep)
        if match.settles and verdict is not None and verdict.allowed:
            self._settle_at_end(request)
        return verdict

    def admit_by_address(self, client: str | None, method: str | None) -> Awaitable[Verdict | None] | None:
        """See `Gate.admit_by_address`.

        Returns the inner coroutine instead of awaiting it, which saves one coroutine per request.
        """
        plans_by_address = self._rules.plans_by_address
        if plans_by_address is None or method == "OPTIONS" or self._on_decision is not None:
            return None
        return self._decide_by_address(plans_by_address[client])

    async def plan(self, match: Match, request: Request) -> Plan:
        """Return the charges of a request, after calling the callables of its limits."""
        return plan(
            match, request, await _call_results_async(match.callables, request) if match.callables else NO_RESULTS
        )

    async def decide(
        self, match: Match, charge_plan: Plan, request: Request, sleep: Sleep = async_sleep
    ) -> Verdict | None:
        """Return the verdict on a plan, after its delay; None if the plan has no charges.

        Does not raise if the store fails. `sleep`: see `admit`.
        """
        started = perf_counter() if self._on_decision is not None else 0.0
        may_wait = match.may_delay and any(charge.effective_max_delay_us for charge in charge_plan.charges)
        keys = self._capacity_keys(charge_plan, request) if may_wait else ()
        if may_wait:
            charge_plan = self.delay_capacity.without_delay_if_full(charge_plan, keys)
        deciding = (
            self._decide_in_queue(match, charge_plan, request, sleep)
            if match.has_queue
            else self._decide(match, charge_plan)
        )
        verdict = await deciding
        if may_wait and verdict is not None and verdict.delay:
            verdict = await self._reserve_capacity(verdict, keys)
        held_slots = self._register_slots(match, verdict, request) if match.has_slots else None
        if self._on_decision is not None:
            self._emit_decision(verdict, request, started)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        if may_wait and verdict is not None and verdict.delay:
            await self._wait(verdict, sleep, held_slots, keys)
        return verdict

    async def _reserve_capacity(self, verdict: Verdict, keys: Sequence[str]) -> Verdict:
        """See `Gate`."""
        if self.delay_capacity.enter(keys):
            return verdict
        await run_to_completion(self._undo(verdict, None))
        return refused_for_capacity(verdict)

    async def _wait(self, verdict: Verdict, sleep: Sleep, held_slots: HeldSlots | None, keys: Sequence[str]) -> None:
        """See `Gate`."""
        try:
            await sleep(verdict.delay)
        except (asyncio.CancelledError, Exception):
            await run_to_completion(self._undo(verdict, held_slots))
            raise
        finally:
            self.delay_capacity.leave(keys)

    async def _undo(self, verdict: Verdict, held_slots: HeldSlots | None) -> None:
        """See `Gate`."""
        if held_slots is not None:
            held_slots.registry.end(held_slots)
        await self._refund([pending_refund(self, verdict)])
        self._wake_waiters(verdict)

    async def _decide_by_address(self, charge_plan: Plan) -> Verdict | None:
        """Decide a plan by client address. For a single charge, does what `_decide` and `conclude` do, inlined."""
        if charge_plan.is_single:
            try:
                (decision,) = decisions = await self._take(charge_plan.charges)
                source = decisions.source if type(decisions) is Answer else "store"
                single = Verdict(
                    decision.allowed,
                    charge_plan.charges,
                    decisions,
                    charge_plan.match.rule,
                    source,
                    charge_plan.policies,
                )
                if self._feeds_fallback:
                    self._feed_fallback(charge_plan, decisions, single)
                verdict: Verdict | None = single
            except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                verdict = self._without_store(charge_plan.match, charge_plan, error)
        else:
            verdict = await self._decide(charge_plan.match, charge_plan)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        return verdict

    async def _decide(self, match: Match, charge_plan: Plan) -> Verdict | None:
        if not charge_plan.charges:
            return conclude(match, charge_plan, ()) if charge_plan.denied else None
        try:
            take = self._take_cancel_safe if match.may_delay or match.has_slots else self._take
            decisions = await take(charge_plan.charges)
            verdict = conclude(match, charge_plan, decisions)
            if self._feeds_fallback:
                self._feed_fallback(charge_plan, decisions, verdict)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            return self._without_store(match, charge_plan, error)
        return verdict

    async def _decide_in_queue(self, match: Match, charge_plan: Plan, request: Request, sleep: Sleep) -> Verdict | None:
        """See `Gate`. A request that is canceled, or whose `sleep` raises, leaves the queue."""
        demand = slot_demand(charge_plan, lambda: self._capacity_keys(charge_plan, request))
        if demand is None:
            return await self._decide(match, charge_plan)
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, and the request with it
                loop.call_soon_threadsafe(lambda: None if woken.done() else woken.set_result(None))

        with closing(SlotWait(self._queues, match, charge_plan, demand, wake).actions()) as actions:
            result: Any = None
            while True:
                try:
                    action = actions.send(result)
                except StopIteration as end:
                    verdict: Verdict | None = end.value
                    return verdict
                if isinstance(action, TakeStep):
                    result = await self._decide(match, action.plan)
                elif isinstance(action, PauseStep):
                    await sleep(action.seconds, woken)
                    woken = loop.create_future()
                else:
                    try:
                        async with asyncio.timeout(self.settings.store_timeout):
                            result = await self._store.apeek(action.plan.charges)
                    except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                        return self._without_store(match, charge_plan, error)

    async def _refund(self, refunds: Sequence[PendingSettlement]) -> None:
        """See `Gate`."""
        for gate, source, charges in refunds:
            try:
                async with asyncio.timeout(self.settings.store_timeout):
                    await gate.store_for(source).asettle(charges)
            except Exception as error:  # noqa: BLE001  # any error of a store, or of one that cannot be awaited
                warn_throttled("store", NOT_REFUNDED, error)

    def settle(
        self,
        source: Source,
        charges: Sequence[Charge],
        loop: asyncio.AbstractEventLoop | None = None,
        on_settled: OnSettled = discard_settled,
    ) -> None:
        """See `Gate.settle`. Returns at once: settlements that must be awaited are batched in a task of the loop."""
        if source == "local" or not self.store_awaits:
            settled: Sequence[Charge] = ()
            try:
                settled = settled_charges(charges, self.store_for(source).settle(charges))  # type: ignore[union-attr]  # it is in memory
            except Exception as error:  # noqa: BLE001  # an error of a subclass
                warn_throttled("settle", NOT_SENT, type(error).__name__)
            on_settled(settled)
            return
        try:
            queue = self._settlement_queues.get()
        except RuntimeError:  # a thread without a loop, e.g. that of a sync endpoint
            loop = loop or getattr(self._store, "loop", None) or self._loop
            if loop is None or loop.is_closed():
                warn_throttled("settle", NOT_SENT, "no event loop is running")
                on_settled(())
            else:
                loop.call_soon_threadsafe(lambda: self._settlement_queues.get().add(charges, on_settled))
        else:
            queue.add(charges, on_settled)

    async def _take_in_time(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Take from a store that has no timeout itself, within `store_timeout`."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.timeout(self.settings.store_timeout):
            return await self._store.atake(charges)

    async def close(self) -> None:
        """Send pending refunds and settlements, then close the store if this gate created it."""
        await drain(self.settings.store_timeout)
        await self._settlement_queues.get().drain()
        if self._owns_store:
            await self._store.aclose()


async def _call_results_async(calls: Sequence[RequestCallable], request: Request) -> CallResults:
    results: dict[RequestCallable, Any] = {}
    for call in calls:
        try:
            result = call(request)
            results[call] = await result if isawaitable(result) else result
        except Exception as error:  # noqa: BLE001  # a faulty callable must not exempt the request
            warn_throttled(callable_name(call), CALLABLE_RAISED, error=error)
            results[call] = FAILED
    return results

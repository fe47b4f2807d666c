"""Decides a request: match, plan, take, wait, conclude. Written once, for threads and for asyncio."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from inspect import isawaitable
from time import perf_counter
from typing import Any, ClassVar, Final

from ratelimit_mw.core.events import DecisionEvent, StoreEvent
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.core.signatures import callable_place
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.engine.base_gate import BaseGate
from ratelimit_mw.engine.delays import refused_for_capacity
from ratelimit_mw.engine.observation import CountedEvent, counted_waiting
from ratelimit_mw.engine.refresh import Refresher
from ratelimit_mw.engine.response_tracking import settle_after_response
from ratelimit_mw.engine.runtime import Runtime, Sleep, refund
from ratelimit_mw.engine.settlement import MAY_BE_LOST
from ratelimit_mw.engine.shedding import entered, leave
from ratelimit_mw.engine.slot_wait import SlotWait, buckets_of, slot_demand
from ratelimit_mw.engine.slots import HeldSlots, slot_charges
from ratelimit_mw.engine.usage import Limits, own_limits
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable, close_unawaited
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.plan import (
    Match,
    Plan,
    client_identities,
    conclude,
    make_plan,
    plan_on_store_error,
    without_charged,
)
from ratelimit_mw.rules.rule_table import EndpointRules

_NO_RESULTS: Final[CallResults] = {}
_CALLABLE_RAISED: Final = (
    "raised an error: a key or tier counts as missing, a cost as 1; in place of limits, the default limits apply, "
    "and if these come from the same callable or are [], the request gets 503"
)


class Flow(BaseGate, ABC):
    """Decides requests. `runtime`: calls the store and waits, in a thread or in an event loop."""

    runtime: Runtime
    _awaits_callables: ClassVar[bool]  # whether the gate is for asyncio, so that a callable may return an awaitable

    async def plan(self, match: Match, request: Request) -> Plan:
        """Return the charges of a request, after calling the callables of its limits."""
        await self.refresh()
        results = await self._call(match.callables, request) if match.callables else _NO_RESULTS
        return make_plan(match, request, results, self.rule_set.overrides)

    async def refresh(self) -> int:
        """Look for changed overrides if that is due. Return the number of changes so far: plans may have changed."""
        if self._refresher is not None and self._refresher.is_needed:
            await self._look(self._refresher)
        return self.rule_set.overrides.generation

    async def look(self, match: Match, plan: Plan) -> Verdict | None:
        """Return what `decide` would return now, and take nothing. Does not wait, and reports nothing."""
        if not plan.charges:
            return conclude(match, plan, ()) if plan.denied_source else None
        try:
            return conclude(match, plan, await self.runtime.peek(plan.charges))
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            return self._without_store(match, plan, error, self._fallback.peek)

    async def decide(
        self, match: Match, plan: Plan, request: Request | None, sleep: Sleep | None = None
    ) -> Verdict | None:
        """Return the verdict on a plan, after its delay; None if the plan has no charges.

        Does not raise if the store fails. `sleep`: delays the request. An exception that it raises ends the delay, and
        passes through to the caller. `request`: None for a charge of the app.
        """
        sleep = sleep or self.runtime.sleep
        started = perf_counter() if self._on_decision is not None else 0.0
        may_be_delayed = match.may_delay and any(charge.effective_max_delay_us for charge in plan.charges)
        keys = self._capacity_keys(plan, request) if may_be_delayed else ()
        if may_be_delayed:
            plan = self.delay_capacity.refusing_if_full(plan, keys)
        verdict = await (
            self._take_in_queue(match, plan, request, sleep) if match.has_queue else self._take_once(match, plan)
        )
        if may_be_delayed and verdict is not None and verdict.delay and not self.delay_capacity.enter(keys):
            await self.runtime.finish(self._undo(verdict, None))
            verdict = refused_for_capacity(verdict)
        held_slots = self._register_slots(match, verdict, request) if match.has_slots else None
        if self._on_decision is not None and verdict is not None:
            self._on_decision(DecisionEvent(verdict, request, perf_counter() - started))
        if self._observe is not None and verdict is not None:
            self._observe(verdict)
        if verdict is not None and not verdict.allowed:
            self.report_refusal(verdict, request)
        if may_be_delayed and verdict is not None and verdict.delay:
            await self._delay(verdict, sleep, held_slots, keys)
        return verdict

    async def _admit(  # noqa: C901  # a coroutine for a part of it would add to the time of every request
        self, request: Request, endpoint_rules: EndpointRules, sleep: Sleep | None = None
    ) -> Verdict | None:
        match = self.rule_set.match(request, endpoint_rules)
        answers = self._usage_answers
        if answers is not None and not self.rule_set.asks_usage(request):
            answers = None
        if match is None:
            if answers is not None:
                request.answer = await answers.response((), self.runtime.peek, self.runtime.result)
            return None
        request.messages = match.messages
        if self.guard is not None and answers is None:
            match = entered(self.guard, match, request)
        try:
            if match.callables and self._awaits_callables and match.may_read_user:
                # Read the user before the callables run. In Django this may raise UserNotLoaded, and a retry must not
                # call them twice.
                request.user  # noqa: B018
            if self._refresher is not None and self._refresher.is_needed:
                await self._look(self._refresher)
            # plan(), inlined: its coroutine would add to the time of every request
            results = await self._call(match.callables, request) if match.callables else _NO_RESULTS
            plan = make_plan(match, request, results, self.rule_set.overrides)
            if answers is not None and plan.denied_source is None:
                limits = await self._client_limits(request)
                request.answer = await answers.response(limits, self.runtime.peek, self.runtime.result)
                return None
            if (outer := request.outer) is not None and outer.verdict is not None:
                plan = without_charged(plan, outer.admitted_charges)
            verdict = await self.decide(match, plan, request, sleep)
        except BaseException:  # the client left while the request waited
            if self.guard is not None:
                leave(self.guard, request)
            raise
        if match.settles and verdict is not None and verdict.allowed:
            request.on_end = [*(request.on_end or ()), settle_after_response]
        return verdict

    async def _client_limits(self, request: Request) -> Limits:
        """Return a client's own limits, with a charge of 0 each."""
        matches = self.rule_set.client_matches(request)
        if self._awaits_callables and any(match.may_read_user for match in matches):
            request.user  # noqa: B018  # as in `_admit`
        results = await self._call(list(dict.fromkeys(call for match in matches for call in match.callables)), request)
        overrides = self.rule_set.overrides
        return own_limits([make_plan(match, request, results, overrides, only_own=True) for match in matches])

    @abstractmethod
    async def _look(self, refresher: Refresher) -> None:
        """Look for changed overrides. Only the first requests of a process wait for it."""

    async def _take_once(self, match: Match, plan: Plan) -> Verdict | None:
        """Take the charges of a plan once, without waiting for a slot. Return the verdict; None if no limit applies."""
        if not plan.charges:
            return conclude(match, plan, ()) if plan.denied_source else None
        if match.has_slots:
            self.runtime.slot_renewer.renew_due()
        take = self.runtime.take_cancel_safe if match.may_delay or match.has_slots else self.runtime.take
        try:
            verdict = conclude(match, plan, await take(plan.charges))
            if self._needs_fallback and (self._fallback.refusals or not verdict.allowed):
                self._inform_fallback(verdict)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            return self._without_store(match, plan, error)
        return verdict

    async def _take_in_queue(self, match: Match, plan: Plan, request: Request | None, sleep: Sleep) -> Verdict | None:
        """Decide a request that may wait for a slot. It queues behind the requests that wait already.

        A request whose task is canceled, or whose `sleep` raises, leaves the queue.
        """
        demand = slot_demand(plan, lambda: self._capacity_keys(plan, request))
        if demand is None:
            return await self._take_once(match, plan)

        async def peek(peeked: Plan) -> Verdict | None:
            return conclude(match, peeked, await self.runtime.peek(peeked.charges))

        event = self.runtime.event(sleep)
        return await SlotWait(
            self._queues,
            plan,
            demand,
            CountedEvent(event, match.rule) if self.settings.metrics else event,
            partial(self._take_once, match),
            peek,
            partial(self._without_store, match, plan),
        ).verdict()

    async def _delay(self, verdict: Verdict, sleep: Sleep, held_slots: HeldSlots | None, keys: Sequence[str]) -> None:
        """Delay an admitted request. An exception that ends the delay early refunds the request."""
        try:
            with counted_waiting(verdict.rule) if self.settings.metrics else nullcontext():
                await sleep(verdict.delay)
        except self.runtime.interrupts:
            await self.runtime.finish(self._undo(verdict, held_slots))
            raise
        finally:
            self.delay_capacity.leave(keys)

    async def _undo(self, verdict: Verdict, held_slots: HeldSlots | None) -> None:
        """Refund a request and release its slots. Stops their renewal first, as that would take the slots again."""
        if held_slots is not None:
            held_slots.registry.end(held_slots)
        await refund(self.runtime, self.store_for(verdict.source), verdict)
        self._wake_waiters(verdict)

    async def _call(self, calls: Sequence[RequestCallable], request: Request) -> CallResults:
        results: dict[RequestCallable, Any] = {}
        for call in calls:
            try:
                result = call(request)
                results[call] = await result if self._awaits_callables and isawaitable(result) else result
                close_unawaited(results[call])
            except Exception as error:  # noqa: BLE001  # a faulty callable must not exempt the request
                warn_throttled(callable_place(call), _CALLABLE_RAISED, error=error, code="RL-214", call=call)
                results[call] = FAILED
        return results

    def _capacity_keys(self, plan: Plan, request: Request | None) -> Sequence[str]:
        """Return the keys by which delayed and waiting requests are counted.

        Returns the keys of the plan that are not shared by all clients, or else the client's address.
        """
        keys = client_identities(plan)
        return keys if keys or request is None else [self._address_key.identity(request, "", {}) or ""]

    def _register_slots(self, match: Match, verdict: Verdict | None, request: Request | None) -> HeldSlots | None:
        """Renew the slots of a request until its response has ended, then release them. Return None without slots."""
        if (
            request is None
            or verdict is None
            or not verdict.allowed
            or not (slots := slot_charges(verdict.charges, verdict.decisions))
        ):
            return None
        wake = None
        if match.has_queue:
            wake = partial(self._queues.wake, [bucket for charge in slots for bucket in buckets_of(charge)])
        held_slots = HeldSlots(self.store_for(verdict.source), slots, wake)
        request.on_end = [*(request.on_end or ()), self.runtime.slot_renewer.add_until_end(held_slots)]
        return held_slots

    def _wake_waiters(self, verdict: Verdict) -> None:
        """Wake requests that wait for the slots of this verdict, which were released."""
        slots = [charge for charge in verdict.charges if charge.limit.is_concurrency]
        self._queues.wake([bucket for charge in slots for bucket in buckets_of(charge)])

    def _inform_fallback(self, verdict: Verdict) -> None:
        """Let the fallback store observe the store's decisions, so that it repeats refusals while the store fails.

        Needed for refusals, and while it knows any.
        """
        if verdict.source == "store":
            self._fallback.observe(verdict.charges, verdict.decisions)

    def _without_store(
        self,
        match: Match,
        plan: Plan,
        error: Exception,
        ask: Callable[[Sequence[Charge]], Sequence[Decision]] | None = None,
    ) -> Verdict:
        """Return the verdict of `on_store_error`. `ask`: the method of the fallback store; by default `take`."""
        if not getattr(error, "rejected", False):  # the store logs a rejection itself, with the fix
            warn_throttled("store", "failed (%s); on_store_error decides", error_summary(error), code="RL-201")
        if self._on_store_event is not None:
            self._on_store_event(StoreEvent("failed", error_summary(error)))
        source, remaining_plan = plan_on_store_error(plan)
        ask = ask or self._fallback.take
        return conclude(match, remaining_plan, ask(remaining_plan.charges) if remaining_plan.charges else (), source)

    def _settle_now(self, source: Source, charges: Sequence[Charge]) -> None:
        """Settle in a store that does not have to be awaited. Logs a failure."""
        try:
            self.store_for(source).settle(charges)  # type: ignore[union-attr]  # not an AsyncStore
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            warn_throttled("settle", MAY_BE_LOST, type(error).__name__, code="RL-206")

"""The gate for threads: it matches a request, plans its charges, takes them from the store and concludes.

`engine.gate` does the same for asyncio.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import closing
from time import perf_counter
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.engine.base_gate import BaseGate
from ratelimit_mw.engine.delays import pending_refund, refused_for_capacity
from ratelimit_mw.engine.queue_steps import PauseStep, SlotWait, TakeStep, slot_demand
from ratelimit_mw.engine.refusal_log import log_refusal
from ratelimit_mw.engine.settlement import PendingSettlement, settled_charges
from ratelimit_mw.engine.settlement_queue import NOT_SENT, OnSettled, discard_settled
from ratelimit_mw.engine.slots import SLOT_RENEWER, HeldSlots
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable, close_unawaited
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.compiled import check_no_async_callables
from ratelimit_mw.rules.plan import Match, Plan, conclude, plan, without_charged
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.url import open_store

NO_RESULTS: Final[CallResults] = {}
NOT_REFUNDED: Final = "the refund of a delayed request failed, its units may stay charged: %s"
CALLABLE_RAISED: Final = (
    "raised an error: a key or tier counts as missing, a cost as 1, and instead of its limits the default limits apply"
)


class Gate(BaseGate):
    """Decides requests in threads. `admit` does not raise, whatever the client sends."""

    _store: Store
    _handler_kinds: tuple[str, ...] = ("wsgi", "plain")
    _default_max_waiting = 2  # requests; each blocks a thread of the server, and waitress has 4
    _expected_handler = "a WSGI app, or a callable (request, verdict)"

    def __init__(self, settings: Settings, rules: RuleSet | None = None, fallback: FallbackStore | None = None) -> None:
        super().__init__(settings, rules, fallback)
        if rules is None:  # rules that are passed belong to an AsyncGate, which can await
            check_no_async_callables(self._rules.limit_sets)
        store = (
            open_store(settings.store, settings.store_timeout) if isinstance(settings.store, str) else settings.store
        )
        if not isinstance(store, Store):
            raise ConfigError(
                f"store: got {type(store).__name__}, expected a URL or a Store with take(); WSGI cannot await"
            )
        self._use_store(store)

    def admit(self, request: Request, endpoint_rules: EndpointRules = ()) -> Verdict | None:
        """Return the verdict on a request; None if no limit applies. `endpoint_rules`: the limits of its endpoint."""
        match = self._rules.match(request, endpoint_rules)
        if match is None:
            return None
        started = perf_counter() if self._on_decision is not None else 0.0
        request.messages = match.messages
        charge_plan = plan(match, request, _call_results(match.callables, request) if match.callables else NO_RESULTS)
        if (outer := request.state) is not None and outer.verdict is not None:
            charge_plan = without_charged(charge_plan, outer.charged)
        keys = self._capacity_keys(charge_plan, request) if match.may_delay else ()
        if match.may_delay:
            charge_plan = self.delay_capacity.without_delay_if_full(charge_plan, keys)
        verdict = (
            self._decide_in_queue(match, charge_plan, request) if match.has_queue else self._decide(match, charge_plan)
        )
        if match.may_delay and verdict is not None and verdict.delay:
            verdict = self._reserve_capacity(verdict, keys)
        held_slots = self._register_slots(match, verdict, request) if match.has_slots else None
        if self._on_decision is not None:
            self._emit_decision(verdict, request, started)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        if match.may_delay and verdict is not None and verdict.delay:
            self._wait(verdict, held_slots, keys)
        if match.settles and verdict is not None and verdict.allowed:
            self._settle_at_end(request)
        return verdict

    def admit_by_address(
        self, client: str | None, method: str | None, endpoint_rules: EndpointRules = ()
    ) -> Verdict | None:
        """Return the verdict if it depends on the client address only; None if the request needs `admit`.

        The fast path, in a quarter of the time of `admit`. The request must not have a user, or charges of an outer
        middleware. `endpoint_rules`: the limits of its endpoint.
        """
        plans_by_address = (
            self._rules.plans_by_address_at(endpoint_rules) if endpoint_rules else self._rules.plans_by_address
        )
        if plans_by_address is None or method == "OPTIONS":
            return None
        charge_plan = plans_by_address[client]
        try:
            if charge_plan.is_single and not self._feeds_fallback:  # only a MemoryStore needs no fallback
                (decision,) = decisions = self._store.take(charge_plan.charges)
                if decision.allowed:
                    return Verdict(
                        True, charge_plan.charges, decisions, charge_plan.match.rule, "store", charge_plan.policies
                    )
                refused = Verdict(
                    False, charge_plan.charges, decisions, charge_plan.match.rule, "store", charge_plan.policies
                )
                verdict: Verdict | None = refused
            else:
                verdict = self._decide(charge_plan.match, charge_plan)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            verdict = self._without_store(charge_plan.match, charge_plan, error)
        if verdict is not None and not verdict.allowed:
            log_refusal(verdict, self.settings.key_secret)
        return verdict

    def _decide(self, match: Match, charge_plan: Plan) -> Verdict | None:
        if not charge_plan.charges:
            return conclude(match, charge_plan, ()) if charge_plan.denied else None
        if match.has_slots:
            SLOT_RENEWER.renew_due()
        try:
            decisions = self._store.take(charge_plan.charges)
            verdict = conclude(match, charge_plan, decisions)
            if self._feeds_fallback:
                self._feed_fallback(charge_plan, decisions, verdict)
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            return self._without_store(match, charge_plan, error)
        return verdict

    def _reserve_capacity(self, verdict: Verdict, keys: Sequence[str]) -> Verdict:
        """Reserve capacity for a delayed request; without capacity refund it, and return the verdict that refuses it.

        `keys`: see `DelayCapacity`.
        """
        if self.delay_capacity.enter(keys):
            return verdict
        self._undo(verdict, None)
        return refused_for_capacity(verdict)

    def _wait(self, verdict: Verdict, held_slots: HeldSlots | None, keys: Sequence[str]) -> None:
        """Delay an admitted request. An exception that ends the delay early refunds the request."""
        try:
            time.sleep(verdict.delay)
        except BaseException:
            self._undo(verdict, held_slots)
            raise
        finally:
            self.delay_capacity.leave(keys)

    def _undo(self, verdict: Verdict, held_slots: HeldSlots | None) -> None:
        """Refund a request and release its slots. Stops their renewal first, which would take the slots again."""
        if held_slots is not None:
            held_slots.registry.end(held_slots)
        self._refund([pending_refund(self, verdict)])
        self._wake_waiters(verdict)

    def _decide_in_queue(self, match: Match, charge_plan: Plan, request: Request) -> Verdict | None:
        """Decide a request that may wait for a slot, behind the requests that wait already."""
        demand = slot_demand(charge_plan, lambda: self._capacity_keys(charge_plan, request))
        if demand is None:
            return self._decide(match, charge_plan)
        woken = threading.Event()
        with closing(SlotWait(self._queues, match, charge_plan, demand, woken.set).actions()) as actions:
            result: Any = None
            while True:
                try:
                    action = actions.send(result)
                except StopIteration as end:
                    verdict: Verdict | None = end.value
                    return verdict
                if isinstance(action, TakeStep):
                    result = self._decide(match, action.plan)
                elif isinstance(action, PauseStep):
                    woken.wait(action.seconds)
                    woken.clear()
                else:
                    try:
                        result = self._store.peek(action.plan.charges)
                    except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                        return self._without_store(match, charge_plan, error)

    def _refund(self, refunds: Sequence[PendingSettlement]) -> None:
        """Refund the units of a request that found no capacity for its delay, or whose delay ended early."""
        for gate, source, charges in refunds:
            try:
                gate.store_for(source).settle(charges)
            except Exception as error:  # noqa: BLE001  # any error of a store, or of one that must be awaited
                warn_throttled("store", NOT_REFUNDED, error)

    def settle(
        self,
        source: Source,
        charges: Sequence[Charge],
        loop: object = None,  # noqa: ARG002  # used by AsyncGate
        on_settled: OnSettled = discard_settled,
    ) -> None:
        """Settle the charges of a request, once its true cost is known. A failure of the store is logged.

        `on_settled`: receives the charges as settled, in the same order; none if the store failed.
        """
        settled: Sequence[Charge] = ()
        try:
            settled = settled_charges(charges, self.store_for(source).settle(charges))  # type: ignore[union-attr]  # stores for threads
        except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
            warn_throttled("settle", NOT_SENT, type(error).__name__)
        on_settled(settled)

    def close(self) -> None:
        """Close the store if this gate created it."""
        if self._owns_store:
            self._store.close()


class ReportingGate(Gate):
    """A gate with an `on_decision` hook, which needs the request, so no request takes the fast path."""

    def admit_by_address(
        self,
        client: str | None,  # noqa: ARG002  # the signature of the base class
        method: str | None,  # noqa: ARG002  # the same
        endpoint_rules: EndpointRules = (),  # noqa: ARG002  # the same
    ) -> Verdict | None:
        """Return None: every request needs `admit`."""
        return None


def _call_results(calls: Sequence[RequestCallable], request: Request) -> CallResults:
    results: dict[RequestCallable, Any] = {}
    for call in calls:
        try:
            results[call] = result = call(request)
            close_unawaited(result)
        except Exception as error:  # noqa: BLE001  # a faulty callable must not exempt the request
            warn_throttled(callable_name(call), CALLABLE_RAISED, error=error)
            results[call] = FAILED
    return results

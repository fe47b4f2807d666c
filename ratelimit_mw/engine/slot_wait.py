"""Decides a request that may wait for a concurrency slot.

While the request waits, its penalties are taken with a cost of 0: a ban still refuses it, but only its final refusal
counts toward a ban.
"""

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec.structs import replace

from ratelimit_mw.algorithms.concurrency import Concurrency
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.slot_queue import Queues, SlotBucket, SlotDemand, Waiter
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.stores.group import stored_bucket

Query = Callable[[Plan], Awaitable[Verdict | None]]


class Event(Protocol):
    """An event that a request waits for, in a thread or in a task."""

    def wake(self) -> None:
        """Wake the request. May be called in any thread."""

    async def wait(self, seconds: float) -> None:
        """Sleep for so many seconds, or until `wake` is called."""


def buckets_of(charge: Charge) -> tuple[SlotBucket, ...]:
    """Return what a request that needs these slots waits for: the bucket, and the share of the holder, if any."""
    bucket = stored_bucket(charge)
    limit = charge.limit
    if not isinstance(limit, Concurrency) or limit.holder is None:
        return (bucket,)
    return bucket, (charge.key, f"{limit.bucket} {limit.holder}")


def slot_demand(plan: Plan, keys: Callable[[], Sequence[str]]) -> SlotDemand | None:
    """Return the slots a request may wait for; None if none of its limits has a queue. `keys`: see `SlotDemand`."""
    buckets: dict[SlotBucket, int] = {}
    shares: dict[SlotBucket, SlotBucket] = {}
    shared, max_wait = set[SlotBucket](), math.inf
    for charge, compiled_limit in zip(plan.charges, plan.compiled_limits, strict=True):
        if compiled_limit.queue:
            bucket, *own_share = buckets_of(charge)
            for one in (bucket, *own_share):
                buckets[one] = min(compiled_limit.queue, buckets.get(one, compiled_limit.queue))
            shares.update(dict.fromkeys(own_share, bucket))
            max_wait = min(max_wait, compiled_limit.queue_timeout)
            if compiled_limit.key.is_shared:
                shared.add(bucket)
    return SlotDemand(buckets, max_wait, keys() if shared else (), frozenset(shared), shares) if buckets else None


class SlotWait:
    """One request that may wait.

    `take`: takes the charges of a plan, and returns the verdict, also if the store fails. `peek`: returns the store's
    verdict on a plan and changes nothing; raises if the store fails. `on_error`: returns the verdict in that case.
    `event`: wakes the request.
    """

    def __init__(
        self,
        queues: Queues,
        plan: Plan,
        demand: SlotDemand,
        event: Event,
        take: Query,
        peek: Query,
        on_error: Callable[[Exception], Verdict],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues: Final = queues
        self._plan: Final = plan
        self._uncounted_plan: Final = _without_counting(plan)
        self._demand: Final = demand
        self._event: Final = event
        self._take: Final = take
        self._peek: Final = peek
        self._on_error: Final = on_error
        self._clock: Final = clock

    async def verdict(self) -> Verdict | None:
        """Return the verdict, if necessary after a wait in the queue. If the wait raises, the request leaves the queue.

        The request waits only if nothing but slots refuses it, and it never overtakes a waiting request.
        """
        release_count = self._queues.release_count
        if self._queues.must_wait(self._demand.buckets):
            try:
                verdict = await self._peek(self._uncounted_plan)
            except Exception as error:  # noqa: BLE001  # a faulty store must not fail the request
                return self._on_error(error)
        else:
            verdict = await self._take(self._uncounted_plan)
            if verdict is None or verdict.allowed:
                return self._with_original_charges(verdict)
        full = self._full_buckets(verdict)
        if full is None:
            return await self._count_refusal(verdict)
        waiter = self._queues.join(self._demand, full, self._event.wake, release_count)
        if waiter is None:
            return await self._refuse_as_full(full or tuple(self._demand.buckets))
        return await self._wait_in_queue(waiter)

    async def _wait_in_queue(self, waiter: Waiter) -> Verdict | None:
        deadline = self._clock() + self._demand.max_wait
        exhausted: tuple[SlotBucket, ...] = ()
        try:
            while True:
                if waiter.may_try:
                    verdict = await self._take(self._uncounted_plan)
                    if verdict is None or verdict.allowed:
                        exhausted = self._exhausted(verdict)
                        return self._with_original_charges(verdict)
                    full = self._full_buckets(verdict)
                    if full is None:
                        break
                    self._queues.record_refusal(waiter, full)
                rest = deadline - self._clock()
                if rest <= 0:
                    full = tuple(waiter.refused_by or self._demand.buckets)
                    break
                await self._event.wait(min(rest, self._queues.pause(waiter)))
        finally:
            self._queues.leave(waiter, exhausted)
        return await (self._count_refusal(verdict) if full is None else self._refuse_as_full(full))

    def _with_original_charges(self, verdict: Verdict | None) -> Verdict | None:
        if verdict is None or verdict.charges is not self._uncounted_plan.charges:
            return verdict
        return replace(verdict, charges=self._plan.charges)

    async def _count_refusal(self, verdict: Verdict | None) -> Verdict | None:
        """Let a refusal by anything but full slots count toward a ban. Return the final verdict on the request.

        Takes the charges again, now with the cost of the penalties. Returns `verdict` if no penalty can be charged.
        """
        if verdict is not None and any(
            charge.role == "penalty" and decision.allowed
            for charge, decision in zip(self._uncounted_plan.charges, verdict.decisions, strict=False)
        ):
            return await self._take(self._plan)
        return verdict

    async def _refuse_as_full(self, full: Iterable[SlotBucket]) -> Verdict | None:
        """Return the verdict on a request that stops waiting. It is a refusal even if slots were released meanwhile."""
        full_buckets = self._demand.slots_of(full)
        charges = [
            replace(charge, cost=charge.limit.quota + 1) if stored_bucket(charge) in full_buckets else charge
            for charge in self._plan.charges
        ]
        verdict = await self._take(replace(self._plan, charges=charges))
        if verdict is None or len(verdict.decisions) != len(charges):
            return verdict
        decisions = [
            _as_all_in_use(charge, one) if stored_bucket(charge) in full_buckets else one
            for charge, one in zip(charges, verdict.decisions, strict=True)
        ]
        return replace(verdict, charges=self._plan.charges, decisions=decisions)

    def _full_buckets(self, verdict: Verdict | None) -> tuple[SlotBucket, ...] | None:
        """Return the buckets whose slots are all in use; None if anything else refuses."""
        if verdict is None or len(verdict.decisions) != len(self._plan.compiled_limits):
            return None
        full: dict[SlotBucket, None] = {}
        for charge, compiled_limit, one in zip(
            self._uncounted_plan.charges, self._plan.compiled_limits, verdict.decisions, strict=True
        ):
            if one.allowed or compiled_limit.shadow:
                continue
            if not compiled_limit.queue or charge.cost > charge.limit.quota:
                return None
            full[_deciding_bucket(charge, one)] = None
        return tuple(full)

    def _exhausted(self, verdict: Verdict | None) -> tuple[SlotBucket, ...]:
        if verdict is None or len(verdict.decisions) != len(self._uncounted_plan.charges):
            return ()
        pairs = zip(self._uncounted_plan.charges, verdict.decisions, strict=True)
        return tuple(
            bucket
            for charge, one in pairs
            if (bucket := _deciding_bucket(charge, one)) in self._demand.buckets and not one.remaining
        )


def _deciding_bucket(charge: Charge, decision: Decision) -> SlotBucket:
    """Return the share of the holder if it limits the charge, else the bucket of the slots."""
    return buckets_of(charge)[-1 if decision.limit < charge.limit.quota else 0]


def _without_counting(plan: Plan) -> Plan:
    """Return the plan with penalties of cost 0, which count no refusal."""
    if not any(charge.role == "penalty" for charge in plan.charges):
        return plan
    charges = [replace(charge, cost=0) if charge.role == "penalty" else charge for charge in plan.charges]
    return replace(plan, charges=tuple(charges))


def _as_all_in_use(charge: Charge, decision: Decision) -> Decision:
    retry = charge.limit.max_wait
    return replace(decision, allowed=False, remaining=0, retry_after=retry, next_after=retry, reset_after=retry)

"""Leases: a process takes units of a hot limit in advance and spends them without querying the store.

The unspent units of a bucket, its allotment, are never more than `lease`. They expire `lease_time` seconds after they
were taken, and are then refunded. Closing the store refunds them too. A process can spend in a window what it took
before it, so in any window each process admits at most `lease` units beyond the bound of the algorithm. It withholds at
most `lease` units from other processes.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_MAX_ALLOTMENTS: Final = 1_000  # leases are meant for a few hot buckets

# A lease in flight. Its result is the error, if any. Other requests wait for it instead of taking another lease.
PendingLease = Future[BaseException | None]


class Allotment:
    """The leased units of one bucket that are not spent yet."""

    __slots__ = ("at", "charge", "decision", "not_before", "pending", "reserved", "units", "valid_from", "valid_until")

    def __init__(self, charge: Charge, now: float) -> None:
        self.charge = charge
        self.units = 0
        self.reserved = 0  # spent by groups that the store has not decided yet: may be restored
        self.decision: Decision | None = None  # of the last lease: the bucket with that lease taken
        self.at = 0  # for the refund: when the oldest of these units was taken
        self.valid_from, self.valid_until = now, now + charge.lease_time  # units may be spent in between
        self.not_before = -math.inf  # no lease is taken earlier, because the quota was used up
        self.pending: PendingLease | None = None

    def snapshot(self, units: int) -> Decision:
        """Return the decision to show with `units` left here. Its times are those of the lease, so never too short."""
        last = self.decision
        if last is None:
            raise RuntimeError("an allotment that was never filled has no decision to show")
        remaining = min(last.limit, last.remaining + units)
        return Decision(True, last.limit, remaining, 0.0, last.next_after, last.reset_after, 0.0, self.at)

    def fill(self, units: int, decision: Decision, started_at: float) -> None:
        """Add the units of a lease. If older units are left, all of them expire together with those."""
        if not self.units:
            self.at, self.valid_from, self.valid_until = decision.at, started_at, started_at + self.charge.lease_time
        self.units += units
        self.decision = decision

    def drain(self) -> Charge:
        """Remove all units and return the settlement that refunds them."""
        refund = Charge(self.charge.key, self.charge.limit, -self.units, at=self.at)
        self.units = 0
        return refund


class LeaseRequest:
    """One group of charges: units from allotments, charges for the store, and leases to take.

    `waits_for`: a lease in flight that may cover the group. If it is set, wait for it and call `start` again.
    """

    __slots__ = (
        "charges",
        "consumed",
        "decisions",
        "pending_leases",
        "prefetch",
        "started_at",
        "to_store",
        "waits_for",
    )

    def __init__(self, charges: Sequence[Charge], started_at: float) -> None:
        self.charges, self.started_at = charges, started_at
        self.decisions: list[Decision | None] = []  # None: the store decides
        self.to_store: list[Charge] = []
        self.consumed: dict[int, Allotment] = {}  # by index of the charge
        self.prefetch: list[Charge] = []
        self.pending_leases: list[tuple[Allotment, PendingLease]] = []  # one per charge of `prefetch`
        self.waits_for: PendingLease | None = None


class LeaseManager:
    """The allotments of a process. Thread-safe, without I/O; time is passed in, in seconds."""

    def __init__(self) -> None:
        self.next_expiry = math.inf  # when the next refund is due
        self._allotments: dict[tuple[str, str], Allotment] = {}
        self._refunds: list[Charge] = []  # settlements that were not sent yet
        self._lock = fork_safe_lock()

    def consume(self, charges: Sequence[Charge], now: float) -> Answer | None:
        """Spend allotments on the whole group, or return None. Most groups end here; `start` is for the others."""
        consumed: list[tuple[Allotment, int]] = []
        with self._lock:
            for charge in charges:
                cost = charge.cost
                allotment = self._allotments.get((charge.key, charge.limit.bucket)) if _can_lease(charge) else None
                if (
                    allotment is None
                    or allotment.units < cost
                    or not allotment.valid_from <= now < allotment.valid_until
                ):
                    for allotment, cost in consumed:
                        allotment.units += cost
                    return None
                allotment.units -= cost
                consumed.append((allotment, cost))
            return Answer([allotment.snapshot(allotment.units) for allotment, _ in consumed], "lease")

    def start(self, charges: Sequence[Charge], now: float, *, may_wait: bool) -> LeaseRequest:
        """Work out what a group needs. Call `finish` or `fail` after it.

        `may_wait`: the group may wait for a lease in flight.
        """
        request = LeaseRequest(charges, now)
        with self._lock:
            awaited = [self._consume_or_request(request, charge, now) for charge in charges]
            if request.to_store:
                self._reserve(request, 1)
            pending_leases = [pending for pending in awaited if pending is not None]
        if may_wait and pending_leases and len(pending_leases) == len(request.to_store) and not request.prefetch:
            self._restore(request)
            request.waits_for = pending_leases[0]
        return request

    def add_leased_units(self, request: LeaseRequest, leases: Sequence[Sequence[Decision]], now: float) -> None:
        """Add the units of the leases that were taken. A failed lease has no decisions."""
        with self._lock:
            for (allotment, _), charge, decisions in zip(request.pending_leases, request.prefetch, leases, strict=True):
                for decision in decisions:
                    self._fill(allotment, charge.cost, decision, request.started_at, now)

    def finish(self, request: LeaseRequest, store_decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Return the decisions on the group, given the store's decisions on `to_store`."""
        pairs = zip(request.to_store, store_decisions, strict=True)
        if any(not decision.allowed and charge.role != "shadow" for charge, decision in pairs):
            self._restore(request)
        elif request.to_store and request.consumed:
            with self._lock:
                self._reserve(request, -1)
        _resolve_pending(request, None)
        from_store = iter(store_decisions)
        decisions = [next(from_store) if decision is None else decision for decision in request.decisions]
        if not request.to_store:
            return Answer(decisions, "lease")
        return Answer(decisions, store_decisions.source) if isinstance(store_decisions, Answer) else decisions

    def fail(self, request: LeaseRequest, error: BaseException) -> None:
        """Restore the units that were spent, because the store failed."""
        self._restore(request)
        _resolve_pending(request, error)

    def drain_expired(self, now: float) -> list[Charge]:
        """Expire allotments and return the settlements that refund them. Each is returned only once."""
        with self._lock:
            for bucket, allotment in list(self._allotments.items()):
                if not allotment.valid_from <= now < allotment.valid_until:  # also when the clock stepped back
                    self._expire(allotment)
                    if allotment.pending is None:
                        del self._allotments[bucket]
            self.next_expiry = min((allotment.valid_until for allotment in self._allotments.values()), default=math.inf)
            refund, self._refunds = self._refunds, []
        return refund

    def drain_all(self) -> list[Charge]:
        """Expire all allotments and return the settlements that refund them."""
        return self.drain_expired(math.inf)

    def invalidate(self, charges: Sequence[Charge]) -> None:
        """Drop the allotments of buckets that were reset. There is nothing to refund."""
        with self._lock:
            for charge in charges:
                self._allotments.pop((charge.key, charge.limit.bucket), None)

    def clear(self) -> None:
        """Drop everything without a refund, because all buckets were replaced."""
        with self._lock:
            self._allotments.clear()
            self._refunds.clear()

    def reset_after_fork(self) -> None:
        """Drop everything, which belongs to the parent, and replace the lock, which a thread of the parent may hold."""
        self._lock = fork_safe_lock()
        self.clear()

    def _consume_or_request(self, request: LeaseRequest, charge: Charge, now: float) -> PendingLease | None:
        """Spend the allotment or pass the charge to the store. Return the lease in flight to wait for, if any."""
        allotment = self._allotment(charge, now)
        if allotment is not None and allotment.units >= charge.cost:
            allotment.units -= charge.cost
            request.consumed[len(request.decisions)] = allotment
            request.decisions.append(allotment.snapshot(allotment.units))
            return None
        request.decisions.append(None)
        request.to_store.append(charge)
        if allotment is None:
            return None
        if allotment.pending is not None:
            return allotment.pending
        wanted = charge.lease - allotment.units - allotment.reserved
        if wanted > 0 and now >= allotment.not_before:
            pending = allotment.pending = PendingLease()
            pending.set_running_or_notify_cancel()  # a request that waits for it can no longer cancel it
            request.prefetch.append(Charge(charge.key, charge.limit, wanted))
            request.pending_leases.append((allotment, pending))
        return None

    def _allotment(self, charge: Charge, now: float) -> Allotment | None:
        """Return the allotment that a charge may spend, without expired units, or None."""
        if not _can_lease(charge):
            return None
        bucket = (charge.key, charge.limit.bucket)
        allotment = self._allotments.get(bucket)
        if allotment is None and len(self._allotments) < _MAX_ALLOTMENTS:
            allotment = self._allotments[bucket] = Allotment(charge, now)
            self.next_expiry = min(self.next_expiry, allotment.valid_until)
        elif allotment is not None and not allotment.valid_from <= now < allotment.valid_until:
            self._expire(allotment)
        return allotment

    def _expire(self, allotment: Allotment) -> None:
        if allotment.units:
            self._refunds.append(allotment.drain())
            self.next_expiry = -math.inf

    def _reserve(self, request: LeaseRequest, sign: int) -> None:
        for index, allotment in request.consumed.items():
            allotment.reserved += sign * request.charges[index].cost

    def _restore(self, request: LeaseRequest) -> None:
        """Put the units that were spent back into their allotments, because the group is not admitted."""
        with self._lock:
            self._reserve(request, -1)
            for index, allotment in request.consumed.items():
                allotment.units += request.charges[index].cost
                request.decisions[index] = allotment.snapshot(allotment.units)
        request.consumed = {}

    def _fill(self, allotment: Allotment, units: int, decision: Decision, started_at: float, now: float) -> None:
        if not decision.allowed:
            allotment.not_before = now + min(decision.retry_after, allotment.charge.lease_time)
            return
        allotment.fill(units, decision, started_at)
        if self._allotments.get((allotment.charge.key, allotment.charge.limit.bucket)) is allotment:
            self.next_expiry = min(self.next_expiry, allotment.valid_until)
        else:
            self._expire(allotment)  # the bucket was reset meanwhile


def _can_lease(charge: Charge) -> bool:
    return charge.lease >= charge.cost > 0 and charge.role == "limit"


def _resolve_pending(request: LeaseRequest, error: BaseException | None) -> None:
    """Wake the requests that wait for these leases."""
    for allotment, pending in request.pending_leases:
        allotment.pending = None
        pending.set_result(error)

"""Leases: a process takes units of a hot limit ahead, and spends them without asking the store.

The stock of a bucket is never more than `lease` units, and none of it is spent `lease_time` seconds after it was taken:
then it goes back, and so it does when the store is closed. So in any window each process admits at most `lease` units
beyond the bound of the algorithm (taken before the window, spent in it), and withholds at most as many from others.
"""

import math
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_MAX_ALLOTMENTS: Final = 1_000  # buckets of which units are taken ahead, at most: leases are for few and hot ones

# a lease on its way, and what went wrong: others wait rather than take one more
PendingLease = Future[BaseException | None]


class Allotment:
    """What is left of the units of one bucket that were taken ahead."""

    __slots__ = ("at", "charge", "decision", "not_before", "pending", "reserved", "units", "valid_from", "valid_until")

    def __init__(self, charge: Charge, now: float) -> None:
        self.charge = charge
        self.units = 0
        self.reserved = 0  # spent by groups of which the store decides the rest: they may come back
        self.decision: Decision | None = None  # the last lease: how the bucket stood with it taken
        self.at = 0  # for giving back: when the oldest of these units was taken
        self.valid_from, self.valid_until = now, now + charge.lease_time  # in between they may be spent
        self.not_before = -math.inf  # no lease is asked for before that: the quota had no more
        self.pending: PendingLease | None = None

    def snapshot(self, units: int) -> Decision:
        """With so many units in stock. Times are those of the lease: too long rather than too small."""
        last = self.decision
        if last is None:
            raise RuntimeError("a stock that was never filled has nothing to show")
        remaining = min(last.limit, last.remaining + units)
        return Decision(True, last.limit, remaining, 0.0, last.next_after, last.reset_after, 0.0, self.at)

    def fill(self, units: int, decision: Decision, started_at: float) -> None:
        """A lease came. Where older units are left, all go back when these do, as if they were as old."""
        if not self.units:
            self.at, self.valid_from, self.valid_until = decision.at, started_at, started_at + self.charge.lease_time
        self.units += units
        self.decision = decision

    def drain(self) -> Charge:
        """The correction that gives back all of it."""
        refund = Charge(self.charge.key, self.charge.limit, -self.units, at=self.at)
        self.units = 0
        return refund


class LeaseRequest:
    """One group of charges: what comes out of stocks, what the store is asked for, and what is taken ahead.

    `waits_for`: a lease on its way that may have room for the group; then nothing else is said.
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
        self.decisions: list[Decision | None] = []  # None: the store is asked
        self.to_store: list[Charge] = []
        self.consumed: dict[int, Allotment] = {}  # by index
        self.prefetch: list[Charge] = []
        self.pending_leases: list[tuple[Allotment, PendingLease]] = []  # one for each of `prefetch`
        self.waits_for: PendingLease | None = None


class LeaseManager:
    """The stocks of a process. No I/O; time is an argument, in seconds. Several threads may call at once."""

    def __init__(self) -> None:
        self.next_expiry = math.inf  # when something is to go back
        self._allotments: dict[tuple[str, str], Allotment] = {}
        self._refunds: list[Charge] = []  # corrections that nobody made yet
        self._lock = fork_safe_lock()

    def consume(self, charges: Sequence[Charge], now: float) -> Answer | None:
        """The whole group out of stocks, if they have it all. Most groups end here; `start` is for the others."""
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
        """What is to be done for a group; then `end` or `fail`. `may_wait`: it may wait for a lease on its way."""
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

    def complete(self, request: LeaseRequest, leases: Sequence[Sequence[Decision]], now: float) -> None:
        """What was taken ahead; nothing where that failed."""
        with self._lock:
            for (allotment, _), charge, decisions in zip(request.pending_leases, request.prefetch, leases, strict=True):
                for decision in decisions:
                    self._fill(allotment, charge.cost, decision, request.started_at, now)

    def end(self, request: LeaseRequest, store_decisions: Sequence[Decision]) -> Sequence[Decision]:
        """The decisions of the group, given those of what was asked."""
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
        """The store did not answer."""
        self._restore(request)
        _resolve_pending(request, error)

    def take_expired(self, now: float) -> list[Charge]:
        """The corrections that are due now."""
        with self._lock:
            for bucket, allotment in list(self._allotments.items()):
                if not allotment.valid_from <= now < allotment.valid_until:  # also when the clock stepped back
                    self._expire(allotment)
                    if allotment.pending is None:
                        del self._allotments[bucket]
            self.next_expiry = min((allotment.valid_until for allotment in self._allotments.values()), default=math.inf)
            refund, self._refunds = self._refunds, []
        return refund

    def all(self) -> list[Charge]:
        """The corrections that give back everything."""
        return self.take_expired(math.inf)

    def invalidate(self, charges: Sequence[Charge]) -> None:
        """These buckets were reset: nothing was taken of them."""
        with self._lock:
            for charge in charges:
                self._allotments.pop((charge.key, charge.limit.bucket), None)

    def clear(self) -> None:
        """All buckets are others now."""
        with self._lock:
            self._allotments.clear()
            self._refunds.clear()

    def reset_after_fork(self) -> None:
        """As `clear`, in a child process: the stocks are its parent's, and who held the lock is not here."""
        self._lock = fork_safe_lock()
        self.clear()

    def _consume_or_request(self, request: LeaseRequest, charge: Charge, now: float) -> PendingLease | None:
        """Spend what is in stock, or have the store asked. The lease on its way, if there is one to wait for."""
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
            pending.set_running_or_notify_cancel()  # from here on nobody who waits for it can cancel it
            request.prefetch.append(Charge(charge.key, charge.limit, wanted))
            request.pending_leases.append((allotment, pending))
        return None

    def _allotment(self, charge: Charge, now: float) -> Allotment | None:
        """The stock that a charge may spend; nothing in it is overdue."""
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
        """What was spent goes back into the stocks: the group is not admitted."""
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
    """Who waited goes on."""
    for allotment, pending in request.pending_leases:
        allotment.pending = None
        pending.set_result(error)

"""Leases: a process takes units of a hot limit in advance and spends them without querying the store.

The allotment of a bucket, its unspent units, never exceeds `lease`. The units expire `lease_time` seconds after they
were taken, and are then refunded, as they are when the store is closed. A process can spend, in one window,
units that it took before that window began. So in any window each process admits at most `lease` units beyond the bound
of the algorithm. It withholds at most `lease` units from other processes.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.contract import Clock
from ratelimit_mw.stores.group import stored_bucket
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_MAX_ALLOTMENTS: Final = 1_000  # leases are meant for a few hot buckets

TakeFromStore = Callable[[Sequence[Charge]], Awaitable[Sequence[Decision]]]

Start = Callable[[Coroutine[Any, Any, None], float | None], "asyncio.Task[None] | None"]
"""Runs a coroutine in a task or, in a thread, at once. The float is the `lease_time` of a lease that it takes."""


class Allotment:
    """The leased units of one bucket that are not spent yet. It is replaced when they expire."""

    __slots__ = ("at", "charge", "decision", "not_before", "reserved", "units", "valid_from", "valid_until")

    def __init__(self, charge: Charge, now: float) -> None:
        self.charge = charge
        self.units = 0
        self.reserved = 0  # spent by groups that the store has not decided yet, so they may be put back
        self.decision: Decision | None = None  # the decision on the last lease, so it shows the bucket after that lease
        self.at = 0  # when the oldest of these units was taken; for the refund
        # No lease is taken before this time. It is infinite during a call that takes a lease, and in the future while
        # the quota is used up.
        self.not_before = -math.inf
        self.restart(now)

    def restart(self, now: float) -> None:
        """Set the period in which the units that are leased now may be spent."""
        self.valid_from, self.valid_until = now, now + self.charge.lease_time

    def is_valid(self, now: float) -> bool:
        """Whether units may be spent now. False if the clock stepped back."""
        return self.valid_from <= now < self.valid_until

    def snapshot(self) -> Decision:
        """Return the decision to show with the present units. Its times are the lease's, so none is too short."""
        last = self.decision
        if last is None:
            raise RuntimeError("an allotment that was never filled has no decision to show")
        remaining = min(last.limit, last.remaining + self.units)
        return Decision(True, last.limit, remaining, 0.0, last.next_after, last.reset_after, 0.0, self.at)


class _Spent(NamedTuple):
    """A charge whose units came from an allotment, and the decision to show."""

    charge: Charge
    allotment: Allotment
    decision: Decision


class LeaseManager:
    """The allotments of a process. Thread-safe."""

    def __init__(self) -> None:
        self.next_expiry = math.inf  # when the next refund is due
        self._allotments: dict[tuple[str, str], Allotment] = {}
        self._refunds: list[Charge] = []  # settlements to send
        self._lock = fork_safe_lock()

    async def take(
        self, charges: Sequence[Charge], clock: Clock, take_from_store: TakeFromStore, start: Start
    ) -> Sequence[Decision]:
        """Spend allotments, and take the other charges of the group from the store. All are charged, or none.

        If an allotment was too small, a lease is taken afterwards, for later requests. Other requests do not wait for
        the lease; meanwhile the store decides their charges.
        """
        with self._lock:
            now = clock()  # read under the lock, so that it is not before the start of any allotment
            spent = [self._spend(charge, now) for charge in charges]
            decisions = [one.decision for one in spent if one is not None]
            if len(decisions) == len(spent):
                return Answer(decisions, "lease")
            for charge, allotment, _ in filter(None, spent):
                allotment.reserved += charge.cost
        to_store = [charge for charge, one in zip(charges, spent, strict=True) if one is None]
        try:
            from_store = await take_from_store(to_store)
        except BaseException:
            self._end_reservations(spent, restore=True)
            raise
        pairs = zip(to_store, from_store, strict=True)
        refused = any(not decision.allowed and charge.role != "shadow" for charge, decision in pairs)
        self._end_reservations(spent, restore=refused)
        for allotment, lease in self._claim_leases(to_store, clock):
            task = start(self._take_lease(allotment, lease, clock, take_from_store), allotment.charge.lease_time)
            if task is not None:
                await asyncio.shield(task)  # other requests need the lease even if this one is canceled
        decided = iter(from_store)
        decisions = [
            next(decided) if one is None else one.allotment.snapshot() if refused else one.decision for one in spent
        ]
        return Answer(decisions, from_store.source) if isinstance(from_store, Answer) else decisions

    def drain_expired(self, clock: Clock) -> list[Charge]:
        """Expire allotments and return the settlements that refund them. Each is returned only once."""
        with self._lock:
            now = clock()
            for allotment in list(self._allotments.values()):
                if not allotment.is_valid(now):
                    self._expire(allotment)
            self.next_expiry = min((allotment.valid_until for allotment in self._allotments.values()), default=math.inf)
            refunds, self._refunds = self._refunds, []
        return refunds

    def drain_all(self) -> list[Charge]:
        """Expire all allotments and return the settlements that refund them."""
        return self.drain_expired(lambda: math.inf)

    def invalidate(self, charges: Sequence[Charge]) -> None:
        """Drop the allotments of buckets that were reset. There is nothing to refund."""
        with self._lock:
            for charge in charges:
                if allotment := self._allotments.pop(stored_bucket(charge), None):
                    allotment.units = allotment.reserved = 0

    def clear(self) -> None:
        """Drop everything without a refund, as all buckets were replaced, or the units belong to the parent process."""
        with self._lock:
            self._allotments.clear()
            self._refunds.clear()

    def _spend(self, charge: Charge, now: float) -> _Spent | None:
        """Spend the allotment on a charge. Returns None if the store has to decide it. Requires the lock."""
        allotment = self._allotments.get((charge.key, charge.limit.bucket))
        if allotment is None or allotment.units < charge.cost or not allotment.is_valid(now) or not _can_lease(charge):
            return None
        allotment.units -= charge.cost
        return _Spent(charge, allotment, allotment.snapshot())

    def _allotment(self, charge: Charge, now: float) -> Allotment | None:
        """Return the present allotment of a bucket, or a new one; None if there are too many."""
        allotment = self._allotments.get(stored_bucket(charge))
        if allotment is not None and not allotment.is_valid(now):
            self._expire(allotment)
            allotment = None
        if allotment is None and len(self._allotments) < _MAX_ALLOTMENTS:
            allotment = self._allotments[stored_bucket(charge)] = Allotment(charge, now)
            self.next_expiry = min(self.next_expiry, allotment.valid_until)
        return allotment

    def _end_reservations(self, spent: Sequence[_Spent | None], *, restore: bool) -> None:
        """End the reservations of a group. `restore`: put the units back, because the group is not charged."""
        with self._lock:
            for charge, allotment, _ in filter(None, spent):
                units = min(charge.cost, allotment.reserved)  # 0 if the bucket was reset meanwhile
                allotment.reserved -= units
                if restore:
                    allotment.units += units
                    self._refund_if_dropped(allotment)

    def _claim_leases(self, charges: Sequence[Charge], clock: Clock) -> list[tuple[Allotment, Charge]]:
        """Return the leases to take for these charges now. No other request takes them at the same time."""
        claimed = []
        with self._lock:
            now = clock()
            for charge in filter(_can_lease, charges):
                allotment = self._allotment(charge, now)
                if allotment is None or allotment.units >= charge.cost or now < allotment.not_before:
                    continue
                wanted = charge.lease - allotment.units - allotment.reserved
                if wanted > 0:
                    allotment.not_before = math.inf
                    if not allotment.units:  # otherwise the new units expire together with the older ones
                        allotment.restart(now)
                    claimed.append((allotment, Charge(charge.key, charge.limit, wanted)))
        return claimed

    async def _take_lease(
        self, allotment: Allotment, lease: Charge, clock: Clock, take_from_store: TakeFromStore
    ) -> None:
        started_at = clock()
        try:
            (decision,) = await take_from_store([lease])
        except Exception as error:  # noqa: BLE001  # no request depends on a lease
            warn_throttled(
                "lease",
                "no units were taken in advance, each request takes its own from the store: %s",
                error,
                code="RL-209",
            )
            allotment.not_before = -math.inf
            return
        with self._lock:
            if not decision.allowed:
                allotment.not_before = clock() + min(decision.retry_after, allotment.charge.lease_time)
                return
            if not allotment.units:
                allotment.at = decision.at
            allotment.units += lease.cost
            if lease.limit.uses_wall_time:  # units of a period must not be spent in the next one
                allotment.valid_until = min(allotment.valid_until, started_at + decision.next_after)
            allotment.decision, allotment.not_before = decision, -math.inf
            self.next_expiry = min(self.next_expiry, allotment.valid_until)
            self._refund_if_dropped(allotment)

    def _refund_if_dropped(self, allotment: Allotment) -> None:
        """Refund the units of an allotment that has expired, or whose bucket was reset, in the meantime."""
        if self._allotments.get(stored_bucket(allotment.charge)) is not allotment:
            self._refund(allotment)

    def _expire(self, allotment: Allotment) -> None:
        del self._allotments[stored_bucket(allotment.charge)]
        self._refund(allotment)

    def _refund(self, allotment: Allotment) -> None:
        if allotment.units:
            key, limit = allotment.charge.key, allotment.charge.limit
            self._refunds.append(Charge(key, limit, -allotment.units, at=allotment.at))
            self.next_expiry, allotment.units = -math.inf, 0


def _can_lease(charge: Charge) -> bool:
    return charge.lease >= charge.cost > 0 and charge.role == "limit" and not charge.limit.keep

"""Corrects the charges of a request when its true cost is known."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.limit import Charge, RequestBucket, request_bucket
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.stores import AsyncStore
from ratelimit_mw.stores.group import committed

_MAX_CHARGES_PER_CALL: Final = 128  # bounded, because a script on the server cannot be interrupted
_MAX_QUEUED: Final = 10_000  # charges that are not sent yet
MAY_BE_LOST: Final = "a settlement may not have reached the store (%s); if so, the estimate stays charged"

GateVerdict = tuple[Any, Verdict]  # a gate, and its verdict on the request


class PendingSettlement(NamedTuple):
    """The settlements that one gate sends to one of its stores."""

    gate: Any
    source: Source
    charges: Sequence[Charge]


class ChargedBucket(NamedTuple):
    """The charges of a request in one bucket. `charge`: the last of them. `parts`: the units and the `at` of each."""

    gate: Any
    source: Source
    charge: Charge
    parts: Sequence[tuple[int, int]]
    policy: Policy


def charged_buckets(gate_verdicts: Sequence[GateVerdict]) -> dict[RequestBucket, ChargedBucket]:
    """Return what the gates took from each bucket whose policy settles, in the order of the gates.

    The policies of penalties do not settle.
    """
    buckets: dict[RequestBucket, ChargedBucket] = {}
    for gate, verdict in gate_verdicts:
        if not verdict.allowed or not verdict.decisions:
            continue
        was_charged = committed(verdict.charges, verdict.decisions)
        for index, charge in enumerate(verdict.charges):
            policy = verdict.policies[index]
            if was_charged[index] and policy.settles:
                bucket = request_bucket(charge)
                earlier_parts = buckets[bucket].parts if bucket in buckets else ()
                parts = [*earlier_parts, (charge.cost, verdict.decisions[index].at)]
                buckets[bucket] = ChargedBucket(gate, verdict.source, charge, parts, policy)
    return buckets


class Corrected(NamedTuple):
    """The units that settlements of a request have added to a bucket so far, and the units that they have refunded."""

    added: int = 0
    refunded: int = 0


def settlements(
    gate_verdicts: Sequence[GateVerdict],
    actual_of: Callable[[Policy], int | None],
    corrected: dict[RequestBucket, Corrected],
) -> Sequence[PendingSettlement]:
    """Return the settlements that bring the charges of a request to its true cost; empty if nothing changes.

    `actual_of`: the true cost under a policy; None keeps the estimate. `corrected`: the earlier settlements of this
    request, updated here. Usually a request is settled once. A later settlement may add units, or make the first
    refund. Only units of the estimate are refunded, because the store may not have taken the added ones. There is no
    second refund: the decision's `at` does not include the first refund, so a second one could refund drained units.
    """
    by_store: dict[tuple[int, Source], PendingSettlement] = {}
    for bucket, one in charged_buckets(gate_verdicts).items():
        actual, (added, refunded) = actual_of(one.policy), corrected.get(bucket, Corrected())
        charged = sum(units for units, _ in one.parts)
        if actual is None:
            continue
        missing = actual - (charged + added - refunded)
        if missing > 0:
            corrected[bucket] = Corrected(added + missing, refunded)
            due = [Charge(one.charge.key, one.charge.limit, missing, role=one.charge.role, at=one.parts[-1][1])]
        elif actual < charged and not refunded:
            corrected[bucket] = Corrected(added, charged - actual)
            due = _refunds(one, charged - actual)
        else:
            continue
        key = id(one.gate), one.source
        pending = by_store.setdefault(key, PendingSettlement(one.gate, one.source, []))
        by_store[key] = pending._replace(charges=[*pending.charges, *due])
    return list(by_store.values())


def _refunds(bucket: ChargedBucket, units: int) -> list[Charge]:
    """Return charges that refund the last `units` units, each with the `at` of the decision that took its units."""
    charge, refunds = bucket.charge, []
    for part, at in reversed(bucket.parts):
        if refund := min(part, units):
            refunds.append(Charge(charge.key, charge.limit, -refund, role=charge.role, at=at))
            units -= refund
    return refunds


class SettlementQueue:
    """The settlements to send to one store from one event loop. `timeout`: seconds for a call.

    Settlements that are added during a call are sent together in the next call.
    """

    def __init__(self, store: AsyncStore, timeout: float) -> None:
        self._store: Final = store
        self._timeout: Final = timeout
        self._queue: deque[Sequence[Charge]] = deque()
        self._charge_count = 0  # charges in the queue
        self._sender: asyncio.Task[None] | None = None

    def add(self, charges: Sequence[Charge]) -> None:
        """Queue these charges to be settled. Drops them, with a log line, if more than 10,000 would be queued."""
        if self._charge_count + len(charges) > _MAX_QUEUED:
            warn_throttled("settle", MAY_BE_LOST, f"{_MAX_QUEUED} charges are queued already", code="RL-206")
            return
        self._queue.append(charges)
        self._charge_count += len(charges)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def drain(self) -> None:
        """Wait until the queue is sent, for at most `timeout` seconds."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=self._timeout)

    async def _send(self) -> None:
        try:
            while self._queue:
                charges = self._next()
                try:
                    async with asyncio.timeout(self._timeout):
                        await self._store.asettle(charges)
                except Exception as error:  # noqa: BLE001  # any error of the store; no request waits for this task
                    warn_throttled("settle", MAY_BE_LOST, type(error).__name__, code="RL-206")
        finally:
            self._sender = None

    def _next(self) -> Sequence[Charge]:
        """Remove and return the charges for one call: as many as fit, but at least those of one `add`."""
        charges = [*self._queue.popleft()]
        while self._queue and len(charges) + len(self._queue[0]) <= _MAX_CHARGES_PER_CALL:
            charges += self._queue.popleft()
        self._charge_count -= len(charges)
        return charges

"""Slots that are held: which a request took, and which are to be renewed by now. No I/O.

A hold that nobody refers to any more is not renewed: whoever is gone without giving back, as its slots are free again
when their lifetime is over. So it is in every store, in this process or on a server, where it also outlives a kill.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final
from weakref import WeakSet, ref

from msgspec.structs import replace

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.stores.forks import fork_safe_lock
from ratelimit_mw.stores.group import committed

_RENEWALS: Final = 3  # in a lifetime: two of them may fail
_MAX_CHARGES_PER_CALL: Final = 500  # charges in one call


class HeldSlots:
    """The slots that one request, or one block, took of a store. `on_released`: called when they were given back."""

    __slots__ = (
        "__weakref__",
        "charges",
        "ended",
        "on_released",
        "registry",
        "renewal_interval",
        "renewed_at",
        "store",
    )
    registry: "SlotRegistry"  # those who are renewed together with it

    def __init__(self, store: Any, charges: Sequence[Charge], on_released: Callable[[], object] | None = None) -> None:
        self.store: Final = store
        self.charges: Final = charges  # settled as they are, they renew
        self.on_released: Final = on_released
        self.renewal_interval: Final = (
            min(charge.limit.window for charge in charges) / _RENEWALS
        )  # seconds between renewals
        self.renewed_at = time.monotonic()
        self.ended = False

    def refunds(self) -> list[Charge]:
        """The corrections that give back."""
        return [replace(charge, cost=-charge.cost) for charge in self.charges]


def slot_charges(charges: Sequence[Charge], decisions: Sequence[Decision]) -> list[Charge]:
    """The slots that a group took: one charge for each bucket, which renews them when it is settled."""
    if len(decisions) != len(charges):  # where the store failed
        return []
    by_bucket: dict[tuple[str, str], Charge] = {}
    for charge, decision, was_charged in zip(charges, decisions, committed(charges, decisions), strict=True):
        if charge.limit.is_concurrency and charge.cost and was_charged:
            bucket = (charge.key, charge.limit.bucket)
            already = (
                by_bucket[bucket].cost if bucket in by_bucket else 0
            )  # twice in a group, its slots stand side by side
            by_bucket[bucket] = Charge(charge.key, charge.limit, charge.cost + already, at=decision.at)
    return list(by_bucket.values())


class SlotRegistry:
    """Those that are to be renewed. No I/O; several threads may call at once."""

    def __init__(self) -> None:
        self._active: WeakSet[HeldSlots] = WeakSet()
        self._due: list[
            tuple[float, int, ref[HeldSlots]]
        ] = []  # a heap: when each is to be renewed; some ended meanwhile
        self._sequence: Final = count()
        self._renewing: set[HeldSlots] = set()
        self._lock = fork_safe_lock()

    def add(self, held_slots: HeldSlots) -> None:
        """From now on it is renewed."""
        with self._lock:
            self._active.add(held_slots)
            self._schedule(held_slots, held_slots.renewed_at)

    def end(self, held_slots: HeldSlots) -> bool:
        """It is renewed no more. Whether it is to be given back now: else who renews it just now does that after."""
        with self._lock:
            is_first, held_slots.ended = not held_slots.ended, True
            self._active.discard(held_slots)
            return is_first and held_slots not in self._renewing

    def due(self, now: float) -> list[list[HeldSlots]]:
        """What is to be renewed now, as calls; then `done`."""
        batches: dict[int, list[list[HeldSlots]]] = {}
        charges = Counter[int]()  # in the last call of each store
        with self._lock:
            while self._due and self._due[0][0] <= now:
                held_slots = heappop(self._due)[2]()
                if held_slots is None or held_slots.ended:
                    continue
                is_due = held_slots not in self._renewing and held_slots.renewed_at + held_slots.renewal_interval <= now
                self._schedule(
                    held_slots, now if is_due else max(held_slots.renewed_at, now - held_slots.renewal_interval / 2)
                )
                if not is_due:
                    continue
                store = id(held_slots.store)
                store_batches = batches.setdefault(store, [[]])
                if charges[store] >= _MAX_CHARGES_PER_CALL:
                    store_batches.append([])
                    charges[store] = 0
                store_batches[-1].append(held_slots)
                charges[store] += len(held_slots.charges)
                self._renewing.add(held_slots)
        return [batch for store_batches in batches.values() for batch in store_batches]

    def done(self, batch: Sequence[HeldSlots], now: float) -> list[HeldSlots]:
        """What of it ended meanwhile, and is to be given back."""
        with self._lock:
            self._renewing.difference_update(batch)
            for held_slots in batch:
                held_slots.renewed_at = now
            return [held_slots for held_slots in batch if held_slots.ended]

    def wait(self, now: float) -> float | None:
        """Seconds until something is due; None where nothing is held."""
        with self._lock:
            while self._due and ((held_slots := self._due[0][2]()) is None or held_slots.ended):
                heappop(self._due)
            return max(0.0, self._due[0][0] - now) if self._due else None

    def _schedule(self, held_slots: HeldSlots, since: float) -> None:
        heappush(self._due, (since + held_slots.renewal_interval, next(self._sequence), ref(held_slots)))


def renewal_charges(batch: Sequence[HeldSlots]) -> list[Charge]:
    """What renews all slots of a call."""
    return [charge for held_slots in batch for charge in held_slots.charges]

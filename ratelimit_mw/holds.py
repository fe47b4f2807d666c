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
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.stores.group import committed

_RENEWALS: Final = 3  # in a lifetime: two of them may fail
_TOGETHER: Final = 500  # charges in one call


class Hold:
    """The slots that one request, or one block, took of a store. `then`: called when they were given back."""

    __slots__ = ("__weakref__", "among", "charges", "ended", "every", "renewed", "store", "then")
    among: "Holds"  # those who are renewed together with it

    def __init__(self, store: Any, charges: Sequence[Charge], then: Callable[[], object] | None = None) -> None:
        self.store: Final = store
        self.charges: Final = charges  # settled as they are, they renew
        self.then: Final = then
        self.every: Final = min(charge.limit.window for charge in charges) / _RENEWALS  # seconds between renewals
        self.renewed = time.monotonic()
        self.ended = False

    def back(self) -> list[Charge]:
        """The corrections that give back."""
        return [replace(charge, cost=-charge.cost) for charge in self.charges]


def slots_of(charges: Sequence[Charge], decisions: Sequence[Decision]) -> list[Charge]:
    """The slots that a group took: one charge for each bucket, which renews them when it is settled."""
    if len(decisions) != len(charges):  # where the store failed
        return []
    found: dict[tuple[str, str], Charge] = {}
    for charge, decision, taken in zip(charges, decisions, committed(charges, decisions), strict=True):
        if charge.limit.held and charge.cost and taken:
            bucket = (charge.key, charge.limit.bucket)
            more = found[bucket].cost if bucket in found else 0  # twice in a group, its slots stand side by side
            found[bucket] = Charge(charge.key, charge.limit, charge.cost + more, at=decision.at)
    return list(found.values())


class Holds:
    """Those that are to be renewed. No I/O; several threads may call at once."""

    def __init__(self) -> None:
        self._held: WeakSet[Hold] = WeakSet()
        self._due: list[tuple[float, int, ref[Hold]]] = []  # a heap: when each is to be renewed; some ended meanwhile
        self._numbers: Final = count()
        self._under_way: set[Hold] = set()
        self._lock = lock()

    def add(self, hold: Hold) -> None:
        """From now on it is renewed."""
        with self._lock:
            self._held.add(hold)
            self._push(hold, hold.renewed)

    def end(self, hold: Hold) -> bool:
        """It is renewed no more. Whether it is to be given back now: else who renews it just now does that after."""
        with self._lock:
            first, hold.ended = not hold.ended, True
            self._held.discard(hold)
            return first and hold not in self._under_way

    def due(self, now: float) -> list[list[Hold]]:
        """What is to be renewed now, as calls; then `done`."""
        calls: dict[int, list[list[Hold]]] = {}
        charges = Counter[int]()  # in the last call of each store
        with self._lock:
            while self._due and self._due[0][0] <= now:
                hold = heappop(self._due)[2]()
                if hold is None or hold.ended:
                    continue
                late = hold not in self._under_way and hold.renewed + hold.every <= now
                self._push(hold, now if late else max(hold.renewed, now - hold.every / 2))
                if not late:
                    continue
                store = id(hold.store)
                of_store = calls.setdefault(store, [[]])
                if charges[store] >= _TOGETHER:
                    of_store.append([])
                    charges[store] = 0
                of_store[-1].append(hold)
                charges[store] += len(hold.charges)
                self._under_way.add(hold)
        return [call for of_store in calls.values() for call in of_store]

    def done(self, call: Sequence[Hold], now: float) -> list[Hold]:
        """What of it ended meanwhile, and is to be given back."""
        with self._lock:
            self._under_way.difference_update(call)
            for hold in call:
                hold.renewed = now
            return [hold for hold in call if hold.ended]

    def wait(self, now: float) -> float | None:
        """Seconds until something is due; None where nothing is held."""
        with self._lock:
            while self._due and ((hold := self._due[0][2]()) is None or hold.ended):
                heappop(self._due)
            return max(0.0, self._due[0][0] - now) if self._due else None

    def _push(self, hold: Hold, since: float) -> None:
        heappush(self._due, (since + hold.every, next(self._numbers), ref(hold)))


def renewal(call: Sequence[Hold]) -> list[Charge]:
    """What renews all slots of a call."""
    return [charge for hold in call for charge in hold.charges]

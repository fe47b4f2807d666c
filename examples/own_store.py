"""A store of one's own, `DictStore(time.monotonic)`. From `limit.expires(state)` on it might forget; it does not."""

import threading
from collections.abc import Callable, Sequence

from ratelimit_mw import Charge, Decision
from ratelimit_mw.stores.group import Group, decide_group


class DictStore:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock, self._states = clock, threading.Lock(), dict[tuple[str, str], object]()

    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        with self._lock:
            group, now = Group(charges), round(self._clock() * 1_000_000)  # a group has one charge per bucket
            olds = [self._states.get((c.key, c.limit.bucket)) for c in group.charges]
            outcome = decide_group(group.charges, olds, now)
            if commit:
                new = zip(group.charges, outcome.states, strict=True)
                self._states |= {(c.key, c.limit.bucket): state for c, state in new}
        return group.spread(outcome.decisions)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self.take(charges, commit=False)

    def settle(self, charges: Sequence[Charge]) -> None:
        for c in charges:
            with self._lock:
                id_, now = (c.key, c.limit.bucket), round(self._clock() * 1_000_000)
                self._states[id_] = c.limit.settle(self._states.get(id_), now, c.cost, now if c.at is None else c.at)

    def reset(self, charges: Sequence[Charge]) -> None:
        with self._lock:
            self._states |= {(c.key, c.limit.bucket): None for c in charges}  # as if never touched

    def close(self) -> None: ...

"""A store of one's own, `DictStore(time.monotonic)`."""

import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from ratelimit_mw import Charge, Decision, Limit
from ratelimit_mw.stores.group import Group, decide_group


class DictStore:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._states = dict[tuple[str, str], tuple[Limit, Any]]()  # a limit knows when its states expire

    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        with self._lock:
            group, now = Group(charges), round(self._clock() * 1_000_000)  # a group has one charge per bucket
            outcome = decide_group(group.charges, [self._read(charge) for charge in group.charges], now)
            if commit:
                for charge, state in zip(group.charges, outcome.states, strict=True):
                    self._write(charge, state, now)
        return group.spread(outcome.decisions)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self.take(charges, commit=False)

    def settle(self, charges: Sequence[Charge]) -> None:
        for charge in charges:
            with self._lock:
                now = round(self._clock() * 1_000_000)
                at = now if charge.at is None else charge.at
                self._write(charge, charge.limit.settle(self._read(charge), now, charge.cost, at), now)

    def reset(self, charges: Sequence[Charge]) -> None:
        with self._lock:
            for charge in charges:
                self._states.pop((charge.key, charge.limit.bucket), None)

    def close(self) -> None: ...

    def count_states(self) -> int:
        return len(self._states)

    def _read(self, charge: Charge) -> Any:
        return self._states.get((charge.key, charge.limit.bucket), (charge.limit, None))[1]

    def _write(self, charge: Charge, state: Any, now: int) -> None:
        self._states[charge.key, charge.limit.bucket] = charge.limit, state
        for bucket in list(islice(self._states, 2)):  # forgets up to two, so that no call has to look at all states
            limit, old = self._states.pop(bucket)
            if old is not None and now < limit.expires(old):
                self._states[bucket] = limit, old  # now last: all others come before it

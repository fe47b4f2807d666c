"""Runs what follows a replayed request: the end of its delay, and the release and settlement after its response."""

import math
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from itertools import count
from types import SimpleNamespace
from typing import Final

from ratelimit_mw.core.limit import Charge, microseconds
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.delays import DelayCapacity
from ratelimit_mw.engine.settlement import settlements
from ratelimit_mw.engine.slots import HeldSlots, slot_charges
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.replay.client_plans import LastingStore
from ratelimit_mw.rules.plan import Match


class Schedule:
    """The events to come: their times in microseconds, and the functions to run then.

    `capacity`: the capacity for delayed requests.
    """

    def __init__(self, store: LastingStore, max_waiting: int) -> None:
        self._store: Final = store
        self.capacity: Final = DelayCapacity(max_waiting)
        self.events: list[tuple[int, int, Callable[[int], None]]] = []
        self._sequence: Final = count()

    def run_until(self, now: int) -> None:
        """Run the events that are due: the ends of responses and delays, and the renewals of slots."""
        events = self.events
        while events and events[0][0] <= now:
            due, _, run = heappop(events)
            self._store.now = due
            run(due)

    def _add_event(self, when: int, run: Callable[[int], None]) -> None:
        heappush(self.events, (when, next(self._sequence), run))

    def add_admitted(
        self, match: Match, verdict: Verdict, status: int | None, duration: int, now: int, keys: Sequence[str]
    ) -> None:
        """Add the events that follow an admitted request: the end of its delay, and the end of its response.

        `status`, `duration`: those of the response, in microseconds. `keys`: the keys by which its delay counts.
        """
        begins = now + math.ceil(verdict.delay * 1_000_000)
        if verdict.delay and keys:
            self.capacity.enter(keys)
            self._add_event(begins, lambda _: self.capacity.leave(keys))
        ends = begins + duration
        if match.has_slots and (slots := slot_charges(verdict.charges, verdict.decisions)):
            self._hold(slots, now, ends)
        if match.settles:
            self._run_at(ends, now, lambda _: self._settle(verdict, status))

    def _hold(self, slots: Sequence[Charge], now: int, ends: int) -> None:
        """Release slots when the response ends; until then, renew them as the middleware does."""
        held = HeldSlots(self._store, slots)
        interval = microseconds(held.renewal_interval)

        def step(due: int) -> None:
            if due >= ends:
                self._store.settle(held.refunds())
            else:
                self._store.settle(slots)
                self._add_event(min(due + interval, ends), step)

        self._run_at(min(now + interval, ends), now, step)

    def _run_at(self, when: int, now: int, run: Callable[[int], None]) -> None:
        if when <= now:
            run(when)
        else:
            self._add_event(when, run)

    def _settle(self, verdict: Verdict, status: int | None) -> None:
        """Refund a request whose status is not counted."""
        response = SimpleNamespace(status=status)

        def actual_of(policy: Policy) -> int | None:
            return None if policy.settle_policy.keeps_charge(response) else 0

        for pending in settlements([(self, verdict)], actual_of, {}):
            self._store.settle(pending.charges)

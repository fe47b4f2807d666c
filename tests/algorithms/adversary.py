"""Finds the worst window of a limit by trying everything that clients can do.

The search finds every reachable state, and then the most units that pass in one window from each state. This is exact,
and works only for small limits, of a few units per few microseconds. `climb` searches for bad windows of realistic
limits, and may miss the worst one.
"""

import math
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from graphlib import TopologicalSorter
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from ratelimit_mw import (
    GCRA,
    CalendarWindow,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.algorithms.fixed_window import WindowState
from ratelimit_mw.algorithms.gcra import GcraOverfullState
from ratelimit_mw.algorithms.sliding_window_counter import SubWindowState
from ratelimit_mw.algorithms.sliding_window_log import LogState, _state_of
from ratelimit_mw.algorithms.smooth import SmoothState
from ratelimit_mw.core.limit import State, microseconds

NOW = 1_000_000  # microseconds; all states are stored as they are at this instant

Passed = Sequence[tuple[int, int]]
"""Instants, and the number of units that passed at each."""


def _of_a_bucket(limit: BucketLimit) -> int:
    return limit.most + limit.quota - 1


def _of_a_counter(limit: SlidingWindowCounter) -> int:
    return limit.quota if limit.strict else 2 * limit.quota


def _of_tickets(limit: Smooth) -> int:
    return 2 * limit.quota - 1 + (0 if limit.warmup else math.ceil(limit.max_burst * limit.quota / limit.window - 1e-9))


BOUNDS: dict[type[Limit], Callable[[Any], int]] = {
    CalendarWindow: lambda limit: (2 if limit.has_fixed_length else 3) * limit.quota,
    FixedWindow: lambda limit: 2 * limit.quota - 1,
    SlidingWindowCounter: _of_a_counter,
    SlidingWindowLog: lambda limit: limit.quota,
    TokenBucket: _of_a_bucket,
    GCRA: _of_a_bucket,
    LeakyBucket: _of_a_bucket,
    Smooth: _of_tickets,
}


def bound(limit: Limit) -> int:
    """Return the most units in any window, as in the last column of the table of algorithms."""
    return next(BOUNDS[of] for of in type(limit).__mro__ if of in BOUNDS)(limit)


def busiest(passed: Passed, window: int) -> int:
    """Return the most units in any interval (x, x + window]."""
    inside: deque[tuple[int, int]] = deque()
    units = most = 0
    for now, cost in sorted(passed):
        inside.append((now, cost))
        units += cost
        while inside[0][0] <= now - window:
            units -= inside.popleft()[1]
        most = max(most, units)
    return most


def replayed(limit: Limit, charges: Passed, *, leaving: bool) -> Passed:
    """Return the charges that pass, at the instants of their requests or, if `leaving`, at the ends of their delays."""
    state, passed = None, []
    for now, cost in charges:
        decision, state = limit.decide(state, now, cost, None)
        if decision.allowed:
            passed.append((now + microseconds(decision.delay) if leaving else now, cost))
    return passed


def _aged(limit: Limit, state: State) -> State:
    """Return the state as it is a microsecond later; None if it has expired."""
    match state:
        case WindowState() | SubWindowState():
            state = replace(state, start=state.start - 1)
        case (int(level), int(updated)):
            state = level, updated - 1
        case SmoothState():
            state = replace(state, updated=state.updated - 1)
        case GcraOverfullState():
            state = replace(state, tat=state.tat - _drain(limit), updated=state.updated - 1)
        case LogState():
            state = _state_of(array("q", [instant - 1 for instant in _counted_instants(limit, state)]))
        case int():
            state -= _drain(limit)
    return None if state is None or limit.expires(state) <= NOW else state


def _drain(limit: Limit) -> int:
    assert isinstance(limit, BucketLimit)
    return limit.ticks[1]


def _key(limit: Limit, state: State) -> object:
    """Return a key that is equal for equivalent states. A log keeps units that no longer count until the next unit."""
    return _counted_instants(limit, state) if isinstance(state, LogState) else state


def _counted_instants(limit: Limit, state: LogState) -> tuple[int, ...]:
    return tuple(instant for instant in array("q", state.pack()) if instant > NOW - limit.window_us)


class Taken(NamedTuple):
    """A charge that passes: its units, its delay in microseconds, and the number of the state after it."""

    cost: int
    delay: int
    to: int


class Worst(NamedTuple):
    """The most units in one window, and a schedule that reaches them."""

    units: int
    schedule: Passed


class Adversary:
    """All states that clients can reach with charges at whole microseconds, by number. State 0 is the initial one."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.states: list[State] = [None]
        self.came: list[tuple[int, int]] = [(0, 0)]  # previous state and cost; cost 0 means waiting a microsecond
        self.numbers = {_key(limit, None): 0}
        self.aged: list[int] = []
        self.charges: list[list[Taken]] = []
        for number, state in enumerate(self.states):  # grows during the loop
            self.aged.append(self._number(_aged(limit, state), number, 0))
            self.charges.append(self._charged(state, number))
        leads_to = {number: [charge.to for charge in charges] for number, charges in enumerate(self.charges)}
        self.order = list(TopologicalSorter(leads_to).static_order())  # after each state that a charge leads to

    def _number(self, state: State, origin: int, cost: int) -> int:
        key = _key(self.limit, state)
        if key not in self.numbers:
            self.numbers[key] = len(self.states)
            self.states.append(state)
            self.came.append((origin, cost))
        return self.numbers[key]

    def _charged(self, state: State, number: int) -> list[Taken]:
        """Return every charge that passes. One unit more than the most is tried too."""
        found = []
        for cost in range(1, self.limit.most + 2):
            decision, after = self.limit.decide(state, NOW, cost, None)
            if decision.allowed:
                found.append(Taken(cost, microseconds(decision.delay), self._number(after, number, cost)))
        return found

    def worst(self, *, leaving: bool = False) -> Worst:
        """Return the most units that are admitted in one (x, x + window] or, if `leaving`, end their delay in it."""
        longest = max((taken.delay for charges in self.charges for taken in charges), default=0) if leaving else 0
        instants = longest + self.limit.window_us  # a delay that ends in the window may start before it
        best = [[0] * len(self.states)]  # by the number of instants left, and by state: the most units from there on
        for left in range(1, instants + 1):
            later, most = best[-1], [0] * len(self.states)
            for number in self.order:
                sums = (self._counted(taken, left, leaving=leaving) + most[taken.to] for taken in self.charges[number])
                most[number] = max(later[self.aged[number]], max(sums, default=0))
            best.append(most)
        return Worst(max(best[-1]), self._schedule(best, leaving=leaving))

    def _counted(self, taken: Taken, left: int, *, leaving: bool) -> int:
        """Return the units of a charge that are in the window, which is at the end of the instants left."""
        left -= taken.delay if leaving else 0
        return taken.cost if 0 < left <= self.limit.window_us else 0

    def _schedule(self, best: list[list[int]], *, leaving: bool) -> Passed:
        """Return charges that lead from the initial state to the worst window, and through it."""
        number = start = best[-1].index(max(best[-1]))
        schedule, now = [], NOW
        while number:
            number, cost = self.came[number]
            schedule.append((now, cost))
            now -= not cost
        schedule.reverse()
        number, now, left = start, NOW, len(best) - 1
        while left:
            for taken in self.charges[number]:
                if self._counted(taken, left, leaving=leaving) + best[left][taken.to] == best[left][number]:
                    schedule.append((now, taken.cost))
                    number = taken.to
                    break
            else:
                number, now, left = self.aged[number], now + 1, left - 1
        return [(now, cost) for now, cost in schedule if cost]


class Move(NamedTuple):
    """A wait, followed by a charge."""

    wait: str  # a time of the last decision, the window, or a part of the window
    part: int  # thousandths of the window
    by: int  # microseconds to add
    share: int  # hundredths of the remaining units; at least a unit

    def time(self, now: int, limit: Limit, last: Decision) -> int:
        """Return the instant of this move, if the previous one was at `now` and its decision is `last`."""
        waits = {
            "next": microseconds(last.next_after),
            "reset": microseconds(last.reset_after),
            "window": limit.window_us,
            "part": limit.window_us * self.part // 1000,
        }
        return now + max(0, waits[self.wait] + self.by)


def _charges(limit: Limit, moves: Sequence[Move]) -> Passed:
    """Return the charges of these moves."""
    now, charges = NOW, []
    last, state = limit.decide(None, now, 0, None)
    for move in moves:
        now = move.time(now, limit, last)
        left = limit.decide(state, now, 0, None)[0].remaining
        if limit.borrows and not move.part % 2:
            left = limit.most  # a charge may borrow: if any charge passes, this one does
        cost = max(1, left * move.share // 100)
        last, state = limit.decide(state, now, cost, None)
        charges.append((now, cost))
    return charges


def climb(limit: Limit, random: Random, *, starts: int = 3, rounds: int = 500) -> int:
    """Return the most units in one window that are found by hill climbing: a schedule is changed one move at a time."""

    def move() -> Move:
        wait = random.choice(("next", "reset", "window", "part", "part"))
        share = random.choice((0, random.randrange(100), 100, 100))
        return Move(wait, random.randrange(1000), random.randrange(-1, 2), share)

    def score(moves: Sequence[Move]) -> int:
        return busiest(replayed(limit, _charges(limit, moves), leaving=True), limit.window_us)

    most = 0
    for _ in range(starts):
        moves = [move() for _ in range(12)]
        best = score(moves)
        for _ in range(rounds):
            changed = list(moves)
            changed[random.randrange(len(moves))] = move()
            if (found := score(changed)) >= best:
                moves, best = changed, found
        most = max(most, best)
    return most

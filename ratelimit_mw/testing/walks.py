"""Walks of clients and of a clock over a limit: what the laws of `ratelimit_mw.testing.laws` are tried on."""

import math
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from msgspec import Struct

from ratelimit_mw.core.limit import Decision, Limit, State, microseconds

START: Final = 1_000_000_000_000_000  # microseconds: when a walk begins
MOST_STEPS: Final = 30
LARGEST: Final = 13  # the size of a charge that is one unit too large
FORWARD: Final = ("same", "same", "microsecond", "fraction", "fraction", "retry", "early", "next", "reset", "long")
MOVES: Final = (*FORWARD, "back")


class Step(Struct, frozen=True):
    """One move of the clock and one charge, both relative to the limit: a step means something for every limit.

    `move`: one of `MOVES`; the last decision's times are among them. `amount`: of a fraction, in hundredths of the
    window. `size`: of the charge, 0 to 13.
    """

    move: str
    amount: int
    size: int

    def time(self, now: int, limit: Limit, last: Decision | None) -> int:
        """The instant of this step, microseconds, if the one before was at `now` and was answered `last`."""
        part = limit.window_us * self.amount // 100
        moves = {"same": 0, "microsecond": 1, "fraction": part, "long": 3 * limit.window_us, "back": -2 * part}
        if last is not None:
            retry = last.retry_after
            waits = {"retry": retry, "early": retry - 0.000001, "next": last.next_after, "reset": last.reset_after}
            moves |= {move: max(0, microseconds(wait)) for move, wait in waits.items() if wait < math.inf}
        return now + moves.get(self.move, 0)

    def cost(self, limit: Limit) -> int:
        """0 to 3 units, then twelfths of the most that can pass, then one more than that."""
        if self.size <= 3:  # noqa: PLR2004  # named by the line above
            return self.size
        return max(1, limit.most * self.size // 12) if self.size < LARGEST else limit.most + 1


class Point(NamedTuple):
    """One step of a walk, as it was decided."""

    before: State
    now: int  # microseconds
    cost: int  # units
    decision: Decision
    after: State


class Walk(Struct, frozen=True):
    """Steps from a state that was never touched, and what is then tried.

    `size`: of the charge at the end, as in `Step`, 1 to 13. `part`: how far into the times that are tried, 0 to 99
    hundredths.
    """

    steps: tuple[Step, ...]
    size: int = 1
    part: int = 50

    @property
    def forward(self) -> "Walk":
        """The same without the steps back in time."""
        return Walk(tuple(step for step in self.steps if step.move != "back"), self.size, self.part)

    def points(self, limit: Limit) -> Iterator[Point]:
        """Each step as `limit` decides it."""
        before: State = None
        now, last = START, None
        for step in self.steps:
            now, cost = step.time(now, limit, last), step.cost(limit)
            last, after = limit.decide(before, now, cost, None)
            yield Point(before, now, cost, last, after)
            before = after

    def end(self, limit: Limit) -> tuple[State, int]:
        """The state after all steps, and the time then."""
        state, now = None, START
        for point in self.points(limit):
            state, now = point.after, point.now
        return state, now

    def cost(self, limit: Limit) -> int:
        """Of the charge that is tried at the end, units; at least 1."""
        return Step("same", 0, self.size).cost(limit)


def random_walk(random: Random) -> Walk:
    """Up to 30 steps in both directions of time."""
    steps = (
        Step(random.choice(MOVES), random.randint(0, 100), random.randint(0, LARGEST))
        for _ in range(random.randint(0, MOST_STEPS))
    )
    return Walk(tuple(steps), random.randint(1, LARGEST), random.randint(0, 99))

"""Walks: sequences of charges and clock steps, on which `ratelimit_mw.testing.laws` checks limits."""

import math
from collections.abc import Iterator
from random import Random
from typing import Final, NamedTuple

from msgspec import Struct

from ratelimit_mw.core.limit import Decision, Limit, State, microseconds

START: Final = 1_000_000_000_000_000  # microseconds: the time at the start of a walk
MOST_STEPS: Final = 30
TOO_LARGE: Final = 13  # size of a charge that is one unit too large
FORWARD: Final = ("same", "same", "microsecond", "fraction", "fraction", "retry", "early", "next", "reset", "long")
MOVES: Final = (*FORWARD, "back")


class Step(Struct, frozen=True):
    """One move of the clock and one charge, both relative to the limit, so that a step suits every limit.

    `move`: one of `MOVES`; some depend on the last decision. `amount`: the length of the move "fraction", in hundredths
    of the window; "back" is twice as long. `size`: size of the charge, 0 to 13; `cost` converts it to units.
    """

    move: str
    amount: int
    size: int

    def time(self, now: int, limit: Limit, last: Decision | None) -> int:
        """Return the instant of this step in microseconds; the previous step was at `now`, with the decision `last`."""
        part = limit.window_us * self.amount // 100
        moves = {"same": 0, "microsecond": 1, "fraction": part, "long": 3 * limit.window_us, "back": -2 * part}
        if last is not None:
            retry = last.retry_after
            waits = {"retry": retry, "early": retry - 0.000001, "next": last.next_after, "reset": last.reset_after}
            moves |= {move: max(0, microseconds(wait)) for move, wait in waits.items() if wait < math.inf}
        return now + moves.get(self.move, 0)

    def cost(self, limit: Limit) -> int:
        """Return the cost of `size`: 0 to 3 units, then twelfths of `limit.most`, then one unit more than that."""
        if self.size <= 3:  # noqa: PLR2004  # explained by the docstring
            return self.size
        return max(1, limit.most * self.size // 12) if self.size < TOO_LARGE else limit.most + 1


class Point(NamedTuple):
    """One step of a walk, with its decision and the states around it."""

    before: State
    now: int  # microseconds
    cost: int  # units
    decision: Decision
    after: State


class Walk(Struct, frozen=True):
    """Steps from an empty state, and the parameters for the check that follows them.

    `size`: size of the charge at the end, 1 to 13, as in `Step`. `part`: where within a period of time to check, 0 to
    99 hundredths of it.
    """

    steps: tuple[Step, ...]
    size: int = 1
    part: int = 50

    @property
    def forward(self) -> "Walk":
        """The same walk without steps back in time."""
        return Walk(tuple(step for step in self.steps if step.move != "back"), self.size, self.part)

    def points(self, limit: Limit) -> Iterator[Point]:
        """Yield each step with the decision of `limit`."""
        before: State = None
        now, last = START, None
        for step in self.steps:
            now, cost = step.time(now, limit, last), step.cost(limit)
            last, after = limit.decide(before, now, cost, None)
            yield Point(before, now, cost, last, after)
            before = after

    def end(self, limit: Limit) -> tuple[State, int]:
        """Return the state after all steps, and the time of the last one."""
        state, now = None, START
        for point in self.points(limit):
            state, now = point.after, point.now
        return state, now

    def cost(self, limit: Limit) -> int:
        """Return the cost of the charge at the end, in units, at least 1."""
        return Step("same", 0, self.size).cost(limit)


def random_walk(random: Random) -> Walk:
    """Return a random walk of up to 30 steps, forward and back in time."""
    steps = (
        Step(random.choice(MOVES), random.randint(0, 100), random.randint(0, TOO_LARGE))
        for _ in range(random.randint(0, MOST_STEPS))
    )
    return Walk(tuple(steps), random.randint(1, TOO_LARGE), random.randint(0, 99))

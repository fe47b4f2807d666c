"""Generic cell rate algorithm (ITU-T I.371): one instant per bucket. The Lua implementation is `gcra.lua`.

The theoretical arrival time (TAT) is the instant at which everything taken has drained. In ticks, the level of a bucket
is its TAT minus now.
"""

import math
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.algorithms.ticks import ceil_div
from ratelimit_mw.core.limit import MICROSECONDS, Decision


class GcraOverfullState(Struct, frozen=True, gc=False, array_like=True):
    """A bucket above full, because of delayed requests or debt.

    Without `updated`, a TAT so far ahead could not be told from a clock that stepped back.
    """

    tat: int  # ticks
    updated: int  # clock steps


class GCRA(BucketLimit, frozen=True, kw_only=True):
    """Admits while the TAT, including this charge, is at most `burst` units ahead of now.

    `GCRA(100, 60, burst=20)`: 20 at once, then one every 0.6 s. Decides like `token_bucket`, with the smallest state:
    one number. If the clock steps back, the TAT is too far ahead. The bucket then counts as fuller than it was, but
    never as more than full.
    """

    algorithm: ClassVar[str] = "gcra"

    # The state is the TAT in ticks, an int: step * drain + level.

    @property
    def max_per_window(self) -> int:
        return self.quota and self.most + self.quota - 1

    def decide(  # noqa: C901, PLR0912  # calls of helpers would take a tenth longer
        self, state: int | GcraOverfullState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, int | GcraOverfullState | None]:
        clock, drain, rounding, unit, unit_rounding, burst, full, max_level = self.decide_ticks
        step = now if clock is None else now // clock
        start, level, ahead = step * drain, 0, False
        if type(state) is int:  # _level(), inlined
            level = state - start
            if level < 0:
                level = 0
            elif level > full:
                level, ahead = full, True
        elif state is not None:
            level, ahead = self._level(state, step)
        allowed = True
        retry_after = delay = 0.0
        if cost:
            new_level = level + cost * unit
            if new_level <= full:
                level = new_level
                state = start + level
            else:
                if max_delay is not None and cost <= burst:
                    max_level = full + self.delay_ticks(max_delay)
                if cost > burst:
                    allowed, retry_after = False, math.inf
                elif new_level > max_level:
                    wait = (new_level - max_level + rounding) // drain  # wait() without a call, for floods of refusals
                    allowed = False
                    retry_after = (wait if clock is None else wait * clock - now % clock) / MICROSECONDS
                else:
                    level = new_level
                    delay = self.wait(now, level - full) / MICROSECONDS
                # also if refused, when the clock stepped back: the old state would refuse until its time
                if allowed or ahead:
                    state = start + level if level <= full else GcraOverfullState(start + level, step)
        # in clock steps: the wait until one unit more than `remaining` fits, and the wait until all has drained
        free = full - level
        if free >= unit:
            remaining, next_wait = free // unit, (unit_rounding - free % unit) // drain
        else:
            remaining, next_wait = 0, (unit_rounding - free) // drain
        reset = (level + rounding) // drain
        if clock is not None:  # convert to microseconds, less the elapsed part of this clock step; 0 stays 0
            phase = now % clock
            next_wait, reset = next_wait * clock - phase, reset and reset * clock - phase
        return Decision(
            allowed,
            burst,
            remaining,
            retry_after,
            next_wait / MICROSECONDS,
            reset / MICROSECONDS,
            delay,
            now + reset,
        ), state

    def settle(
        self, state: int | GcraOverfullState | None, now: int, delta: int, at: int
    ) -> int | GcraOverfullState | None:
        clock, drain, *_, full = self.ticks
        step = now // clock
        level, _ = self._level(state, step)
        settled_level = self.settled_level(level, step, delta, at)
        if settled_level == level:
            return state
        tat = step * drain + settled_level
        return GcraOverfullState(tat, step) if settled_level > full else tat if settled_level else None

    def expires(self, state: int | GcraOverfullState) -> int:
        clock, drain, *_ = self.ticks
        return ceil_div(state if isinstance(state, int) else state.tat, drain) * clock

    def _level(self, state: int | GcraOverfullState | None, step: int) -> tuple[int, bool]:
        """Return the ticks that have not drained by `step`, and whether the state is later than `step`."""
        if state is None:
            return 0, False
        _, drain, *_, full = self.ticks
        if isinstance(state, int):
            level, ahead = state - step * drain, False
            if level > full:
                level, ahead = full, True
        else:
            ahead = state.updated > step
            level = state.tat - (state.updated if ahead else step) * drain
        return (level if level > 0 else 0), ahead

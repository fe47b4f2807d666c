"""Token bucket: `burst` units at once, refilled at quota / window. The Lua implementation is `token_bucket.lua`."""

import math
from typing import ClassVar

from ratelimit_mw.algorithms.bucket import LevelLimit, LevelState
from ratelimit_mw.core.limit import MICROSECONDS, Decision


class TokenBucket(LevelLimit, frozen=True, kw_only=True):
    """Admits while there are tokens for the cost; tokens return one by one, at quota / window.

    `TokenBucket(100, 60, burst=20)`: 20 at once, 100 per minute in the long run, at most 119 in any minute. With a
    `max_delay` of d seconds, up to d * quota / window more units are admitted, each delayed until its token returns.
    Decides like `gcra`, unless the clock steps back.
    """

    algorithm: ClassVar[str] = "token_bucket"

    @property
    def max_per_window(self) -> int:
        return self.most + self.quota - 1

    def decide(  # noqa: C901, PLR0912  # each call would add a tenth to its time
        self, state: LevelState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, LevelState | None]:
        clock, drain, rounding, unit, burst, full, most = self.decide_ticks
        step = now if clock == 1 else now // clock
        level = drained = 0
        if state is not None:
            level = state.level
            drained = (step - state.updated) * drain
            if drained > 0:
                level = level - drained if drained < level else 0
        # `retry` and `delay`, and below `next_wait` and `reset`, are waits in clock steps; `retry` may be infinite.
        # `over`: ticks that must drain until this charge passes; 0 if it is admitted, or can never pass
        allowed, retry, delay, over = True, 0.0, 0, 0
        new_level = level + cost * unit
        if new_level <= full:
            if cost:
                level = new_level
                state = LevelState(level, step)
        elif cost:
            if max_delay is not None and cost <= burst:
                most = full + self.delay_ticks(max_delay)
            if cost > burst:
                allowed, retry = False, math.inf
            elif new_level > most:
                over = new_level - most
                allowed, retry = False, (over + rounding) // drain
            else:
                delay = (new_level - full + rounding) // drain
                level = new_level
            if allowed or drained < 0:  # even if refused: a state from the future would lock clients out
                state = LevelState(level, step)
        free = full - level
        # `missing`: ticks that must drain until one more unit than `remaining` fits; at least 1
        if free >= unit:
            remaining, missing = free // unit, unit - free % unit
        else:
            remaining, missing = 0, unit - free
        # where both waits are for the same number of ticks, they are equal, and one division is enough
        next_wait = retry if missing == over else (missing + rounding) // drain
        reset = (level + rounding) // drain
        if clock > 1:  # convert to microseconds, less the elapsed part of the present clock step; a wait of 0 stays 0
            phase = now % clock
            next_wait, reset = next_wait * clock - phase, reset and reset * clock - phase
            retry, delay = retry and retry * clock - phase, delay and delay * clock - phase
        return Decision(
            allowed,
            burst,
            remaining,
            retry / MICROSECONDS if retry else 0.0,
            next_wait / MICROSECONDS,
            reset / MICROSECONDS,
            delay / MICROSECONDS if delay else 0.0,
            now + reset,
        ), state

"""Token bucket: `burst` units at once, refilled at quota / window. The Lua implementation is `token_bucket.lua`."""

import math
from typing import ClassVar

from ratelimit_mw.algorithms.bucket import LevelLimit, LevelState
from ratelimit_mw.core.limit import MICROSECONDS, Decision


class TokenBucket(LevelLimit, frozen=True, kw_only=True):
    """Admits while there are enough tokens for the cost. Tokens return one by one, at quota / window.

    `TokenBucket(100, 60, burst=20)`: 20 at once, 100 per minute in the long run, at most 119 in any minute. With a
    `max_delay` of d seconds, up to d * quota / window more units are admitted, each delayed until its token returns.
    Decides like `gcra`, unless the clock steps back.
    """

    algorithm: ClassVar[str] = "token_bucket"

    @property
    def max_per_window(self) -> int:
        return self.quota and self.most + self.quota - 1

    def decide(  # noqa: C901, PLR0912  # calls of helpers would take a tenth longer
        self, state: LevelState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, LevelState | None]:
        clock, drain, rounding, unit, unit_rounding, burst, full, max_level = self.decide_ticks
        step = now if clock is None else now // clock
        if state is None:
            level = 0
        else:
            level, updated = state
            drained = (step - updated) * drain
            if drained >= 0:
                level = level - drained if drained < level else 0
            elif cost:
                # The clock stepped back. Write the present time, even if the charge is refused. Otherwise nothing would
                # drain until the clock reaches the old time again.
                state = level, step
        allowed = True
        retry_after = delay = 0.0
        if cost:
            new_level = level + cost * unit
            if new_level <= full:
                level = new_level
                state = level, step
            elif cost > burst:
                allowed, retry_after = False, math.inf
            else:
                if max_delay is not None:
                    max_level = full + self.delay_ticks(max_delay)
                if new_level > max_level:
                    wait = (new_level - max_level + rounding) // drain  # wait() without a call, for floods of refusals
                    allowed = False
                    retry_after = (wait if clock is None else wait * clock - now % clock) / MICROSECONDS
                else:
                    level = new_level
                    state = level, step
                    delay = self.wait(now, level - full) / MICROSECONDS
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

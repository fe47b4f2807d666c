"""Token bucket: `burst` units at once, refilled at quota / window. Its Lua twin is `token_bucket.lua`.

Kept as what was taken and has not drained yet (the level), so that a fresh bucket is level 0 and an idle one expires.
"""

import math
from functools import cached_property
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.limit import BucketLimit, Decision
from ratelimit_mw.ticks import MICROSECONDS, ceil_div


class Level(Struct, frozen=True, gc=False):
    """What is in a bucket, and when that was so."""

    level: int  # ticks that have not drained; above full while requests are held back, or in debt
    updated: int  # clock ticks


class TokenBucket(BucketLimit, frozen=True, kw_only=True):
    """Admits while there are tokens for the cost; tokens come back one by one, at quota / window.

    `TokenBucket(100, 60, burst=20)`: 20 at once, 100 per minute in the long run, at most 119 in any minute.
    With `max_delay` seconds d, up to d * quota / window units more are admitted, each held back until its token is
    there. Same answers as `gcra`.
    """

    algorithm: ClassVar[str] = "token_bucket"

    def decide(self, state: Level | None, now: int, cost: int, max_delay: int | None) -> tuple[Decision, Level | None]:
        clock, drain, unit, burst, full = self.ticks
        tick = now if clock == 1 else now // clock
        level = 0
        if state is not None:
            level = state.level
            drained = (tick - state.updated) * drain
            if drained > 0:  # a clock that stepped back drains nothing
                level = level - drained if drained < level else 0
        allowed = True
        retry_after = delay = 0.0
        if cost:
            taken = level + cost * unit
            if taken <= full:
                level = taken
                state = Level(level, tick)
            else:
                allowed, retry_after, delay = self._squeeze(now, cost, taken - full, max_delay)
                if allowed:
                    level = taken
                if allowed or (state is not None and state.updated > tick):
                    state = Level(level, tick)  # refused too, else the lock-out would last until that time comes again
        room = full - level
        remaining, rest = divmod(room, unit) if room > 0 else (0, room)
        following = -((rest - unit) // drain)
        reset = -(-level // drain)
        if clock > 1:
            phase = now % clock  # the part of this clock tick that is gone
            following = following * clock - phase
            reset = reset and reset * clock - phase
        return Decision(
            allowed, burst, remaining, retry_after, following / MICROSECONDS, reset / MICROSECONDS, delay, now + reset
        ), state

    def _squeeze(self, now: int, cost: int, over: int, max_delay: int | None) -> tuple[bool, float, float]:
        """Whether a charge may go `over` full, its retry_after and its delay."""
        clock, drain, _, burst, _ = self.ticks
        if cost > burst:
            return False, math.inf, 0.0
        patience = self.delay_ticks(max_delay)
        phase = now % clock
        if over <= patience:
            return True, 0.0, (ceil_div(over, drain) * clock - phase) / MICROSECONDS
        return False, (ceil_div(over - patience, drain) * clock - phase) / MICROSECONDS, 0.0

    def settle(self, state: Level | None, now: int, delta: int, at: int) -> Level | None:
        clock, drain, unit, _, full = self.ticks
        tick = now // clock
        level = 0 if state is None else self._left(state, tick)
        if delta > 0:
            debt = full + self.quota * unit
            return Level(max(level, min(level + delta * unit, debt)), tick)
        drained_at = at // clock
        back = min(-delta * unit, (drained_at - tick) * drain)  # what has drained is gone
        if level > full:
            back -= max(0, level - (drained_at - tick) * drain)  # what others reserved after it stays reserved
        if back <= 0:
            return state
        return Level(level - back, tick) if back < level else None

    def expires(self, state: Level) -> int:
        clock, drain, *_ = self.ticks
        return (state.updated + ceil_div(state.level, drain)) * clock

    @property
    def most(self) -> int:
        return self.burst or self.quota

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        clock, drain, unit, burst, _ = self.ticks
        return clock, drain, unit, burst, self.quota

    def _left(self, state: Level, tick: int) -> int:
        """Ticks that have not drained by `tick`; a clock that stepped back drains nothing."""
        return max(0, state.level - max(0, tick - state.updated) * self.ticks[1])

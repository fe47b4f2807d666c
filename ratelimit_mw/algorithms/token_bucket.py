"""Token bucket: `burst` units at once, refilled at quota / window. Its Lua twin is `token_bucket.lua`."""

from typing import ClassVar

from ratelimit_mw.bucket import Level, LevelLimit
from ratelimit_mw.limit import Decision
from ratelimit_mw.ticks import MICROSECONDS


class TokenBucket(LevelLimit, frozen=True, kw_only=True):
    """Admits while there are tokens for the cost; tokens come back one by one, at quota / window.

    `TokenBucket(100, 60, burst=20)`: 20 at once, 100 per minute in the long run, at most 119 in any minute.
    With `max_delay` seconds d, up to d * quota / window units more are admitted, each held back until its token is
    there. Same answers as `gcra`.
    """

    algorithm: ClassVar[str] = "token_bucket"

    @property
    def worst_window(self) -> int:
        return self.most + self.quota - 1

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
                allowed, retry_after, delay = self.squeeze(now, cost, taken - full, max_delay)
                if allowed:
                    level = taken
                if allowed or (state is not None and state.updated > tick):
                    state = Level(level, tick)  # refused too, else the lock-out would last until that time comes again
        # BucketLimit.answer, without its calls
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

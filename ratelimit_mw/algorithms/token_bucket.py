"""Token bucket: `burst` units at once, refilled at quota / window. Its Lua twin is `token_bucket.lua`."""

from typing import ClassVar

from ratelimit_mw.bucket import ADMITTED, Level, LevelLimit
from ratelimit_mw.limit import MICROSECONDS, Decision


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
        if (usual := self.usual) is None or not cost:
            return self._decide(state, now, cost, max_delay)
        drain, less, unit, burst, full = usual
        # the usual cases: what every case comes down to, in half of its time
        level = drained = 0
        if state is not None:
            level = state.level
            drained = (now - state.updated) * drain
            if drained > 0:
                level = level - drained if drained < level else 0
        taken, retry_after = level + cost * unit, 0.0
        if allowed := taken <= full:
            level = taken
            state = Level(level, now)
        elif drained < 0 or level > full or cost > burst or max_delay is not None:
            return self._decide(state, now, cost, max_delay)
        else:
            retry_after = (taken - full + less) // drain / MICROSECONDS
        room, reset = full - level, (level + less) // drain
        return Decision(
            allowed,
            burst,
            room // unit,
            retry_after,
            (unit - room % unit + less) // drain / MICROSECONDS,
            reset / MICROSECONDS,
            0.0,
            now + reset,
        ), state

    def _decide(self, state: Level | None, now: int, cost: int, max_delay: int | None) -> tuple[Decision, Level | None]:
        """In every case."""
        clock, _, unit, _, full = self.ticks
        tick = now // clock
        level, outcome = self.level(state, tick), ADMITTED
        if cost:
            over = level + cost * unit - full
            if over > 0:
                outcome = self.squeeze(now, cost, over, max_delay)
            if outcome[0]:
                level += cost * unit
            if outcome[0] or (state is not None and state.updated > tick):
                state = Level(level, tick)  # refused too, else the lock-out would last until that time comes again
        return self.answer(now, level, outcome, full), state

"""Token bucket: `burst` units at once, refilled at quota / window. The Lua implementation is `token_bucket.lua`."""

from typing import ClassVar

from ratelimit_mw.algorithms.bucket import ADMITTED, LevelLimit, LevelState
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

    def decide(
        self, state: LevelState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, LevelState | None]:
        if (fast_ticks := self.fast_ticks) is None or not cost:
            return self._decide(state, now, cost, max_delay)
        drain, rounding, unit, burst, full = fast_ticks
        # fast path: equal to _decide(), in half the time
        level = drained = 0
        if state is not None:
            level = state.level
            drained = (now - state.updated) * drain
            if drained > 0:
                level = level - drained if drained < level else 0
        new_level, retry_after = level + cost * unit, 0.0
        if allowed := new_level <= full:
            level = new_level
            state = LevelState(level, now)
        elif drained < 0 or level > full or cost > burst or max_delay is not None:
            return self._decide(state, now, cost, max_delay)
        else:
            retry_after = (new_level - full + rounding) // drain / MICROSECONDS
        free, reset = full - level, (level + rounding) // drain
        return Decision(
            allowed,
            burst,
            free // unit,
            retry_after,
            (unit - free % unit + rounding) // drain / MICROSECONDS,
            reset / MICROSECONDS,
            0.0,
            now + reset,
        ), state

    def _decide(
        self, state: LevelState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, LevelState | None]:
        """Decide in the general case."""
        clock, _, unit, _, full = self.ticks
        tick = now // clock
        level, admission = self.level(state, tick), ADMITTED
        if cost:
            over = level + cost * unit - full
            if over > 0:
                admission = self.refuse_or_delay(now, cost, over, max_delay)
            if admission[0]:
                level += cost * unit
            if admission[0] or (state is not None and state.updated > tick):
                state = LevelState(level, tick)  # even if refused: a state from the future would lock clients out
        return self.decision(now, level, admission, full), state

"""Generic cell rate algorithm (ITU-T I.371): one instant per bucket. The Lua implementation is `gcra.lua`.

The theoretical arrival time (TAT) is the instant at which everything taken has drained. In ticks, the level of a bucket
is its TAT minus now.
"""

from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.algorithms.bucket import ADMITTED, BucketLimit
from ratelimit_mw.algorithms.ticks import ceil_div
from ratelimit_mw.core.limit import MICROSECONDS, Decision


class GcraOverfullState(Struct, frozen=True, gc=False):
    """A bucket above full, because requests are delayed or units are owed.

    Without `updated`, a TAT so far ahead would look like a clock that stepped back.
    """

    tat: int  # ticks
    updated: int  # clock ticks


class GCRA(BucketLimit, frozen=True, kw_only=True):
    """Admits while the TAT, this charge included, is at most `burst` units ahead of now.

    `GCRA(100, 60, burst=20)`: 20 at once, then one every 0.6 s. Decides like `token_bucket`, with the smallest state:
    one number. If the clock steps back, only the TAT, now too far ahead, shows it: the bucket then counts as fuller
    than it was, but never as more than full.
    """

    algorithm: ClassVar[str] = "gcra"

    # The state is the TAT in ticks, an int: tick * drain + level.

    @property
    def max_per_window(self) -> int:
        return self.most + self.quota - 1

    def decide(
        self, state: int | GcraOverfullState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, int | GcraOverfullState | None]:
        if (fast_ticks := self.fast_ticks) is None or not cost or type(state) is GcraOverfullState:
            if type(state) is GcraOverfullState and cost and max_delay is None and self.fast_delay_ticks is not None:
                return self._decide_delayed(state, now, cost, self.fast_delay_ticks)
            return self._decide(state, now, cost, max_delay)
        drain, rounding, unit, burst, full = fast_ticks
        # fast path: equal to _decide(), in a third of the time; a clock tick is 1 us here, so `now` is the tick.
        # See ticks.py for the units; adding `rounding` before `// drain` rounds up to whole microseconds.
        start, level, retry_after = now * drain, 0, 0.0
        if type(state) is int and state > start:
            level = state - start
        new_level = level + cost * unit
        if allowed := new_level <= full:
            level = new_level
            state = start + level
        elif level > full or cost > burst or max_delay is not None:
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

    def _decide_delayed(
        self, state: GcraOverfullState, now: int, cost: int, fast_delay_ticks: tuple[int, int, int, int, int]
    ) -> tuple[Decision, GcraOverfullState | int | None]:
        """Decide on a charge behind delayed requests: equal to `_decide`, in half the time."""
        drain, unit, burst, full, max_delay_ticks = fast_delay_ticks
        level = state.tat - now * drain
        if level < full or state.updated > now or cost > burst:
            return self._decide(state, now, cost, None)
        level += cost * unit
        if level - full > max_delay_ticks:
            return self._decide(state, now, cost, None)
        reset = -(-level // drain)
        return Decision(
            True,
            burst,
            0,
            0.0,
            -((full - level - unit) // drain) / MICROSECONDS,
            reset / MICROSECONDS,
            -((full - level) // drain) / MICROSECONDS,
            now + reset,
        ), GcraOverfullState(now * drain + level, now)

    def _decide(
        self, state: int | GcraOverfullState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, int | GcraOverfullState | None]:
        """Decide in the general case."""
        clock, drain, unit, _, full = self.ticks
        tick = now // clock
        level, ahead = self._level(state, tick)
        admission = ADMITTED
        if cost:
            over = level + cost * unit - full
            if over > 0:
                admission = self.refuse_or_delay(now, cost, over, max_delay)
            if admission[0]:
                level += cost * unit
            if admission[0] or ahead:  # even if refused: a state from the future would lock clients out
                state = GcraOverfullState(tick * drain + level, tick) if level > full else tick * drain + level
        return self.decision(now, level, admission, full), state

    def settle(
        self, state: int | GcraOverfullState | None, now: int, delta: int, at: int
    ) -> int | GcraOverfullState | None:
        clock, drain, *_, full = self.ticks
        tick = now // clock
        level, _ = self._level(state, tick)
        settled_level = self.settled_level(level, tick, delta, at)
        if settled_level == level:
            return state
        tat = tick * drain + settled_level
        return GcraOverfullState(tat, tick) if settled_level > full else tat if settled_level else None

    def forgiven(self, state: int | GcraOverfullState | None, now: int, delta: int) -> int:
        return self.excess_debt(self._level(state, now // self.ticks[0])[0], delta)

    def expires(self, state: int | GcraOverfullState) -> int:
        clock, drain, *_ = self.ticks
        return ceil_div(state if isinstance(state, int) else state.tat, drain) * clock

    def _level(self, state: int | GcraOverfullState | None, tick: int) -> tuple[int, bool]:
        """Return the ticks that have not drained by `tick`, and whether the state is later than `tick`."""
        if state is None:
            return 0, False
        _, drain, *_, full = self.ticks
        if not isinstance(state, int):
            return max(0, state.tat - max(tick, state.updated) * drain), state.updated > tick
        level = state - tick * drain
        return (full, True) if level > full else (max(0, level), False)

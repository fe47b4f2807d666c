"""Generic cell rate algorithm (ITU-T I.371): one instant per bucket, its TAT. Its Lua twin is `gcra.lua`.

The theoretical arrival time (TAT) is the instant at which all that was taken has drained: a bucket's level is how far
ahead of now it is.
"""

from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.bucket import ADMITTED, BucketLimit
from ratelimit_mw.limit import MICROSECONDS, Decision
from ratelimit_mw.ticks import ceil_div


class Above(Struct, frozen=True, gc=False):
    """A bucket above full, while requests are held back or units are owed: then how far is no longer plain."""

    tat: int
    updated: int  # clock ticks


class GCRA(BucketLimit, frozen=True, kw_only=True):
    """Admits while the TAT, with this charge in it, is at most `burst` units ahead.

    `GCRA(100, 60, burst=20)`: 20 at once, then one every 0.6 s. The answers are those of `token_bucket`; the state is
    the smallest, one number. A clock that stepped back shows only as a TAT too far ahead: a bucket counts as fuller
    then than it was, never as more than full.
    """

    algorithm: ClassVar[str] = "gcra"

    # The state is the TAT in ticks, an int: tick * drain + level.

    @property
    def worst_window(self) -> int:
        return self.most + self.quota - 1

    def decide(
        self, state: int | Above | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, int | Above | None]:
        if (usual := self.usual) is None or not cost or type(state) is Above:
            if self.waiting is None or not cost or type(state) is not Above or max_delay is not None:
                return self._decide(state, now, cost, max_delay)
            return self._behind(state, now, cost, self.waiting)
        drain, less, unit, burst, full = usual
        # the usual cases: what every case comes down to, in a third of its time
        start, level, retry_after = now * drain, 0, 0.0
        if type(state) is int and state > start:
            level = state - start
        taken = level + cost * unit
        if allowed := taken <= full:
            level = taken
            state = start + level
        elif level > full or cost > burst or max_delay is not None:
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

    def _behind(
        self, state: Above, now: int, cost: int, turns: tuple[int, int, int, int, int]
    ) -> tuple[Decision, Above | int | None]:
        """Behind those who wait already: what every case comes down to then, in half of its time."""
        drain, unit, burst, full, patience = turns
        level = state.tat - now * drain
        if level < full or state.updated > now or cost > burst:
            return self._decide(state, now, cost, None)
        level += cost * unit
        if level - full > patience:
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
        ), Above(now * drain + level, now)

    def _decide(
        self, state: int | Above | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, int | Above | None]:
        """In every case."""
        clock, drain, unit, _, full = self.ticks
        tick = now // clock
        level, ahead = self._level(state, tick)
        outcome = ADMITTED
        if cost:
            over = level + cost * unit - full
            if over > 0:
                outcome = self.squeeze(now, cost, over, max_delay)
            if outcome[0]:
                level += cost * unit
            if outcome[0] or ahead:  # refused too, else the lock-out would last until that time comes again
                state = Above(tick * drain + level, tick) if level > full else tick * drain + level
        return self.answer(now, level, outcome, full), state

    def settle(self, state: int | Above | None, now: int, delta: int, at: int) -> int | Above | None:
        clock, drain, *_, full = self.ticks
        tick = now // clock
        level, _ = self._level(state, tick)
        corrected = self.corrected(level, tick, delta, at)
        if corrected == level:
            return state
        tat = tick * drain + corrected
        return Above(tat, tick) if corrected > full else tat if corrected else None

    def forgiven(self, state: int | Above | None, now: int, delta: int) -> int:
        return self.beyond(self._level(state, now // self.ticks[0])[0], delta)

    def expires(self, state: int | Above) -> int:
        clock, drain, *_ = self.ticks
        return ceil_div(state if isinstance(state, int) else state.tat, drain) * clock

    def _level(self, state: int | Above | None, tick: int) -> tuple[int, bool]:
        """Ticks that have not drained by `tick`, and whether the state is from a time ahead of it."""
        if state is None:
            return 0, False
        _, drain, *_, full = self.ticks
        if not isinstance(state, int):
            return max(0, state.tat - max(tick, state.updated) * drain), state.updated > tick
        level = state - tick * drain
        return (full, True) if level > full else (max(0, level), False)

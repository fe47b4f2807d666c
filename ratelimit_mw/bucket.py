"""What the bucket algorithms share: the burst, being held back, and corrections. Their Lua twins share `bucket.lua`.

A bucket's level is what was taken and has not drained yet: a fresh one is empty, and an idle one is forgotten.
"""

import math
from collections.abc import Iterable
from typing import ClassVar, Final

from msgspec import Struct

from ratelimit_mw.delay import DelayLimit, Outcome
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.kept import cached_property
from ratelimit_mw.limit import LONGEST, MICROSECONDS, Decision, microseconds, seconds, whole
from ratelimit_mw.ticks import BucketTicks, bucket_ticks, ceil_div, moved

ADMITTED: Final[Outcome] = (True, 0.0, 0.0)


class BucketLimit(DelayLimit, frozen=True, kw_only=True):
    """A limit with a bucket: up to `burst` units at one instant, `quota` per `window` in the long run.

    `burst`: units, at least 1; None is the quota. `max_delay`: seconds that a request may be held back; 0.0 is never.
    In any window of that length at most `burst + quota - 1` units pass: to promise N, choose burst + quota <= N.
    """

    burst: int | None = None
    max_delay: float = 0.0

    words: ClassVar[tuple[str, ...]] = ("burst",)
    ticks: ClassVar[BucketTicks]
    usual: ClassVar[BucketTicks | None]
    """Of the instance: `(drain, drain - 1, unit, burst, full)`, where the clock tick is one microsecond and nothing is
    held back. The second is added before a division by the first: that rounds up."""
    waiting: ClassVar[tuple[int, int, int, int, int] | None]
    """Of the instance: the same where something is, and by how many ticks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burst is not None:
            whole("burst", self.burst, 1)
            if self.burst * self.window_us > self.quota * microseconds(LONGEST):
                raise ConfigError(
                    f"burst: found {self.burst!r}, allowed are at most the units that come back in a hundred years"
                )
        seconds("max_delay", self.max_delay)
        self.__dict__["ticks"] = bucket_ticks(self.quota, self.window_us, self.most)
        self.delay_ticks(None)
        one, drain = self.ticks[0] == 1, self.ticks[1]
        self.__dict__["usual"] = (drain, drain - 1, *self.ticks[2:]) if one and not self.max_delay else None
        self.__dict__["waiting"] = (*self.ticks[1:], self.delay_ticks(None)) if one and self.max_delay else None

    @property
    def most(self) -> int:
        return self.burst or self.quota

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        clock, drain, unit, burst, _ = self.ticks
        return clock, drain, unit, burst, self.quota

    def _written(self, words: Iterable[str]) -> str:
        return super()._written(words).replace(f" burst {self.quota} ", " ")  # the same bucket as without it

    def squeeze(self, now: int, cost: int, over: int, max_delay: int | None) -> Outcome:
        """The outcome for a charge that goes `over` full, more than 0, unless it is held back."""
        clock, drain, _, burst, _ = self.ticks
        if cost > burst:
            return False, math.inf, 0.0
        patience = self.delay_ticks(max_delay)
        phase = now % clock  # `wait` without its calls: refusals are what an attacker asks for
        if over <= patience:
            return True, 0.0, (ceil_div(over, drain) * clock - phase) / MICROSECONDS
        return False, (ceil_div(over - patience, drain) * clock - phase) / MICROSECONDS, 0.0

    def answer(self, now: int, level: int, outcome: Outcome, at_once: int) -> Decision:
        """The decision, once the outcome and the level are known.

        `at_once`: ticks; at a higher level a charge that fits is held back all the same.
        """
        _, _, unit, burst, full = self.ticks
        allowed, retry_after, delay = outcome
        remaining = (full - level) // unit if level < full and level <= at_once else 0
        taken = level + remaining * unit
        next_after = self.wait(now, max(taken + unit - full, taken - at_once)) / MICROSECONDS
        reset = self.wait(now, level) if level else 0
        return Decision(allowed, burst, remaining, retry_after, next_after, reset / MICROSECONDS, delay, now + reset)

    def moved(self, at: int, units: int) -> int:
        clock, drain, unit, *_ = self.ticks
        return moved(at, units * unit, drain, clock)

    def beyond(self, level: int, delta: int) -> int:
        """Of a correction at this level, see `Limit.forgiven`."""
        _, _, unit, _, full = self.ticks
        return max(0, delta - max(0, full + self.quota * unit - level) // unit)

    def corrected(self, level: int, tick: int, delta: int, at: int) -> int:
        """The level after `Limit.settle`."""
        clock, drain, unit, _, full = self.ticks
        if delta > 0:
            return max(level, min(level + delta * unit, full + self.quota * unit))
        undrained = (at // clock - tick) * drain
        back = min(-delta * unit, undrained)  # what has drained is gone
        if level > full:
            back -= max(0, level - undrained)  # what others reserved after it stays reserved
        return min(level, max(0, level - back))


class Level(Struct, frozen=True, gc=False):
    """What is in a bucket, and when that was so."""

    level: int  # ticks that have not drained; above full while requests are held back, or in debt
    updated: int  # clock ticks


class LevelLimit(BucketLimit, frozen=True, kw_only=True):
    """A bucket whose state is its level."""

    def settle(self, state: Level | None, now: int, delta: int, at: int) -> Level | None:
        tick = now // self.ticks[0]
        level = self.level(state, tick)
        corrected = self.corrected(level, tick, delta, at)
        if corrected == level:
            return state
        return Level(corrected, tick) if corrected else None

    def forgiven(self, state: Level | None, now: int, delta: int) -> int:
        return self.beyond(self.level(state, now // self.ticks[0]), delta)

    def expires(self, state: Level) -> int:
        clock, drain, *_ = self.ticks
        return (state.updated + ceil_div(state.level, drain)) * clock

    def level(self, state: Level | None, tick: int) -> int:
        """Ticks that have not drained by `tick`; a clock that stepped back drains nothing."""
        if state is None:
            return 0
        return max(0, state.level - max(0, tick - state.updated) * self.ticks[1])

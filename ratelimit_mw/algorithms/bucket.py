"""Base classes of the bucket algorithms: burst, delays and settlements.

`stores/redis/bucket.lua` has the Lua code that these algorithms share. Its first lines list which functions there and
here are the same.

The level of a bucket is what was taken and has not drained yet. A new bucket is empty. A bucket that has drained
expires.
"""

from collections.abc import Iterable
from typing import ClassVar

from ratelimit_mw.algorithms.ticks import BucketTicks, bucket_ticks, ceil_div
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import (
    MAX_EXACT_INT,
    MAX_SECONDS,
    MICROSECONDS,
    Decision,
    Limit,
    check_int,
    check_seconds,
    microseconds,
)
from ratelimit_mw.core.memo import cached_property

Admission = tuple[bool, float, float]
"""The fields `(allowed, retry_after, delay)` of a decision; times in seconds."""


class DelayableLimit(Limit, frozen=True, kw_only=True):
    """A limit that can delay admitted requests, by up to `max_delay` seconds."""

    ticks: ClassVar[tuple[int, ...]]
    """Instance value: the numbers with which Python and Lua compute."""
    max_ticks: ClassVar[int] = MAX_EXACT_INT // 2  # the most ticks of a delay; with more, sums would not be exact

    def delay_ticks(self, max_delay: int | None) -> int:
        """See `Limit.delay_ticks`. Raises `ConfigError` for more than `max_ticks`."""
        if max_delay is None:
            return self.max_delay_ticks
        clock, drain, *_ = self.ticks
        over = max_delay // clock * drain
        if over > self.max_ticks:
            raise ConfigError(
                f"max_delay: got {max_delay / MICROSECONDS} seconds, expected at most {self._max_exact_delay}: with "
                f"more, {self.notation} would not be exact",
                code="RL-013",
            )
        return over

    @property
    def max_delay_limit(self) -> float:
        """See `Limit.max_delay_limit`."""
        return min(MAX_SECONDS, self._max_exact_delay)

    @property
    def _max_exact_delay(self) -> float:
        clock, drain, *_ = self.ticks
        return self.max_ticks // drain * clock / MICROSECONDS

    @cached_property
    def max_delay_ticks(self) -> int:
        return self.delay_ticks(self.effective_max_delay_us)

    def wait(self, now: int, ticks: int) -> int:
        """Return the microseconds until `ticks` have drained. `ticks`: more than 0."""
        clock, drain, *_ = self.ticks
        return ceil_div(ticks, drain) * clock - now % clock


class BucketLimit(DelayableLimit, frozen=True, kw_only=True):
    """A limit with a bucket: up to `burst` units at one instant, `quota` per `window` in the long run.

    `burst`: units, at least 1; None is the quota. `max_delay`: longest delay of a request in seconds; 0.0 disables
    delays. At most `burst + quota - 1` units pass in any window: to guarantee N, choose burst + quota <= N.
    """

    burst: int | None = None
    max_delay: float = 0.0

    words: ClassVar[tuple[str, ...]] = ("burst",)
    ticks: ClassVar[BucketTicks]
    decide_ticks: ClassVar[tuple[int | None, int, int, int, int, int, int, int]]
    """Instance value: `(clock, drain, drain - 1, unit, unit + drain - 1, burst, full, max_level)`.

    `clock`, `drain`, `unit`, `burst` and `full` are the numbers of `ticks`, but `clock` is None if a clock step is a
    microsecond, so that nothing needs to be converted. Adding `drain - 1` to a number before its division by `drain`
    rounds the result up. Adding `unit + drain - 1` does so for one more unit. `max_level`: the highest level in ticks,
    including delayed requests.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burst is not None:
            check_int("burst", self.burst, 1)
            if self.quota and self.burst * self.window_us > self.quota * microseconds(MAX_SECONDS):
                raise ConfigError(
                    f"burst: got {self.burst!r}, expected at most the units that come back in a hundred years",
                    code="RL-014",
                )
        check_seconds("max_delay", self.max_delay)
        self.__dict__["ticks"] = bucket_ticks(self.quota or 1, self.window_us, self.most or 1)
        clock, drain, unit, burst, full = self.ticks
        max_level = full + self.delay_ticks(None)
        up, coarse_clock = drain - 1, None if clock == 1 else clock
        self.__dict__["decide_ticks"] = coarse_clock, drain, up, unit, unit + up, burst, full, max_level

    @property
    def most(self) -> int:
        return self.quota and (self.burst or self.quota)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        clock, drain, unit, burst, _ = self.ticks
        return clock, drain, unit, burst, self.quota

    def _format_notation(self, names: Iterable[str]) -> str:
        return super()._format_notation(names).replace(f" burst {self.quota} ", " ")  # the default burst

    def decision(self, now: int, level: int, admission: Admission, at_once: int) -> Decision:
        """Build the decision from the admission and the level.

        `at_once`: ticks; above this level, even a charge that fits is delayed.
        """
        _, _, unit, burst, full = self.ticks
        allowed, retry_after, delay = admission
        remaining = (full - level) // unit if level < full and level <= at_once else 0
        filled = level + remaining * unit
        next_after = self.wait(now, max(filled + unit - full, filled - at_once)) / MICROSECONDS
        reset = self.wait(now, level) if level else 0
        return Decision(allowed, burst, remaining, retry_after, next_after, reset / MICROSECONDS, delay, now + reset)

    def settled_level(self, level: int, step: int, delta: int, at: int) -> int:
        """Return the level after `Limit.settle`."""
        clock, drain, unit, _, full = self.ticks
        if delta > 0:
            return max(level, min(level + delta * unit, full + self.quota * unit))
        undrained = (at // clock - step) * drain
        refund = min(-delta * unit, undrained)  # drained units cannot be refunded
        if level > full:
            refund -= max(0, level - undrained)  # keep the part of delayed requests that were admitted later
        return min(level, max(0, level - refund))


LevelState = tuple[int, int]
"""The level of a bucket at an instant: `(level, updated)`.

`level`: ticks that have not drained; more than full during delays or debt. `updated`: clock steps. It is a plain tuple,
because every admitted request makes one, and a `Struct` takes twice as long to make and to read.
"""


class LevelLimit(BucketLimit, frozen=True, kw_only=True):
    """A bucket whose state is its level at an instant."""

    def settle(self, state: LevelState | None, now: int, delta: int, at: int) -> LevelState | None:
        step = now // self.ticks[0]
        level = self.level(state, step)
        settled_level = self.settled_level(level, step, delta, at)
        if settled_level == level:
            return state
        return (settled_level, step) if settled_level else None

    def expires(self, state: LevelState) -> int:
        clock, drain, *_ = self.ticks
        level, updated = state
        return (updated + ceil_div(level, drain)) * clock

    def level(self, state: LevelState | None, step: int) -> int:
        """Return the ticks that have not drained by `step`. Nothing drains if the clock steps back."""
        if state is None:
            return 0
        old_level, updated = state
        return max(0, old_level - max(0, step - updated) * self.ticks[1])

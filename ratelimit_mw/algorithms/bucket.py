"""Base classes of the bucket algorithms: burst, delays and settlements.

`stores/redis/bucket.lua` has the Lua code that these algorithms share. Its first lines list which functions there and
here are the same.

The level of a bucket is what was taken and has not drained yet. A new bucket is empty. A bucket that has drained
expires.
"""

import math
from collections.abc import Iterable
from typing import ClassVar

from ratelimit_mw.algorithms.ticks import BucketTicks, bucket_ticks, ceil_div, scale_up
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import (
    MAX_EXACT_INT,
    MAX_SECONDS,
    MICROSECONDS,
    Decision,
    Limit,
    State,
    check_int,
    check_seconds,
    microseconds,
)

Admission = tuple[bool, float, float]
"""The fields `(allowed, retry_after, delay)` of a decision; times in seconds."""


class DelayableLimit(Limit, frozen=True, kw_only=True):
    """A limit that can delay admitted requests, by up to `max_delay` seconds."""

    ticks: ClassVar[tuple[int, ...]]
    """Instance value: the numbers with which Python and Lua compute."""
    max_delay_ticks: ClassVar[int]
    """Instance value: the ticks that drain during `max_delay`."""
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

    def wait(self, now: int, ticks: int) -> int:
        """Return the microseconds until `ticks` have drained. `ticks`: more than 0."""
        clock, drain = self.ticks[:2]
        return ceil_div(ticks, drain) * clock - now % clock

    def _set_ticks(self, ticks: tuple[int, ...]) -> None:
        self.__dict__["ticks"] = ticks
        self.__dict__["max_delay_ticks"] = self.delay_ticks(self.effective_max_delay_us)

    def _admission(self, now: int, due: int, excess: int) -> Admission:
        """Return the admission of a charge whose turn comes when `due` ticks have drained.

        `excess`: the ticks that must drain before a retry passes, with the longest delay; 0 or less if it passes now.
        """
        if excess > 0:
            return False, self.wait(now, excess) / MICROSECONDS, 0.0
        return True, 0.0, self.wait(now, due) / MICROSECONDS if due > 0 else 0.0


class BucketLimit(DelayableLimit, frozen=True, kw_only=True):
    """A limit with a bucket: up to `burst` units at one instant, `quota` per `window` in the long run.

    `burst`: units, at least 1; None is the quota. `max_delay`: longest delay of a request in seconds; 0.0 disables
    delays. At most `burst + quota - 1` units pass in any window: to guarantee N, choose burst + quota <= N.
    """

    burst: int | None = None
    max_delay: float = 0.0

    words: ClassVar[tuple[str, ...]] = ("burst",)
    ticks: ClassVar[BucketTicks]

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
        self._set_ticks(bucket_ticks(self.quota or 1, self.window_us, self.most or 1))

    @property
    def most(self) -> int:
        return self.quota and (self.burst or self.quota)

    def _format_notation(self, names: Iterable[str]) -> str:
        return super()._format_notation(names).replace(f" burst {self.quota} ", " ")  # the default burst


class DrainingLimit(BucketLimit, frozen=True, kw_only=True):
    """A bucket that decides by its level. Subclasses define `expires`, `_level` and `_state`, the form of the state."""

    decide_ticks: ClassVar[tuple[int | None, int, int, int, int, int, int, int]]
    """Instance value: `(clock, drain, drain - 1, unit, burst, full, at_once, next_unit)`.

    `clock`, `drain`, `unit`, `burst` and `full` are the numbers of `ticks`, but `clock` is None if a clock step is a
    microsecond, so that nothing needs to be converted. Adding `drain - 1` to a number before its division by `drain`
    rounds the result up. `at_once`: the highest level in ticks at which a charge passes without delay. `next_unit`: the
    ticks that must be free for one unit to pass without delay, plus `drain - 1`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        clock, drain, unit, burst, full = self.ticks
        at_once = self.units_at_once * unit
        next_unit = max(unit, full - at_once) + drain - 1
        coarse_clock = None if clock == 1 else clock
        self.__dict__["decide_ticks"] = coarse_clock, drain, drain - 1, unit, burst, full, at_once, next_unit

    @property
    def units_at_once(self) -> int:
        """The most units in the bucket at which a charge passes without delay, if it fits."""
        return self.ticks[3]

    @property
    def max_per_window(self) -> int | None:
        return self.quota and self.most + self.quota - 1

    @property
    def numbers(self) -> tuple[int, ...]:
        clock, drain, unit, burst, _ = self.ticks
        return clock, drain, unit, burst, self.quota, self.units_at_once

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        clock, drain, rounding, unit, burst, full, at_once, next_unit = self.decide_ticks
        step = now if clock is None else now // clock
        level, ahead = self._level(state, step, drain, full)
        allowed, retry_after, delay = True, 0.0, 0.0
        if cost:
            over = level + cost * unit - full
            if cost > burst:
                allowed, retry_after = False, math.inf
            elif over > 0 or level > at_once:
                allowed, retry_after, delay = self._admit_later(now, level, over, max_delay)
            if allowed:
                level = over + full
            if allowed or ahead:
                # also if refused, when the clock stepped back: the old state would refuse until its time
                state = self._state(level, step, drain, full)
        # in clock steps: the wait until one unit more than `remaining` passes, and the wait until all has drained
        free = full - level
        remaining = free // unit if free > 0 and level <= at_once else 0
        next_wait = (next_unit + remaining * unit - free) // drain
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

    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        clock, drain, unit, _, full = self.ticks
        step = now // clock
        level, _ = self._level(state, step, drain, full)
        if delta > 0:
            settled_level = max(level, min(level + delta * unit, full + self.quota * unit))
        else:
            undrained = (at // clock - step) * drain
            refund = min(-delta * unit, undrained)  # drained units cannot be refunded
            if level > full:
                refund -= max(0, level - undrained)  # keep the part of delayed requests that were admitted later
            settled_level = min(level, max(0, level - refund))
        if settled_level == level:
            return state
        return self._state(settled_level, step, drain, full) if settled_level else None

    # the following six are for limits that take over the units of another one, see takeover.py

    @property
    def capacity(self) -> int:
        """See `takeover.Counting.capacity`."""
        return self.most

    def used(self, state: State, now: int) -> int:
        """See `takeover.Counting.used`."""
        clock, drain, unit, _, full = self.ticks
        return ceil_div(self._level(state, now // clock, drain, full)[0], unit)

    def until_used(self, state: State, now: int, units: int) -> int:
        """See `takeover.Counting.until_used`."""
        clock, drain, unit, _, full = self.ticks
        excess = self._level(state, now // clock, drain, full)[0] - units * unit
        return self.wait(now, excess) if excess > 0 else 0

    def room(self, cost: int, max_delay: int | None) -> int:
        """See `takeover.Counting.room`."""
        return self.most - cost + self.delay_ticks(max_delay) // self.ticks[2]

    def holding(self, now: int, units: int) -> State:
        """See `takeover.Counting.holding`."""
        return self._holding(now, units * self.ticks[2])

    def continued(self, old: Limit, state: State, now: int) -> State:
        """See `takeover.Counting.continued`."""
        if not isinstance(old, DrainingLimit):
            return None
        clock, drain, old_unit, _, full = old.ticks
        unit = self.ticks[2]
        whole, part = divmod(old._level(state, now // clock, drain, full)[0], old_unit)  # noqa: SLF001  # same class
        if unit != old_unit:
            part = min(unit, scale_up(part, unit, old_unit))
        return self._holding(now, whole * unit + part)

    def _holding(self, now: int, level: int) -> State:
        clock, drain, _, _, full = self.ticks
        return self._state(min(level, MAX_EXACT_INT // 2), now // clock, drain, full)

    def _level(self, state: State, step: int, drain: int, full: int) -> tuple[int, bool]:
        """Return the ticks that have not drained by `step`, and whether the state is later than `step`.

        Nothing drains if the clock steps back.
        """
        raise NotImplementedError

    def _state(self, level: int, step: int, drain: int, full: int) -> State:
        """Return the state of a bucket with this level."""
        raise NotImplementedError

    def _admit_later(self, now: int, _level: int, over: int, max_delay: int | None) -> Admission:
        """Return the admission of a charge that exceeds the capacity by `over` ticks, or does not pass at once."""
        return self._admission(now, over, over - self.delay_ticks(max_delay))


LevelState = tuple[int, int]
"""The level of a bucket at an instant: `(level, updated)`.

`level`: ticks that have not drained; more than full during delays or debt. `updated`: clock steps. It is a plain tuple,
because every admitted request makes one, and a `Struct` takes twice as long to make and to read.
"""


class LevelLimit(DrainingLimit, frozen=True, kw_only=True):
    """A bucket whose state is its level at an instant."""

    def expires(self, state: LevelState) -> int:
        clock, drain, *_ = self.ticks
        level, updated = state
        return (updated + ceil_div(level, drain)) * clock

    def _level(self, state: LevelState | None, step: int, drain: int, full: int) -> tuple[int, bool]:
        if state is None:
            return 0, False
        level, updated = state
        if step < updated:
            return level, True
        level -= (step - updated) * drain
        return (level if level > 0 else 0), False

    def _state(self, level: int, step: int, drain: int, full: int) -> LevelState:
        return level, step

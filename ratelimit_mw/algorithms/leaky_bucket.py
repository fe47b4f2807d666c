"""Leaky bucket: a queue that overflows when it is full. The Lua implementation is `leaky_bucket.lua`."""

import math
from typing import ClassVar

from msgspec.structs import replace

from ratelimit_mw.algorithms.bucket import Admission, LevelLimit, LevelState
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, Decision, Limit, check_int
from ratelimit_mw.core.memo import cached_property


class LeakyBucket(LevelLimit, frozen=True, kw_only=True):
    """Admits if the cost fits into the bucket, which leaks at quota / window, and the wait is at most `max_delay`.

    With a `max_delay` the bucket is a queue. Each request is delayed until all but `at_once` of the units before it
    have leaked. It is refused if that takes longer than `max_delay` seconds. For nginx's `limit_req` with `burst=B`,
    set `burst` to B + 1; for `nodelay`, leave out `max_delay`; for `delay=N`, set `at_once` to N.

    `at_once`: units, from 0 to `burst`. None means 0 with a `max_delay`, and `burst` without one. Without a `max_delay`
    the limit decides like `token_bucket`.
    """

    at_once: int | None = None

    algorithm: ClassVar[str] = "leaky_bucket"
    words: ClassVar[tuple[str, ...]] = ("burst", "at_once")
    not_in_bucket_id: ClassVar[tuple[str, ...]] = ("at_once",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_once is not None and check_int("at_once", self.at_once, 0) > self.most and self.quota:
            raise ConfigError(f"at_once: got {self.at_once}, expected at most the burst, {self.most}", code="RL-014")

    @property
    def max_per_window(self) -> int:
        return self.quota and self.most + self.quota - 1

    def decide(
        self, state: LevelState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, LevelState | None]:
        clock, _, unit, *_ = self.ticks
        step = now // clock
        level = self.level(state, step)
        admission = self._queue(now, level, cost, max_delay)
        if cost:
            if admission[0]:
                level += cost * unit
            if admission[0] or (state is not None and state[1] > step):
                # also if refused, when the clock stepped back: the old state would refuse until its time
                state = level, step
        return self.decision(now, level, admission, self._units_at_once * unit), state

    def with_max_delay(self, max_delay: float | None) -> Limit:
        """See `Limit.with_max_delay`. If `at_once` is not set, it becomes 0, whatever the `max_delay`."""
        return (
            super().with_max_delay(max_delay)
            if self.at_once is not None
            else replace(self, at_once=0).with_max_delay(max_delay)
        )

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return *super().numbers, self._units_at_once

    @cached_property
    def _units_at_once(self) -> int:
        if self.at_once is None:
            return 0 if self.max_delay else self.most
        return self.at_once

    def _queue(self, now: int, level: int, cost: int, max_delay: int | None) -> Admission:
        """Return the admission of a charge on a bucket at this level."""
        _, _, unit, burst, full = self.ticks
        if cost > burst:
            return False, math.inf, 0.0
        over = level + cost * unit - full
        ticks_before = level - self._units_at_once * unit  # ticks that must leak before its turn
        max_delay_ticks = self.delay_ticks(max_delay)
        if not cost or (over <= 0 and ticks_before <= max_delay_ticks):
            return True, 0.0, self.wait(now, ticks_before) / MICROSECONDS if cost and ticks_before > 0 else 0.0
        return False, self.wait(now, max(over, ticks_before - max_delay_ticks)) / MICROSECONDS, 0.0

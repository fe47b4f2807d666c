"""Leaky bucket: a queue that overflows when it is full. The Lua implementation is `leaky_bucket.lua`."""

from typing import ClassVar

from msgspec.structs import replace

from ratelimit_mw.algorithms.bucket import Admission, LevelLimit
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Limit, check_int


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
        if self.at_once is not None:
            check_int("at_once", self.at_once, 0)
        super().__post_init__()
        if self.units_at_once > self.most and self.quota:
            raise ConfigError(f"at_once: got {self.at_once}, expected at most the burst, {self.most}", code="RL-014")

    @property
    def units_at_once(self) -> int:
        if self.at_once is None:
            return 0 if self.max_delay else super().units_at_once
        return self.at_once

    def with_max_delay(self, max_delay: float | None) -> Limit:
        """See `Limit.with_max_delay`. If `at_once` is not set, it becomes 0, whatever the `max_delay`."""
        return (
            super().with_max_delay(max_delay)
            if self.at_once is not None
            else replace(self, at_once=0).with_max_delay(max_delay)
        )

    def room(self, cost: int, max_delay: int | None) -> int:
        """See `takeover.Counting.room`."""
        unit = self.ticks[2]
        return min(self.most - cost, self.units_at_once + self.delay_ticks(max_delay) // unit)

    def _admit_later(self, now: int, level: int, over: int, max_delay: int | None) -> Admission:
        ticks_before = level - self.decide_ticks[6]  # ticks that must leak before its turn
        return self._admission(now, ticks_before, max(over, ticks_before - self.delay_ticks(max_delay)))

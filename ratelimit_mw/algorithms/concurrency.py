"""Concurrency: how many are at work at once. Its Lua twin is `concurrency.lua`."""

import math
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from typing import ClassVar, Final

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.limit import Decision, Limit, seconds
from ratelimit_mw.ticks import EXACT, microseconds

MOST_SLOTS: Final = 10_000  # some 100 bytes each in Redis
LIFETIME: Final = 15.0  # seconds
RETRY: Final = 1.0  # seconds

Slots = dict[int, int]
"""When each slot ends unless it is renewed, by its name; both microseconds. Never empty, and never changed."""


class _Held(Limit, frozen=True):
    window: float = LIFETIME


class Concurrency(_Held, frozen=True, kw_only=True):
    """Admits while at most `quota` units are at work at once: a unit is a slot, held until it is given back.

    `quota`: slots, at most 10,000. `window`: a slot's lifetime, seconds: one that is neither renewed nor given back is
    free after that long, because whoever held it is gone. `retry`: seconds that a refused client is told to wait, more
    than 0: a hint, because nobody knows when a slot is given back.

    A charge takes `cost` slots, named `at`, `at + 1` and so on, for the `at` of its decision: no two are alike.
    `settle` with the negative cost and that `at` gives them back, twice as well as once; with the cost itself it renews
    them, and takes them again where they were lost. The slots of a key are the same whatever `quota` is.
    """

    retry: float = RETRY

    algorithm: ClassVar[str] = "concurrency"
    held: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quota > MOST_SLOTS:
            raise ConfigError(f"quota: found {self.quota}, allowed are at most {MOST_SLOTS} slots")
        if microseconds(seconds("retry", self.retry)) < 1:
            raise ConfigError(f"retry: found {self.retry!r}, allowed is more than 0 seconds")
        # without the quota: who changes it changes how many may be at work, and those who are stay so
        self.__dict__["bucket"] = self.bucket.replace(f"{self.quota}/", "")

    @property
    def longest_wait(self) -> float:
        return self.retry

    def decide(self, state: Slots | None, now: int, cost: int, max_delay: int | None) -> tuple[Decision, Slots | None]:
        quota, slots, at, retry_after = self.quota, self._at_work(state, now), now, 0.0
        used = len(slots)
        if allowed := not cost or used + cost <= quota:
            if cost:
                at = _free_name(slots, now, cost)
                state = {**slots, **dict.fromkeys(range(at, at + cost), now + self.window_us)}
                used += cost
        else:
            retry_after = self.retry if cost <= quota else math.inf
            if state is not None and max(state.values()) > now + self.window_us:
                state = slots  # else they would outlive their holders until that time comes again
        remaining = quota - used if used < quota else 0
        return Decision(allowed, quota, remaining, retry_after, self.retry, self.retry * (used > 0), 0.0, at), state

    def settle(self, state: Slots | None, now: int, delta: int, at: int) -> Slots | None:
        slots = self._at_work(state, now)
        names = range(max(at, 0), max(at, 0) + min(abs(delta), MOST_SLOTS))
        there = [name for name in names if name in slots]
        if delta > 0 and at <= EXACT // 2:  # names that follow must be exact
            lost = (name for name in names if name not in slots)
            there += islice(lost, max(0, 2 * self.quota - len(slots)))
            return {**slots, **dict.fromkeys(there, now + self.window_us)} if there else state
        if delta >= 0 or not there:
            return state
        return {name: end for name, end in slots.items() if name not in names} or None

    def expires(self, state: Slots) -> int:
        return max(state.values())

    @cached_property
    def notation(self) -> str:
        """What errors call it. Nothing reads it back: it is no rate."""
        return f"{self.quota} at once"

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return self.window_us, self.quota, microseconds(self.retry)

    def _at_work(self, state: Slots | None, now: int) -> Slots:
        """The slots that are held, in a dict of their own. No lifetime ends later than one that begins now."""
        latest = now + self.window_us
        return {name: min(end, latest) for name, end in (state or {}).items() if end > now}


def _free_name(slots: Slots, now: int, cost: int) -> int:
    """The first name from now on, and from the name of the last to end on, that is free with those after it.

    Whatever is taken at one instant is named after what was taken before, so there is next to nothing to look for.
    """
    name = now
    if slots:
        name = max(now, max((end, name) for name, end in slots.items())[1] + 1)
    while (taken := _last_in(slots, range(name, name + cost))) is not None:
        name = taken + 1
    return name


def _last_in(slots: Slots, names: Iterable[int]) -> int | None:
    """The last of these names that is taken."""
    return max((name for name in names if name in slots), default=None)

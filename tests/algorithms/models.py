"""The sequential models of section 6 of the design, in exact fractions, written from its text alone.

A model says only how much is free at an instant, and what taking does. The times of a decision are searched for.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction

from ratelimit_mw import Decision, SlidingWindowCounter, TokenBucket

SECOND = 1_000_000  # microseconds


def least(holds: Callable[[int], bool]) -> int:
    """The first microsecond from which `holds` is true; once true it stays so."""
    low, high = -1, 0
    while not holds(high):
        low, high = high, high * 2 + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Model(ABC):
    """What clients took of one limit. Times in whole microseconds, units in fractions."""

    whole: int  # units, when nothing was taken
    clock: int  # microseconds in a clock tick
    drains = False  # whether a decision names the instant at which all has drained
    refill: int  # microseconds until all is whole again, when nothing is reserved or owed

    @abstractmethod
    def free(self, now: int) -> Fraction:
        """Units that could pass at `now`; less than 0 while units are reserved or owed."""

    @abstractmethod
    def add(self, now: int, cost: int) -> None:
        """Take `cost` units."""

    @abstractmethod
    def move(self, now: int) -> None:
        """Bring a time ahead of `now` back to it, and keep the level."""

    @abstractmethod
    def settle(self, now: int, delta: int, at: int) -> None:
        """Take more, up to one quota of debt, or give back what still counts."""

    def decide(self, now: int, cost: int, max_delay: int = 0) -> Decision:
        """The decision on `cost` units, which are taken if they pass."""
        patience = max_delay // self.clock * self.clock
        seen = copy.copy(self)
        seen.move(now)
        allowed = cost == 0 or (cost <= self.whole and seen.free(now + patience) >= cost)
        retry = 0 if allowed else math.inf
        if allowed:
            seen.add(now, cost)
        elif cost <= self.whole:
            retry = least(lambda wait: seen.free(now + wait + patience) >= cost)
        if cost:
            vars(self).update(vars(seen))
        delay = least(lambda wait: seen.free(now + wait) >= 0) if allowed and cost else 0
        reset = least(lambda wait: seen.free(now + wait) >= self.whole)
        remaining = max(0, math.floor(seen.free(now)))
        seen.add(now, remaining)
        following = least(lambda wait: seen.free(now + wait) >= 1)
        return Decision(
            allowed=allowed,
            limit=self.whole,
            remaining=remaining,
            retry_after=retry / SECOND,
            next_after=following / SECOND,
            reset_after=reset / SECOND,
            delay=delay / SECOND,
            at=now + reset if self.drains else now,
        )


class Tokens(Model):
    """Tokens, refilled at quota / window and capped at the burst."""

    drains = True

    def __init__(self, limit: TokenBucket) -> None:
        self.whole = limit.burst or limit.quota
        self.quota = limit.quota
        self.clock = 1
        while (2 * self.whole + self.quota) * self._per_unit(limit).numerator >= 2**52:
            self.clock *= 10
        self.per_unit = self._per_unit(limit)  # clock ticks
        self.refill = math.ceil(self.whole * self.per_unit) * self.clock
        self.tokens = Fraction(self.whole)
        self.updated = 0  # clock ticks

    def _per_unit(self, limit: TokenBucket) -> Fraction:
        return Fraction(math.ceil(Fraction(round(limit.window * 1_000_000), self.clock)), limit.quota)

    def free(self, now: int) -> Fraction:
        gone = max(0, now // self.clock - self.updated)
        return min(Fraction(self.whole), self.tokens + gone / self.per_unit)

    def add(self, now: int, cost: int) -> None:
        if cost:
            self.tokens, self.updated = self.free(now) - cost, now // self.clock

    def move(self, now: int) -> None:
        self.updated = min(self.updated, now // self.clock)

    def settle(self, now: int, delta: int, at: int) -> None:
        tokens = self.free(now)
        if delta > 0:
            self.tokens = min(tokens, max(tokens - delta, Fraction(-self.quota)))
            self.updated = now // self.clock
            return
        undrained = (at // self.clock - now // self.clock) / self.per_unit
        back = min(Fraction(-delta), undrained)
        if tokens < 0:
            back -= max(Fraction(0), self.whole - tokens - undrained)  # what was reserved after it
        if back > 0:
            self.tokens, self.updated = min(Fraction(self.whole), tokens + back), now // self.clock


class Windows(Model):
    """Units in sub-windows that follow each other from the first hit of an empty state."""

    def __init__(self, limit: SlidingWindowCounter) -> None:
        self.whole = limit.quota
        self.buckets, self.strict = limit.buckets, limit.strict
        self.clock = 1
        while 2 * self.whole * self._length(limit) >= 2**53:
            self.clock *= 10
        self.length = self._length(limit)  # clock ticks
        self.refill = (self.buckets + 1) * self.length * self.clock
        self.start = 0  # of sub-window 0, clock ticks
        self.last = 0  # the newest sub-window there was
        self.units: dict[int, int] = {}  # of each sub-window that was hit

    def _length(self, limit: SlidingWindowCounter) -> int:
        ticks = math.ceil(Fraction(round(limit.window * 1_000_000), self.clock))
        return math.ceil(Fraction(ticks, limit.buckets))

    def _newest(self, now: int) -> int:
        return max(self.last, (now // self.clock - self.start) // self.length)

    def free(self, now: int) -> Fraction:
        newest = self._newest(now)
        oldest = newest - self.buckets
        used = sum(units for index, units in self.units.items() if index > oldest)
        weighted = self.units.get(oldest, 0)
        overlap = self.length - (now // self.clock - self.start - newest * self.length) - 1
        used += weighted if self.strict else math.floor(Fraction(weighted * overlap, self.length))
        return Fraction(self.whole - used)

    def add(self, now: int, cost: int) -> None:
        if not cost:
            return
        self.last = self._newest(now)
        self.units = {index: units for index, units in self.units.items() if index >= self.last - self.buckets}
        if not self.units:
            self.start, self.last = now // self.clock, 0
        self.units[self.last] = self.units.get(self.last, 0) + cost

    def move(self, now: int) -> None:
        self.start = min(self.start, now // self.clock - self.last * self.length)

    def settle(self, now: int, delta: int, at: int) -> None:
        seen = copy.copy(self)
        seen.move(now)
        newest = seen._newest(now)
        index = min(newest, (at // self.clock - seen.start) // self.length)
        if delta > 0:
            seen.add(now, max(0, min(delta, self.whole + int(seen.free(now)))))
        elif newest - self.buckets <= index and index in self.units:
            seen.last = newest
            left = {**self.units, index: max(0, self.units[index] + delta)}
            seen.units = {key: units for key, units in left.items() if units}
        if seen.units is not self.units:  # else nothing was corrected, and no time is moved
            vars(self).update(vars(seen))

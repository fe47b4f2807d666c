"""The sequential models of section 6 of the design, in exact fractions, written from its text alone.

A model only defines how many units are free at an instant, and what taking does. The times of a decision are found by
search.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from msgspec.structs import replace

from algorithms.calendar_model import bounds
from ratelimit_mw import (
    GCRA,
    CalendarWindow,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.algorithms.bucket import BucketLimit

SECOND = 1_000_000  # microseconds


def least(holds: Callable[[int], bool]) -> int:
    """Return the first microsecond at which `holds` is true. It must stay true from then on."""
    low, high = -1, 0
    while not holds(high):
        low, high = high, high * 2 + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Model(ABC):
    """The units that clients took from one limit. Times are whole microseconds, units are fractions."""

    whole: int  # free units if nothing was taken
    most: int  # units that can pass at once
    clock: int = 1  # microseconds in a clock step
    drains = False  # whether `at` of a decision is the instant at which all units have drained
    refill: int  # microseconds until all units are free again, if none is reserved or owed

    @abstractmethod
    def free(self, now: int) -> Fraction:
        """Return the units that could pass at `now`; negative while units are reserved or owed."""

    @abstractmethod
    def add(self, now: int, cost: int) -> None:
        """Take `cost` units."""

    @abstractmethod
    def move(self, now: int) -> None:
        """If the state is from after `now`, move it to `now` with the same level."""

    @abstractmethod
    def settle(self, now: int, delta: int, at: int) -> None:
        """Take more units, up to a debt of one quota, or refund those that still count."""

    def passes(self, now: int, cost: int, patience: int = 0) -> bool:
        """Return whether `cost` units pass at `now`, if they may be delayed by `patience` microseconds."""
        return self.free(now + patience) >= cost

    def decide(self, now: int, cost: int, max_delay: int = 0) -> Decision:
        """Return the decision on `cost` units, and take them if they pass."""
        patience = max_delay // self.clock * self.clock
        seen = copy.copy(self)
        seen.move(now)
        allowed = cost == 0 or (cost <= self.most and seen.passes(now, cost, patience))
        retry: float = 0 if allowed else math.inf
        if not allowed and cost <= self.most:
            retry = least(lambda wait: seen.passes(now + wait, cost, patience))
        delay = least(lambda wait: seen.passes(now + wait, cost)) if allowed and cost else 0
        if allowed:
            seen.add(now, cost)
        if cost:
            vars(self).update(vars(seen))
        reset = least(lambda wait: seen.free(now + wait) >= self.whole)
        remaining = math.floor(seen.free(now)) if seen.passes(now, 1) else 0
        seen.add(now, remaining)
        following = least(lambda wait: seen.passes(now + wait, 1))
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


class Bucket(Model):
    """Units that drain at quota / window. `level(now)` have not drained yet."""

    drains = True

    def __init__(self, limit: BucketLimit) -> None:
        self.whole = self.most = limit.burst or limit.quota
        self.quota = limit.quota
        while (2 * self.whole + self.quota) * self._per_unit(limit).numerator >= 2**52:
            self.clock *= 10
        self.per_unit = self._per_unit(limit)  # clock steps
        self.refill = math.ceil(self.whole * self.per_unit) * self.clock

    def _per_unit(self, limit: BucketLimit) -> Fraction:
        return Fraction(math.ceil(Fraction(round(limit.window * 1_000_000), self.clock)), limit.quota)

    @abstractmethod
    def level(self, now: int) -> Fraction:
        """Return the units that have not drained at `now`."""

    @abstractmethod
    def fill(self, now: int, level: Fraction) -> None:
        """Set the level at `now`."""

    def free(self, now: int) -> Fraction:
        return self.whole - self.level(now)

    def add(self, now: int, cost: int) -> None:
        if cost:
            self.fill(now, self.level(now) + cost)

    def settle(self, now: int, delta: int, at: int) -> None:
        level = self.level(now)
        if delta > 0:
            new = max(level, min(level + delta, Fraction(self.whole + self.quota)))
        else:
            undrained = (at // self.clock - now // self.clock) / self.per_unit
            reserved_after = max(Fraction(0), level - undrained) if level > self.whole else Fraction(0)
            new = max(Fraction(0), level - max(Fraction(0), min(Fraction(-delta), undrained) - reserved_after))
        if new != level:  # otherwise nothing is settled, and the state keeps its time
            self.fill(now, new)


class Tokens(Bucket):
    """Tokens that are refilled at quota / window and capped at the burst."""

    def __init__(self, limit: BucketLimit) -> None:
        super().__init__(limit)
        self.tokens = Fraction(self.whole)
        self.updated = 0  # clock steps

    def level(self, now: int) -> Fraction:
        gone = max(0, now // self.clock - self.updated)
        return self.whole - min(Fraction(self.whole), self.tokens + gone / self.per_unit)

    def fill(self, now: int, level: Fraction) -> None:
        self.tokens, self.updated = self.whole - level, now // self.clock

    def move(self, now: int) -> None:
        self.updated = min(self.updated, now // self.clock)


class Queue(Tokens):
    """A leaky bucket: units that fit wait until all but `at_once` units before them have leaked."""

    def __init__(self, limit: LeakyBucket) -> None:
        super().__init__(limit)
        usual = 0 if limit.max_delay else self.whole
        self.at_once = usual if limit.at_once is None else limit.at_once

    def passes(self, now: int, cost: int, patience: int = 0) -> bool:
        return self.free(now) >= cost and self.level(now + patience) <= self.at_once


class Arrivals(Bucket):
    """A TAT (theoretical arrival time) and, while the bucket is above its burst, the time at which it was set."""

    def __init__(self, limit: GCRA) -> None:
        super().__init__(limit)
        self.tat = Fraction(0)  # clock steps
        self.updated: int | None = None  # clock steps

    def level(self, now: int) -> Fraction:
        step = now // self.clock
        if self.updated is not None:
            return max(Fraction(0), self.tat - max(step, self.updated)) / self.per_unit
        return min(Fraction(self.whole), max(Fraction(0), self.tat - step) / self.per_unit)

    def fill(self, now: int, level: Fraction) -> None:
        step = now // self.clock
        self.tat = step + level * self.per_unit if level else Fraction(0)
        self.updated = step if level > self.whole else None

    def move(self, now: int) -> None:
        step = now // self.clock
        if self.updated is None:
            self.tat = min(self.tat, step + self.whole * self.per_unit)
        elif self.updated > step:
            self.fill(now, self.level(now))


class Window(Model):
    """Units of a window that starts with its first hit."""

    def __init__(self, limit: FixedWindow) -> None:
        self.whole = self.most = limit.quota
        self.refill = round(limit.window * SECOND)
        self.count, self.start = 0, -self.refill

    def free(self, now: int) -> Fraction:
        return Fraction(self.whole - (self.count if now - self.start < self.refill else 0))

    def add(self, now: int, cost: int) -> None:
        if not cost:
            return
        if not self.count or now - self.start >= self.refill:
            self.count, self.start = 0, now
        self.count, self.start = self.count + cost, min(now, self.start)

    def move(self, now: int) -> None:
        self.start = min(self.start, now)

    def settle(self, now: int, delta: int, at: int) -> None:
        used = self.whole - int(self.free(now))
        if delta > 0:
            self.add(now, max(0, min(delta, 2 * self.whole - used)))
        elif used and at >= min(self.start, now) and delta:
            self.count, self.start = max(0, used + delta), min(self.start, now)


class Calendar(Model):
    """Units of a calendar period. It goes on if the clock steps back over its begin by up to a minute."""

    def __init__(self, limit: CalendarWindow) -> None:
        self.limit, self.whole, self.most = limit, limit.quota, limit.quota
        self.count, self.start = 0, -(10**18)
        self.periods: list[tuple[int, int]] = []

    def period(self, instant: int) -> tuple[int, int]:
        for begin, end in self.periods:
            if begin <= instant < end:
                return begin, end
        self.periods.append(bounds(self.limit.period, self.limit.zone, self.limit.start, instant))
        return self.periods[-1]

    def goes_on(self, now: int) -> bool:
        """Return whether `now` is before the period of the units, which still goes on."""
        return self.count > 0 and now < self.period(self.start)[0] and self.start - now <= 60 * SECOND

    def first(self, now: int) -> int:
        return self.start if self.goes_on(now) else min(self.start, now)

    def free(self, now: int) -> Fraction:
        counts = self.goes_on(now) or self.start >= self.period(now)[0]
        return Fraction(self.whole - (self.count if counts else 0))

    def add(self, now: int, cost: int) -> None:
        if not cost:
            return
        if self.free(now) == self.whole:
            self.count, self.start = 0, now
        self.start, self.count = self.first(now), self.count + cost

    def move(self, now: int) -> None:
        self.start = self.first(now)

    def settle(self, now: int, delta: int, at: int) -> None:
        used = self.whole - int(self.free(now))
        if delta > 0:
            self.add(now, max(0, min(delta, 2 * self.whole - used)))
        elif used and at >= self.first(now) and delta:
            self.start, self.count = self.first(now), max(0, used + delta)

    def decide(self, now: int, cost: int, max_delay: int = 0) -> Decision:
        decision = super().decide(now, cost, max_delay)
        return replace(decision, at=self.start if self.goes_on(now) else now)


class Log(Model):
    """All units, with their instants."""

    def __init__(self, limit: SlidingWindowLog) -> None:
        self.whole, self.most = limit.quota, min(limit.quota, 1000)
        self.refill = round(limit.window * SECOND)
        self.units: dict[int, int] = {}  # by instant

    def free(self, now: int) -> Fraction:
        return Fraction(self.whole - sum(self._counting(now).values()))

    def add(self, now: int, cost: int) -> None:
        if cost:
            self.units = self._moved(now)
            self.units[now] = self.units.get(now, 0) + cost

    def move(self, now: int) -> None:
        if self.units and max(self.units) > now:
            self.units = self._moved(now)

    def settle(self, now: int, delta: int, at: int) -> None:
        if delta > 0:
            self.add(now, max(0, min(delta, self.whole + int(self.free(now)))))
        elif delta and at in self._counting(now):
            self.units = {**self.units, at: max(0, self.units[at] + delta)}
            self.units = {instant: units for instant, units in self._moved(now).items() if units}

    def _counting(self, now: int) -> dict[int, int]:
        return {instant: units for instant, units in self.units.items() if instant > now - self.refill}

    def _moved(self, now: int) -> dict[int, int]:
        """Return the units without those that no longer count. Units from after `now` are moved to it."""
        moved: dict[int, int] = {}
        for instant, units in self._counting(now).items():
            moved[min(instant, now)] = moved.get(min(instant, now), 0) + units
        return moved


class SubWindows(Model):
    """Units in sub-windows that follow each other from the first hit of an empty state."""

    def __init__(self, limit: SlidingWindowCounter) -> None:
        self.whole = self.most = limit.quota
        self.buckets, self.strict = limit.buckets, limit.strict
        while 2 * self.whole * self._length(limit) >= 2**53:
            self.clock *= 10
        self.length = self._length(limit)  # clock steps
        self.refill = (self.buckets + 1) * self.length * self.clock
        self.start = 0  # of sub-window 0, clock steps
        self.last = 0  # the newest sub-window that was hit
        self.units: dict[int, int] = {}  # by sub-window

    def _length(self, limit: SlidingWindowCounter) -> int:
        steps = math.ceil(Fraction(round(limit.window * 1_000_000), self.clock))
        return math.ceil(Fraction(steps, limit.buckets))

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
        elif delta and newest - self.buckets <= index and index in self.units:
            seen.last = newest
            left = {**self.units, index: max(0, self.units[index] + delta)}
            seen.units = {key: units for key, units in left.items() if units}
        if seen.units is not self.units:  # otherwise nothing is settled, and the state keeps its time
            vars(self).update(vars(seen))


class Tickets(Model):
    """Guava's RateLimiter in exact fractions, with its terms. Times are in clock steps.

    There is one difference: the price of stored permits is rounded down to whole ticks along the line of prices, so
    that it does not depend on how the permits are split into charges.
    """

    def __init__(self, limit: Smooth) -> None:
        self.most = self.quota = limit.quota
        self.clock = limit.ticks[0]
        length = math.ceil(Fraction(limit.window_us, self.clock))
        self.stable = Fraction(length, limit.quota)
        self.cold = limit.cold_factor if limit.warmup else 0
        self.tick = Fraction(math.gcd(limit.quota, length), limit.quota)
        if self.cold:
            self._warm_up(math.ceil(Fraction(round(limit.warmup * SECOND), self.clock)))
        else:
            self.max = Fraction(math.floor(Fraction(round(limit.max_burst * SECOND), self.clock))) / self.stable
            self.cool_down = self.stable
        self.whole = 1 if self.cold else math.floor(self.max) + 1
        self.stored, self.wait, self.updated = self.max, Fraction(0), 0
        self.held = Fraction(0)  # the part of the wait that is the price of charges that were delayed themselves
        self.paid_ahead = Fraction(0)  # permits in the wait that were not stored

    def _warm_up(self, warmup: int) -> None:
        self.threshold = warmup / self.stable / 2
        self.max = self.threshold + 2 * warmup / (self.stable * (1 + self.cold))
        self.slope = self.stable * (self.cold - 1) / (self.max - self.threshold)
        self.cool_down = warmup / self.max
        self.tick /= Fraction(self.cold + 5, math.gcd(4, self.cold + 1))

    def _to_drain(self, permits: Fraction) -> Fraction:
        """Return how much more the stored permits cost than others; negative if less."""
        if not self.cold:
            return -permits * self.stable
        above = max(Fraction(0), permits - self.threshold)
        return math.floor(above * above * self.slope / 2 / self.tick) * self.tick

    def _price(self, units: int) -> Fraction:
        left = max(Fraction(0), self.stored - units)
        return units * self.stable + self._to_drain(self.stored) - self._to_drain(left)

    def _reserve(self, units: int) -> None:
        self.wait += self._price(units)
        self.paid_ahead += max(Fraction(0), units - self.stored)
        self.stored = max(Fraction(0), self.stored - units)

    def _seen(self, now: int) -> "Tickets":
        seen = copy.copy(self)
        passed = max(0, now // self.clock - self.updated)
        idle = max(Fraction(0), passed - self.wait)
        seen.wait = max(Fraction(0), self.wait - passed)
        seen.held = min(self.held, seen.wait)
        seen.stored = min(self.max, self.stored + idle / self.cool_down)
        seen.paid_ahead = min(self.paid_ahead, self._most_ahead(seen.wait))
        seen.updated = now // self.clock
        return seen

    def _most_ahead(self, wait: Fraction) -> Fraction:
        """Return the most permits that can cause such a wait, rounded up to a tick."""
        ratio = self.stable / self.cool_down
        return math.ceil(wait / self.tick / ratio.numerator) * ratio.numerator * self.tick / self.stable

    def decide(self, now: int, cost: int, max_delay: int = 0) -> Decision:
        seen, patience = self._seen(now), max_delay // self.clock

        def us(wait: Fraction) -> int:
            return math.ceil(wait) * self.clock - now % self.clock if wait > 0 else 0

        allowed = cost == 0 or (cost <= self.quota and seen.wait <= patience)
        retry: float = 0 if allowed else us(seen.wait - patience) if cost <= self.quota else math.inf
        delay = us(seen.wait) if allowed and cost else 0
        if allowed and cost:
            late = seen.wait > 0
            seen._reserve(cost)
            seen.held = seen.held + seen.wait - (self._seen(now).wait) if late else Fraction(0)
        if cost and (allowed or self.updated > now // self.clock):
            vars(self).update(vars(seen))
        remaining = 0 if seen.wait else 1 if self.cold else math.floor(seen.stored) + 1
        following = seen.wait or seen._price(remaining)
        short = 0 if self.cold else max(Fraction(0), self.whole - 1 - seen.stored) * self.stable
        return Decision(
            allowed=allowed,
            limit=self.whole,
            remaining=remaining,
            retry_after=retry / SECOND,
            next_after=us(following) / SECOND,
            reset_after=us(seen.wait + short) / SECOND,
            delay=delay / SECOND,
            at=now + us(seen.wait + short),
        )

    def settle(self, now: int, delta: int, at: int) -> None:
        seen = self._seen(now)
        units = min(abs(delta), 2 * self.quota + self.whole if not self.cold else 2 * self.quota + self._most_stored())
        left = Fraction(at // self.clock - now // self.clock)
        if delta > 0:
            seen._owe(units)
        elif delta < 0 < left:
            seen._give_back(units, left)
        if vars(seen) != vars(self._seen(now)):  # otherwise nothing is settled, and the state keeps its time
            vars(self).update(vars(seen))

    def _most_stored(self) -> int:
        return math.floor(self.max) + 1

    def _owe(self, units: int) -> None:
        full = copy.copy(self)
        full.stored = self.max if self.cold else Fraction(0)
        debt = full._price(self.quota) + self.quota * self.stable
        if self.wait < debt:
            self._reserve(units)
            self.wait = min(self.wait, debt)
            self.paid_ahead = min(self.paid_ahead, self._most_ahead(self.wait))

    def _give_back(self, units: int, left: Fraction) -> None:
        if not self.cold:
            left += (self.max - self.whole + 1) * self.stable  # a last fraction of a unit causes no wait
            level = self.wait + (self.max - self.stored) * self.stable  # clock steps until all permits are stored again
            later = max(Fraction(0), level - left)
            back = max(Fraction(0), min(units * self.stable, left) - min(self.held, later))
            self.stored = min(self.max, self.stored + max(Fraction(0), back - self.wait) / self.stable)
            self.wait = max(Fraction(0), self.wait - back)
            self._release(back, later)
            self.paid_ahead = self.wait / self.stable
            return
        restored = self.stored + units - self.paid_ahead
        stored = min(self.max, max(Fraction(0), restored))
        price = units * self.stable + self._to_drain(stored) - self._to_drain(self.stored)
        later = max(Fraction(0), self.wait - left)
        back = max(Fraction(0), min(price, left) - min(self.held, later))
        self.wait = max(Fraction(0), self.wait - back)
        self.stored, self.paid_ahead = stored, max(Fraction(0), -restored)
        self._release(back, later)

    def _release(self, back: Fraction, later: Fraction) -> None:
        """Subtract a refund of the last charge from `held`, as if the charge had never been delayed."""
        if not later:
            self.held = max(Fraction(0), self.held - back)
        self.held = min(self.held, self.wait)

    def free(self, now: int) -> Fraction:
        raise NotImplementedError  # a charge may take more permits than are stored

    def add(self, now: int, cost: int) -> None:
        raise NotImplementedError

    def move(self, now: int) -> None:
        raise NotImplementedError


MODELS: dict[type[Limit], Callable[[Any], Model]] = {
    FixedWindow: Window,
    SlidingWindowCounter: SubWindows,
    SlidingWindowLog: Log,
    TokenBucket: Tokens,
    GCRA: Arrivals,
    LeakyBucket: Queue,
    Smooth: Tickets,
    CalendarWindow: Calendar,
}


def model_of(limit: Limit) -> Model:
    return MODELS[type(limit)](limit)

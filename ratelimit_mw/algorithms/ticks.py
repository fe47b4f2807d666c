"""Exact arithmetic in integers that a double holds, so that Python and Lua compute the same numbers.

A bucket's level is counted in *ticks*, small enough that one unit and the refill of one clock tick are both whole
numbers of them. A clock tick is one microsecond; where the numbers would not fit, the smallest power of ten
microseconds that does.
"""

from math import gcd
from typing import NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT

_MAX_CLOCK_TICK = 10**15  # a clock tick of thirty years: nothing that passes validation needs as much


def ceil_div(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


def shift_at(at: int, ticks: int, drain: int, clock: int) -> int:
    """The instant at which so many ticks more have drained, or fewer below 0: with `at` rounded up, it is too."""
    clock_ticks = abs(ticks) // drain
    return (at // clock + (clock_ticks if ticks > 0 else -clock_ticks)) * clock


# Plain tuples, because they are unpacked on every decision.
BucketTicks = tuple[int, int, int, int, int]
"""`(clock, drain, unit, burst, full)`: microseconds in a clock tick; ticks that leave the bucket in one clock tick;
ticks in one unit; units the bucket holds; ticks the bucket holds."""

CounterTicks = tuple[int, int]
"""`(clock, length)`: microseconds in a clock tick; clock ticks in one sub-window."""


def bucket_ticks(quota: int, window: int, burst: int) -> BucketTicks:
    """Ticks for `quota` units per `window` microseconds and a bucket of `burst` units.

    The largest number that can occur is a full bucket in full debt with one more burst asked for: `2 * burst + quota`
    units. Raises `ConfigError` when no clock tick makes that fit into 2**52.
    """
    clock = 1
    while clock <= _MAX_CLOCK_TICK:
        length = ceil_div(window, clock)
        shared = gcd(quota, length)
        unit = length // shared
        if (2 * burst + quota) * unit < MAX_EXACT_INT // 2:
            return clock, quota // shared, unit, burst, burst * unit
        clock *= 10
    raise ConfigError(
        f"quota {quota} with burst {burst} is too large to count exactly: 2 * burst + quota must stay below 2**52"
    )


def counter_ticks(quota: int, window: int, buckets: int) -> CounterTicks:
    """Ticks for `quota` units per `window` microseconds, counted in `buckets` sub-windows.

    The largest number that can occur is a count in full debt times the length: `2 * quota * length`.
    Raises `ConfigError` when no clock tick makes that fit into 2**53.
    """
    clock = 1
    while clock <= _MAX_CLOCK_TICK:
        length = ceil_div(ceil_div(window, clock), buckets)
        if 2 * quota * length < MAX_EXACT_INT:
            return clock, length
        clock *= 10
    raise ConfigError(f"quota {quota} is too large to count exactly: it must stay below 2**52")


SmoothTicks = tuple[int, int, int, int, int]
"""`(clock, drain, fresh, own, full)`: microseconds in a clock tick; ticks in one clock tick; ticks of time that a unit
costs; ticks of storage that it takes up; ticks of storage that there are."""


class WarmUp(NamedTuple):
    """The price of what is stored while a limit warms up: above `edge` ticks of storage units cost more.

    Guava's line: from `cold_factor` times the usual price, with all stored, down to the usual price at the edge. With u
    the ticks above the edge, the units down to it cost `over * u * u / under` ticks more: a whole number, rounded down,
    of what is stored, so that the price of many units is the same in whatever charges they are taken.
    """

    edge: int
    numerator: int
    denominator: int
    scale: int  # a tick is such a part of one that would do without a warm-up

    def surcharge(self, stored: int) -> int:
        """By how much all that is stored costs more than it would at the usual price; ticks."""
        above = stored - self.edge
        return above * above * self.numerator // self.denominator if above > 0 else 0


def stored_us(idle: int, cold: int, clock: int) -> int:
    """Clock ticks of storage for so many idle microseconds: rounded so that nobody gets more than that."""
    return ceil_div(idle, clock) if cold else idle // clock


def smooth_ticks(quota: int, window: int, idle: int, cold: int) -> tuple[SmoothTicks, WarmUp | None]:
    """Ticks for `quota` units per `window` microseconds, `idle` microseconds to store, and a cold factor, 0 for none.

    A sum of prices stays below 2**50, and Lua's long division below 2**53. Raises `ConfigError` when no clock tick
    makes that fit.
    """
    clock = 1
    while clock <= _MAX_CLOCK_TICK:
        length = ceil_div(window, clock)
        shared = gcd(quota, length)
        ticks, warm_up, fits = _smooth_ticks(
            clock, quota // shared, length // shared, stored_us(idle, cold, clock), cold
        )
        _, _, unit_time, unit_storage, full = ticks
        max_price = full + 4 * quota * max(unit_time, unit_storage) + (warm_up.surcharge(full) if warm_up else 0)
        if fits and max_price < MAX_EXACT_INT // 8:
            return ticks, warm_up
        clock *= 10
    raise ConfigError(f"quota {quota} is too large to count exactly: its price must stay below 2**50")


def _smooth_ticks(clock: int, drain: int, unit: int, idle: int, cold: int) -> tuple[SmoothTicks, WarmUp | None, bool]:
    """The ticks, and whether Lua can divide what they come to."""
    if not cold:
        return (clock, drain, unit, unit, idle * drain), None, True
    part = gcd(4, cold + 1)
    scale, unit_storage, time = (cold + 5) // part, 2 * (cold + 1) // part, idle * drain
    # with f the cold factor: a quota of stored units takes (f + 5) / 2 (f + 1) of a warm-up, and half a warm-up of them
    # is below the edge
    numerator, denominator = scale * (cold - 1) * part * part, 16 * (cold + 1)
    twos = gcd(numerator, denominator, 2**20)  # smaller numbers are easier to divide
    warm_up = WarmUp(time * unit_storage // 2, numerator // twos, denominator // twos * time, scale)
    most = 4 * time // part  # above the edge
    fits = (warm_up.denominator + most * warm_up.numerator) * 2 <= MAX_EXACT_INT
    return (clock, drain * scale, unit * scale, unit * unit_storage, time * scale), warm_up, fits

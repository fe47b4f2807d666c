"""Exact arithmetic with integers that a double can represent, so that Python and Lua compute the same numbers.

A bucket's level is counted in *ticks*. One unit is a whole number of ticks, and a whole number of ticks drains in one
clock step. A clock step is one microsecond. If the numbers would then be too large, it is the smallest power of ten
microseconds with which they fit.
"""

from math import ceil, floor, gcd
from typing import Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT

# microseconds; the last one, about thirty years, is more than any valid limit needs
_CLOCK_STEPS: Final = [10**power for power in range(16)]


def ceil_div(a: int, b: int) -> int:
    """Return `a / b`, rounded up."""
    return -(-a // b)


def scale_up(units: int, by: int, of: int) -> int:
    """Return `units * by / of`, rounded up. If the product is inexact as a double, the result may be one too high."""
    if units * by < MAX_EXACT_INT:
        return ceil_div(units * by, of)
    return ceil(units / of * by) + 1  # as in Lua, where all numbers are doubles


def scale_down(units: int, by: int, of: int) -> int:
    """Return `units * by / of`, rounded down. If the product is inexact as a double, the result may be one too low."""
    if units * by < MAX_EXACT_INT:
        return units * by // of
    return max(0, floor(units / of * by) - 1)


# Plain tuples, because every decision unpacks them.
BucketTicks = tuple[int, int, int, int, int]
"""`(clock, drain, unit, burst, full)`: microseconds per clock step; ticks that drain per clock step; ticks per unit;
units that the bucket holds; ticks that the bucket holds."""

CounterSteps = tuple[int, int]
"""`(clock, length)`: microseconds per clock step; clock steps per sub-window."""


def bucket_ticks(quota: int, window: int, burst: int) -> BucketTicks:
    """Return the ticks for `quota` units per `window` microseconds and a bucket of `burst` units.

    The largest possible number is a full bucket in full debt plus a charge of one burst: `2 * burst + quota` units.
    Raises `ConfigError` if it does not fit into 2**52 with any clock step.
    """
    for clock in _CLOCK_STEPS:
        length = ceil_div(window, clock)
        shared = gcd(quota, length)
        unit = length // shared
        if (2 * burst + quota) * unit < MAX_EXACT_INT // 2:
            return clock, quota // shared, unit, burst, burst * unit
    raise ConfigError(
        f"quota {quota} with burst {burst} is too large to count exactly: 2 * burst + quota must stay below 2**52",
        code="RL-013",
    )


def counter_steps(quota: int, window: int, buckets: int) -> CounterSteps:
    """Return the clock step, and the steps in each of the `buckets` sub-windows of `window` microseconds.

    The largest possible number is a count in full debt times the length: `2 * quota * length`. Raises `ConfigError` if
    it does not fit into 2**53 with any clock step.
    """
    for clock in _CLOCK_STEPS:
        length = ceil_div(ceil_div(window, clock), buckets)
        if 2 * quota * length < MAX_EXACT_INT:
            return clock, length
    raise ConfigError(f"quota {quota} is too large to count exactly: it must stay below 2**52", code="RL-013")


SmoothTicks = tuple[int, int, int, int, int]
"""`(clock, drain, unit_time, unit_storage, full)`: microseconds per clock step; ticks per clock step; ticks of time
that a unit costs; ticks of storage that a unit takes up; ticks of storage in total."""


class WarmUp(NamedTuple):
    """The price of stored units during a warm-up: above `edge` ticks of storage, units cost more.

    As in Guava, the price of a unit is `cold_factor` times the stable price if storage is full, and falls linearly to
    the stable price at the edge. Let u be the ticks above the edge. The units from there down to the edge cost
    `numerator * u * u / denominator` ticks more than at the stable price. The result is rounded down and depends only
    on the storage, so that the price of many units is the same for any division into charges.
    """

    edge: int
    numerator: int
    denominator: int
    scale: int  # ticks per tick of the same limit without a warm-up

    def surcharge(self, stored: int) -> int:
        """Return by how many ticks all stored units cost more than at the stable price."""
        above = stored - self.edge
        return above * above * self.numerator // self.denominator if above > 0 else 0


def storage_steps(idle: int, cold: int, clock: int) -> int:
    """Return the clock steps of storage for `idle` microseconds, rounded so that clients never gain."""
    return ceil_div(idle, clock) if cold else idle // clock


def smooth_ticks(quota: int, window: int, idle: int, cold: int) -> tuple[SmoothTicks, WarmUp | None]:
    """Return the ticks for `quota` units per `window` microseconds, and the warm-up, if any.

    `idle`: microseconds that can be stored. `cold`: the cold factor, 0 without a warm-up. Sums of prices stay below
    2**50, and Lua's long division below 2**53. Raises `ConfigError` if that is impossible with any clock step.
    """
    for clock in _CLOCK_STEPS:
        length = ceil_div(window, clock)
        shared = gcd(quota, length)
        ticks, warm_up, fits = _smooth_ticks(
            clock, quota // shared, length // shared, storage_steps(idle, cold, clock), cold
        )
        _, _, unit_time, unit_storage, full = ticks
        max_price = full + 4 * quota * max(unit_time, unit_storage) + (warm_up.surcharge(full) if warm_up else 0)
        if fits and max_price < MAX_EXACT_INT // 8:
            return ticks, warm_up
    raise ConfigError(f"quota {quota} is too large to count exactly: its price must stay below 2**50", code="RL-013")


def _smooth_ticks(clock: int, drain: int, unit: int, idle: int, cold: int) -> tuple[SmoothTicks, WarmUp | None, bool]:
    """Return the ticks, the warm-up, if any, and whether Lua can divide exactly."""
    if not cold:
        return (clock, drain, unit, unit, idle * drain), None, True
    part = gcd(4, cold + 1)
    scale, unit_storage, time = (cold + 5) // part, 2 * (cold + 1) // part, idle * drain
    # Let f be the cold factor, and n the units that the stable rate admits in a warm-up. Storage holds (f + 5) / (2 (f
    # + 1)) * n units. Of these, n / 2 are below the edge.
    numerator, denominator = scale * (cold - 1) * part * part, 16 * (cold + 1)
    twos = gcd(numerator, denominator, 2**20)  # smaller numbers need fewer steps of Lua's long division
    warm_up = WarmUp(time * unit_storage // 2, numerator // twos, denominator // twos * time, scale)
    most = 4 * time // part  # ticks above the edge
    fits = (warm_up.denominator + most * warm_up.numerator) * 2 <= MAX_EXACT_INT
    return (clock, drain * scale, unit * scale, unit * unit_storage, time * scale), warm_up, fits

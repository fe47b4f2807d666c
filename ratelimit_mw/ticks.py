"""Exact arithmetic in integers that a double holds, so that Python and Lua compute the same numbers.

A bucket's level is counted in *ticks*, small enough that one unit and the refill of one clock tick are both whole
numbers of them. A clock tick is one microsecond; where the numbers would not fit, the smallest power of ten
microseconds that does.
"""

from math import gcd

from ratelimit_mw.errors import ConfigError

EXACT = 2**53  # every integer up to here is a double; floor(a / b) in doubles is exact below it
MICROSECONDS = 1_000_000  # in a second
_COARSEST = 10**15  # a clock tick of thirty years: nothing that passes validation needs as much


def ceil_div(a: int, b: int) -> int:
    """`a / b`, rounded up."""
    return -(-a // b)


def microseconds(seconds: float) -> int:
    """Seconds to whole microseconds. `round`, because truncating loses one now and then."""
    return round(seconds * MICROSECONDS)


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
    while clock <= _COARSEST:
        length = ceil_div(window, clock)
        shared = gcd(quota, length)
        unit = length // shared
        if (2 * burst + quota) * unit < EXACT // 2:
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
    while clock <= _COARSEST:
        length = ceil_div(ceil_div(window, clock), buckets)
        if 2 * quota * length < EXACT:
            return clock, length
        clock *= 10
    raise ConfigError(f"quota {quota} is too large to count exactly: it must stay below 2**52")

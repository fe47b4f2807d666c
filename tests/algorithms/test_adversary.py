"""Tests the exact worst window: the last column of the table of algorithms, and limits that stay below it."""

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.adversary import NOW, Adversary, bound, busiest, climb, replayed
from profiles import PROOF
from ratelimit_mw import (
    GCRA,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.algorithms.bucket import BucketLimit, LevelState
from ratelimit_mw.core.limit import microseconds

pytestmark = pytest.mark.promise(3)

QUOTAS = range(1, 7 if PROOF else 6)
WINDOWS = range(2, 13) if PROOF else (4, 5, 7, 12)  # microseconds
BUCKETS = (1, 2, 3, 4) if PROOF else (1, 2, 3)
BURSTS = (1, 2, 3, 5)
DELAYS = (1, 3, 6) if PROOF else (1, 3)  # microseconds

RATES = [(quota, window / 1e6) for quota, window in product(QUOTAS, WINDOWS)]
SLOW = [rate for rate in RATES if rate[0] <= microseconds(rate[1])]  # at most a unit per microsecond
OF_A_BUCKET = (TokenBucket, GCRA, LeakyBucket)


@cache
def worst(limit: Limit, *, leaving: bool = False) -> int:
    """Return the most units in one window, after checking that its schedule reaches them from the initial state."""
    found = Adversary(limit).worst(leaving=leaving)
    assert busiest(replayed(limit, found.schedule, leaving=leaving), limit.window_us) == found.units
    return found.units


def same(limits: Iterable[Limit], exactly: Callable[[Any], int], *, leaving: bool = False) -> None:
    """Check that the worst window of each limit has exactly `exactly(limit)` units."""
    tried = list(limits)
    found = {repr(limit): worst(limit, leaving=leaving) for limit in tried}
    assert found == {repr(limit): exactly(limit) for limit in tried}


def of_a_counter(limit: SlidingWindowCounter) -> int:
    """Return twice the quota, or less if sub-windows are so short that a microsecond of one weighs a unit.

    `over`: microseconds by which sub-windows of whole microseconds are together longer than the window.
    """
    clock, length = limit.steps
    assert clock == 1
    over = limit.buckets * length - limit.window_us
    return max(limit.quota, 2 * limit.quota - limit.quota * (1 + over) // length)


def of_a_bucket(limit: BucketLimit) -> int:
    """Return burst plus quota less one unit. A bucket of one unit refills once in a number of whole microseconds."""
    if limit.most > 1:
        return bound(limit)
    return math.ceil(limit.window_us / math.ceil(limit.window_us / limit.quota))


def test_fixed_window_reaches_exactly_its_bound() -> None:
    same([FixedWindow(*rate) for rate in RATES], bound)


def test_sliding_window_log_reaches_exactly_its_bound() -> None:
    small = [(quota, window) for quota, window in RATES if math.comb(quota + microseconds(window), quota) < 20_000]
    same([SlidingWindowLog(*rate) for rate in small], bound)


@pytest.mark.parametrize("buckets", BUCKETS)
def test_worst_window_of_a_sliding_window_counter_matches_its_formula(buckets: int) -> None:
    limits = [SlidingWindowCounter(*rate, buckets=buckets) for rate in RATES if buckets <= microseconds(rate[1])]
    same(limits, of_a_counter)
    assert all(of_a_counter(limit) <= bound(limit) for limit in limits)


@pytest.mark.parametrize("buckets", BUCKETS)
def test_strict_sliding_window_counter_reaches_exactly_its_bound(buckets: int) -> None:
    rates = [rate for rate in RATES if buckets <= microseconds(rate[1])]
    same([SlidingWindowCounter(*rate, buckets=buckets, strict=True) for rate in rates], bound)


@pytest.mark.parametrize(
    ("quota", "window", "buckets", "most"),
    [
        (3, 4, 1, 6),
        (4, 4, 1, 7),  # a microsecond of overlap weighs one of 4 units
        (5, 4, 1, 9),
        (3, 12, 3, 6),
        (5, 12, 3, 9),
        (3, 7, 2, 5),  # two sub-windows of 4 are longer than a window
        (5, 7, 3, 5),  # sub-windows of 3 are two microseconds too long, which has the effect of `strict`
        (100, 60_000_000, 1, 200),
        (100, 60_000_000, 6, 200),
        (100, 60_000_000, 7, 200),
        (1000, 1_000_000, 1000, 1999),
        (999, 1_000_000, 1000, 1998),
    ],
)
def test_counter_formula_gives_known_worst_windows(quota: int, window: int, buckets: int, most: int) -> None:
    limit = SlidingWindowCounter(quota, window / 1e6, buckets=buckets)
    assert of_a_counter(limit) == most
    assert window > 100 or worst(limit) == most


@pytest.mark.parametrize("algorithm", OF_A_BUCKET)
def test_worst_window_of_a_bucket_has_burst_plus_quota_less_one_unit(algorithm: type[BucketLimit]) -> None:
    same([algorithm(*rate, burst=burst) for rate, burst in product(SLOW, BURSTS)], of_a_bucket)


@pytest.mark.parametrize("algorithm", OF_A_BUCKET)
@pytest.mark.parametrize(
    ("quota", "window", "burst", "most"), [(5, 4, 1, 4), (5, 4, 3, 6), (5, 4, 5, 8), (6, 2, 2, 4), (6, 2, 5, 8)]
)
def test_bucket_refilling_over_a_unit_per_microsecond_stays_below_its_bound(
    algorithm: type[BucketLimit], quota: int, window: int, burst: int, most: int
) -> None:
    limit = algorithm(quota, window / 1e6, burst=burst)
    assert worst(limit) == most < bound(limit)


@pytest.mark.parametrize("algorithm", [TokenBucket, GCRA])
@pytest.mark.parametrize("delay", DELAYS)
def test_delayed_requests_leave_within_the_bound(algorithm: type[BucketLimit], delay: int) -> None:
    """Units that end their delay in a window stay within the bound. Units refilled in `max_delay` are admitted too."""

    def admitted(limit: BucketLimit) -> int:
        back = Fraction(limit.quota * (delay + limit.window_us - 1), limit.window_us)
        return math.floor(limit.most + back)

    limits = [algorithm(*rate, burst=burst, max_delay=delay / 1e6) for rate, burst in product(RATES, BURSTS)]
    same(limits, bound, leaving=True)
    same(limits, admitted)


@pytest.mark.parametrize("at_once", [0, 1, 2])
@pytest.mark.parametrize("delay", DELAYS)
def test_queued_requests_are_admitted_and_leave_within_the_bound(delay: int, at_once: int) -> None:
    bursts = [burst for burst in BURSTS if burst >= at_once]
    limits = [
        LeakyBucket(*rate, burst=burst, max_delay=delay / 1e6, at_once=at_once) for rate, burst in product(SLOW, bursts)
    ]
    same(limits, of_a_bucket)
    same(limits, of_a_bucket, leaving=True)


@pytest.mark.parametrize("stored", [0, 1, 3, 8])  # microseconds
def test_worst_window_of_smooth_ends_with_a_charge_of_a_quota(stored: int) -> None:
    """The worst window has the stored units, those of a window less a microsecond, and a last charge of a quota."""

    def exactly(limit: Smooth) -> int:
        return limit.quota + (stored + limit.window_us - 1) * limit.quota // limit.window_us

    limits = [Smooth(*rate, max_burst=stored / 1e6) for rate in SLOW]
    same(limits, exactly)
    assert all(bound(limit) - 1 <= exactly(limit) <= bound(limit) for limit in limits)
    assert any(bound(limit) == exactly(limit) for limit in limits)
    with_delay = [Smooth(*rate, max_burst=stored / 1e6, max_delay=3e-6) for rate in SLOW]
    same(with_delay, exactly, leaving=True)


@pytest.mark.parametrize("cold_factor", [1, 3, 10])
@pytest.mark.parametrize("warmup", [2, 6])  # microseconds
def test_smooth_with_a_warm_up_admits_as_much_as_without_stored_units(warmup: int, cold_factor: int) -> None:
    limits = [Smooth(*rate, warmup=warmup / 1e6, cold_factor=cold_factor) for rate in SLOW if rate[0] < 4]
    same(limits, bound)
    same([Smooth(limit.quota, limit.window, max_burst=0) for limit in limits], bound)


class EarlyWindow(FixedWindow, frozen=True, kw_only=True):
    """Ends a microsecond early."""

    def _current_window(self, state: Any, now: int) -> tuple[int, int, int]:
        return super()._current_window(state, now + 1 if state is not None and now > state.start else now)


class LightCounter(SlidingWindowCounter, frozen=True, kw_only=True):
    """Weighs the oldest sub-window a microsecond too little."""

    def _used(self, elapsed: int, newest: int, between: tuple[int, ...], oldest: int) -> int:
        return super()._used(min(elapsed + 1, self.steps[1] - 1), newest, between, oldest)


class ForgetfulCounter(SlidingWindowCounter, frozen=True, kw_only=True):
    """Counts only the newest and the oldest sub-window."""

    def _used(self, elapsed: int, newest: int, between: tuple[int, ...], oldest: int) -> int:
        return super()._used(elapsed, newest, between[:0], oldest)


class FastBucket(LeakyBucket, frozen=True, kw_only=True):
    """Leaks for a microsecond more than has passed."""

    def _level(self, state: LevelState | None, step: int, drain: int, full: int) -> tuple[int, bool]:
        return super()._level(state, step + 1, drain, full)


class FastTickets(Smooth, frozen=True, kw_only=True):
    """Stores a microsecond more than has passed."""

    def _current(self, state: Any, now: int) -> tuple[int, int, int]:
        return super()._current(state, now + 1)


class LongLog(SlidingWindowLog, frozen=True, kw_only=True):
    """Counts a unit a microsecond too short."""

    def _first(self, state: Any, now: int) -> int:
        return super()._first(state, now + 1)


@pytest.mark.parametrize(
    ("wrong", "found", "right"),
    [
        (EarlyWindow(3, 7e-6), 6, FixedWindow(3, 7e-6)),
        (LightCounter(5, 4e-6), 10, SlidingWindowCounter(5, 4e-6)),
        (ForgetfulCounter(3, 9e-6, buckets=3, strict=True), 9, SlidingWindowCounter(3, 9e-6, buckets=3, strict=True)),
        (FastBucket(3, 12e-6, burst=3), 7, LeakyBucket(3, 12e-6, burst=3)),
        (FastTickets(3, 12e-6, max_burst=4e-6), 8, Smooth(3, 12e-6, max_burst=4e-6)),
        (LongLog(3, 7e-6), 6, SlidingWindowLog(3, 7e-6)),
    ],
    ids=lambda param: type(param).__name__,
)
def test_search_finds_each_planted_mistake(wrong: Limit, found: int, right: Limit) -> None:
    assert worst(wrong) == found > worst(right)


@given(
    st.sampled_from(
        [
            FixedWindow(3, 7e-6),
            SlidingWindowCounter(5, 6e-6, buckets=2),
            SlidingWindowLog(3, 7e-6),
            TokenBucket(5, 12e-6, burst=3, max_delay=3e-6),
            GCRA(5, 7e-6, burst=2, max_delay=3e-6),
            LeakyBucket(5, 7e-6, burst=3, max_delay=3e-6, at_once=1),
            Smooth(5, 7e-6, max_burst=3e-6, max_delay=3e-6),
            Smooth(3, 7e-6, warmup=5e-6, max_delay=3e-6),
        ]
    ),
    st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=40),
)
def test_random_schedules_never_exceed_the_worst_window(limit: Limit, moves: list[tuple[int, int]]) -> None:
    """The search is complete: random schedules, some with long waits, never exceed its result."""
    now, charges = NOW, []
    for wait, cost in moves:
        now += wait
        charges.append((now, cost))
    for leaving in (False, True):
        most = worst(limit, leaving=leaving)
        assert busiest(replayed(limit, charges, leaving=leaving), limit.window_us) <= most


@pytest.mark.parametrize(
    "limit",
    [
        FixedWindow(100, 60),
        SlidingWindowCounter(100, 60),
        SlidingWindowCounter(100, 60, buckets=6),
        SlidingWindowCounter(100, 60, buckets=7),
        SlidingWindowCounter(100, 60, buckets=6, strict=True),
        SlidingWindowLog(100, 60),
        *[algorithm(100, 60) for algorithm in OF_A_BUCKET],
        *[algorithm(100, 60, burst=20) for algorithm in OF_A_BUCKET],
        *[algorithm(100, 60, burst=20, max_delay=6) for algorithm in OF_A_BUCKET],
        LeakyBucket(100, 60, burst=20, max_delay=6, at_once=5),
        Smooth(100, 60, max_burst=6),
        Smooth(100, 60, max_burst=6, max_delay=6),
        Smooth(100, 60, warmup=20),
    ],
    ids=repr,
)
def test_hill_climbing_reaches_the_bound_of_realistic_limits(limit: Limit) -> None:
    assert climb(limit, Random(1)) == bound(limit)  # noqa: S311  # a test needs no secret

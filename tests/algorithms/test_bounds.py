"""Tests how much passes in the long run, and in the worst window: the last column of the table of algorithms.

These limits are realistic. `test_adversary.py` tries everything on small ones.
"""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from algorithms.adversary import bound, busiest
from algorithms.models import SECOND, SubWindows, model_of
from algorithms.strategies import forward, of_each_algorithm
from ratelimit_mw import (
    GCRA,
    ConfigError,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    parse,
)
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.core.limit import State
from ratelimit_mw.testing.walks import START, Step

pytestmark = pytest.mark.promise(3)

DAY = 24 * 3600 * SECOND
BILLION = 10**9
OF_A_BUCKET = (TokenBucket, GCRA, LeakyBucket)


def passing(limit: Limit, instants: Iterable[int], cost: int = 1) -> list[bool]:
    """Return for each instant whether its charge passes."""
    state, passed = None, []
    for now in instants:
        decision, state = limit.decide(state, now, cost, None)
        passed.append(decision.allowed)
    return passed


def admitted(limit: Limit, instants: Iterable[int], cost: int = 1) -> int:
    """Return how many of these charges pass."""
    return sum(passing(limit, instants, cost))


def seen(limit: Limit, state: State, now: int) -> Decision:
    """Return the decision at `now` without taking units."""
    return limit.decide(state, now, 0, None)[0]


@pytest.mark.parametrize(
    "text",
    [
        *[f"10/minute using {algorithm}" for algorithm in ALGORITHMS],
        *[f"10/minute using sliding_window_counter buckets {buckets}" for buckets in (2, 3, 10, 60)],
        *[f"10/minute burst 1 using {limit.algorithm}" for limit in OF_A_BUCKET],
    ],
)
@pytest.mark.parametrize("phase", [0, 1, 123_457])
def test_steady_traffic_at_the_rate_is_admitted_all_day(text: str, phase: int) -> None:
    instants = range(START + phase, START + phase + DAY, 6 * SECOND)
    assert (len(instants), admitted(parse(text)[0], instants)) == (14_400, 14_400)


@pytest.mark.parametrize(
    ("buckets", "count"), [(1, 7_200), (2, 9_600), (3, 10_800), (7, 12_240), (10, 13_091), (60, 13_091)]
)
def test_strict_counter_refuses_part_of_steady_traffic_at_the_rate(buckets: int, count: int) -> None:
    """Ten units pass in `buckets` + 1 sub-windows, rounded up to the next request. With 10 or more buckets: in 66 s."""
    limit = SlidingWindowCounter(10, 60, buckets=buckets, strict=True)
    assert admitted(limit, range(START, START + DAY, 6 * SECOND)) == count


def test_uneven_sub_windows_lengthen_the_window_by_microseconds() -> None:
    """7 sub-windows of 8.571429 s are 60.000003 s. Steady traffic is refused once because of the 3 us."""
    limit = SlidingWindowCounter(10, 60, buckets=7)
    passed = passing(limit, range(START, START + DAY, 6 * SECOND))
    assert [number for number, allowed in enumerate(passed) if not allowed] == [10]
    _, state = limit.decide(None, START, 10, None)
    assert limit.decide(state, START + 60 * SECOND, 1, None)[0].retry_after == 0.000003


@pytest.mark.parametrize("algorithm", OF_A_BUCKET)
def test_every_second_request_is_refused_a_microsecond_above_the_rate(algorithm: type[BucketLimit]) -> None:
    instants = range(START, START + DAY, 6 * SECOND - 1)
    assert (len(instants), admitted(algorithm(10, 60, burst=1), instants)) == (14_401, 7_201)


@pytest.mark.parametrize(
    ("algorithm", "units"),  # remaining 0, 142857, 142858, 999999 and 1000000 us after 7 were taken at once
    [
        ("fixed_window", [0, 0, 0, 0, 7]),
        ("sliding_window_log", [0, 0, 0, 0, 7]),
        ("token_bucket", [0, 0, 1, 6, 7]),
        ("gcra", [0, 0, 1, 6, 7]),
        ("leaky_bucket", [0, 0, 1, 6, 7]),
        ("sliding_window_counter", [0, 0, 0, 0, 1]),  # all but a microsecond of the oldest sub-window counts: 6
        ("sliding_window_counter buckets 2", [0, 0, 0, 0, 1]),
        ("sliding_window_counter buckets 10", [0, 0, 0, 0, 1]),
        ("sliding_window_counter buckets 7", [0, 0, 0, 0, 0]),  # the sub-windows end at 1.000006 s
        ("sliding_window_counter strict", [0, 0, 0, 0, 0]),
    ],
)
def test_limit_of_7_per_second_refills_at_exact_instants(algorithm: str, units: list[int]) -> None:
    limit = parse(f"7/second using {algorithm}")[0]
    decision, state = limit.decide(None, START, 7, None)
    assert decision.allowed
    assert [seen(limit, state, START + later).remaining for later in (0, 142_857, 142_858, 999_999, SECOND)] == units
    for later, most in zip((999_999, SECOND), units[3:], strict=True):
        assert admitted_of(limit, state, START + later) == most


def admitted_of(limit: Limit, state: State, now: int) -> int:
    """Return how many units pass at one instant, in charges of one unit."""
    count = 0
    while (answer := limit.decide(state, now, 1, None))[0].allowed:
        count, state = count + 1, answer[1]
    return count


@pytest.mark.parametrize(
    ("algorithm", "whole"),  # seconds until all 7 units are available again
    [
        ("sliding_window_counter", 1.857142),
        ("sliding_window_counter buckets 2", 1.428571),
        ("sliding_window_counter buckets 10", 1.085714),
        ("sliding_window_counter buckets 7", 1.122455),
        ("sliding_window_counter strict", 2.0),
        ("sliding_window_counter buckets 7 strict", 1.142864),
    ],
)
def test_counter_of_7_per_second_resets_at_exact_instants(algorithm: str, whole: float) -> None:
    limit = parse(f"7/second using {algorithm}")[0]
    decision, state = limit.decide(None, START, 7, None)
    assert decision.reset_after == whole
    reset = START + round(whole * SECOND)
    assert [seen(limit, state, now).remaining for now in (reset - 1, reset)] == [0 if "strict" in algorithm else 6, 7]


@pytest.mark.parametrize("algorithm", OF_A_BUCKET)
@pytest.mark.parametrize(("quota", "seconds"), [(7, 1), (3, 7), (BILLION, 24 * 3600), (999_983, 60)])
def test_bucket_loses_no_fraction_over_many_waits(algorithm: type[BucketLimit], quota: int, seconds: int) -> None:
    limit = algorithm(quota, seconds, burst=2)
    now = START
    decision, state = limit.decide(None, now, 2, None)
    for units in range(1, 5_001):
        now += round(decision.next_after * SECOND)
        assert now == START - (-units * seconds * SECOND) // quota  # rounded up once, not once per unit
        decision, state = limit.decide(state, now, 1, None)
        assert decision.allowed


@pytest.mark.parametrize("algorithm", OF_A_BUCKET)
def test_bucket_admits_10_to_the_9_units_per_day_exactly(algorithm: type[BucketLimit]) -> None:
    limit = algorithm(BILLION, 24 * 3600, burst=10**6)
    instants = range(START, START + DAY + 1, DAY // 1000)  # a million units are refilled 1000 times
    assert admitted(limit, instants, 10**6) == 1001
    assert admitted(limit, range(START, START + DAY + 1, DAY // 1000 - 1), 10**6) == 501  # none passes early


@pytest.mark.parametrize(
    ("algorithm", "units"),  # left after 12 hours, 24 hours less 1 us, 24 hours, 36 hours, 48 hours less 1 us, 48 hours
    [
        ("token_bucket", [BILLION // 2, BILLION - 1, BILLION, BILLION, BILLION, BILLION]),
        ("gcra", [BILLION // 2, BILLION - 1, BILLION, BILLION, BILLION, BILLION]),
        ("leaky_bucket", [BILLION // 2, BILLION - 1, BILLION, BILLION, BILLION, BILLION]),
        ("fixed_window", [0, 0, BILLION, BILLION, BILLION, BILLION]),
        # ticks of 0.1 s, 864000 per day: at first 10**9 * 863999 // 864000 units count
        ("sliding_window_counter", [0, 0, 1158, 500_001_158, BILLION, BILLION]),
        ("sliding_window_counter buckets 2", [0, 0, 232, BILLION, BILLION, BILLION]),
        ("sliding_window_counter strict", [0, 0, 0, 0, 0, BILLION]),
    ],
)
def test_limit_refills_exactly_after_10_to_the_9_units_at_once(algorithm: str, units: list[int]) -> None:
    limit = parse(f"1000000000/day using {algorithm}")[0]
    decision, state = limit.decide(None, START, BILLION, None)
    assert (decision.allowed, decision.remaining) == (True, 0)
    later = (DAY // 2, DAY - 1, DAY, 3 * DAY // 2, 2 * DAY - 1, 2 * DAY)
    assert [seen(limit, state, START + time).remaining for time in later] == units
    for time, most in zip(later, units, strict=True):
        passes = [limit.decide(state, START + time, cost, None)[0].allowed for cost in (most, most + 1)]
        assert passes == [True, False]


def test_log_rejects_a_quota_of_10_to_the_9_units() -> None:
    with pytest.raises(ConfigError, match=r"quota: got 1000000000, expected at most 100000: sliding_window_log"):
        parse("1000000000/day using sliding_window_log")


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "calendar_window"])
@pytest.mark.parametrize("rate", ["7/second", "999983/86399.9s", f"{BILLION}/day", "7 per 36500 days"])
def test_decisions_after_200_years_equal_those_of_the_first_day(algorithm: str, rate: str) -> None:
    if algorithm == "sliding_window_log":
        rate = rate.replace("999983", "99983").replace(str(BILLION), "100000")
    (limit,) = parse(f"{rate} using {algorithm}")
    _, state = limit.decide(None, START, 7, None)
    later = START + 200 * 365 * DAY
    for cost in (0, 1, limit.most, limit.most + 1):
        (kept, used), (fresh, full) = (limit.decide(before, later, cost, None) for before in (state, None))
        first, begun = limit.decide(None, START, cost, None)
        assert kept == fresh == replace(first, at=kept.at)
        assert kept.at - first.at == later - START
        for wait in (1, limit.window_us // 7, limit.window_us):
            assert seen(limit, used, later + wait) == seen(limit, full, later + wait)
            assert seen(limit, begun, START + wait).remaining == seen(limit, used, later + wait).remaining


def units_within(limit: Limit, steps: list[Step], greedy: set[int]) -> int:
    """Return the most units that leave in one window. The steps in `greedy` take all remaining units."""
    clock = model_of(limit).clock  # windows are measured by the limit's own clock
    state, now, last, passed = None, START, None, []
    for number, step in enumerate(steps):
        now = step.time(now, limit, last)
        cost = step.cost(limit)
        if number in greedy:
            cost = min(seen(limit, state, now).remaining, limit.most)
        last, state = limit.decide(state, now, cost, None)
        if last.allowed:
            passed.append(((now + round(last.delay * SECOND)) // clock, cost))
    return busiest(passed, -(-limit.window_us // clock))


@given(st.one_of(*of_each_algorithm.values()), forward, st.sets(st.integers(0, 29)))
def test_no_window_exceeds_the_bound(limit: Limit, steps: list[Step], greedy: set[int]) -> None:
    assert units_within(limit, steps, greedy) <= bound(limit)


@pytest.mark.parametrize("algorithm", OF_A_BUCKET)
def test_bucket_reaches_its_bound(algorithm: type[BucketLimit]) -> None:
    limit = algorithm(100, 60, burst=20)
    instants = [START] * 20 + list(range(START, START + 60 * SECOND, 600_000))[1:]
    assert admitted(limit, instants) == bound(limit) == 119
    assert admitted(limit, [*instants, START + 60 * SECOND - 1]) == 119


def test_counter_admits_twice_its_quota_in_a_window_unless_strict() -> None:
    instants = [START] + [START + 19_999_999] * 10 + [START + 29_000_000] * 10
    assert admitted(SlidingWindowCounter(10, 10), instants) == 21  # 20 units within 9.000001 s
    assert admitted(SlidingWindowCounter(10, 10, strict=True), instants) == 11


def test_fixed_window_reaches_its_bound_around_its_edge() -> None:
    limit = FixedWindow(10, 60)
    instants = [START] + [START + 60 * SECOND - 1] * 9 + [START + 60 * SECOND] * 10
    assert admitted(limit, instants) == 20
    assert bound(limit) == 19  # all but the first, within a microsecond


def test_log_admits_exactly_its_quota_per_window() -> None:
    limit = SlidingWindowLog(10, 60)
    instants = [START] + [START + 60 * SECOND - 1] * 10 + [START + 60 * SECOND] * 10
    assert passing(limit, instants) == [True] * 10 + [False] + [True] + [False] * 9
    assert bound(limit) == 10


@given(of_each_algorithm["sliding_window_counter"])
def test_counter_resets_at_most_one_sub_window_after_the_window(limit: Limit) -> None:
    """A quota taken at once is available again at most one sub-window later than after the window."""
    model = model_of(limit)
    assert isinstance(model, SubWindows)
    decision, _ = limit.decide(None, START, limit.quota, None)
    window = -(-limit.window_us // model.clock)
    over = round(decision.reset_after * SECOND) // model.clock - window
    assert 0 <= over <= model.length + model.buckets


@pytest.mark.parametrize(
    "limit",
    [
        TokenBucket(10, 1, burst=1, max_delay=5.0),
        GCRA(10, 1, burst=1, max_delay=5.0),
        LeakyBucket(10, 1, burst=51, max_delay=5.0),
    ],
)
def test_delayed_requests_leave_at_even_intervals(limit: BucketLimit) -> None:
    state, leave = None, []
    for _ in range(51):
        decision, state = limit.decide(state, START, 1, None)
        leave.append(round(decision.delay * SECOND))
    assert {later - earlier for earlier, later in pairwise(leave)} == {100_000}
    assert (leave[0], leave[-1], limit.effective_max_delay_us) == (0, 5_000_000, 5_000_000)
    assert limit.decide(state, START, 1, None)[0].retry_after == 0.1

"""How much passes in the long run, and at worst in one window: the last column of the table of algorithms."""

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.models import SECOND, Windows
from algorithms.strategies import START, Step, delay_us, forward, model_of, of_each_algorithm
from ratelimit_mw import Limit, SlidingWindowCounter, TokenBucket, parse

pytestmark = pytest.mark.promise(3)

DAY = 24 * 3600 * SECOND
Passed = list[tuple[int, int]]  # instants in microseconds, units


def admitted(limit: Limit, instants: "list[int] | range", cost: int = 1) -> int:
    """How many of these charges pass."""
    state, count = None, 0
    for now in instants:
        decision, state = limit.decide(state, now, cost, None)
        count += decision.allowed
    return count


def busiest(passed: Passed, window: int) -> int:
    """The most units in any (x, x + window]."""
    inside: deque[tuple[int, int]] = deque()
    units = most = 0
    for now, cost in sorted(passed):
        inside.append((now, cost))
        units += cost
        while inside[0][0] <= now - window:
            units -= inside.popleft()[1]
        most = max(most, units)
    return most


def worst(limit: Limit) -> int:
    if isinstance(limit, TokenBucket):
        return (limit.burst or limit.quota) + limit.quota - 1
    assert isinstance(limit, SlidingWindowCounter)
    return limit.quota if limit.strict else 2 * limit.quota


@pytest.mark.parametrize("text", ["10/minute using token_bucket", "10/minute", "10/minute burst 1 using token_bucket"])
@pytest.mark.parametrize("phase", [0, 1, 123_457])
def test_steady_traffic_at_the_rate_is_admitted_all_day(text: str, phase: int) -> None:
    instants = range(START + phase, START + phase + DAY, 6 * SECOND)
    assert (len(instants), admitted(parse(text)[0], instants)) == (14_400, 14_400)


def test_a_microsecond_faster_than_the_rate_every_second_one_waits() -> None:
    instants = range(START, START + DAY, 6 * SECOND - 1)
    assert (len(instants), admitted(parse("10/minute burst 1 using token_bucket")[0], instants)) == (14_401, 7_201)


@pytest.mark.parametrize(("quota", "seconds"), [(7, 1), (3, 7), (10**9, 24 * 3600), (999_983, 60)])
def test_no_fraction_is_lost_over_many_waits(quota: int, seconds: int) -> None:
    limit = TokenBucket(quota, seconds, burst=2)
    now = START
    decision, state = limit.decide(None, now, 2, None)
    for units in range(1, 5_001):
        now += round(decision.next_after * SECOND)
        assert now == START - (-units * seconds * SECOND) // quota  # rounded up once, not once a unit
        decision, state = limit.decide(state, now, 1, None)
        assert decision.allowed


def test_10_to_the_9_per_day_passes_to_the_unit() -> None:
    limit = TokenBucket(10**9, 24 * 3600, burst=10**6)
    instants = range(START, START + DAY + 1, DAY // 1000)  # 1000 times a million tokens come back
    assert admitted(limit, instants, 10**6) == 1001
    assert admitted(limit, range(START, START + DAY + 1, DAY // 1000 - 1), 10**6) == 501  # never one too early


@given(st.one_of(*of_each_algorithm.values()), forward, st.sets(st.integers(0, 29)))
def test_no_window_ever_holds_more_than_the_worst(limit: Limit, steps: list[Step], greedy: set[int]) -> None:
    clock = model_of(limit).clock  # windows are measured by the limit's own clock
    state, now, last, passed = None, START, None, []
    for number, step in enumerate(steps):
        now = step.time(now, limit, last)
        cost = step.cost(limit)
        if number in greedy:  # takes all there is
            cost = limit.decide(state, now, 0, None)[0].remaining
        last, state = limit.decide(state, now, cost, None)
        if last.allowed:
            passed.append(((now + round(last.delay * SECOND)) // clock, cost))
    assert busiest(passed, -(-limit.window_us // clock)) <= worst(limit)


def test_the_worst_window_of_a_bucket_is_reached() -> None:
    limit = TokenBucket(100, 60, burst=20)
    instants = [START] * 20 + list(range(START, START + 60 * SECOND, 600_000))[1:]
    assert admitted(limit, instants) == worst(limit) == 119
    assert admitted(limit, [*instants, START + 60 * SECOND - 1]) == 119


def test_the_worst_window_of_a_counter_is_reached_and_strict_allows_half() -> None:
    instants = [START] + [START + 19_999_999] * 10 + [START + 29_000_000] * 10
    assert admitted(SlidingWindowCounter(10, 10), instants) == 21  # 20 of them within 9.000001 s
    assert admitted(SlidingWindowCounter(10, 10, strict=True), instants) == 11


@given(of_each_algorithm["sliding_window_counter"])
def test_finer_buckets_follow_the_window_more_closely(limit: Limit) -> None:
    """A full quota taken at once is whole again later than the window by at most one sub-window."""
    model = model_of(limit)
    assert isinstance(model, Windows)
    decision, _ = limit.decide(None, START, limit.quota, None)
    window = -(-limit.window_us // model.clock)
    over = round(decision.reset_after * SECOND) // model.clock - window
    assert 0 <= over <= model.length + model.buckets


def test_delayed_requests_leave_evenly() -> None:
    limit = TokenBucket(10, 1, burst=1, max_delay=5.0)
    state, leave = None, []
    for _ in range(51):
        decision, state = limit.decide(state, START, 1, None)
        leave.append(round(decision.delay * SECOND))
    assert {later - earlier for earlier, later in pairwise(leave)} == {100_000}
    assert (leave[0], leave[-1], delay_us(limit)) == (0, 5_000_000, 5_000_000)
    assert limit.decide(state, START, 1, None)[0].retry_after == 0.1

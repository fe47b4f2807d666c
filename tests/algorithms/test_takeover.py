"""What limits admit that take over each other's units: at one instant, over an hour in turns, and after each wait."""

import math
from collections import deque
from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from algorithms.strategies import of_each_algorithm
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
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.algorithms.notation import limit_of_notation
from ratelimit_mw.algorithms.takeover import OnChange, taking_over
from ratelimit_mw.algorithms.ticks import scale_down, scale_up

START = 10**15  # microseconds
SECOND = 10**6  # microseconds
SIX: list[type[Any]] = [FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket, GCRA, LeakyBucket]
PAIRS = list(product(SIX, repeat=2))
MODES: list[OnChange] = ["used", "share"]

pytestmark = pytest.mark.promise(3)


def turn(limit: Limit, on_change: OnChange) -> Limit:
    return taking_over(limit, on_change, "rule~1")


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_limits_in_turns_admit_the_larger_quota_at_one_instant(old: type[Any], new: type[Any]) -> None:
    """Each admits exactly while the units that both took, and the cost, are at most its own quota."""
    random = Random(1)  # noqa: S311  # tests need no secrets
    for quotas in [(10, 7), (7, 10), (1, 100), (100, 100)]:
        limits = [turn(kind(quota, 60), "used") for kind, quota in zip((old, new), quotas, strict=True)]
        state, taken = None, 0
        for _ in range(60):
            limit, cost = random.choice(limits), random.randint(1, 4)
            decision, state = limit.decide(state, START, cost, None)
            assert decision.allowed is (taken + cost <= limit.quota)
            taken += cost * decision.allowed
            assert decision.remaining == max(0, limit.quota - taken)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_taking_over_a_share_to_and_fro_gives_no_unit_back(old: type[Any], new: type[Any]) -> None:
    random = Random(2)  # noqa: S311  # tests need no secrets
    for quotas in [(10, 7), (3, 100), (100, 8)]:
        limits = [turn(kind(quota, 60), "share") for kind, quota in zip((old, new), quotas, strict=True)]
        state, before = None, list(quotas)
        for _ in range(60):
            _, state = random.choice(limits).decide(state, START, random.randint(0, 3), None)
            left = [limit.decide(state, START, 0, None)[0].remaining for limit in limits]
            assert all(after <= earlier for after, earlier in zip(left, before, strict=True))
            before = left


def most_together(old: Limit, new: Limit) -> int:
    """Return the most units that both admit in any window, as the documentation states it."""
    bound = max(limit.max_per_window or 0 for limit in (old, new))
    is_alike = type(old) is type(new) or (isinstance(old, BucketLimit) and isinstance(new, BucketLimit))
    return bound if is_alike else bound + max(old.quota, new.quota)


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_old_and_new_settings_in_turns_for_an_hour_stay_within_the_stated_bound(old: type[Any], new: type[Any]) -> None:
    for seed, quotas in enumerate([(10, 25), (25, 10)]):
        random = Random(seed)  # noqa: S311  # tests need no secrets
        plain = [kind(quota, 60) for kind, quota in zip((old, new), quotas, strict=True)]
        limits = [turn(limit, "used") for limit in plain]
        most, state, now = most_together(*plain), None, START
        recent: deque[tuple[int, int]] = deque()
        while now < START + 3600 * SECOND:
            now += random.choice([0, 1, random.randrange(SECOND), random.randrange(70 * SECOND)])
            for limit in random.choices(limits, k=random.randint(1, 4)):
                left = limit.decide(state, now, 0, None)[0].remaining
                cost = random.choice([1, left, max(1, left // 2)])
                decision, state = limit.decide(state, now, cost, None)
                if decision.allowed and cost:
                    recent.append((now, cost))
            while recent and recent[0][0] <= now - 60 * SECOND:
                recent.popleft()
            assert sum(cost for _, cost in recent) <= most


limits_of_any = st.one_of(*of_each_algorithm.values())


@pytest.mark.promise(4)
@example(SlidingWindowCounter(1, 1), SlidingWindowCounter(1, 1, strict=True), "used", 1, 0, False)
@example(FixedWindow(1, 1), Smooth(1, 1, warmup=4e-6, cold_factor=2, max_delay=1.0), "used", 1, 0, False)
@given(limits_of_any, limits_of_any, st.sampled_from(MODES), st.integers(1, 100), st.integers(0, 10**8), st.booleans())
def test_a_client_that_waits_as_told_is_admitted(
    old: Limit, new: Limit, on_change: OnChange, percent: int, pause: int, at_once: bool
) -> None:
    before, after = turn(old, on_change), turn(new, on_change)
    cost = max(1, old.most * percent // 100)
    decision, state = before.decide(None, START, cost, None)
    assert decision.allowed
    now = START + pause % (old.window_us + 1)
    units = new.most if at_once else 1
    refused, kept = after.decide(state, now, units, None)
    if refused.allowed or refused.retry_after == math.inf:
        return
    assert kept is state
    assert refused.retry_after > 0
    wait = round(refused.retry_after * SECOND)
    assert after.decide(state, now + wait, units, None)[0].allowed


@example(TokenBucket(10, 1), TokenBucket(10, 1, max_delay=0.01), "used", 1)
@given(limits_of_any, limits_of_any, st.sampled_from(MODES), st.integers(1, 100))
def test_an_expired_state_of_another_limit_decides_as_none(
    old: Limit, new: Limit, on_change: OnChange, percent: int
) -> None:
    before, after = turn(old, on_change), turn(new, on_change)
    _, state = before.decide(None, START, max(1, old.most * percent // 100), None)
    now = before.expires(state)
    for cost in (0, 1, new.most):
        assert after.decide(state, now, cost, None)[0] == after.decide(None, now, cost, None)[0]
    assert after.settle(state, now, 1, now) == after.settle(None, now, 1, now)


@given(limits_of_any)
def test_the_notation_of_a_limit_reads_as_the_same_numbers(limit: Limit) -> None:
    assert limit_of_notation(limit.notation).numbers == limit.numbers or isinstance(limit, LeakyBucket)


def test_notation_of_no_limit_is_an_error() -> None:
    assert limit_of_notation("10/60s ban 900s using ban") == Ban(10, 60, ban=900)
    with pytest.raises(ValueError, match="is not the notation of a limit"):
        limit_of_notation("10 per minute")


def test_reservations_and_debt_are_taken_over_in_full() -> None:
    """60 units of 10 a minute, 50 of them reserved for later: the new limit owes them, and so does the old one."""
    old, new = turn(TokenBucket(10, 60, max_delay=300.0), "used"), turn(GCRA(20, 60, max_delay=300.0), "used")
    _, state = old.decide(None, START, 10, None)
    for _ in range(5):
        _, state = old.decide(state, START, 10, None)
    decision, state = new.decide(state, START, 1, None)
    assert (decision.allowed, decision.delay) == (True, 41 * 3.0)
    assert old.decide(state, START, 1, None)[0].retry_after == 6.0  # two units less, at the rate of the new limit


def test_a_clock_that_stepped_back_moves_a_state_of_another_limit_to_now() -> None:
    old, new = turn(FixedWindow(5, 60), "used"), turn(TokenBucket(5, 60), "used")
    _, state = old.decide(None, START, 5, None)
    earlier = START - 1000 * SECOND
    decision, kept = new.decide(state, earlier, 1, None)
    assert (decision.allowed, decision.retry_after) == (False, 60.0)
    assert new.decide(kept, earlier + 60 * SECOND, 1, None)[0].allowed


def test_a_running_ban_ends_when_it_would_have_and_refusals_count_on() -> None:
    old, new = turn(Ban(3, 60, ban=600), "share"), turn(Ban(2, 60, ban=30), "share")
    _, counted = old.decide(None, START, 2, None)
    decision, banned = new.decide(counted, START, 0, None)
    assert (decision.remaining, banned) == (1, counted)  # two refusals of two, but no ban without a third one
    decision, banned = new.decide(counted, START, 1, None)
    assert (decision.remaining, new.decide(banned, START, 1, None)[0].retry_after) == (0, 30.0)
    _, banned = old.decide(counted, START, 1, None)
    assert new.decide(banned, START + SECOND, 1, None)[0].retry_after == 599.0
    assert new.decide(banned, START + 600 * SECOND, 1, None)[0].allowed


def test_smooth_takes_over_units_beyond_its_next_free_ticket() -> None:
    old, new = turn(Smooth(5, 1), "used"), turn(TokenBucket(20, 60), "used")
    _, state = old.decide(None, START, 5, None)
    assert new.decide(state, START, 0, None)[0].remaining == 15


@pytest.mark.parametrize(
    ("units", "by", "of"), [(0, 7, 3), (5, 7, 3), (60, 200, 100), (2**52, 3, 7), (10**9, 10**9, 999_999_937)]
)
def test_scaled_units_are_rounded_up_and_room_down(units: int, by: int, of: int) -> None:
    exact = -(-units * by // of)
    assert exact <= scale_up(units, by, of) <= exact + 1
    assert units * by // of - 1 <= scale_down(units, by, of) <= units * by // of

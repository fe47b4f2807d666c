"""Tests what only `smooth` does: when the rate changes, the stored part of the maximum stays the same."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.strategies import forward
from ratelimit_mw import Charge, MemoryStore, Smooth
from ratelimit_mw.algorithms.smooth import SmoothState
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock
from ratelimit_mw.testing.laws import restores_what_is_given_back_at_once
from ratelimit_mw.testing.walks import START, Step, Walk

pytestmark = pytest.mark.promise(3)

IDLE: list[dict[str, Any]] = [{}, {"max_burst": 60}, {"warmup": 4}, {"warmup": 3600, "cold_factor": 10}]
RATES = [(5, 1), (7, 1), (7, 60), (10**6, 60), (999_983, 86_400), (10**9, 86_400), (1, 3600)]
rates = st.sampled_from(RATES)


def part_stored(limit: Smooth, state: SmoothState | None, now: int) -> Fraction:
    """Return the stored units as a fraction of the maximum."""
    *_, full = limit.ticks
    return Fraction(max(0, limit._current(state, now)[1]), full)


def seconds_to_wait(limit: Smooth, state: SmoothState | None, now: int) -> Fraction:
    """Return the seconds until the next free ticket."""
    clock, drain, *_ = limit.ticks
    return Fraction(limit._current(state, now)[0] * clock, drain * 1_000_000)


@given(st.sampled_from(IDLE), rates, rates, forward)
def test_rate_change_keeps_the_stored_part_and_the_next_ticket(
    idle: dict[str, Any], first: tuple[int, int], second: tuple[int, int], steps: list[Step]
) -> None:
    before, after = Smooth(*first, **idle), Smooth(*second, **idle)
    assert before.bucket == after.bucket
    state, now, last = None, START, None
    for step in steps:
        now = step.time(now, before, last)
        last, state = before.decide(state, now, step.cost(before), None)
    tick = Fraction(before.ticks[0] + after.ticks[0], 1_000_000)  # seconds; the precision of coarser clocks
    there, here = seconds_to_wait(before, state, now), seconds_to_wait(after, state, now)
    assert abs(there - here) <= tick
    idle_seconds = Fraction(before.warmup or before.max_burst)
    stored = [part_stored(limit, state, now) * idle_seconds for limit in (before, after)]
    assert abs(stored[0] - stored[1]) <= tick
    if state is not None:
        gone = before.expires(state)
        assert gone == after.expires(state)
        for cost in (1, after.quota):
            assert after.decide(state, gone, cost, None) == after.decide(None, gone, cost, None)
        assert after.decide(state, gone, 0, None)[0] == after.decide(None, gone, 0, None)[0]


@pytest.mark.parametrize(
    ("first", "second", "remaining"),
    [((10, 1), (1, 1), 1), ((10, 1), (20, 1), 11), ((10, 1), (7, 1), 4), ((7, 1), (10, 1), 8), ((3, 1), (9, 1), 4)],
)
def test_rate_change_keeps_the_stored_fraction_in_known_examples(
    first: tuple[int, int], second: tuple[int, int], remaining: int
) -> None:
    """First 5 of 10, 5 of 7 or 1 of 3 units are stored. `remaining` is one more than the new number of stored units."""
    before, after = Smooth(*first), Smooth(*second)
    taken = {10: 5, 7: 2, 3: 2}[before.quota]
    _, state = before.decide(None, START, taken, None)
    assert after.decide(state, START, 0, None)[0].remaining == remaining


def test_rate_change_keeps_the_wait() -> None:
    slow, fast = Smooth(7, 60, max_burst=0), Smooth(1000, 1, max_burst=0)
    _, state = slow.decide(None, START, 7, None)
    assert slow.decide(state, START, 1, None)[0].retry_after == 60.0
    assert fast.decide(state, START, 1, None)[0].retry_after == 60.0
    assert fast.decide(state, START + 60_000_000, 1, None)[0].allowed


def test_refund_frees_nothing_after_reset_despite_rounded_waits() -> None:
    """Rounding adds much to a wait: a second stores 258352.47 of these units, so a unit is stored in less than 4 us."""
    assert restores_what_is_given_back_at_once(Smooth(5421, 0.020983), Walk((), 1, 0))


@pytest.mark.one_redis
@pytest.mark.promise(5)
@pytest.mark.parametrize("place", ["memory", "redis"])
def test_rate_change_in_a_store_keeps_stored_units_and_waits(place: str, redis_url: str) -> None:
    clock = Clock()
    store: Store = MemoryStore(clock=clock)
    if place == "redis":
        store = RedisStore(redis_url, clock=clock, timeout=5, deny_cache=0)
    store.take([Charge("k", Smooth(10, 1), 5)])
    left = [store.peek([Charge("k", Smooth(quota, 1), 0)])[0].remaining for quota in (10, 7, 20, 1)]
    assert left == [6, 4, 11, 1]
    slow, fast = Smooth(7, 60, max_burst=0), Smooth(1000, 1, max_burst=0)
    store.take([Charge("k", slow, 7)])
    assert [store.take([Charge("k", limit)])[0].retry_after for limit in (slow, fast)] == [60.0, 60.0]
    clock.advance(60)
    assert store.take([Charge("k", fast)])[0].next_after == 0.001
    store.close()


@pytest.mark.parametrize("idle", [{"max_burst": 0}, {"max_burst": 2}, {"warmup": 4}])
def test_refund_of_the_last_charge_restores_the_state_before_it(idle: dict[str, Any]) -> None:
    """Otherwise the charge would count as delayed forever, and later refunds would be too small."""
    limit = Smooth(1, 1, max_delay=60, **idle)
    states: list[SmoothState | None] = [None]
    ends = [0]
    for _ in range(5):
        decision, state = limit.decide(states[-1], 1_000_000, 1, None)
        assert decision.allowed
        states.append(state)
        ends.append(decision.at)
    while len(states) > 1:
        assert limit.settle(states.pop(), 1_000_000, -1, ends.pop()) == states[-1]

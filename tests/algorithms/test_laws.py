"""What holds for every algorithm, limit and walk: pure functions, so time is only a number."""

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from algorithms.models import SECOND
from algorithms.strategies import START, Step, both_ways, delay_us, forward, model_of, of_each_algorithm, walked
from ratelimit_mw import Charge, Decision, Limit, MemoryStore
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.testing import Clock

limits = st.one_of(*[of_each_algorithm[name] for name in ALGORITHMS])
costs = st.integers(1, 13).map(lambda size: Step("same", 0, size))
Correction = tuple[int, int, bool]  # of which decision, how much, given back
corrections = st.tuples(st.integers(0, 10), st.integers(0, 13), st.booleans())


def microseconds(seconds: float) -> int:
    return round(seconds * SECOND)


def test_every_algorithm_is_walked() -> None:
    assert set(of_each_algorithm) == set(ALGORITHMS)


@pytest.mark.promise(3)
@given(limits, both_ways)
def test_decides_what_the_exact_model_decides(limit: Limit, steps: list[Step]) -> None:
    model, state, now, last = model_of(limit), None, START, None
    for step in steps:
        now = step.time(now, limit, last)
        cost = step.cost(limit)
        last, state = limit.decide(state, now, cost, None)
        assert last == model.decide(now, cost, delay_us(limit))


@pytest.mark.promise(3)
@given(limits, both_ways, st.lists(corrections, max_size=30))
def test_settles_as_the_exact_model_does(limit: Limit, steps: list[Step], given_back: list[Correction]) -> None:
    model, state, now, given_at = model_of(limit), None, START, [START]
    for step, (which, size, back) in zip(steps, given_back, strict=False):
        now = step.time(now, limit, None)
        decision, state = limit.decide(state, now, step.cost(limit), None)
        assert decision == model.decide(now, step.cost(limit), delay_us(limit))
        given_at.append(decision.at)
        delta = Step("same", 0, size).cost(limit) * (-1 if back else 1)
        at = given_at[-1 - which % len(given_at)]
        state = limit.settle(state, now, delta, at)
        model.settle(now, delta, at)
        assert limit.decide(state, now, 0, None)[0] == model.decide(now, 0), (delta, at)


@pytest.mark.promise(4)
@given(limits, both_ways)
def test_peek_answers_what_the_next_hit_answers(limit: Limit, steps: list[Step]) -> None:
    clock, last = Clock(), None
    store = MemoryStore(clock=clock)
    for step in steps:
        clock.now = step.time(microseconds(clock.now), limit, last) / SECOND
        charges = [Charge("k", limit, step.cost(limit))]
        (shown,), (again,) = store.peek(charges), store.peek(charges)
        (last,) = store.take(charges)
        assert shown == again == last


@pytest.mark.promise(4)
@given(limits, forward, costs, st.integers(0, 99))
def test_refused_until_retry_after_and_admitted_at_it(limit: Limit, steps: list[Step], size: Step, part: int) -> None:
    state, now = walked(limit, steps)
    cost = size.cost(limit)
    decision, state = limit.decide(state, now, cost, None)
    assert decision.allowed == (decision.retry_after == 0.0)
    assert math.isinf(decision.retry_after) == (cost > limit.most)
    assume(not decision.allowed and cost <= limit.most)
    wait = microseconds(decision.retry_after)
    assert wait > 0
    for early in (wait - 1, wait * part // 100):
        assert limit.decide(state, now + early, cost, None)[0].retry_after == (wait - early) / SECOND
    assert limit.decide(state, now + wait, cost, None)[0].allowed


@pytest.mark.promise(4)
@given(limits, forward)
def test_after_next_after_one_unit_more_passes_and_not_before(limit: Limit, steps: list[Step]) -> None:
    state, now = walked(limit, steps)
    shown, _ = limit.decide(state, now, 0, None)
    if shown.remaining:
        taken, state = limit.decide(state, now, shown.remaining, 0 if delay_us(limit) else None)
        assert taken.allowed
        assert (taken.remaining, taken.delay) == (0, 0.0)
        assert taken.next_after == shown.next_after
    wait = microseconds(shown.next_after)
    assert wait > 0
    assert limit.decide(state, now + wait - 1, 0, None)[0].remaining == 0
    assert limit.decide(state, now + wait, 0, None)[0].remaining >= 1


@pytest.mark.promise(4)
@given(limits, forward)
def test_whole_at_reset_after_and_not_before(limit: Limit, steps: list[Step]) -> None:
    state, now = walked(limit, steps)
    shown, _ = limit.decide(state, now, 0, None)
    wait = microseconds(shown.reset_after)
    whole = limit.decide(state, now + wait, 0, None)[0]
    assert (whole.remaining, whole.reset_after) == (whole.limit, 0.0)
    if wait:
        assert limit.decide(state, now + wait - 1, 0, None)[0].remaining < shown.limit


@pytest.mark.promise(6)
@given(limits, both_ways, costs, st.integers(0, 3 * 10**6))
def test_an_expired_state_decides_like_none(limit: Limit, steps: list[Step], size: Step, later: int) -> None:
    state, _ = walked(limit, steps)
    assume(state is not None)
    now = limit.expires(state) + later
    fresh, kept = limit.decide(None, now, size.cost(limit), None), limit.decide(state, now, size.cost(limit), None)
    assert kept[0] == fresh[0]
    if fresh[0].allowed:
        assert kept[1] == fresh[1]


@pytest.mark.promise(6)
@given(limits, both_ways)
def test_cost_0_is_admitted_changes_nothing_and_creates_nothing(limit: Limit, steps: list[Step]) -> None:
    state, now = walked(limit, steps)
    for kept in (None, state):
        for instant in (now, now - 10 * limit.window_us, now + limit.window_us // 3):
            decision, after = limit.decide(kept, instant, 0, None)
            assert after is kept
            assert (decision.allowed, decision.retry_after, decision.delay) == (True, 0.0, 0.0)


@pytest.mark.promise(3)
@given(limits, both_ways, costs, st.integers(1, 10**12))
def test_a_clock_that_steps_back_refills_nothing_and_locks_out_for_one_refill(
    limit: Limit, steps: list[Step], size: Step, back: int
) -> None:
    state, now = walked(limit, steps)
    before, _ = limit.decide(state, now, 0, None)
    earlier, _ = limit.decide(state, now - back, 0, None)
    assert earlier.remaining <= before.remaining
    decision, moved = limit.decide(state, now - back, size.cost(limit), None)
    lock_out = (model_of(limit).refill + delay_us(limit)) / SECOND
    assert decision.reset_after <= lock_out
    assume(not decision.allowed and size.cost(limit) <= limit.most)
    assert decision.retry_after <= lock_out
    assert limit.decide(moved, now - back + microseconds(decision.retry_after), size.cost(limit), None)[0].allowed


@pytest.mark.promise(3)
@given(limits, forward, costs)
def test_giving_back_what_was_just_taken_restores_the_exact_quota(limit: Limit, steps: list[Step], size: Step) -> None:
    state, now = walked(limit, steps)
    decision, taken = limit.decide(state, now, size.cost(limit), None)
    assume(decision.allowed)
    restored = limit.settle(taken, now, -size.cost(limit), decision.at)
    for instant in (now, now + limit.window_us // 7, now + limit.window_us):
        assert quota_at(limit, restored, instant) == quota_at(limit, state, instant)


def quota_at(limit: Limit, state: Any, now: int) -> Decision:
    return limit.decide(state, now, 0, None)[0]

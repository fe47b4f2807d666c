"""Tests the laws for every algorithm, limit and walk. Decisions are pure functions, so time is only a number.

The exact models are part of the tests. The laws are public, for algorithms outside this package.
"""

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from algorithms.models import MODELS, model_of
from algorithms.strategies import both_ways, of_each_algorithm, walks
from ratelimit_mw import Limit, Smooth
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.limit import State
from ratelimit_mw.testing import laws
from ratelimit_mw.testing.laws import LAWS, Law, check_laws
from ratelimit_mw.testing.walks import START, Step, Walk

limits = st.one_of(*[of_each_algorithm[name] for name in ALGORITHMS])
Correction = tuple[int, int, bool]  # the number of a decision, units, and whether these are refunded
corrections = st.tuples(st.integers(0, 10), st.integers(0, 13), st.booleans())

KEPT = [
    pytest.param(laws.is_pure, marks=pytest.mark.promise(3)),
    pytest.param(laws.changes_nothing_for_cost_0, marks=pytest.mark.promise(6)),
    pytest.param(laws.counts_what_it_admits_and_nothing_else, marks=pytest.mark.promise(3)),
    pytest.param(laws.never_admits_more_than_the_most, marks=pytest.mark.promise(4)),
    pytest.param(laws.refuses_until_retry_after_and_admits_at_it, marks=pytest.mark.promise(4)),
    pytest.param(laws.admits_one_unit_more_at_next_after_and_not_before, marks=pytest.mark.promise(4)),
    pytest.param(laws.is_whole_at_reset_after_and_not_before, marks=pytest.mark.promise(4)),
    pytest.param(laws.peeks_what_the_next_hit_answers, marks=pytest.mark.promise(4)),
    pytest.param(laws.decides_like_none_once_expired, marks=pytest.mark.promise(6)),
    pytest.param(laws.refills_nothing_when_the_clock_steps_back, marks=pytest.mark.promise(3)),
    pytest.param(laws.restores_what_is_given_back_at_once, marks=pytest.mark.promise(3)),
    pytest.param(laws.takes_in_settling_what_does_not_fit, marks=pytest.mark.promise(4)),
]


def test_every_algorithm_has_a_strategy() -> None:
    assert set(of_each_algorithm) == set(ALGORITHMS)


def test_every_algorithm_has_a_model() -> None:
    assert {kind.algorithm for kind in MODELS} == set(ALGORITHMS)


def test_every_public_law_is_tested() -> None:
    assert [param.values[0] for param in KEPT] == list(LAWS)


@pytest.mark.parametrize("law", KEPT)
@settings(suppress_health_check=[HealthCheck.filter_too_much])  # some laws do not apply to most walks
@given(limits, walks)
def test_every_algorithm_obeys_each_law(law: Law, limit: Limit, walk: Walk) -> None:
    assume(law(limit, walk))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_passes_the_public_check(algorithm: str) -> None:
    check_laws(ALGORITHMS[algorithm](7, 60))


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_states_with_the_same_past_change_independently(algorithm: str) -> None:
    """A later change of one state does not affect the other."""
    limit = ALGORITHMS[algorithm](5, 60)

    def after(state: State, *seconds: int) -> State:
        for second in seconds:
            _, state = limit.decide(state, START + second * 1_000_000, 1, None)
        return state

    past = after(None, 0, 1)
    here, there = after(past, 2), after(past, 3)
    here, there = after(here, 4), after(there, 5)
    for state, alone in (here, after(None, 0, 1, 2, 4)), (there, after(None, 0, 1, 3, 5)):
        for cost in range(6):
            now = START + 6_000_000
            assert limit.decide(state, now, cost, None)[0] == limit.decide(alone, now, cost, None)[0]


@pytest.mark.promise(3)
@given(limits, both_ways)
def test_decisions_match_the_exact_model(limit: Limit, steps: list[Step]) -> None:
    model, state, now, last = model_of(limit), None, START, None
    for step in steps:
        now = step.time(now, limit, last)
        cost = step.cost(limit)
        last, state = limit.decide(state, now, cost, None)
        assert last == model.decide(now, cost, limit.effective_max_delay_us)


@pytest.mark.promise(3)
@given(limits, both_ways, st.lists(corrections, max_size=30))
@example(  # delayed units are refunded and charged again, and then delay no other request
    Smooth(1, 1, max_burst=0, max_delay=1.0),
    [Step("same", 0, 1), Step("same", 0, 1), Step("same", 0, 0), Step("same", 0, 0)],
    [(0, 0, False), (0, 1, True), (0, 1, False), (1, 1, True)],
)
def test_settlements_match_the_exact_model(limit: Limit, steps: list[Step], given_back: list[Correction]) -> None:
    model, state, now, given_at = model_of(limit), None, START, [START]
    for step, (which, size, back) in zip(steps, given_back, strict=False):
        now = step.time(now, limit, None)
        decision, state = limit.decide(state, now, step.cost(limit), None)
        assert decision == model.decide(now, step.cost(limit), limit.effective_max_delay_us)
        given_at.append(decision.at)
        delta = Step("same", 0, size).cost(limit) * (-1 if back else 1)
        at = given_at[-1 - which % len(given_at)]
        state = limit.settle(state, now, delta, at)
        model.settle(now, delta, at)
        assert limit.decide(state, now, 0, None)[0] == model.decide(now, 0), (delta, at)

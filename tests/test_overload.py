"""The guard of the latency goal: a simulated service keeps its throughput under any load."""

import logging
from itertools import count

import pytest

from overload_simulation import GOAL, LOOP, WORKERS, Model, Simulation
from ratelimit_mw.engine.overload import OverloadGuard, Ticket
from ratelimit_mw.testing import Clock

START = Clock().now

MODELS = pytest.mark.parametrize("model", [WORKERS, LOOP], ids=["workers", "event loop"])


@MODELS
@pytest.mark.parametrize("load", [1.2, 2, 5])
def test_goodput_stays_at_the_capacity_under_any_load(model: Model, load: float) -> None:
    """Clients wait little longer than the goal."""
    outcome = Simulation(model).run(load, 60)

    assert outcome.goodput >= 0.97
    assert outcome.latency(0.99) <= 1.5 * GOAL


@MODELS
def test_goodput_does_not_drift_within_ten_minutes(model: Model) -> None:
    """Gradient2 falls to a quarter of the capacity here, because its long average learns the overload."""
    assert Simulation(model).run(1.3, 600).goodput >= 0.97


@MODELS
def test_without_the_guard_the_service_collapses(model: Model) -> None:
    """Most of its work is for clients that have left, so the simulation shows what the guard is for."""
    assert Simulation(model, goal=None).run(1.2, 60).goodput <= 0.2


@MODELS
def test_a_slow_spell_costs_little_beyond_its_own_loss(model: Model) -> None:
    """For 15 of 75 seconds the service takes four times as long."""
    outcome = Simulation(model, slow=lambda now: 4.0 if 30 <= now < 45 else 1.0).run(1.2, 75)

    assert outcome.goodput * 75 >= 0.80 * (60 + 15 / 4)


@MODELS
def test_no_request_is_refused_below_the_capacity(model: Model) -> None:
    """In the first minute after the start, at 0.7 of the capacity."""
    assert Simulation(model).run(0.7, 60).shed == 0


@MODELS
@pytest.mark.parametrize(("load", "least"), [(2, 0.97), (4, 0.95)])
def test_critical_requests_are_served_under_overload(model: Model, load: float, least: float) -> None:
    """Low ones are refused first, then normal ones."""
    outcome = Simulation(model, mixed=True).run(load, 60)

    assert outcome.served("critical") >= least
    assert outcome.served("low") < outcome.served("normal") < outcome.served("critical")


@pytest.mark.parametrize("share", [1.0, 0.9, 0.5])
def test_the_limit_adapts_to_requests_of_one_priority(share: float) -> None:
    """A single worker of 50 ms would take 3 s for the 60 requests of the start, or 1.5 s for half of them."""
    clock = Clock()
    guard = OverloadGuard(GOAL, 1, 500, clock=clock)
    waiting, keys = list[int](), count()
    for _ in range(2000):
        while guard.enter(share, key := next(keys)):
            waiting.append(key)
        clock.now += 0.05
        guard.answered(waiting.pop(0))

    assert guard.reached < 1.5 * GOAL
    assert 4 <= guard.limit * share <= 8


def entered(guard: OverloadGuard) -> Ticket:
    """Return the key of a request for which there is room."""
    ticket = Ticket(guard)
    assert guard.enter(1.0, ticket)
    return ticket


def limit_after_window(at_work: int, goal: float, limit: int = 20, least: int = 4, most: int = 500) -> float:
    """Return the limit after a window with so many requests at work at once, of 50 ms each."""
    clock = Clock()
    guard = OverloadGuard(goal, least, most, clock=clock, refuses=False)
    guard.limit = limit
    for _ in range(2):
        tickets = [entered(guard) for _ in range(at_work)]
        clock.now += 0.0501
        for ticket in tickets:
            guard.answered(ticket)
    return guard.limit


@pytest.mark.parametrize(
    ("at_work", "goal", "limit"),
    [
        (10, 0.0502, 20.4),  # at the goal: one more request may be at work
        (9, 0.0502, 20.4),
        (7, 0.0502, 20),  # so few say nothing about more
        (30, 0.02, 14),  # far over the goal: at most 30 % less
        (10, 0.0501 * 0.81, 18),
        (7, 0.02, 20),  # a slow request of few is no overload
    ],
)
def test_a_window_adapts_the_limit(at_work: int, goal: float, limit: float) -> None:
    """As with AIMD, whose published steps are 20 to 21 with 10 requests at work, and a cut by a factor."""
    assert limit_after_window(at_work, goal) == pytest.approx(limit)


@pytest.mark.parametrize(("slow", "reached"), [(2, 0.0501), (1, 0.0101)])
def test_the_slowest_tenth_is_compared_with_the_goal(slow: int, reached: float) -> None:
    clock = Clock()
    guard = OverloadGuard(GOAL, 1, 500, clock=clock)
    for _ in range(2):
        tickets = [entered(guard) for _ in range(10)]
        for seconds, answered in ((0.0101, tickets[slow:]), (0.04, tickets[:slow])):
            clock.now += seconds
            for ticket in answered:
                guard.answered(ticket)
    assert guard.reached == pytest.approx(reached)


def test_the_limit_keeps_its_bounds() -> None:
    """`at_work_least` and `at_work_most`."""
    assert limit_after_window(10, 0.001, limit=10, least=9) == 9
    assert limit_after_window(10, 0.1, limit=10, most=10) == 10
    assert OverloadGuard(GOAL, 4, 30).limit == 30
    assert OverloadGuard(GOAL, 4, 500).limit == 60
    assert OverloadGuard(GOAL, 80, 500).limit == 80


def test_a_window_waits_for_ten_answers_or_a_second() -> None:
    """One slow answer of a few is no percentile."""
    clock = Clock()
    guard = OverloadGuard(GOAL, 1, 500, clock=clock)
    guard.limit = 2
    for _ in range(2):
        ticket = entered(guard)
        clock.now += 0.45
        guard.answered(ticket)
    assert guard.limit == 2
    assert guard.reached == 0.0
    ticket = entered(guard)
    clock.now += 0.45
    guard.answered(ticket)

    assert guard.reached == pytest.approx(0.45)
    assert guard.limit == pytest.approx(2 * (GOAL / 0.45) ** 0.5)


def test_requests_that_end_without_an_answer_are_not_measured() -> None:
    """They are at work no longer, also if they end twice."""
    clock = Clock()
    guard = OverloadGuard(GOAL, 1, 500, clock=clock)
    first, second = entered(guard), entered(guard)
    clock.now += 5.0
    guard.leave(first)
    guard.answered(first)
    assert guard.reached == 0.0
    assert len(guard.at_work) == 1
    guard.answered(second)
    guard.leave(second)

    assert guard.reached == 5.0
    assert not guard.at_work


def test_a_reload_keeps_what_is_at_work_and_what_was_learned() -> None:
    """Within the new bounds."""
    before = OverloadGuard(GOAL, 4, 500)
    before.limit, before.reached = 40.0, 0.2
    ticket = entered(before)
    after = OverloadGuard(0.5, 4, 30, before=before)

    assert (after.limit, after.reached, len(after.at_work)) == (30, 0.2, 1)
    before.answered(ticket)
    assert not after.at_work


def test_a_goal_that_is_too_short_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    """After 50 windows in a row over the goal, with the least number of requests at work."""
    clock = Clock()
    guard = OverloadGuard(0.08, 4, 500, clock=clock)
    guard.limit = 4
    with caplog.at_level(logging.WARNING, "ratelimit_mw"):
        for number in range(300):
            tickets = [entered(guard) for _ in range(4)]
            clock.now += 0.1
            for ticket in tickets:
                guard.answered(ticket)
            if number == 100:
                assert not caplog.records

    (record,) = caplog.records
    assert "with only 4 requests at work" in record.getMessage()

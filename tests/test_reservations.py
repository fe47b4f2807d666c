"""Reservations of a limiter."""

import asyncio

import pytest

from ratelimit_mw import AsyncLimiter, Concurrency, ConfigError, Limiter, RateLimited
from ratelimit_mw.testing import RecordingStore

HOUR = "100/hour using fixed_window"


@pytest.mark.parametrize(("actual", "left"), [(None, 60), (40, 60), (7, 93), (0, 100), (6.5, 93), (150, 0)])
def test_a_block_takes_its_estimate_and_then_its_true_cost(actual: float | None, left: int) -> None:
    limiter = Limiter(RecordingStore())
    with limiter.reserve(HOUR, "me", 40) as reservation:
        assert (reservation.verdict.remaining, limiter.peek(HOUR, "me").remaining) == (60, 60)
        reservation.actual = actual
    assert limiter.peek(HOUR, "me").remaining == left


@pytest.mark.parametrize(("actual", "left"), [(None, 100), (7, 93)])
def test_a_block_that_raises_is_refunded_unless_its_cost_is_known(actual: int | None, left: int) -> None:
    limiter = Limiter(RecordingStore())
    with pytest.raises(ValueError, match="x"), limiter.reserve(HOUR, "me", 40) as reservation:  # noqa: PT012  # sets it
        reservation.actual = actual
        raise ValueError("x")
    assert limiter.peek(HOUR, "me").remaining == left


def test_a_canceled_task_is_refunded() -> None:
    store = RecordingStore()

    async def main() -> int:
        limiter = AsyncLimiter(store)

        async def work() -> None:
            async with limiter.reserve(HOUR, "me", 40):
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return (await limiter.peek(HOUR, "me")).remaining

    assert asyncio.run(main()) == 100


def test_a_refused_reservation_raises_and_takes_nothing() -> None:
    limiter = Limiter(RecordingStore())
    with pytest.raises(RateLimited), limiter.reserve(HOUR, "me", 101):
        pass
    assert limiter.peek(HOUR, "me").remaining == 100


def test_invalid_costs_and_slots_are_rejected() -> None:
    limiter = Limiter(RecordingStore())
    with limiter.reserve(HOUR, "me") as reservation, pytest.raises(ConfigError, match="actual: got -1"):
        reservation.actual = -1
    with pytest.raises(ConfigError, match="whose slots need"):
        limiter.reserve(Concurrency(2), "me")

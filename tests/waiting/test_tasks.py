"""Tests that 200 tasks that wait for one limit get turns in order, and that canceled tasks are not charged."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from ratelimit_mw import AsyncLimiter, MemoryStore, Verdict
from ratelimit_mw.stores.redis import AsyncRedisStore
from waiting.simulated_loop import run_told

TASKS = 200
PACE = "500/second burst 1 using gcra"
INTERVAL = 2000  # microseconds
SLOW = "1/minute burst 1 using gcra"


@asynccontextmanager
async def opened(store: str | None) -> AsyncIterator[Any]:
    made = MemoryStore() if store is None else AsyncRedisStore(store, timeout=5.0)
    yield made
    await made.aclose()


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str | None:
    if request.param == "memory":
        return None
    server = next(iter(request.getfixturevalue("redis_servers").values()))
    server.flush()
    url: str = server.url
    return url


def test_each_task_gets_its_own_turn(store: str | None) -> None:
    async def one(limiter: AsyncLimiter) -> int:
        return (await limiter.acquire(PACE, "key")).decisions[0].at

    async def main() -> tuple[list[int], float]:
        async with opened(store) as own:
            limiter = AsyncLimiter(own)
            await limiter.peek(PACE, "key")  # connects
            began = time.monotonic()
            turns = await asyncio.gather(*[one(limiter) for _ in range(TASKS)])
            return turns, time.monotonic() - began

    turns, took = asyncio.run(main())
    apart = [later - earlier for earlier, later in pairwise(sorted(turns))]
    assert min(apart) >= INTERVAL  # so no turn is given twice
    if store is None:
        assert turns == sorted(turns)  # in the order of the calls
        assert took >= (TASKS - 1) * INTERVAL / 1e6


def test_refunded_units_of_canceled_tasks_are_available(store: str | None) -> None:
    async def main() -> tuple[int, Verdict]:
        async with opened(store) as own:
            limiter, waiting = AsyncLimiter(own), []
            for number in range(TASKS + 1):
                waiting.append(asyncio.ensure_future(limiter.acquire(SLOW, "key")))
                while (await limiter.peek(SLOW, "key", 1)).retry_after <= number * 60:  # noqa: ASYNC110  # as below
                    await asyncio.sleep(0)  # until its turn is reserved, for which there is no event
            await waiting[0]
            for task in reversed(waiting):
                task.cancel()
                await asyncio.wait([task])
            return sum(task.cancelled() for task in waiting), await limiter.peek(SLOW, "key", 1)

    cancelled, left = asyncio.run(main())
    assert cancelled == TASKS
    assert 0 < left.retry_after <= 60  # only the first task, which did not wait, is charged


def test_tasks_get_turns_in_order_of_arrival() -> None:
    async def main() -> list[int]:
        limiter, gone = AsyncLimiter(MemoryStore(clock=asyncio.get_running_loop().time)), list[int]()

        async def one(number: int) -> None:
            await limiter.acquire(PACE, "key")
            gone.append(number)

        await asyncio.gather(*[one(number) for number in range(TASKS)])
        return gone

    assert run_told(main()) == list(range(TASKS))

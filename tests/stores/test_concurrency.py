"""Checks that exactly the quota is admitted when many requests run concurrently."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from algorithms.at_once import TAKEN, at_once
from ratelimit_mw import AsyncLimiter, Limiter, MemoryStore
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from stores.processes import by_eight_processes

LIMIT = "300/hour"  # a window that outlasts the tests
PATIENCE = 10.0  # seconds; long, because these tests do not measure time
DAY = 24 * 3600

pytestmark = pytest.mark.promise(3)

WORKER = """
import sys
from ratelimit_mw import Limiter
from ratelimit_mw.stores.redis import RedisStore
limiter = Limiter(RedisStore(sys.argv[1], timeout=float(sys.argv[2])))
print("ready", flush=True)
sys.stdin.readline()
for limit in sys.argv[3:]:
    print(sum(limiter.hit(limit, "everybody").allowed for _ in range(100)), end=" ")
"""
QUOTAS = {
    LIMIT: 300,
    "300/day using sliding_window_counter buckets 3 strict": 300,
    "300/day using fixed_window": 300,
    "300/day using sliding_window_log": 300,
    "300/day using token_bucket burst 250": 250,
    "300/day using gcra burst 250": 250,
    "300/day using leaky_bucket burst 250": 250,
    "300/day using smooth max_burst 86400": 301,  # the cost of the last request delays only the next one
}


@pytest.mark.one_redis
def test_eight_processes_get_exactly_the_quota_of_each_limit(redis_url: str) -> None:
    admitted = by_eight_processes(WORKER, redis_url, str(PATIENCE), *QUOTAS)
    assert [sum(counts) for counts in zip(*admitted, strict=True)] == list(QUOTAS.values())


def admitted_by_threads(hit: Callable[[], bool], threads: int, calls: int) -> int:
    counts = [0] * threads
    start = threading.Barrier(threads)

    def work(index: int) -> None:
        start.wait()
        counts[index] = sum(hit() for _ in range(calls))

    running = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(counts)


@pytest.mark.parametrize("algorithm", TAKEN)
def test_threads_get_exactly_the_quota_in_memory(algorithm: str) -> None:
    limiter, limit = Limiter(MemoryStore()), at_once(TAKEN[algorithm], 5000, DAY)
    assert admitted_by_threads(lambda: limiter.hit(limit, "everybody").allowed, 8, 750) == 5000


def test_threads_get_exactly_the_quotas_of_many_keys_in_memory() -> None:
    limiter = Limiter(MemoryStore())
    calls = iter(range(10**9))
    assert admitted_by_threads(lambda: limiter.hit("50/hour", f"key {next(calls) % 64}").allowed, 8, 1000) == 64 * 50


def test_threads_get_exactly_the_quota_on_redis(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=PATIENCE)
    limiter = Limiter(store)
    assert admitted_by_threads(lambda: limiter.hit(LIMIT, "everybody").allowed, 32, 25) == 300
    store.close()


@pytest.mark.one_redis
@pytest.mark.parametrize("algorithm", TAKEN)
def test_tasks_get_exactly_the_quotas_of_many_keys_on_redis(algorithm: str, redis_url: str) -> None:
    async def work() -> list[int]:
        store = AsyncRedisStore(redis_url, timeout=PATIENCE)
        limiter, limit = AsyncLimiter(store), at_once(TAKEN[algorithm], 7, DAY)

        async def task(number: int) -> list[bool]:
            return [(await limiter.hit(limit, f"key {(number + turn) % 16}")).allowed for turn in range(16)]

        admitted = sum(map(sum, await asyncio.gather(*(task(number) for number in range(64)))))
        left = [(await limiter.peek(limit, f"key {number}")).remaining for number in range(16)]
        await store.aclose()
        return [admitted, sum(left)]

    assert asyncio.run(work()) == [16 * 7, 0]


def test_tasks_get_exactly_the_quota_on_redis(redis_url: str) -> None:
    async def work() -> int:
        store = AsyncRedisStore(redis_url, timeout=PATIENCE)
        limiter = AsyncLimiter(store)
        verdicts = await asyncio.gather(*(limiter.hit(LIMIT, "everybody") for _ in range(640)))
        await store.aclose()
        return sum(verdict.allowed for verdict in verdicts)

    assert asyncio.run(work()) == 300


def test_a_request_refused_by_one_limit_is_not_charged_to_the_other(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=PATIENCE)
    limiter = Limiter(store)
    both = ["1000/hour", "40/hour using token_bucket burst 40"]
    assert admitted_by_threads(lambda: limiter.hit(both, "everybody").allowed, 8, 20) == 40
    assert limiter.peek("1000/hour", "everybody").remaining == 960
    store.close()

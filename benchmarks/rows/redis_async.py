"""Rows of the Redis store for asyncio, with 64 tasks and with one, and of the store for threads, with 32 and one."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from time import perf_counter_ns, process_time_ns
from typing import Any, Final

from benchmarks.lab import Lab, Missing, package
from benchmarks.redis_cluster import RedisCluster
from benchmarks.rows.redis import sync_store
from benchmarks.runner import Batch, Contender, Race, Row, Setup
from ratelimit_mw import Charge, FixedWindow, SlidingWindowCounter, TokenBucket

_TASKS: Final = 64
_THREADS: Final = 32
_DAY: Final = 24 * 3600.0  # seconds
_PLENTY: Final = 10**9
_PATIENT: Final = 5.0  # seconds; long, so that a hiccup of the machine does not count as a failure of the store
_BUCKET: Final = TokenBucket(_PLENTY, _DAY)
_THREE: Final = (_BUCKET, SlidingWindowCounter(_PLENTY, _DAY), FixedWindow(_PLENTY, _DAY))

Ask = Callable[[], Awaitable[bool]]  # makes one request, and returns whether it was admitted


def _of_tasks(lab: Lab, asks: Sequence[Ask]) -> Contender:
    """Return a contender with a task for each of `asks`, which calls it repeatedly."""

    async def task(ask: Ask, calls: int) -> int:
        return sum([await ask() for _ in range(calls)])

    async def all_tasks(calls: int) -> int:
        shares = [calls // len(asks) + (number < calls % len(asks)) for number in range(len(asks))]
        return sum(await asyncio.gather(*map(task, asks, shares)))

    def batch(calls: int) -> Batch:
        started = perf_counter_ns()
        admitted = lab.wait(all_tasks(calls))
        return Batch(perf_counter_ns() - started, admitted, calls - admitted)

    return batch


def _cluster_url(lab: Lab) -> str:
    try:
        return lab.closing.enter_context(RedisCluster()).url
    except FileNotFoundError:
        raise Missing("redis-server: not on PATH") from None


def _ours(tasks: int, *limits: Any, url_of: Callable[[Lab], str] = Lab.redis_url) -> Setup:
    """Set up tasks that each take from their own buckets, one of each limit, in one group."""

    def setup(lab: Lab) -> Contender:
        store = package("ratelimit_mw.stores.redis").AsyncRedisStore(url_of(lab), timeout=_PATIENT)
        lab.closing.callback(lambda: lab.wait(store.aclose()))

        def of(number: int) -> Ask:
            charges = [Charge(f"{{{number}}}:tasks", limit) for limit in limits]

            async def ask() -> bool:
                decisions = await store.atake(charges)
                return bool(decisions[0].allowed)  # a group is admitted or refused as a whole

            return ask

        return _of_tasks(lab, [of(number) for number in range(tasks)])

    return setup


def _limits_fixed_window(lab: Lab) -> Contender:
    """Return a contender for a fixed window of the `limits` library, which only returns yes or no."""
    aio = package("limits.aio", "limits")
    storage = aio.storage.RedisStorage(f"async+{lab.redis_url()}", implementation="redispy")
    limiter = aio.strategies.FixedWindowRateLimiter(storage)
    item = package("limits").RateLimitItemPerDay(_PLENTY)

    def of(number: int) -> Ask:
        async def ask() -> bool:
            return bool(await limiter.hit(item, str(number)))

        return ask

    lab.closing.callback(lambda: lab.wait(storage.bridge.storage.aclose()))
    return _of_tasks(lab, [of(number) for number in range(_TASKS)])


def _bare_evalsha(lab: Lab) -> Contender:
    """Return a contender for the minimal GCRA script, called by `redis.asyncio`, with hiredis if it is installed."""
    text = (files("benchmarks.rows") / "minimal_gcra.lua").read_text("utf-8")
    client = package("redis.asyncio", "redis").Redis.from_url(lab.redis_url())
    lab.closing.callback(lambda: lab.wait(client.aclose()))
    unit, full = str(_BUCKET.window_us / _BUCKET.quota), str(_BUCKET.window_us)

    async def load() -> str:
        sha: str = await client.script_load(text)
        return sha

    sha = lab.wait(load())

    async def ask() -> bool:
        return bool((await client.evalsha(sha, 1, "minimal_gcra:async", unit, full))[0])

    return _of_tasks(lab, [ask])


def _threads(threads: int) -> Setup:
    """Set up `threads` threads that share a store, each with its own bucket."""

    def setup(lab: Lab) -> Contender:
        store = sync_store(lab)
        pool = lab.closing.enter_context(ThreadPoolExecutor(threads))

        def work(number: int, calls: int) -> int:
            take, charges = store.take, [Charge(f"{{{number}}}:threads", _BUCKET)]
            return sum([take(charges)[0].allowed for _ in range(calls)])

        def batch(calls: int) -> Batch:
            shares = [calls // threads + (number < calls % threads) for number in range(threads)]
            started = perf_counter_ns()
            admitted = sum(pool.map(work, range(threads), shares))
            return Batch(perf_counter_ns() - started, admitted, calls - admitted)

        return batch

    return setup


def _bare_threads(lab: Lab) -> Contender:
    """Return a contender for the minimal GCRA script, called by redis-py in as many threads."""
    text = (files("benchmarks.rows") / "minimal_gcra.lua").read_text("utf-8")
    client: Any = lab.closing.enter_context(package("redis").Redis.from_url(lab.redis_url()))
    sha, unit, full = client.script_load(text), str(_BUCKET.window_us / _BUCKET.quota), str(_BUCKET.window_us)
    pool = lab.closing.enter_context(ThreadPoolExecutor(_THREADS))

    def work(number: int, calls: int) -> int:
        return sum([bool(client.evalsha(sha, 1, f"minimal_gcra:{number}", unit, full)[0]) for _ in range(calls)])

    def batch(calls: int) -> Batch:
        shares = [calls // _THREADS + (number < calls % _THREADS) for number in range(_THREADS)]
        started = perf_counter_ns()
        admitted = sum(pool.map(work, range(_THREADS), shares))
        return Batch(perf_counter_ns() - started, admitted, calls - admitted)

    return batch


def _by_processor(setup: Setup) -> Setup:
    """Measure the contender in processor time of this process, which excludes waiting."""

    def timed(lab: Lab) -> Contender:
        contender = setup(lab)

        def batch(calls: int) -> Batch:
            started = process_time_ns()
            done = contender(calls)
            return done._replace(nanoseconds=process_time_ns() - started)

        return batch

    return timed


ROWS: Final[Sequence[Row]] = [
    Race(
        name="redis-64",
        what="requests/s of 64 tasks, three limits each / limits' fixed-window hits",
        ours=_ours(_TASKS, *_THREE),
        peer=_limits_fixed_window,
        target=4.0,
        at_least=True,
        calls=6400,
    ),
    Race(
        name="redis-cluster-64",
        what="processor time of the process, 64 tasks: a request over a cluster of three nodes / over one server",
        ours=_by_processor(_ours(_TASKS, _BUCKET, url_of=_cluster_url)),
        peer=_by_processor(_ours(_TASKS, _BUCKET)),
        target=2.2,
        calls=6400,
    ),
    Race(
        name="redis-1",
        what="one task: one decision / bare EVALSHA, minimal GCRA, redis.asyncio",
        ours=_ours(1, _BUCKET),
        peer=_bare_evalsha,
        target=1.0,
        calls=500,
    ),
    Race(
        name="threads",
        what="takes/s of 32 threads / of 1 thread",
        ours=_threads(_THREADS),
        peer=_threads(1),
        target=0.8,
        at_least=True,
        calls=3200,
    ),
    Race(
        name="threads-processor",
        what="processor time of the process, 32 threads: one take / bare EVALSHA, minimal GCRA, redis-py",
        ours=_by_processor(_threads(_THREADS)),
        peer=_by_processor(_bare_threads),
        target=1.0,
        calls=3200,
    ),
]

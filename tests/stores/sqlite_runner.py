"""Forks workers that use one SQLite file, and prints the results: `python sqlite_runner.py FILE TASK NUMBER...`.

It is a separate program, because a fork copies threads and locks of a test run. The workers share counters in memory.
"""

import asyncio
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ratelimit_mw import AsyncLimiter, Charge, FixedWindow, Limiter, StoreError
from ratelimit_mw.stores.sqlite import SQLiteStore

WORKERS = 4
PATIENCE = 30.0  # seconds; long, because these tests do not measure time
KILL_EVERY = 0.06  # seconds
MANY = FixedWindow(10**9, 24 * 3600)


class StoppingLimit(FixedWindow, frozen=True):
    """Stops its process in `decide`, when it has the write lock and has not written yet."""

    def decide(self, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return super().decide(*arguments)


class Counters:
    """Integers that forked processes share; each is written by one process."""

    def __init__(self, number: int) -> None:
        # `struct.pack_into` writes zeros before the number: a process that is killed in between would lose its count
        self._counts = memoryview(mmap.mmap(-1, 8 * number)).cast("q")

    def add(self, index: int) -> None:
        self._counts[index] += 1

    def all(self) -> list[int]:
        return self._counts.tolist()


def forked(work: Callable[[], object]) -> int:
    """Start a process, and return its id."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0)
    return child


def shared(path: str, *limits: str) -> str:
    """Let each worker hit each limit 100 times. Returns how many hits each limit admitted."""
    counters = Counters(WORKERS * len(limits))
    limiter = Limiter(SQLiteStore(path, timeout=PATIENCE))

    def work(worker: int) -> None:
        for index, limit in enumerate(limits):
            for _ in range(100):
                if limiter.hit(limit, "everybody").allowed:
                    counters.add(worker * len(limits) + index)

    children = [forked(partial(work, worker)) for worker in range(WORKERS)]
    for child in children:
        os.waitpid(child, 0)
    found = counters.all()
    return " ".join(str(sum(found[index :: len(limits)])) for index in range(len(limits)))


def awaited(path: str, *limits: str) -> str:
    """Do the same as `shared`, with ten tasks in the event loop of each worker."""
    counters = Counters(WORKERS * len(limits))

    async def hit(limiter: AsyncLimiter, worker: int) -> None:
        for index, limit in enumerate(limits):
            for _ in range(10):
                if (await limiter.hit(limit, "everybody")).allowed:
                    counters.add(worker * len(limits) + index)

    async def work(worker: int) -> None:
        limiter = AsyncLimiter(SQLiteStore(path, timeout=PATIENCE))
        await asyncio.gather(*(hit(limiter, worker) for _ in range(10)))

    children = [forked(lambda worker=worker: asyncio.run(work(worker))) for worker in range(WORKERS)]  # type: ignore[misc]  # the type of a default
    for child in children:
        os.waitpid(child, 0)
    found = counters.all()
    return " ".join(str(sum(found[index :: len(limits)])) for index in range(len(limits)))


def killed(path: str, seconds: str) -> str:
    """Kill a worker every 60 ms, and start another. Returns the takes that succeeded, the units charged, and kills."""
    store = SQLiteStore(path, timeout=PATIENCE)
    kills = int(float(seconds) / KILL_EVERY)
    counters = Counters(WORKERS + kills)
    keys = [Charge(f"key {number}", MANY) for number in range(3)]

    def work(index: int) -> None:
        while True:
            store.take(keys)  # a group is charged completely or not at all
            counters.add(index)

    children = [forked(partial(work, index)) for index in range(WORKERS)]
    drawn = random.Random(3)  # noqa: S311  # tests need no secrets
    for kill in range(kills):
        time.sleep(KILL_EVERY)
        victim = children.pop(drawn.randrange(WORKERS))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        children.append(forked(partial(work, WORKERS + kill)))
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    left = {decision.remaining for decision in store.peek([Charge(key.key, MANY, 0) for key in keys])}
    (counted,) = {10**9 - units for units in left}
    return f"{sum(counters.all())} {counted} {kills + WORKERS}"


def stopped(path: str, times: str, timeout: str) -> str:
    """Stop a worker `times` times while it has the write lock, and take from the store in this process meanwhile.

    Returns the calls that failed, the longest CPU time of a call in microseconds, and the units charged at the end.
    """

    store = SQLiteStore(path, timeout=float(timeout), deny_cache=0)
    store_of_child = SQLiteStore(path, timeout=PATIENCE)
    store.take([Charge("k", MANY)])
    failed, longest = 0, 0
    for _ in range(int(times)):
        child = forked(lambda: store_of_child.take([Charge("k", StoppingLimit(10**9, 24 * 3600))]))
        os.waitpid(child, os.WUNTRACED)
        started = time.process_time_ns()
        try:
            store.take([Charge("k", MANY)])
        except StoreError:
            failed += 1
        longest = max(longest, time.process_time_ns() - started)
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        store.guard.clear()  # otherwise the circuit breaker would skip most calls
        store.take([Charge("k", MANY)])
    (decision,) = store.peek([Charge("k", MANY, 0)])
    return f"{failed} {longest // 1000} {10**9 - decision.remaining}"


if __name__ == "__main__":
    tasks: dict[str, Callable[..., str]] = {"shared": shared, "awaited": awaited, "killed": killed, "stopped": stopped}
    sys.stdout.write(tasks[sys.argv[2]](sys.argv[1], *sys.argv[3:]))

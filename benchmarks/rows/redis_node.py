"""Rows of the processor time of a request: of the Redis server (script, commands, sockets), and of the app.

Each process measures its own time, which excludes other processes on the machine.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from benchmarks.lab import Lab, package
from benchmarks.rows.redis import sync_store
from benchmarks.runner import Count, Counted, Row
from ratelimit_mw import Charge, SlidingWindowCounter

_PLENTY: Final = SlidingWindowCounter(100_000, 60.0)
_TASKS: Final = 64
_KEYS: Final = 1000
_PATIENT: Final = 5.0  # seconds; long, so that a hiccup of the machine does not count as a failure of the store


def _requests(limits: int) -> list[list[Charge]]:
    """Return the charges of a thousand clients. The keys of a client are in one cluster slot."""
    return [[Charge(f"{{{client}}}:node{n}", _PLENTY) for n in range(limits)] for client in range(_KEYS)]


def _alone(limits: int) -> Callable[[Lab, int], Counted]:
    def measured(lab: Lab, calls: int) -> Counted:
        take, requests = sync_store(lab).take, _requests(limits)
        take(requests[0])  # opens the connection
        before = _busy(lab)
        admitted = sum(all(one.allowed for one in take(requests[n % _KEYS])) for n in range(calls))
        return Counted(_busy(lab) - before, admitted, calls - admitted)

    return measured


def _together(limits: int, busy: Callable[[Lab], int]) -> Callable[[Lab, int], Counted]:
    async def run(lab: Lab, calls: int) -> Counted:
        store = package("ratelimit_mw.stores.redis").AsyncRedisStore(lab.redis_url(), timeout=_PATIENT)
        requests, turns = _requests(limits), count()

        async def task() -> int:
            admitted = 0
            while (turn := next(turns)) < calls:
                admitted += all(one.allowed for one in await store.atake(requests[turn % _KEYS]))
            return admitted

        try:
            await store.atake(requests[0])  # opens the connection
            before = busy(lab)
            admitted = sum(await asyncio.gather(*[task() for _ in range(_TASKS)]))
            return Counted(busy(lab) - before, admitted, calls - admitted, notes=(f"{_TASKS} tasks",))
        finally:
            await store.aclose()

    return lambda lab, calls: lab.wait(run(lab, calls))


def _busy(lab: Lab) -> int:
    """Return the processor time that the server has used, in microseconds."""
    with package("redis").Redis.from_url(lab.redis_url()) as client:
        found = client.info("cpu")
    return int(1e6 * (found["used_cpu_user"] + found["used_cpu_sys"]))


def _own_busy(_: Lab) -> int:
    """Return the processor time that this process has used, in microseconds."""
    return time.process_time_ns() // 1000


ROWS: Final[Sequence[Row]] = [
    Count(
        name=f"redis-{name}-{limits}",
        what=f"processor time of {whose}, per request of {limits} limit{'s'[: limits - 1]}, default algorithm",
        count=measured,
        unit="us",
        calls=20_000,
    )
    for limits in (1, 3)
    for name, whose, measured in (
        ("node-sync", "the server, one thread asks", _alone(limits)),
        ("node-async", "the server, 64 tasks ask", _together(limits, _busy)),
        ("app-async", "the process that asks, 64 tasks", _together(limits, _own_busy)),
    )
]

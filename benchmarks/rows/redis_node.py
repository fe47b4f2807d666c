"""What a request costs the processor of a Redis server: its script, its commands and its sockets.

The server says so itself, so that other processes on the machine are not in it.
"""

import asyncio
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
_PATIENT: Final = 5.0  # seconds: a hiccup of the machine is no answer of the store


def _requests(limits: int) -> list[list[Charge]]:
    """Of a thousand clients; the limits of one share a slot."""
    return [[Charge(f"{{{client}}}:node{n}", _PLENTY) for n in range(limits)] for client in range(_KEYS)]


def _alone(limits: int) -> Callable[[Lab, int], Counted]:
    def measured(lab: Lab, calls: int) -> Counted:
        take, requests = sync_store(lab).take, _requests(limits)
        take(requests[0])  # opens the connection
        before = _busy(lab)
        admitted = sum(all(one.allowed for one in take(requests[n % _KEYS])) for n in range(calls))
        return Counted(_busy(lab) - before, admitted, calls - admitted)

    return measured


def _together(limits: int) -> Callable[[Lab, int], Counted]:
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
            before = _busy(lab)
            admitted = sum(await asyncio.gather(*[task() for _ in range(_TASKS)]))
            return Counted(_busy(lab) - before, admitted, calls - admitted, notes=(f"{_TASKS} tasks",))
        finally:
            await store.aclose()

    return lambda lab, calls: lab.wait(run(lab, calls))


def _busy(lab: Lab) -> int:
    """Microseconds of processor time that the server has used."""
    with package("redis").Redis.from_url(lab.redis_url()) as client:
        found = client.info("cpu")
    return int(1e6 * (found["used_cpu_user"] + found["used_cpu_sys"]))


ROWS: Final[Sequence[Row]] = [
    Count(
        name=f"redis-node-{name}-{limits}",
        what=f"processor time of the server per request {how}, {limits} limit{'s'[: limits - 1]}, default algorithm",
        count=through(limits),
        unit="us",
        calls=20_000,
    )
    for name, how, through in (("sync", "of one thread", _alone), ("async", "of 64 tasks", _together))
    for limits in (1, 3)
]

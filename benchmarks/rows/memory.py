"""One call of the memory store, without any web, against `limits`."""

from collections.abc import Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.ours import memory
from benchmarks.runner import Batch, Contender, Race, Row, Setup


def _limits(strategy: str, quota: int) -> Setup:
    """`limits` with one of its strategies, over its memory."""

    def setup(_: Lab) -> Contender:
        limits: Any = package("limits")
        storage = package("limits.storage").MemoryStorage()
        hit = getattr(package("limits.strategies"), strategy)(storage).hit
        limit = limits.RateLimitItemPerDay(quota)
        if quota == memory.FEW:
            memory.use_up(lambda: hit(limit, "198.51.100.7"))

        def batch(calls: int) -> Batch:
            admitted = 0
            started = perf_counter_ns()
            for _ in repeat(None, calls):
                if hit(limit, "198.51.100.7"):
                    admitted += 1
            return Batch(perf_counter_ns() - started, admitted, calls - admitted)

        return batch

    return setup


ROWS: Final[Sequence[Row]] = [
    Race(
        name="memory-token",
        what="one take, token bucket / limits' fixed-window hit",
        ours=memory.token,
        peer=_limits("FixedWindowRateLimiter", memory.PLENTY),
        target=0.45,
    ),
    Race(
        name="memory-default",
        what="one take, default algorithm / limits' fixed-window hit",
        ours=memory.default,
        peer=_limits("FixedWindowRateLimiter", memory.PLENTY),
    ),
    Race(
        name="memory-refused",
        what="refused, token bucket / limits' moving window",
        ours=memory.refused,
        peer=_limits("MovingWindowRateLimiter", memory.FEW),
        admits=False,
    ),
]

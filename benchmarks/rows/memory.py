"""One call of the memory store, without any web, against `limits`."""

from collections.abc import Callable, Sequence
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.runner import Batch, Contender, Race, Row, Setup
from benchmarks.takes import takes
from ratelimit_mw import Charge, Limit, MemoryStore, SlidingWindowCounter, TokenBucket

_DAY: Final = 24 * 3600.0  # seconds: nothing comes back while it is measured
_PLENTY: Final = 10**9
_FEW: Final = 10


def _ours(limit: Limit) -> Setup:
    def setup(_: Lab) -> Contender:
        store = MemoryStore()
        charge = Charge("198.51.100.7", limit)
        if limit.quota == _FEW:
            _use_up(lambda: store.take([charge])[0].allowed)
        return takes(store, charge)

    return setup


def _limits(strategy: str, quota: int) -> Setup:
    """`limits` with one of its strategies, over its memory."""

    def setup(_: Lab) -> Contender:
        limits: Any = package("limits")
        storage = package("limits.storage").MemoryStorage()
        hit = getattr(package("limits.strategies"), strategy)(storage).hit
        limit = limits.RateLimitItemPerDay(quota)
        if quota == _FEW:
            _use_up(lambda: hit(limit, "198.51.100.7"))

        def batch(calls: int) -> Batch:
            admitted = 0
            started = perf_counter_ns()
            for _ in repeat(None, calls):
                if hit(limit, "198.51.100.7"):
                    admitted += 1
            return Batch(perf_counter_ns() - started, admitted, calls - admitted)

        return batch

    return setup


def _use_up(hit: Callable[[], bool]) -> None:
    assert [hit() for _ in range(_FEW)] == [True] * _FEW


ROWS: Final[Sequence[Row]] = [
    Race(
        name="memory-token",
        what="one take, token bucket / limits' fixed-window hit",
        ours=_ours(TokenBucket(_PLENTY, _DAY)),
        peer=_limits("FixedWindowRateLimiter", _PLENTY),
        target=0.45,
    ),
    Race(
        name="memory-default",
        what="one take, default algorithm / limits' fixed-window hit",
        ours=_ours(SlidingWindowCounter(_PLENTY, _DAY)),
        peer=_limits("FixedWindowRateLimiter", _PLENTY),
    ),
    Race(
        name="memory-refused",
        what="refused, token bucket / limits' moving window",
        ours=_ours(TokenBucket(_FEW, _DAY)),
        peer=_limits("MovingWindowRateLimiter", _FEW),
        admits=False,
    ),
]

"""Rows of a take from the memory store, compared with the memory stores of libraries without a web part."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from time import perf_counter_ns
from typing import Any, Final

from benchmarks.lab import Lab, package
from benchmarks.ours import memory
from benchmarks.runner import Batch, Contender, Race, Row, Setup
from benchmarks.takes import hits


def _limits(strategy: str, quota: int, of: Callable[[Lab], Sequence[str]] = memory.one) -> Setup:
    """Set up `limits` with one of its strategies, in memory."""

    def setup(lab: Lab) -> Contender:
        limits: Any = package("limits")
        keys = of(lab)
        storage = package("limits.storage").MemoryStorage()
        hit = getattr(package("limits.strategies"), strategy)(storage).hit
        limit = limits.RateLimitItemPerDay(quota)
        for key in keys:
            if quota == memory.FEW:
                memory.use_up(partial(hit, limit, key))
            else:
                hit(limit, key)
        return hits(hit, [(limit, key) for key in keys])

    return setup


def _throttled(_: Lab) -> Contender:
    """Return a contender for throttled-py's token bucket in memory."""
    throttled = package("throttled", "throttled-py")
    quota, store = throttled.per_day(memory.PLENTY), throttled.MemoryStore()
    hit = throttled.Throttled(using="token_bucket", quota=quota, store=store).limit

    def batch(calls: int) -> Batch:
        refused = 0
        started = perf_counter_ns()
        for _ in repeat(None, calls):
            if hit("198.51.100.7").limited:
                refused += 1
        return Batch(perf_counter_ns() - started, calls - refused, refused)

    return batch


def _pyrate(lab: Lab) -> Contender:
    """Return a contender for pyrate-limiter's bucket in memory, which all names share and which keeps every hit."""
    pyrate = package("pyrate_limiter", "pyrate-limiter")
    limiter = pyrate.Limiter(pyrate.Rate(memory.PLENTY, pyrate.Duration.DAY))
    lab.closing.callback(limiter.close)
    return hits(limiter.try_acquire, [(key,) for key in memory.one(lab)])


_FIXED: Final = "FixedWindowRateLimiter"
_MOVING: Final = "MovingWindowRateLimiter"

ROWS: Final[Sequence[Row]] = [
    Race(
        name="memory-token",
        what="one take, token bucket / limits' fixed-window hit",
        ours=memory.token,
        peer=_limits(_FIXED, memory.PLENTY),
        target=0.38,
    ),
    Race(
        name="memory-default",
        what="one take, default algorithm / limits' fixed-window hit",
        ours=memory.default,
        peer=_limits(_FIXED, memory.PLENTY),
        target=0.38,
    ),
    Race(
        name="memory-token-2",
        what="one take, token bucket / throttled-py's token bucket",
        ours=memory.token,
        peer=_throttled,
        target=0.25,
    ),
    Race(
        name="memory-default-2",
        what="one take, default algorithm / pyrate-limiter's, one bucket for all",
        ours=memory.default,
        peer=_pyrate,
    ),
    Race(
        name="memory-refused",
        what="refused, token bucket / limits' moving window",
        ours=memory.refused,
        peer=_limits(_MOVING, memory.FEW),
        target=0.52,
        admits=False,
    ),
    Race(
        name="memory-refused-default",
        what="refused, default algorithm / limits' moving window",
        ours=memory.refused_default,
        peer=_limits(_MOVING, memory.FEW),
        target=0.62,
        admits=False,
    ),
    Race(
        name="memory-keys",
        what="one take of 100,000 keys in turn, token bucket / limits' fixed-window hit",
        ours=memory.token_keys,
        peer=_limits(_FIXED, memory.PLENTY, memory.many),
    ),
    Race(
        name="memory-keys-refused",
        what="refused to 100,000 keys in turn, token bucket / limits' moving window",
        ours=memory.refused_keys,
        peer=_limits(_MOVING, memory.FEW, memory.many),
        admits=False,
    ),
]

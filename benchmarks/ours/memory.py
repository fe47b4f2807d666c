"""One call of the memory store, without any web."""

from collections.abc import Callable
from typing import Final

from benchmarks.lab import Lab
from benchmarks.runner import Contender
from benchmarks.takes import takes
from ratelimit_mw import Charge, MemoryStore, SlidingWindowCounter, TokenBucket

_DAY: Final = 24 * 3600.0  # seconds: nothing comes back while it is measured
PLENTY: Final = 10**9
FEW: Final = 10


def token(_: Lab) -> Contender:
    """A token bucket that admits."""
    return takes(MemoryStore(), Charge("198.51.100.7", TokenBucket(PLENTY, _DAY)))


def default(_: Lab) -> Contender:
    """The default algorithm, admitting."""
    return takes(MemoryStore(), Charge("198.51.100.7", SlidingWindowCounter(PLENTY, _DAY)))


def refused(_: Lab) -> Contender:
    """A token bucket that is empty."""
    store, charge = MemoryStore(), Charge("198.51.100.7", TokenBucket(FEW, _DAY))
    use_up(lambda: store.take([charge])[0].allowed)
    return takes(store, charge)


def use_up(hit: Callable[[], bool]) -> None:
    """All that `FEW` admits."""
    assert [hit() for _ in range(FEW)] == [True] * FEW

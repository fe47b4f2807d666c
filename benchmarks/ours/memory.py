"""One call of the memory store, without any web."""

from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address
from typing import Final

from benchmarks.lab import Lab
from benchmarks.runner import Contender
from benchmarks.takes import takes
from ratelimit_mw import Charge, Limit, MemoryStore, SlidingWindowCounter, TokenBucket

_DAY: Final = 24 * 3600.0  # seconds: nothing comes back while it is measured
PLENTY: Final = 10**9
FEW: Final = 10
_MANY: Final = 100_000


def token(_: Lab) -> Contender:
    """A token bucket that admits."""
    return takes(MemoryStore(), Charge("198.51.100.7", TokenBucket(PLENTY, _DAY)))


def default(_: Lab) -> Contender:
    """The default algorithm, admitting."""
    return takes(MemoryStore(), Charge("198.51.100.7", SlidingWindowCounter(PLENTY, _DAY)))


def refused(lab: Lab) -> Contender:
    """A token bucket that is empty."""
    return _used_up(TokenBucket(FEW, _DAY), one(lab))


def refused_default(lab: Lab) -> Contender:
    """The default algorithm, with nothing left."""
    return _used_up(SlidingWindowCounter(FEW, _DAY), one(lab))


def token_keys(lab: Lab) -> Contender:
    """Token buckets of many keys, one after the other, admitting."""
    store, charges = MemoryStore(), [Charge(key, TokenBucket(PLENTY, _DAY)) for key in many(lab)]
    for charge in charges:
        store.take((charge,))
    return takes(store, *charges)


def refused_keys(lab: Lab) -> Contender:
    """Token buckets of many keys, one after the other, all empty."""
    return _used_up(TokenBucket(FEW, _DAY), many(lab))


def one(_: Lab) -> Sequence[str]:
    """An address."""
    return ["198.51.100.7"]


def many(lab: Lab) -> Sequence[str]:
    """A hundred thousand addresses; fewer where a turn has fewer calls, by the wish of the run."""
    return [str(IPv4Address(n)) for n in range(min(lab.calls or _MANY, _MANY))]


def use_up(hit: Callable[[], bool]) -> None:
    """All that `FEW` admits."""
    assert [hit() for _ in range(FEW)] == [True] * FEW


def _hit(store: MemoryStore, charge: Charge) -> bool:
    return store.take((charge,))[0].allowed


def _used_up(limit: Limit, of: Sequence[str]) -> Contender:
    store, charges = MemoryStore(), [Charge(key, limit) for key in of]
    for charge in charges:
        use_up(partial(_hit, store, charge))
    return takes(store, *charges)

"""Takes from the memory store, without a web app."""

from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Address
from typing import Final

from benchmarks.lab import Lab
from benchmarks.runner import Contender
from benchmarks.takes import takes
from ratelimit_mw import Charge, Limit, MemoryStore, SlidingWindowCounter, TokenBucket

_DAY: Final = 24 * 3600.0  # seconds; long, so that no quota is restored during the run
PLENTY: Final = 10**9
FEW: Final = 10
_MANY: Final = 100_000


def token(_: Lab) -> Contender:
    """Return takes from a token bucket that admits."""
    return takes(MemoryStore(), Charge("198.51.100.7", TokenBucket(PLENTY, _DAY)))


def default(_: Lab) -> Contender:
    """Return takes that the default algorithm admits."""
    return takes(MemoryStore(), Charge("198.51.100.7", SlidingWindowCounter(PLENTY, _DAY)))


def refused(lab: Lab) -> Contender:
    """Return takes from an empty token bucket."""
    return _used_up(TokenBucket(FEW, _DAY), one(lab))


def refused_default(lab: Lab) -> Contender:
    """Return takes that the default algorithm refuses."""
    return _used_up(SlidingWindowCounter(FEW, _DAY), one(lab))


def token_keys(lab: Lab) -> Contender:
    """Return takes from the token buckets of many keys, round-robin. All are admitted."""
    store, charges = MemoryStore(), [Charge(key, TokenBucket(PLENTY, _DAY)) for key in many(lab)]
    for charge in charges:
        store.take((charge,))
    return takes(store, *charges)


def refused_keys(lab: Lab) -> Contender:
    """Return takes from the token buckets of many keys, round-robin. All are empty."""
    return _used_up(TokenBucket(FEW, _DAY), many(lab))


def one(_: Lab) -> Sequence[str]:
    """Return a list of one address."""
    return ["198.51.100.7"]


def many(lab: Lab) -> Sequence[str]:
    """Return a hundred thousand addresses; fewer if `--calls` is less."""
    return [str(IPv4Address(n)) for n in range(min(lab.calls or _MANY, _MANY))]


def use_up(hit: Callable[[], bool]) -> None:
    """Use up a limit of `FEW` units."""
    assert [hit() for _ in range(FEW)] == [True] * FEW


def _hit(store: MemoryStore, charge: Charge) -> bool:
    return store.take((charge,))[0].allowed


def _used_up(limit: Limit, of: Sequence[str]) -> Contender:
    store, charges = MemoryStore(), [Charge(key, limit) for key in of]
    for charge in charges:
        use_up(partial(_hit, store, charge))
    return takes(store, *charges)

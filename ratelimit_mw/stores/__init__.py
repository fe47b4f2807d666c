"""Stores keep the state of limits. A store runs `old state -> (decision, new state)` atomically.

A store knows nothing about rules. `Store` and `AsyncStore` have the same methods. Those of `AsyncStore` have an `a` in
front of their names, and are awaited. A store that decides a `take` without reading the state, for example from a
cache, returns an `Answer`: a list of decisions with a `source`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Answer

__all__ = ["Answer", "AsyncStore", "Store"]


@runtime_checkable
class Store(Protocol):
    """A store for threads. Raises `StoreError` if it cannot decide, `ConfigError` for invalid charges."""

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all limits if none of them refuses, else none. Return one decision per charge, in order."""
        ...

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what `take` would return now, and charge nothing."""
        ...

    def settle(self, charges: Sequence[Charge]) -> object:
        """Correct earlier charges: `cost` is signed, `at` comes from the decision. The result is ignored."""
        ...

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets, as if they had never been charged."""
        ...

    def close(self) -> None:
        """Close what the store itself opened."""
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """A store for asyncio; see `Store`."""

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        ...

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.peek`."""
        ...

    async def asettle(self, charges: Sequence[Charge]) -> object:
        """See `Store.settle`."""
        ...

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `Store.reset`."""
        ...

    async def aclose(self) -> None:
        """See `Store.close`."""
        ...


def check_is_store(store: object) -> None:
    """Raise `ConfigError` for a Limiter, for a client of Redis, and for a store's class in place of an instance.

    These have methods of the same names as a store, but are not stores.
    """
    name = type(store).__name__
    if store is None:
        raise ConfigError("store: got None, expected a URL or a store; leave it out for memory://", code="RL-040")
    if isinstance(store, type):
        raise ConfigError(
            f"store: got the class {store.__name__}, expected a store: {store.__name__}(...)", code="RL-040"
        )
    if callable(getattr(store, "execute_command", None)):
        raise ConfigError(
            f"store: got {type(store).__module__}.{name}, a client, expected a URL or a store: RedisStore(client) for "
            "threads, AsyncRedisStore(client) with a client of redis.asyncio for asyncio",
            code="RL-040",
        )
    if callable(getattr(store, "hit", None)) and isinstance(getattr(store, "store", None), (Store, AsyncStore)):
        raise ConfigError(f"store: got {name}, expected a URL or a store; pass the store of that {name}", code="RL-040")

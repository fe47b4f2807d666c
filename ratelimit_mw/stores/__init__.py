"""Where state lives. A store runs `old state -> (decision, new state)` atomically and knows nothing of policies.

`Store` and `AsyncStore` are the same four verbs; the `a` in front says that they are awaited. A store that answers a
`take` from elsewhere than the state itself, from memory for example, says so by returning an `Answer`: a list of
decisions with a `source`.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Answer

__all__ = ["Answer", "AsyncStore", "Store"]


@runtime_checkable
class Store(Protocol):
    """A store for threads. Raises `StoreError` when it has no answer, `ConfigError` for charges that cannot be."""

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none: one decision each, in order."""
        ...

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What `take` would answer now; changes nothing."""
        ...

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """Correct what was taken: `cost` is signed, `at` comes from the decision.

        May answer what was taken by it, one charge each, in order: the units that were not forgiven, and the `at` with
        which they can be given back. None where a store does not say.
        """
        ...

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets: they are as if never touched."""
        ...

    def close(self) -> None:
        """Free what the store opened itself."""
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """The same for asyncio."""

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        ...

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.peek`."""
        ...

    async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `Store.settle`."""
        ...

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `Store.reset`."""
        ...

    async def aclose(self) -> None:
        """See `Store.close`."""
        ...

"""What a store may declare beyond its five methods: the base class of all stores, with defaults.

`declared` completes a store that does not derive from `BaseStore`. Nothing else looks for attributes of a store.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.events import StoreEvent
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.inventory import AsyncInventory, Inventory
from ratelimit_mw.stores.kept_overrides import AsyncOverrideKeeper, OverrideKeeper
from ratelimit_mw.stores.live import AsyncLiveKeeper, LiveKeeper

Clock = Callable[[], float]
"""Returns seconds: the clock configured for the store, or else monotonic time."""

Listener = Callable[[StoreEvent], object]
"""Receives store events synchronously, in the thread or task of a request. Must not raise."""

SCRIPT_ERROR: Final = "ratelimit_mw: "
"""The start of the error if a Lua script rejects its arguments. Then nothing was written."""


class BaseStore:
    """What a store declares if it declares nothing. A store of one's own may derive from it.

    `can_fail`: whether a call may raise, so that the fallback store follows the decisions. `suspends`: whether an
    awaited call may let other tasks run; if False, the methods for threads are called in the event loop.
    `has_own_timeout`: whether each awaited call ends in time, so callers need no timeout of their own. `is_cluster`:
    whether a call reaches the keys of one hash slot only.

    `probe`: takes a unit with each of these algorithms, and returns the error, or None. It is None if the store cannot
    be probed before the first request.
    """

    can_fail: ClassVar[bool] = True
    suspends: ClassVar[bool] = True
    has_own_timeout: ClassVar[bool] = False
    is_cluster: bool = False
    probe: Callable[[Iterable[str]], StoreError | None] | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that used the store last; None if unknown."""
        return None

    @property
    def inventory(self) -> Inventory | None:
        """The methods for the admin commands, if the store has them."""
        return self if isinstance(self, Inventory) else None

    @property
    def async_inventory(self) -> AsyncInventory | None:
        """The methods for the admin commands that apps under asyncio call, if the store has them."""
        return self if isinstance(self, AsyncInventory) else None

    @property
    def override_keeper(self) -> OverrideKeeper | None:
        """The methods for overrides, if the store has them."""
        return self if isinstance(self, OverrideKeeper) else None

    @property
    def async_override_keeper(self) -> AsyncOverrideKeeper | None:
        """The method for overrides that apps under asyncio call, if the store has it."""
        return self if isinstance(self, AsyncOverrideKeeper) else None

    @property
    def live_keeper(self) -> LiveKeeper | None:
        """The methods for the dashboard, if the store has them."""
        return self if isinstance(self, LiveKeeper) else None

    @property
    def async_live_keeper(self) -> AsyncLiveKeeper | None:
        """The method for the dashboard that apps under asyncio call, if the store has it."""
        return self if isinstance(self, AsyncLiveKeeper) else None

    def subscribe(self, listener: Listener) -> bool:  # noqa: ARG002  # a store without events
        """Send events to `listener`; a second time has no effect. Return whether the store has any events."""
        return False

    def start_take(self, charges: Sequence[Charge]) -> Awaitable[Sequence[Decision]]:
        """Return what `atake` returns. A store that has a future saves a coroutine for each request."""
        decisions: Awaitable[Sequence[Decision]] = self.atake(charges)  # type: ignore[attr-defined]  # of an AsyncStore
        return decisions

    def count_states(self) -> int | None:
        """Return the number of states in this process; None if they are elsewhere."""
        return None


class InPlace(BaseStore):
    """A store for threads whose calls never wait for I/O, so that asyncio may call it in the event loop."""

    suspends: ClassVar[bool] = False
    take: Callable[[Sequence[Charge]], Sequence[Decision]]
    peek: Callable[[Sequence[Charge]], Sequence[Decision]]
    settle: Callable[[Sequence[Charge]], object]
    reset: Callable[[Sequence[Charge]], None]
    close: Callable[[], None]

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `take`."""
        return self.take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `peek`."""
        return self.peek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `settle`."""
        self.settle(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `reset`."""
        self.reset(charges)

    async def aclose(self) -> None:
        """See `close`."""
        self.close()


class _Completed(BaseStore):
    """What a store that does not derive from `BaseStore` declares by attributes of these names, else the defaults."""

    def __init__(self, store: object) -> None:
        self._store: Any = store
        for name in ("can_fail", "suspends", "has_own_timeout", "is_cluster", "probe", "subscribe", "count_states"):
            if hasattr(store, name):
                setattr(self, name, getattr(store, name))
        self.suspends = self.suspends or not isinstance(store, Store)  # type: ignore[misc]  # of this store

    def start_take(self, charges: Sequence[Charge]) -> Awaitable[Sequence[Decision]]:
        """See `BaseStore`."""
        decisions: Awaitable[Sequence[Decision]] = self._store.atake(charges)
        return decisions

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """See `BaseStore`."""
        loop: asyncio.AbstractEventLoop | None = getattr(self._store, "loop", None)
        return loop

    @property
    def inventory(self) -> Inventory | None:
        """See `BaseStore`."""
        return self._store if isinstance(self._store, Inventory) else None

    @property
    def async_inventory(self) -> AsyncInventory | None:
        """See `BaseStore`."""
        return self._store if isinstance(self._store, AsyncInventory) else None

    @property
    def override_keeper(self) -> OverrideKeeper | None:
        """See `BaseStore`."""
        return self._store if isinstance(self._store, OverrideKeeper) else None

    @property
    def async_override_keeper(self) -> AsyncOverrideKeeper | None:
        """See `BaseStore`."""
        return self._store if isinstance(self._store, AsyncOverrideKeeper) else None

    @property
    def live_keeper(self) -> LiveKeeper | None:
        """See `BaseStore`."""
        return self._store if isinstance(self._store, LiveKeeper) else None

    @property
    def async_live_keeper(self) -> AsyncLiveKeeper | None:
        """See `BaseStore`."""
        return self._store if isinstance(self._store, AsyncLiveKeeper) else None


def declared(store: object) -> BaseStore:
    """Return what a store declares: the store itself if it derives from `BaseStore`."""
    return store if isinstance(store, BaseStore) else _Completed(store)

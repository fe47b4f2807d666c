"""Stores that run layers over another store: `LayeredStore` for threads, `AsyncLayeredStore` for asyncio.

Both run the same coroutines. The logic of each layer is in a module of its own.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.inventory import KeyPage, NumberedRefusal, Refusal
from ratelimit_mw.stores.layer import Clock, Layer, Listener, Lookup
from ratelimit_mw.stores.lease import LeaseManager
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides, after_fork_in_child, call_at_exit

_CLOCK_RESOLUTION: Final = 0.001  # seconds of the event loop's clock; a timer may fire so much too early


class _LayeredBase:
    """The base of both stores, written as coroutines, which never suspend in threads.

    The first layer is the outermost. Leases run before all layers. `timeout`: seconds that closing the store waits for
    leases and refunds in progress. `clock`: the clock configured for the store; None is monotonic time. `leases`: False
    for a store on this host, where each charge takes its own units.
    """

    _awaitable_store: AsyncStore  # the store below the layers; one for threads, wrapped in coroutines
    _take_below: Callable[[Sequence[Charge]], Awaitable[Sequence[Decision]]]  # its `start_take`, if any

    def __init__(
        self, store: Any, layers: Sequence[Layer], timeout: float, clock: Clock | None = None, *, leases: bool = True
    ) -> None:
        self._store, self._timeout = store, timeout
        self._layers = layers
        self._before_take, self._after_take = (
            [layer.before_take for layer in layers],
            [layer.after_take for layer in layers],
        )
        self._leases, self._has_leases = LeaseManager(), leases
        self._configured_clock, self._clock = clock, clock or time.monotonic
        self.is_cluster: bool = getattr(store, "is_cluster", False)  # see `thread_store.Transport`
        after_fork_in_child(self._clear)
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # layers are cleared in any case
        if self._configured_clock is None:
            self._clock = overrides.wall or time.monotonic
        self._clear()

    def _clear(self) -> None:
        self._leases.clear()
        for layer in self._layers:
            layer.clear()

    def find_lookup(self) -> Lookup | None:
        """Return a function that looks up decisions in a layer; None if no layer has any.

        A batcher uses it just before it sends waiting groups: another request may have been refused in the meantime.
        """
        for layer in self._layers:
            if layer.has_entries:
                return partial(self._look_up, layer)
        return None

    def _look_up(self, layer: Layer, charges: Sequence[Charge]) -> Sequence[Decision] | None:
        return layer.before_take(charges, self._clock())

    def subscribe(self, listener: Listener) -> bool:
        """Call `listener` with each `StoreEvent`: failures of the store and changes of its circuit breaker.

        It is called synchronously, in the thread or task of a request, and must not raise. Subscribing it again has no
        effect. Returns whether there is a circuit breaker; without one there are no events.
        """
        return any([layer.subscribe(listener) for layer in self._layers])  # noqa: C419  # a generator would stop at the first

    def _start(self, work: Coroutine[Any, Any, None], refund_after: float | None = None) -> "asyncio.Task[None] | None":
        """Run work that no decision depends on. `refund_after`: seconds until a lease taken by it must be refunded."""
        raise NotImplementedError

    def _take(self, charges: Sequence[Charge]) -> Coroutine[Any, Any, Sequence[Decision]]:
        for charge in charges:
            if charge.lease and self._has_leases:
                return self._leases.take(charges, self._clock, self._take_from_store, self._start)
        return self._take_from_store(charges)

    async def _take_from_store(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        started_at = self._clock()
        for before_take in self._before_take:  # _look_up(), inlined: a call would double the time
            decisions = before_take(charges, started_at)
            if decisions is not None:
                return decisions
        try:
            decisions = await self._take_below(charges)
        except BaseException as error:
            self._after_failure(charges, error, started_at)
            raise
        self._after_decisions(charges, decisions, started_at)
        return decisions

    def _after_failure(self, charges: Sequence[Charge], error: BaseException, started_at: float) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.on_failure(charges, error, started_at, now)

    def _after_decisions(self, charges: Sequence[Charge], decisions: Sequence[Decision], started_at: float) -> None:
        for after_take in self._after_take:
            after_take(charges, decisions, started_at, self._clock)
        if started_at >= self._leases.next_expiry:
            self._refund_expired()

    async def _peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        now = self._clock()
        for layer in self._layers:
            layer.before_peek(now)
        return await self._awaitable_store.apeek(charges)

    async def _settle(self, charges: Sequence[Charge]) -> None:
        try:
            await self._awaitable_store.asettle(charges)
        finally:
            self._invalidate(charges)

    async def _reset(self, charges: Sequence[Charge]) -> None:
        self._leases.invalidate(charges)
        try:
            await self._awaitable_store.areset(charges)
        finally:
            self._invalidate(charges)

    async def _close(self) -> None:
        await self._refund(self._leases.drain_all())
        await self._awaitable_store.aclose()

    def _invalidate(self, charges: Sequence[Charge]) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.invalidate(charges, now)

    def _refund_expired(self) -> None:
        if refunds := self._leases.drain_expired(self._clock):
            self._start(self._refund(refunds))

    async def _refund(self, refunds: Sequence[Charge]) -> None:
        if refunds:
            try:
                await self._settle(refunds)
            except Exception as error:  # noqa: BLE001  # no request depends on a refund
                warn_throttled("lease", "unspent units may not have been refunded: %s", error, code="RL-208")


class LayeredStore(_LayeredBase):
    """Runs layers over a `Store`. The first layer is the outermost. Leases run before all layers."""

    _refunds_at_exit = False

    def __init__(
        self, store: Store, layers: Sequence[Layer], timeout: float, clock: Clock | None = None, *, leases: bool = True
    ) -> None:
        self._awaitable_store = _AwaitableStore(store)
        self._take_below = self._awaitable_store.atake
        super().__init__(store, layers, timeout, clock, leases=leases)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        for charge in charges:
            if charge.lease and self._has_leases:
                return run(self._take(charges))
        # _take_from_store() without coroutines, because these would take as long as several layers
        started_at = self._clock()
        for before_take in self._before_take:
            decisions: Sequence[Decision] | None = before_take(charges, started_at)
            if decisions is not None:
                return decisions
        try:
            taken: Sequence[Decision] = self._store.take(charges)
        except BaseException as error:
            self._after_failure(charges, error, started_at)
            raise
        self._after_decisions(charges, taken, started_at)
        return taken

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what the store would decide now, and charge nothing. Leased units count as charged."""
        return run(self._peek(charges))

    def settle(self, charges: Sequence[Charge]) -> None:
        """See `Store.settle`."""
        run(self._settle(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        run(self._reset(charges))

    # The methods of `Inventory` skip the layers, because no request waits for them.

    def list_keys(self) -> Iterator[KeyPage]:
        """See `Inventory.list_keys`."""
        pages: Iterator[KeyPage] = self._store.list_keys()
        return pages

    def add_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        self._store.add_refused(counts, latest)

    def most_refused(self, since: float) -> Mapping[str, int]:
        """See `Inventory.most_refused`."""
        counts: Mapping[str, int] = self._store.most_refused(since)
        return counts

    def latest_refusals(self, after: str | None, most: int) -> Sequence[NumberedRefusal]:
        """See `Inventory.latest_refusals`."""
        refusals: Sequence[NumberedRefusal] = self._store.latest_refusals(after, most)
        return refusals

    def close(self) -> None:
        """Refund unused leased units and close this store's own connections. The store can be used again."""
        run(self._close())

    def _start(self, work: Coroutine[Any, Any, None], refund_after: float | None = None) -> None:  # noqa: ARG002
        """Run the work in this thread. Threads have no timer, so the next call after a lease has expired refunds it."""
        if not self._refunds_at_exit:
            self._refunds_at_exit = True
            call_at_exit(self._refund_all)
        run(work)

    def _refund_all(self) -> None:
        run(self._refund(self._leases.drain_all()))


class AsyncLayeredStore(_LayeredBase):
    """Runs layers over an `AsyncStore`. See `LayeredStore`."""

    has_own_timeout: ClassVar[bool] = True  # each call ends in time, so callers need no timeout of their own

    def __init__(
        self,
        store: AsyncStore,
        layers: Sequence[Layer],
        timeout: float,
        clock: Clock | None = None,
        *,
        leases: bool = True,
    ) -> None:
        self._awaitable_store = store
        # `start_take` returns a future and saves a coroutine per request
        self._take_below = getattr(store, "start_take", store.atake)
        self._tasks: set[asyncio.Task[None]] = set()  # event loops keep only weak references to tasks
        super().__init__(store, layers, timeout, clock, leases=leases)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that used the store last; None if unknown."""
        loop: asyncio.AbstractEventLoop | None = getattr(self._store, "loop", None)
        return loop

    def atake(self, charges: Sequence[Charge]) -> Coroutine[Any, Any, Sequence[Decision]]:
        """See `LayeredStore.take`."""
        return self._take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `LayeredStore.peek`."""
        return await self._peek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `LayeredStore.settle`."""
        await self._settle(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `LayeredStore.reset`."""
        await self._reset(charges)

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        await self._store.aadd_refused(counts, latest)

    async def aclose(self) -> None:
        """See `LayeredStore.close`."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        if tasks:
            await asyncio.wait(tasks, timeout=self._timeout)
        await self._close()

    def _start(self, work: Coroutine[Any, Any, None], refund_after: float | None = None) -> "asyncio.Task[None]":
        """Run the work in a task."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if refund_after is not None:
            loop.call_later(refund_after + _CLOCK_RESOLUTION, self._refund_expired)
        return task


class _AwaitableStore:
    """A `Store` as an `AsyncStore` whose coroutines never suspend."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self._store.take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self._store.peek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        self._store.settle(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        self._store.reset(charges)

    async def aclose(self) -> None:
        self._store.close()

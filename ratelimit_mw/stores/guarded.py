"""Stores in front of a shared one: they remember refusals, pause while it fails, and spend units taken in advance.

`Guard` has what a process knows about the shared store, and does no I/O. The stores are `GuardedStore` for threads and
`AsyncGuardedStore` for asyncio. Both have the same coroutines, those of `_GuardedCalls`.
"""

import asyncio
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores.circuit_breaker import CircuitBreaker
from ratelimit_mw.stores.contract import BaseStore, Clock, InPlace, Listener
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.inventory import KeyPage, NumberedRefusal, Refusal
from ratelimit_mw.stores.kept_overrides import KeptOverrides
from ratelimit_mw.stores.lease import LeaseManager
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides, after_fork_in_child, call_at_exit
from ratelimit_mw.stores.live import Live, Report, Wanted

_CLOCK_RESOLUTION: Final = 0.001  # seconds of the event loop's clock; a timer may fire so much too early


class Guard:
    """What a process knows about a shared store: refusals, whether it fails, and leases.

    `refusals`: asked first, so that they also refuse while the breaker is open. `clock`: the clock configured for the
    store; None is monotonic time. `leases`: False for a store on this host, where each charge takes its own units.
    Thread-safe.
    """

    def __init__(
        self,
        refusals: DenyCache | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Clock | None = None,
        *,
        leases: bool = True,
    ) -> None:
        self.refusals: Final = DenyCache(0) if refusals is None else refusals
        self.breaker: Final = breaker
        self.leases: Final = LeaseManager()
        self.has_leases: Final = leases
        self._configured_clock: Final = clock
        self.clock: Clock = clock or time.monotonic
        after_fork_in_child(self.clear)
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # cleared in any case
        if self._configured_clock is None:
            self.clock = overrides.wall or time.monotonic
        self.clear()

    def clear(self) -> None:
        """Drop everything, because this is a forked child, or all buckets and possibly the clock were replaced."""
        self.leases.clear()
        self.refusals.clear()
        if self.breaker is not None:
            self.breaker.clear()

    def check(self) -> None:
        """Raise `StoreError` if the store must not be queried now."""
        if self.breaker is not None:
            self.breaker.check(self.clock())


class _GuardedCalls:
    """The calls of a guarded store, as coroutines, which do not suspend unless the shared store does.

    `_store`: the shared store, with awaitable methods.
    """

    _store: Any
    guard: Guard

    def atake(self, charges: Sequence[Charge]) -> Coroutine[Any, Any, Sequence[Decision]]:
        """See `GuardedStore.take`."""
        for charge in charges:
            if charge.lease and self.guard.has_leases:
                return self.guard.leases.take(charges, self.guard.clock, self._take, self._start)
        return self._take(charges)

    async def _take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Take charges without leases. Calls the cache only if it has refusals, the breaker only after failures."""
        guard = self.guard
        refusals, breaker, started_at = guard.refusals, guard.breaker, guard.clock()
        if refusals.by_key and (known := refusals.find(charges, started_at)) is not None:
            return known
        if breaker is not None and breaker.failures:
            breaker.enter(started_at)
        try:
            decisions: Sequence[Decision] = await self._store.start_take(charges)
        except BaseException as error:  # not an `Exception` if the request was canceled
            if breaker is not None:
                breaker.failed(error, started_at, guard.clock())
            raise
        refusals.remember(charges, decisions, started_at, guard.clock)
        if breaker is not None and breaker.failures:
            breaker.replied(decisions, started_at, guard.clock())
        if started_at >= guard.leases.next_expiry:
            self._refund_expired()
        return decisions

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `GuardedStore.peek`."""
        self.guard.check()
        decisions: Sequence[Decision] = await self._store.apeek(charges)
        return decisions

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `GuardedStore.settle`."""
        try:
            await self._store.asettle(charges)
        finally:
            self.guard.refusals.forget(charges, self.guard.clock())

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `GuardedStore.reset`."""
        self.guard.leases.invalidate(charges)
        try:
            await self._store.areset(charges)
        finally:
            self.guard.refusals.forget(charges, self.guard.clock())

    async def aclose(self) -> None:
        """See `GuardedStore.close`."""
        await self._refund_all()
        await self._store.aclose()

    def _start(self, work: Coroutine[Any, Any, None], refund_after: float | None) -> "asyncio.Task[None] | None":
        """Run work that no decision depends on. `refund_after`: the seconds until a lease that it takes has expired."""
        raise NotImplementedError

    def _refund_expired(self) -> None:
        if refunds := self.guard.leases.drain_expired(self.guard.clock):
            self._start(self._refund(refunds), None)

    async def _refund_all(self) -> None:
        await self._refund(self.guard.leases.drain_all())

    async def _refund(self, refunds: Sequence[Charge]) -> None:
        if refunds:
            try:
                await self.asettle(refunds)
            except Exception as error:  # noqa: BLE001  # no request depends on a refund
                warn_throttled("lease", "unspent units may not have been refunded: %s", error, code="RL-208")


class _ThreadCalls(_GuardedCalls):
    """The calls of a store for threads."""

    _refunds_at_exit = False

    def __init__(self, store: Any, guard: Guard) -> None:
        self._store, self.guard = _Awaitable(store), guard

    def _start(self, work: Coroutine[Any, Any, None], refund_after: float | None) -> None:  # noqa: ARG002  # no timer
        """Run the work in this thread. Threads have no timer, so the next call after a lease has expired refunds it."""
        if not self._refunds_at_exit:
            self._refunds_at_exit = True
            call_at_exit(self.refund_now)
        run(work)

    def refund_now(self) -> None:
        run(self._refund_all())


class _Declared(BaseStore):
    """What both stores declare."""

    has_own_timeout: ClassVar[bool] = True

    def __init__(self, store: BaseStore, guard: Guard, timeout: float) -> None:  # noqa: ARG002  # for `AsyncGuardedStore`
        self._store: Any = store
        self.guard = guard
        self.is_cluster = store.is_cluster

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """See `BaseStore`."""
        loop: asyncio.AbstractEventLoop | None = self._store.loop
        return loop

    def subscribe(self, listener: Listener) -> bool:
        """Call `listener` with each `StoreEvent`: failures of the store and changes of its circuit breaker.

        It is called synchronously, in the thread or task of a request, and must not raise. Subscribing it again has no
        effect. Returns whether there is a circuit breaker; without one there are no events.
        """
        return self.guard.breaker is not None and self.guard.breaker.subscribe(listener)


class GuardedStore(_Declared):
    """A guarded store for threads."""

    def __init__(self, store: Any, guard: Guard, timeout: float) -> None:
        super().__init__(store, guard, timeout)
        self._calls: Final = _ThreadCalls(store, guard)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        return run(self._calls.atake(charges))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what the store would decide now, and charge nothing. Leased units count as charged."""
        return run(self._calls.apeek(charges))

    def settle(self, charges: Sequence[Charge]) -> None:
        """See `Store.settle`."""
        run(self._calls.asettle(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        run(self._calls.areset(charges))

    # The methods of `Inventory` skip the guard, because no request waits for them.

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

    def read_overrides(self, known: str) -> KeptOverrides | None:
        """See `OverrideKeeper.read_overrides`. Raises at once while the circuit breaker is open."""
        self.guard.check()
        kept: KeptOverrides | None = self._store.read_overrides(known)
        return kept

    def write_overrides(self, known: str, kept: KeptOverrides, change: bytes) -> bool:
        """See `OverrideKeeper.write_overrides`."""
        is_written: bool = self._store.write_overrides(known, kept, change)
        return is_written

    def read_changes(self) -> Sequence[bytes]:
        """See `OverrideKeeper.read_changes`."""
        changes: Sequence[bytes] = self._store.read_changes()
        return changes

    def add_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        self._store.add_live(reports)

    def read_live(self, wanted: Wanted) -> Live:
        """See `LiveKeeper.read_live`."""
        live: Live = self._store.read_live(wanted)
        return live

    def close(self) -> None:
        """Refund unused leased units and close this store's own connections. The store can be used again."""
        run(self._calls.aclose())


class AsyncGuardedStore(_GuardedCalls, _Declared):
    """A guarded store for asyncio. `timeout`: seconds that a close waits for leases and refunds in progress."""

    def __init__(self, store: Any, guard: Guard, timeout: float) -> None:
        super().__init__(store, guard, timeout)
        self._timeout: Final = timeout
        self._tasks: set[asyncio.Task[None]] = set()  # event loops keep only weak references to tasks

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        await self._store.aadd_refused(counts, latest)

    async def aread_overrides(self, known: str) -> KeptOverrides | None:
        """See `GuardedStore.read_overrides`."""
        self.guard.check()
        kept: KeptOverrides | None = await self._store.aread_overrides(known)
        return kept

    async def aadd_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        await self._store.aadd_live(reports)

    async def aclose(self) -> None:
        """See `GuardedStore.close`."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        if tasks:
            await asyncio.wait(tasks, timeout=self._timeout)
        await super().aclose()

    def _start(self, work: Coroutine[Any, Any, None], refund_after: float | None) -> "asyncio.Task[None]":
        """Run the work in a task."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if refund_after is not None:
            loop.call_later(refund_after + _CLOCK_RESOLUTION, self._refund_expired)
        return task


class _Awaitable(InPlace):
    """A store for threads, with awaitable methods, which do not suspend."""

    start_take = InPlace.atake

    def __init__(self, store: Any) -> None:
        self.take, self.peek, self.settle = store.take, store.peek, store.settle
        self.reset, self.close = store.reset, store.close

"""Stores that run layers over another store: `LayeredStore` for threads, `AsyncLayeredStore` for asyncio.

The two differ in `await`. The logic of each layer is in a module of its own.
"""

import asyncio
import atexit
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.layer import Clock, Layer, Listener, Lookup
from ratelimit_mw.stores.lease import LeaseManager, LeaseRequest
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides, after_fork_in_child

T = TypeVar("T")

_LEASE_FAILED: Final = "no units were taken: %s"
_NOT_RETURNED: Final = "unspent units may not have been refunded: %s"
_LEASE_WAIT_SHARE: Final = 0.5  # of the timeout; the rest is for querying the store without a lease
_CLOCK_RESOLUTION: Final = 0.001  # seconds; a timer may fire early by the resolution of the event loop's clock


class _LayeredBase:
    """The common part of both stores, which needs no `await`.

    `timeout`: seconds that a request may wait for another request's lease. `clock`: the clock configured for the store;
    None is monotonic time.
    """

    def __init__(self, store: Any, layers: Sequence[Layer], timeout: float, clock: Clock | None = None) -> None:
        self._store = store
        self._layers = layers
        self._before_take, self._after_take = (
            [layer.before_take for layer in layers],
            [layer.after_take for layer in layers],
        )
        self._leases = LeaseManager()
        self._timeout = timeout
        self._configured_clock, self._clock = clock, clock or time.monotonic
        self.is_cluster: bool = getattr(store, "is_cluster", False)  # see `thread_store.Transport`
        after_fork_in_child(self._reset_after_fork)
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # layers are cleared in any case
        if self._configured_clock is None:
            self._clock = overrides.wall or time.monotonic
        self._leases.clear()
        for layer in self._layers:
            layer.clear()

    def _reset_after_fork(self) -> None:
        self._leases.reset_after_fork()
        for layer in self._layers:
            layer.reset_after_fork()

    def lookup(self) -> Lookup | None:
        """Return a function that looks up decisions in a layer; None if no layer has any.

        A batcher uses it just before it sends waiting groups: another request may have been refused in the meantime.
        """
        for layer in self._layers:
            if layer.has_entries:
                return partial(self._lookup_in, layer)
        return None

    def _lookup_in(self, layer: Layer, charges: Sequence[Charge]) -> Sequence[Decision] | None:
        return layer.before_take(charges, self._clock())

    def subscribe(self, listener: Listener) -> bool:
        """Call `listener` with each `StoreEvent`: failures of the store and changes of its circuit breaker.

        It is called synchronously, in the thread or task of a request, and must not raise. Subscribing it again has no
        effect. Returns whether there is a circuit breaker; without one there are no events.
        """
        return any([layer.subscribe(listener) for layer in self._layers])  # noqa: C419  # a generator would stop at the first

    @property
    def forgiven(self) -> int:
        """Units of settlements beyond a debt of one quota, never charged, since this store was created."""
        return int(getattr(self._store, "forgiven", 0))

    def _check_before_peek(self) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.before_peek(now)

    def _notify_failure(self, charges: Sequence[Charge], error: BaseException, started_at: float) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.on_failure(charges, error, started_at, now)

    def _invalidate(self, charges: Sequence[Charge]) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.invalidate(charges, now)


class LayeredStore(_LayeredBase):
    """Runs layers over a `Store`, the first one outermost. Leases come before all layers."""

    _store: Store
    _refunds_at_exit = False

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge them all if all are admitted, else none."""
        for charge in charges:
            if charge.lease:
                return self._take_with_lease(charges)
        return self._take_from_store(charges)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what the store would decide now, and change nothing. Leased units count as charged."""
        self._check_before_peek()
        return self._store.peek(charges)

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `Store.settle`."""
        try:
            return self._store.settle(charges)
        finally:
            self._invalidate(charges)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        self._leases.invalidate(charges)
        try:
            self._store.reset(charges)
        finally:
            self._invalidate(charges)

    def close(self) -> None:
        """Refund unused leased units and close this store's own connections. The store can be used again."""
        self._refund_all()
        self._store.close()

    def _take_from_store(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        started_at = self._clock()
        for before_take in self._before_take:  # lookup(), inlined: the call would double its cost
            decisions = before_take(charges, started_at)
            if decisions is not None:
                return decisions
        try:
            decisions = self._store.take(charges)
        except BaseException as error:
            self._notify_failure(charges, error, started_at)
            raise
        for after_take in self._after_take:
            after_take(charges, decisions, started_at, self._clock)
        if started_at >= self._leases.next_expiry:  # threads have no timer for this
            self._refund(self._leases.drain_expired(started_at))
        return decisions

    def _take_with_lease(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        now = self._clock()
        consumed = self._leases.consume(charges, now)
        if consumed is not None:
            return consumed
        request = self._leases.start(charges, now, may_wait=True)
        if request.waits_for is not None:
            request = self._wait_for_lease(request)
        try:
            store_decisions = self._take_from_store(request.to_store) if request.to_store else ()
            self._leases.add_leased_units(
                request, [self._request_lease(charge) for charge in request.prefetch], self._clock()
            )
        except BaseException as error:
            self._leases.fail(request, error)
            raise
        return self._leases.finish(request, store_decisions)

    def _wait_for_lease(self, request: LeaseRequest) -> LeaseRequest:
        """Wait for leases of other requests until this request can proceed or must query the store."""
        until = time.monotonic() + self._timeout * _LEASE_WAIT_SHARE
        while request.waits_for is not None:
            try:
                _raise_if_failed(request.waits_for.result(self._timeout))
            except FutureTimeoutError as error:
                raise StoreError(f"no answer within {self._timeout} seconds") from error
            request = self._leases.start(request.charges, self._clock(), may_wait=time.monotonic() < until)
        return request

    def _request_lease(self, charge: Charge) -> Sequence[Decision]:
        if not self._refunds_at_exit:
            self._refunds_at_exit = True
            _call_at_exit(self._refund_all)
        try:
            return self._take_from_store([charge])
        except Exception as error:  # noqa: BLE001  # a failed lease must not fail the request
            warn_throttled("lease", _LEASE_FAILED, error)
            return ()

    def _refund_all(self) -> None:
        self._refund(self._leases.drain_all())

    def _refund(self, refunds: Sequence[Charge]) -> None:
        if refunds:
            try:
                self.settle(refunds)
            except Exception as error:  # noqa: BLE001  # no request depends on a refund
                warn_throttled("lease", _NOT_RETURNED, error)


class AsyncLayeredStore(_LayeredBase):
    """Runs layers over an `AsyncStore`. See `LayeredStore`."""

    has_own_timeout: ClassVar[bool] = True  # callers need no timeout of their own
    _store: AsyncStore

    def __init__(self, store: AsyncStore, layers: Sequence[Layer], timeout: float, clock: Clock | None = None) -> None:
        super().__init__(store, layers, timeout, clock)
        # `start_take` returns a future and saves a coroutine per request
        self._store_take: Callable[[Sequence[Charge]], Awaitable[Sequence[Decision]]] = getattr(
            store, "start_take", store.atake
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that used the store last; None if unknown."""
        loop: asyncio.AbstractEventLoop | None = getattr(self._store, "loop", None)
        return loop

    def atake(self, charges: Sequence[Charge]) -> Coroutine[Any, Any, Sequence[Decision]]:
        """See `LayeredStore.take`."""
        for charge in charges:
            if charge.lease:
                return self._take_with_lease(charges)
        return self._take_from_store(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `LayeredStore.peek`."""
        self._check_before_peek()
        return await self._store.apeek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `LayeredStore.settle`."""
        try:
            return await self._store.asettle(charges)
        finally:
            self._invalidate(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `LayeredStore.reset`."""
        self._leases.invalidate(charges)
        try:
            await self._store.areset(charges)
        finally:
            self._invalidate(charges)

    async def aclose(self) -> None:
        """See `LayeredStore.close`."""
        loop = asyncio.get_running_loop()
        tasks = [task for task in self._tasks if task.get_loop() is loop]
        if tasks:
            await asyncio.wait(tasks, timeout=self._timeout)
        await self._refund(self._leases.drain_all())
        await self._store.aclose()

    async def _take_from_store(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        started_at = self._clock()
        for before_take in self._before_take:  # lookup(), inlined: the call would double its cost
            decisions = before_take(charges, started_at)
            if decisions is not None:
                return decisions
        try:
            decisions = await self._store_take(charges)
        except BaseException as error:
            self._notify_failure(charges, error, started_at)
            raise
        for after_take in self._after_take:
            after_take(charges, decisions, started_at, self._clock)
        if started_at >= self._leases.next_expiry:
            self._refund_expired()
        return decisions

    async def _take_with_lease(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        now = self._clock()
        consumed = self._leases.consume(charges, now)
        if consumed is not None:
            return consumed
        request = self._leases.start(charges, now, may_wait=True)
        if request.waits_for is None:
            return await self._run_request(request)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._run_request(await self._wait_for_lease(request))
        except TimeoutError as error:
            raise StoreError(f"no answer within {self._timeout} seconds") from error

    async def _wait_for_lease(self, request: LeaseRequest) -> LeaseRequest:
        """See `LayeredStore`."""
        until = time.monotonic() + self._timeout * _LEASE_WAIT_SHARE
        while request.waits_for is not None:
            _raise_if_failed(await asyncio.wrap_future(request.waits_for))
            request = self._leases.start(request.charges, self._clock(), may_wait=time.monotonic() < until)
        return request

    async def _run_request(self, request: LeaseRequest) -> Sequence[Decision]:
        if request.prefetch:  # in a task: other requests wait for the lease, even if this one is canceled
            return await asyncio.shield(self._spawn(self._finish_request(request)))
        return await self._finish_request(request)

    async def _finish_request(self, request: LeaseRequest) -> Sequence[Decision]:
        # these run concurrently with the request's own query
        leases = [self._spawn(self._request_lease(charge)) for charge in request.prefetch]
        try:
            store_decisions = await self._take_from_store(request.to_store) if request.to_store else ()
        except BaseException as error:
            await self._add_leased_units(request, leases)  # before fail(), which lets other requests take a lease
            self._leases.fail(request, error)
            raise
        await self._add_leased_units(request, leases)
        return self._leases.finish(request, store_decisions)

    async def _add_leased_units(
        self, request: LeaseRequest, leases: Sequence["asyncio.Task[Sequence[Decision]]"]
    ) -> None:
        if leases:
            self._leases.add_leased_units(request, [await lease for lease in leases], self._clock())

    async def _request_lease(self, charge: Charge) -> Sequence[Decision]:
        """See `LayeredStore`."""
        try:
            decisions = await self._take_from_store([charge])
        except Exception as error:  # noqa: BLE001  # a failed lease must not fail the request
            warn_throttled("lease", _LEASE_FAILED, error)
            return ()
        asyncio.get_running_loop().call_later(charge.lease_time + _CLOCK_RESOLUTION, self._refund_expired)
        return decisions

    def _refund_expired(self) -> None:
        refunds = self._leases.drain_expired(self._clock())
        if refunds:
            self._spawn(self._refund(refunds))

    async def _refund(self, refunds: Sequence[Charge]) -> None:
        """See `LayeredStore`."""
        if refunds:
            try:
                await self.asettle(refunds)
            except Exception as error:  # noqa: BLE001  # no request depends on a refund
                warn_throttled("lease", _NOT_RETURNED, error)

    def _spawn(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Create a task and keep a reference to it, because an event loop keeps only weak ones."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved; a request that awaits the task gets it too


def _raise_if_failed(error: BaseException | None) -> None:
    """Raise `StoreError` in a request that waited for a lease, if the lease failed."""
    if isinstance(error, Exception):
        raise StoreError(f"a lease failed: {error}", rejected=getattr(error, "rejected", False)) from error


def _call_at_exit(method: Callable[[], None]) -> None:
    """Call this bound method when the program ends, if its object still exists."""
    reference = weakref.WeakMethod(method)
    atexit.register(lambda: (bound := reference()) and bound())

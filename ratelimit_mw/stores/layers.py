"""Layers over a store, and the two that run them: `LayeredStore` for threads, `AsyncLayeredStore` for asyncio.

They differ in the `await`s. What a layer thinks is in a file of its own.
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

_LEASE_FAILED: Final = "none was taken: %s"
_NOT_RETURNED: Final = "units that were taken ahead are not known to be given back: %s"
_LEASE_WAIT_SHARE: Final = 0.5  # of the timeout: then one asks by oneself, and the rest is for the answer
_CLOCK_RESOLUTION: Final = 0.001  # seconds: an event loop may be early by its clock's resolution


class _LayeredBase:
    """What both share.

    `timeout`: seconds that a request may wait for a lease that another one takes. `clock`: what the store goes by, if
    it was told one; else time is monotonic.
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
        self.is_cluster: bool = getattr(store, "is_cluster", False)  # see `threads.Transport`
        after_fork_in_child(self._reset_after_fork)
        REGISTRY.register(self)

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # keys are others each time
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
        """What answers a group by now, in place of the store; None where no layer could.

        For whoever lets groups wait before they are sent: others may be back since.
        """
        for layer in self._layers:
            if layer.has_entries:
                return partial(self._lookup_in, layer)
        return None

    def _lookup_in(self, layer: Layer, charges: Sequence[Charge]) -> Sequence[Decision] | None:
        return layer.before_take(charges, self._clock())

    def subscribe(self, listener: Listener) -> bool:
        """Tell this callable of each `StoreEvent`: that the store failed, and what its circuit breaker does.

        It is called at once, in the thread or task of a request, and must not raise. One that listens already is told
        once all the same. Answers whether there is a breaker, without which nothing is told.
        """
        return any([layer.subscribe(listener) for layer in self._layers])  # noqa: C419  # all of them hear of it

    @property
    def forgiven(self) -> int:
        """Units of corrections beyond a debt of one quota, which nobody is charged; since this store was made."""
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
    """Layers over a Store, the first one outermost, and leases before all of them."""

    _store: Store
    _refunds_at_exit = False

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none."""
        for charge in charges:
            if charge.lease:
                return self._take_with_lease(charges)
        return self._take_from_store(charges)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What the store would answer now; changes nothing. For it, units that were taken ahead are gone."""
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
        """Give back what was taken ahead, and close the connections that this store opened. It can be used again."""
        self._refund_all()
        self._store.close()

    def _take_from_store(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        started_at = self._clock()
        for before_take in self._before_take:  # as `lookup`, of which the call would cost as much again
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
        if started_at >= self._leases.next_expiry:  # in threads nothing happens between requests
            self._refund(self._leases.take_expired(started_at))
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
            self._leases.complete(request, [self._request_lease(charge) for charge in request.prefetch], self._clock())
        except BaseException as error:
            self._leases.fail(request, error)
            raise
        return self._leases.end(request, store_decisions)

    def _wait_for_lease(self, request: LeaseRequest) -> LeaseRequest:
        """Until there is something else to do than to wait."""
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
        except Exception as error:  # noqa: BLE001  # the request has its answer already
            warn_throttled("lease", _LEASE_FAILED, error)
            return ()

    def _refund_all(self) -> None:
        self._refund(self._leases.all())

    def _refund(self, refunds: Sequence[Charge]) -> None:
        if refunds:
            try:
                self.settle(refunds)
            except Exception as error:  # noqa: BLE001  # nobody waits for it
                warn_throttled("lease", _NOT_RETURNED, error)


class AsyncLayeredStore(_LayeredBase):
    """The same over an AsyncStore."""

    has_own_timeout: ClassVar[bool] = True  # nobody need watch over how long a call takes
    _store: AsyncStore

    def __init__(self, store: AsyncStore, layers: Sequence[Layer], timeout: float, clock: Clock | None = None) -> None:
        super().__init__(store, layers, timeout, clock)
        # of a store that knows how, without a coroutine for each request
        self._store_take: Callable[[Sequence[Charge]], Awaitable[Sequence[Decision]]] = getattr(
            store, "start_take", store.atake
        )
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of whoever asked the store last; None where that is not known."""
        bound: asyncio.AbstractEventLoop | None = getattr(self._store, "loop", None)
        return bound

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
        under_way = [request for request in self._tasks if request.get_loop() is loop]
        if under_way:
            await asyncio.wait(under_way, timeout=self._timeout)
        await self._refund(self._leases.all())
        await self._store.aclose()

    async def _take_from_store(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        started_at = self._clock()
        for before_take in self._before_take:  # as `lookup`, of which the call would cost as much again
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
        if request.prefetch:  # others wait for it, also when this request is cancelled: so it has a task of its own
            return await asyncio.shield(self._spawn(self._finish_request(request)))
        return await self._finish_request(request)

    async def _finish_request(self, request: LeaseRequest) -> Sequence[Decision]:
        # the loop sends them side by side
        leases = [self._spawn(self._request_lease(charge)) for charge in request.prefetch]
        try:
            store_decisions = await self._take_from_store(request.to_store) if request.to_store else ()
        except BaseException as error:
            await self._complete(request, leases)  # first: until then nobody takes another one
            self._leases.fail(request, error)
            raise
        await self._complete(request, leases)
        return self._leases.end(request, store_decisions)

    async def _complete(self, request: LeaseRequest, leases: Sequence["asyncio.Task[Sequence[Decision]]"]) -> None:
        if leases:
            self._leases.complete(request, [await lease for lease in leases], self._clock())

    async def _request_lease(self, charge: Charge) -> Sequence[Decision]:
        """See `LayeredStore`."""
        try:
            bound = await self._take_from_store([charge])
        except Exception as error:  # noqa: BLE001  # the request has its answer already
            warn_throttled("lease", _LEASE_FAILED, error)
            return ()
        asyncio.get_running_loop().call_later(charge.lease_time + _CLOCK_RESOLUTION, self._refund_expired)
        return bound

    def _refund_expired(self) -> None:
        refunds = self._leases.take_expired(self._clock())
        if refunds:
            self._spawn(self._refund(refunds))

    async def _refund(self, refunds: Sequence[Charge]) -> None:
        """See `LayeredStore`."""
        if refunds:
            try:
                await self.asettle(refunds)
            except Exception as error:  # noqa: BLE001  # nobody waits for it
                warn_throttled("lease", _NOT_RETURNED, error)

    def _spawn(self, request: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that is held on to, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(request)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, request: "asyncio.Task[Any]") -> None:
        self._tasks.discard(request)
        if not request.cancelled():
            request.exception()  # seen: if the request still waits it gets it too


def _raise_if_failed(error: BaseException | None) -> None:
    """What one that waited for a lease hears of how it went."""
    if isinstance(error, Exception):
        raise StoreError(f"a lease failed: {error}", rejected=getattr(error, "rejected", False)) from error


def _call_at_exit(method: Callable[[], None]) -> None:
    """Call this method of an object, if the object still lives, when the program ends."""
    reference = weakref.WeakMethod(method)
    atexit.register(lambda: (bound := reference()) and bound())

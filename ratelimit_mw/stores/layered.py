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

from ratelimit_mw.errors import StoreError
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.layer import Clock, Layer, Listener, Recall
from ratelimit_mw.stores.lease import Errand, Leases
from ratelimit_mw.stores.live import STORES, Stage

T = TypeVar("T")

_NO_LEASE: Final = "none was taken: %s"
_KEPT: Final = "units that were taken ahead are not known to be given back: %s"
_PATIENCE: Final = 0.5  # of the timeout: then one asks by oneself, and the rest is for the answer
_LATE: Final = 0.001  # seconds: an event loop may be early by its clock's resolution


class _Layered:
    """What both share.

    `timeout`: seconds that a request may wait for a lease that another one takes. `clock`: what the store goes by, if
    it was told one; else time is monotonic.
    """

    def __init__(self, store: Any, layers: Sequence[Layer], timeout: float, clock: Clock | None = None) -> None:
        self._store = store
        self._layers = layers
        self._before, self._after = [layer.before for layer in layers], [layer.after for layer in layers]
        self._leases = Leases()
        self._timeout = timeout
        self._own, self._clock = clock, clock or time.monotonic
        self.slots: bool = getattr(store, "slots", False)  # see `threads.Link`
        start_over_in_child(self._start_over)
        STORES.enrol(self)

    def _enter(self, stage: Stage, *, empty: bool) -> None:  # noqa: ARG002  # keys are others each time
        if self._own is None:
            self._clock = stage.wall or time.monotonic
        self._leases.clear()
        for layer in self._layers:
            layer.clear()

    def _start_over(self) -> None:
        self._leases.start_over()
        for layer in self._layers:
            layer.start_over()

    def recall(self) -> Recall | None:
        """What answers a group by now, in place of the store; None where no layer could.

        For whoever lets groups wait before they are sent: others may be back since.
        """
        for layer in self._layers:
            if layer.remembers:
                return partial(self._recalled, layer)
        return None

    def _recalled(self, layer: Layer, charges: Sequence[Charge]) -> Sequence[Decision] | None:
        return layer.before(charges, self._clock())

    def listen(self, listener: Listener) -> bool:
        """Tell this callable of each `StoreEvent`: that the store failed, and what its circuit breaker does.

        It is called at once, in the thread or task of a request, and must not raise. One that listens already is told
        once all the same. Answers whether there is a breaker, without which nothing is told.
        """
        return any([layer.listen(listener) for layer in self._layers])  # noqa: C419  # all of them hear of it

    @property
    def forgiven(self) -> int:
        """Units of corrections beyond a debt of one quota, which nobody is charged; since this store was made."""
        return int(getattr(self._store, "forgiven", 0))

    def _peeks(self) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.peeks(now)

    def _failed(self, charges: Sequence[Charge], error: BaseException, began: float) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.failed(charges, error, began, now)

    def _corrected(self, charges: Sequence[Charge]) -> None:
        now = self._clock()
        for layer in self._layers:
            layer.forget(charges, now)


class LayeredStore(_Layered):
    """Layers over a Store, the first one outermost, and leases before all of them."""

    _store: Store
    _returns_at_exit = False

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none."""
        for charge in charges:
            if charge.lease:
                return self._take_ahead(charges)
        return self._ask(charges)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What the store would answer now; changes nothing. For it, units that were taken ahead are gone."""
        self._peeks()
        return self._store.peek(charges)

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `Store.settle`."""
        try:
            return self._store.settle(charges)
        finally:
            self._corrected(charges)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        self._leases.forget(charges)
        try:
            self._store.reset(charges)
        finally:
            self._corrected(charges)

    def close(self) -> None:
        """Give back what was taken ahead, and close the connections that this store opened. It can be used again."""
        self._return_all()
        self._store.close()

    def _ask(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        began = self._clock()
        for before in self._before:  # as `recall`, of which the call would cost as much again
            known = before(charges, began)
            if known is not None:
                return known
        try:
            decisions = self._store.take(charges)
        except BaseException as error:
            self._failed(charges, error, began)
            raise
        for after in self._after:
            after(charges, decisions, began, self._clock)
        if began >= self._leases.due:  # in threads nothing happens between requests
            self._give_back(self._leases.overdue(began))
        return decisions

    def _take_ahead(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        now = self._clock()
        spent = self._leases.spend(charges, now)
        if spent is not None:
            return spent
        errand = self._leases.start(charges, now, patient=True)
        if errand.waits_for is not None:
            errand = self._wait(errand)
        try:
            answer = self._ask(errand.asked) if errand.asked else ()
            self._leases.land(errand, [self._lease(charge) for charge in errand.ahead], self._clock())
        except BaseException as error:
            self._leases.fail(errand, error)
            raise
        return self._leases.end(errand, answer)

    def _wait(self, errand: Errand) -> Errand:
        """Until there is something else to do than to wait."""
        until = time.monotonic() + self._timeout * _PATIENCE
        while errand.waits_for is not None:
            try:
                _told(errand.waits_for.result(self._timeout))
            except FutureTimeoutError as error:
                raise StoreError(f"no answer within {self._timeout} seconds") from error
            errand = self._leases.start(errand.charges, self._clock(), patient=time.monotonic() < until)
        return errand

    def _lease(self, charge: Charge) -> Sequence[Decision]:
        if not self._returns_at_exit:
            self._returns_at_exit = True
            _at_exit(self._return_all)
        try:
            return self._ask([charge])
        except Exception as error:  # noqa: BLE001  # the request has its answer already
            warn_rarely("lease", _NO_LEASE, error)
            return ()

    def _return_all(self) -> None:
        self._give_back(self._leases.all())

    def _give_back(self, corrections: Sequence[Charge]) -> None:
        if corrections:
            try:
                self.settle(corrections)
            except Exception as error:  # noqa: BLE001  # nobody waits for it
                warn_rarely("lease", _KEPT, error)


class AsyncLayeredStore(_Layered):
    """The same over an AsyncStore."""

    ends_in_time: ClassVar[bool] = True  # nobody need watch over how long a call takes
    _store: AsyncStore

    def __init__(self, store: AsyncStore, layers: Sequence[Layer], timeout: float, clock: Clock | None = None) -> None:
        super().__init__(store, layers, timeout, clock)
        # of a store that knows how, without a coroutine for each request
        self._soon: Callable[[Sequence[Charge]], Awaitable[Sequence[Decision]]] = getattr(store, "soon", store.atake)
        self._errands: set[asyncio.Task[Any]] = set()

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of whoever asked the store last; None where that is not known."""
        found: asyncio.AbstractEventLoop | None = getattr(self._store, "loop", None)
        return found

    def atake(self, charges: Sequence[Charge]) -> Coroutine[Any, Any, Sequence[Decision]]:
        """See `LayeredStore.take`."""
        for charge in charges:
            if charge.lease:
                return self._take_ahead(charges)
        return self._ask(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `LayeredStore.peek`."""
        self._peeks()
        return await self._store.apeek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `LayeredStore.settle`."""
        try:
            return await self._store.asettle(charges)
        finally:
            self._corrected(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `LayeredStore.reset`."""
        self._leases.forget(charges)
        try:
            await self._store.areset(charges)
        finally:
            self._corrected(charges)

    async def aclose(self) -> None:
        """See `LayeredStore.close`."""
        loop = asyncio.get_running_loop()
        under_way = [errand for errand in self._errands if errand.get_loop() is loop]
        if under_way:
            await asyncio.wait(under_way, timeout=self._timeout)
        await self._give_back(self._leases.all())
        await self._store.aclose()

    async def _ask(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        began = self._clock()
        for before in self._before:  # as `recall`, of which the call would cost as much again
            known = before(charges, began)
            if known is not None:
                return known
        try:
            decisions = await self._soon(charges)
        except BaseException as error:
            self._failed(charges, error, began)
            raise
        for after in self._after:
            after(charges, decisions, began, self._clock)
        if began >= self._leases.due:
            self._return_overdue()
        return decisions

    async def _take_ahead(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        now = self._clock()
        spent = self._leases.spend(charges, now)
        if spent is not None:
            return spent
        errand = self._leases.start(charges, now, patient=True)
        if errand.waits_for is None:
            return await self._run(errand)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._run(await self._wait(errand))
        except TimeoutError as error:
            raise StoreError(f"no answer within {self._timeout} seconds") from error

    async def _wait(self, errand: Errand) -> Errand:
        """See `LayeredStore`."""
        until = time.monotonic() + self._timeout * _PATIENCE
        while errand.waits_for is not None:
            _told(await asyncio.wrap_future(errand.waits_for))
            errand = self._leases.start(errand.charges, self._clock(), patient=time.monotonic() < until)
        return errand

    async def _run(self, errand: Errand) -> Sequence[Decision]:
        if errand.ahead:  # others wait for it, also when this request is cancelled: so it has a task of its own
            return await asyncio.shield(self._keep(self._done(errand)))
        return await self._done(errand)

    async def _done(self, errand: Errand) -> Sequence[Decision]:
        leases = [self._keep(self._lease(charge)) for charge in errand.ahead]  # the loop sends them side by side
        try:
            answer = await self._ask(errand.asked) if errand.asked else ()
        except BaseException as error:
            await self._land(errand, leases)  # first: until then nobody takes another one
            self._leases.fail(errand, error)
            raise
        await self._land(errand, leases)
        return self._leases.end(errand, answer)

    async def _land(self, errand: Errand, leases: Sequence["asyncio.Task[Sequence[Decision]]"]) -> None:
        if leases:
            self._leases.land(errand, [await lease for lease in leases], self._clock())

    async def _lease(self, charge: Charge) -> Sequence[Decision]:
        """See `LayeredStore`."""
        try:
            found = await self._ask([charge])
        except Exception as error:  # noqa: BLE001  # the request has its answer already
            warn_rarely("lease", _NO_LEASE, error)
            return ()
        asyncio.get_running_loop().call_later(charge.lease_time + _LATE, self._return_overdue)
        return found

    def _return_overdue(self) -> None:
        corrections = self._leases.overdue(self._clock())
        if corrections:
            self._keep(self._give_back(corrections))

    async def _give_back(self, corrections: Sequence[Charge]) -> None:
        """See `LayeredStore`."""
        if corrections:
            try:
                await self.asettle(corrections)
            except Exception as error:  # noqa: BLE001  # nobody waits for it
                warn_rarely("lease", _KEPT, error)

    def _keep(self, errand: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """A task that is held on to, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, errand: "asyncio.Task[Any]") -> None:
        self._errands.discard(errand)
        if not errand.cancelled():
            errand.exception()  # seen: if the request still waits it gets it too


def _told(error: BaseException | None) -> None:
    """What one that waited for a lease hears of how it went."""
    if isinstance(error, Exception):
        raise StoreError(f"a lease failed: {error}", rejected=getattr(error, "rejected", False)) from error


def _at_exit(method: Callable[[], None]) -> None:
    """Call this method of an object, if the object still lives, when the program ends."""
    own = weakref.WeakMethod(method)
    atexit.register(lambda: (found := own()) and found())

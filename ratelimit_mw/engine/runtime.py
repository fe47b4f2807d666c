"""Calls a store and waits: the code that differs between threads and asyncio.

The rest of the engine is written once, as coroutines. Under asyncio they are awaited. In a thread, `core.runtime.run`
runs them: a `ThreadRuntime` blocks the thread, so they never suspend.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.runtime import run_to_completion, spawn_task
from ratelimit_mw.core.verdict import Verdict, refunds_for, verdict_of
from ratelimit_mw.engine.slots import ASYNC_SLOT_RENEWER, SLOT_RENEWER, AsyncSlotRenewer, SlotRenewer
from ratelimit_mw.stores import AsyncStore, Store
from ratelimit_mw.stores.contract import declared

T = TypeVar("T")
_NOT_REFUNDED: Final = "a call stopped waiting, and its units may not have been refunded: %s"


class Sleep(Protocol):
    """An async sleep, which `woken` can end early. If it raises an exception, the request stops waiting."""

    def __call__(self, seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> Awaitable[object]:
        """Sleep for so many seconds, or until `woken` is done if that is sooner."""


async def async_sleep(seconds: float, woken: "asyncio.Future[None] | None" = None, /) -> None:
    """The default `Sleep`, which only `woken` ends early."""
    if woken is None:
        await asyncio.sleep(seconds)
    else:
        await asyncio.wait([woken], timeout=seconds)


async def thread_sleep(seconds: float, _: object = None, /) -> None:
    """The `Sleep` of threads, which blocks."""
    time.sleep(seconds)  # noqa: ASYNC251  # no event loop runs here


class ThreadEvent:
    """Wakes a thread that sleeps in `wait`. `wake` may be called in any thread."""

    def __init__(self, _: Sleep) -> None:
        self._event: Final = threading.Event()
        self.wake: Final = self._event.set

    async def wait(self, seconds: float) -> None:
        """Sleep for so many seconds, or until `wake` is called. The next call waits again."""
        self._event.wait(seconds)
        self._event.clear()


class LoopEvent:
    """Wakes a task that sleeps in `wait`. `wake` may be called in any thread. `sleep`: the sleep that `wake` ends."""

    def __init__(self, sleep: Sleep) -> None:
        self._sleep: Final = sleep
        self._loop: Final = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """Wake the task."""
        with suppress(RuntimeError):  # the loop has ended, and the task with it
            self._loop.call_soon_threadsafe(lambda: None if self._woken.done() else self._woken.set_result(None))

    async def wait(self, seconds: float) -> None:
        """See `ThreadEvent`."""
        await self._sleep(seconds, self._woken)
        self._woken = self._loop.create_future()


class ThreadRuntime:
    """Calls a store for threads.

    `event`: the class of the events that a caller waits for. `interrupts`: the exceptions that end a sleep early.
    `slot_renewer`: renews and releases slots.
    """

    event = ThreadEvent
    interrupts: Final = BaseException  # KeyboardInterrupt too
    sleep: Final[Sleep] = staticmethod(thread_sleep)
    slot_renewer: SlotRenewer | AsyncSlotRenewer = SLOT_RENEWER

    def __init__(self, store: Store) -> None:
        self.store: Final = store

    async def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        return self.store.take(charges)

    take_cancel_safe = take  # nothing cancels a thread

    async def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.peek`."""
        return self.store.peek(charges)

    async def result(self, future: Future[T]) -> T:
        """Return the result of a future that another thread or task sets."""
        return future.result()

    async def settle(self, store: Any, charges: Sequence[Charge]) -> None:
        """Correct charges in `store`, which may be another store for threads. See `Store.settle`."""
        store.settle(charges)

    async def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Await a coroutine that has to be completed."""
        await coroutine


class AsyncioRuntime:
    """Calls a store for asyncio.

    `timeout`: seconds for a peek or a settlement, and for a take if the store has no timeout of its own; None if only
    the store limits its calls. `on_refund`: called with a verdict whose charges were refunded because the caller was
    canceled.
    `loop`: the loop of the latest take, if the store has no timeout of its own.
    """

    event = LoopEvent
    interrupts: Final = (asyncio.CancelledError, Exception)  # not GeneratorExit, which is raised when a loop has ended
    sleep: Final[Sleep] = staticmethod(async_sleep)
    slot_renewer: Final = ASYNC_SLOT_RENEWER

    def __init__(
        self,
        store: AsyncStore,
        timeout: float | None = None,
        on_refund: Callable[[Verdict], object] | None = None,
    ) -> None:
        self.store: Final = store
        self._timeout: Final = timeout
        self._on_refund: Final = on_refund
        self.loop: asyncio.AbstractEventLoop | None = None
        known = declared(store)
        self.take: Final = store.atake if timeout is None or known.has_own_timeout else self._take_in_time
        self.take_cancel_safe: Final = self._take_cancel_safe if known.suspends else self.take

    async def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.peek`."""
        async with asyncio.timeout(self._timeout):
            return await self.store.apeek(charges)

    async def result(self, future: Future[T]) -> T:
        """See `ThreadRuntime`. If the caller is canceled, the future is not."""
        return await asyncio.shield(asyncio.wrap_future(future))

    async def settle(self, store: Any, charges: Sequence[Charge]) -> None:
        """See `ThreadRuntime`."""
        async with asyncio.timeout(self._timeout):
            await store.asettle(charges)

    async def finish(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Await a coroutine, which is completed even if the caller is canceled."""
        await run_to_completion(coroutine)

    async def _take_in_time(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        self.loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._timeout):
            return await self.store.atake(charges)

    async def _take_cancel_safe(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Take charges, which are refunded if the caller is canceled during the call."""
        task = asyncio.ensure_future(self.take(charges))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            spawn_task(self._refund_after_cancel(charges, task))
            raise

    async def _refund_after_cancel(self, charges: Sequence[Charge], task: "asyncio.Task[Sequence[Decision]]") -> None:
        """Refund what a store call takes after its caller was canceled."""
        try:
            verdict = verdict_of(charges, await task)
        except Exception as error:  # noqa: BLE001  # no caller waits for this task
            warn_throttled("store", _NOT_REFUNDED, error, code="RL-207")
            return
        if verdict.allowed:
            await refund(self, self.store, verdict)
            if self._on_refund is not None:
                self._on_refund(verdict)


Runtime = ThreadRuntime | AsyncioRuntime


async def refund(runtime: Runtime, store: Store | AsyncStore, verdict: Verdict) -> None:
    """Refund what an admitted call took from a store. Logs errors of the store instead of raising them."""
    try:
        await runtime.settle(store, refunds_for(verdict))
    except Exception as error:  # noqa: BLE001  # the caller raises the error that ended the wait
        warn_throttled("store", _NOT_REFUNDED, error, code="RL-207")

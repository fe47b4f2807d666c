"""Runs an `AsyncStore` as a `Store`, so that one test suite serves both."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any, TypeVar

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.stores import AsyncStore, Store

T = TypeVar("T")


class Blocking:
    """A `Store` whose calls block until an `AsyncStore` on an event loop in another thread returns. Thread-safe."""

    def __init__(self, store: AsyncStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store, self._loop = store, loop

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        return self._run(self._store.atake(charges))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.peek`."""
        return self._run(self._store.apeek(charges))

    def settle(self, charges: Sequence[Charge]) -> None:
        """See `Store.settle`."""
        self._run(self._store.asettle(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        """See `Store.reset`."""
        self._run(self._store.areset(charges))

    def close(self) -> None:
        """See `Store.close`."""
        self._run(self._store.aclose())

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


@contextmanager
def blocking(store: AsyncStore) -> Iterator[Store]:
    """Run an asynchronous store on an event loop in a thread of its own, and close the store at the end.

    `with blocking(MyAsyncStore()) as store: ...`
    """
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()

    thread = Thread(target=lambda: asyncio.run(serve()), name="blocking store")
    thread.start()
    loop, stop = started.result()
    blocking_store = Blocking(store, loop)
    try:
        yield blocking_store
    finally:
        try:
            blocking_store.close()
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()

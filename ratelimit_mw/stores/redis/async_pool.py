"""Pools connections for asyncio. Opens them in the background, one at a time.

So a request never pays for TLS and AUTH, many requests do not cause many handshakes, and a connection that takes longer
to open than a request may wait is there for the next one.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from ratelimit_mw.core.errors import StoreError

C = TypeVar("C")

_OPENING_GRACE: Final = 0.5  # seconds that `close` waits for a connection in the making: TLS over a slow link
FIND_INTERVAL: Final = 0.5  # seconds between checks of the server's address, while there are requests


def no_connection_error(error: Exception) -> StoreError:
    """Return the error for requests that wait for a connection."""
    text = str(error) or type(error).__name__  # a timeout has no text
    return StoreError(f"cannot connect: {text}", rejected=getattr(error, "rejected", False))


class AsyncPool(Generic[C]):
    """At most `size` connections for the tasks of one event loop.

    `make` opens a connection, `end` closes it, and `usable` returns whether it still works. `free` does so without
    awaiting, and returns False if it cannot know. `find` returns the server's address; the pool calls it before it
    opens a connection, after one broke, and twice a second. If the address changes, connections to the old one are
    closed. `make` receives the address, or None without `find`.
    """

    def __init__(
        self,
        make: Callable[[Any], Awaitable[C]],
        end: Callable[[C], Awaitable[None]],
        usable: Callable[[C], Awaitable[bool]],
        size: int,
        find: Callable[[], Awaitable[object]] | None = None,
        free: Callable[[C], bool] = lambda _: False,
    ) -> None:
        self._make, self._end, self._usable, self._size, self._find = make, end, usable, size, find
        self._free = free
        self._address: object = None
        self._last_find = 0.0  # monotonic seconds
        self._idle: list[C] = []
        self._in_use: set[int] = set()
        # connection -> `_moves` when it was acquired; `close` ends them, because they belong to no task
        self._in_use_nowait: dict[C, int] = {}
        self._moves = 0  # how often the connections in use became stale
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self.shutdown_hook: AsyncGenerator[None, None] | None = None  # set by the caller that registers it

    async def acquire(self) -> C:
        """Return a connection. The caller limits the wait. Raises `StoreError` if none can be opened."""
        while True:
            while self._idle:
                connection = self._idle.pop()
                if await self._usable(connection):
                    self._in_use.add(id(connection))
                    return connection
                await self._end(connection)
            self._open()
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                    self._wake()  # pass the turn on to the next request
                raise

    def acquire_nowait(self) -> C | None:
        """Return an idle connection that is `free`, or None. Use `release_nowait` to return it to the pool."""
        if not (self._idle and self._free(self._idle[-1])):
            return None
        connection = self._idle.pop()
        self._in_use_nowait[connection] = self._moves
        return connection

    def release_nowait(self, connection: C, *, broken: bool) -> None:
        """Return a connection of `acquire_nowait` to the pool; a `broken` one is closed soon."""
        since = self._in_use_nowait.get(connection)
        if since is None:
            return  # `close` closed it
        if broken or since != self._moves:
            end = asyncio.get_running_loop().create_task(self._close_in_use(connection))
            self._closing.add(end)
            end.add_done_callback(self._closing.discard)
        else:
            del self._in_use_nowait[connection]
            self._idle.append(connection)
        self._find_again_if_due(broken=broken)
        self._wake()

    async def ready(self) -> None:
        """Wait until a connection is idle. A caller that acquires it before awaiting anything else gets it."""
        if not (self._idle and await self._usable(self._idle[-1])):
            await self.release(await self.acquire())

    async def release(self, connection: C, *, broken: bool = False) -> None:
        """Return a connection to the pool; a `broken` one is closed."""
        known = id(connection) in self._in_use
        self._in_use.discard(id(connection))
        if known and not broken:
            self._idle.append(connection)
        self._find_again_if_due(broken=broken)
        self._wake()
        if broken or not known:
            await self._end(connection)

    async def close(self) -> None:
        """Close idle connections and those of `acquire_nowait` now, all others on release.

        The pool can be used again.
        """
        opening, self._opening = self._opening, None
        in_use, self._in_use_nowait = self._in_use_nowait, {}
        for connection in in_use:
            await self._end(connection)
        await self._close_idle()
        if opening is not None:  # asyncio leaks the socket of a TLS handshake that is canceled too early
            await asyncio.wait({opening}, timeout=_OPENING_GRACE)
            opening.cancel()
            await asyncio.wait({opening}, timeout=_OPENING_GRACE)
        await asyncio.sleep(0)  # aborted sockets close in the next turn

    async def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        self._in_use.clear()
        self._moves += 1
        for connection in idle:
            await self._end(connection)

    async def _close_in_use(self, connection: C) -> None:
        await self._end(connection)
        self._in_use_nowait.pop(connection, None)
        self._wake()

    def _find_again_if_due(self, *, broken: bool) -> None:
        if self._find and (broken or time.monotonic() - self._last_find > FIND_INTERVAL):
            self._open(only_if_moved=True)

    def _open(self, *, only_if_moved: bool = False) -> None:
        in_use = len(self._in_use) + len(self._in_use_nowait)
        if self._opening is None and (only_if_moved or in_use + len(self._idle) < self._size):
            self._opening = asyncio.get_running_loop().create_task(self._open_one(only_if_moved=only_if_moved))

    async def _open_one(self, *, only_if_moved: bool) -> None:
        task = asyncio.current_task()
        try:
            if await self._refresh_address() and only_if_moved:
                return
            connection = await self._make(self._address)
            if self._opening is task:
                self._idle.append(connection)
            else:  # the pool was closed meanwhile: redis-py may swallow a cancellation
                await self._end(connection)
        except Exception as error:  # noqa: BLE001  # a waiting request must receive any error
            while self._waiting and not (self._in_use or self._in_use_nowait):
                self._wake(no_connection_error(error))
        finally:
            if self._opening is task:
                self._opening = None
            self._wake()

    async def _refresh_address(self) -> bool:
        """Find the address again, and close the idle connections if it has changed. Return whether it has not."""
        if self._find is None:
            return True
        self._last_find = time.monotonic()
        before, self._address = self._address, await self._find()
        if before != self._address:
            await self._close_idle()
        return before == self._address

    def _wake(self, error: StoreError | None = None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error) if error else waiter.set_result(None)
                return

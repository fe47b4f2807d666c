"""Open connections, ready to be borrowed. Opening is off the request and one at a time.

So a request never pays for TLS and AUTH, a crowd of requests does not become a crowd of handshakes, and a server that
takes longer than a request may wait still gets its connection opened for the next one.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from ratelimit_mw.core.errors import StoreError

C = TypeVar("C")

_OPENING_GRACE: Final = (
    0.5  # seconds that closing waits for one that is being opened: TLS over a slow link takes so long
)
FIND_INTERVAL: Final = 0.5  # seconds: how often a server that may move is looked for, while there are requests


def no_connection_error(error: Exception) -> StoreError:
    """What a request hears that waited for a connection."""
    text = str(error) or type(error).__name__  # a timeout has no text
    return StoreError(f"cannot connect: {text}", rejected=getattr(error, "rejected", False))


class AsyncPool(Generic[C]):
    """At most `size` connections for the tasks of one event loop.

    `make` opens one, `end` closes one, `usable` says if one still is; `free` says so at once, and no where that is not
    known. `find` says where the server is: when one is opened, when one broke, and twice a second. When it moved, those
    that lead to its old place are closed. `make` is told the place; None without `find`.
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
        self._place: object = None
        self._last_find = 0.0  # monotonic seconds
        self._idle: list[C] = []
        self._in_use: set[int] = set()
        self._in_use_nowait: dict[C, int] = {}  # and when; with no task that would give it back where the loop ends
        self._moves = 0  # how often the server has moved
        self._closing: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self.shutdown_hook: AsyncGenerator[None, None] | None = None  # whoever has the loop close it keeps that here

    async def acquire(self) -> C:
        """A connection; the caller bounds the wait. Raises `StoreError` when none can be had."""
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
                    self._wake()  # it was our turn, and it passes on
                raise

    def acquire_nowait(self) -> C | None:
        """A connection, where one is idle and `free`. It comes back by `release_nowait`."""
        if not (self._idle and self._free(self._idle[-1])):
            return None
        connection = self._idle.pop()
        self._in_use_nowait[connection] = self._moves
        return connection

    def release_nowait(self, connection: C, *, broken: bool) -> None:
        """The other end of `acquire_nowait`. One that is `broken` is closed soon."""
        since = self._in_use_nowait.get(connection)
        if since is None:
            return  # closed with the pool
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
        """Wait until one is idle: who borrows it at once, without awaiting anything, gets it."""
        if not (self._idle and await self._usable(self._idle[-1])):
            await self.release(await self.acquire())

    async def release(self, connection: C, *, broken: bool = False) -> None:
        """Return a borrowed connection; a `broken` one is closed."""
        known = id(connection) in self._in_use
        self._in_use.discard(id(connection))
        if known and not broken:
            self._idle.append(connection)
        self._find_again_if_due(broken=broken)
        self._wake()
        if broken or not known:
            await self._end(connection)

    async def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back. The pool can be used again.

        What was lent at once is closed at once.
        """
        opening, self._opening = self._opening, None
        in_use, self._in_use_nowait = self._in_use_nowait, {}
        for connection in in_use:
            await self._end(connection)
        await self._close_idle()
        if opening is not None:  # asyncio loses the socket of TLS that is cancelled in its first moments
            await asyncio.wait({opening}, timeout=_OPENING_GRACE)
            opening.cancel()
            await asyncio.wait({opening}, timeout=_OPENING_GRACE)
        await asyncio.sleep(0)  # what was aborted is closed in the next turn

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
            if await self._is_at_same_address() and only_if_moved:
                return
            connection = await self._make(self._place)
            if self._opening is task:
                self._idle.append(connection)
            else:  # closed meanwhile: the client library may lose a cancellation
                await self._end(connection)
        except Exception as error:  # noqa: BLE001  # whatever it is, a waiting request must hear of it
            while self._waiting and not (self._in_use or self._in_use_nowait):
                self._wake(no_connection_error(error))
        finally:
            if self._opening is task:
                self._opening = None
            self._wake()

    async def _is_at_same_address(self) -> bool:
        """Whether the server is where it was."""
        if self._find is None:
            return True
        self._last_find = time.monotonic()
        before, self._place = self._place, await self._find()
        if before != self._place:
            await self._close_idle()
        return before == self._place

    def _wake(self, error: StoreError | None = None) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error) if error else waiter.set_result(None)
                return

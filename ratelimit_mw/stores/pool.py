"""Open connections, ready to be borrowed. Opening is off the request and one at a time.

So a request never pays for TLS and AUTH, a crowd of requests does not become a crowd of handshakes, and a server that
takes longer than a request may wait still gets its connection opened for the next one.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from ratelimit_mw.errors import StoreError

C = TypeVar("C")

_GRACE: Final = 0.5  # seconds that closing waits for one that is being opened: TLS over a slow link takes so long
LOOK_AGAIN: Final = 0.5  # seconds: how often a server that may move is looked for, while there are requests


def not_connected(error: Exception) -> StoreError:
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
        self._found = 0.0  # monotonic seconds
        self._idle: list[C] = []
        self._lent: set[int] = set()
        self._lent_at_once: dict[C, int] = {}  # and when; with no task that would give it back where the loop ends
        self._moves = 0  # how often the server has moved
        self._ends: set[asyncio.Task[None]] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._opening: asyncio.Task[None] | None = None
        self.ending: AsyncGenerator[None, None] | None = None  # whoever has the loop close it keeps that here

    async def borrow(self) -> C:
        """A connection; the caller bounds the wait. Raises `StoreError` when none can be had."""
        while True:
            while self._idle:
                connection = self._idle.pop()
                if await self._usable(connection):
                    self._lent.add(id(connection))
                    return connection
                await self._end(connection)
            self._open()
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled() and turn.exception() is None:
                    self._wake()  # it was our turn, and it passes on
                raise

    def lend(self) -> C | None:
        """A connection, where one is idle and `free`. It comes back by `take_back`."""
        if not (self._idle and self._free(self._idle[-1])):
            return None
        connection = self._idle.pop()
        self._lent_at_once[connection] = self._moves
        return connection

    def take_back(self, connection: C, *, broken: bool) -> None:
        """The other end of `lend`. One that is `broken` is closed soon."""
        since = self._lent_at_once.get(connection)
        if since is None:
            return  # closed with the pool
        if broken or since != self._moves:
            end = asyncio.get_running_loop().create_task(self._end_lent(connection))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)
        else:
            del self._lent_at_once[connection]
            self._idle.append(connection)
        self._look(broken=broken)
        self._wake()

    async def ready(self) -> None:
        """Wait until one is idle: who borrows it at once, without awaiting anything, gets it."""
        if not (self._idle and await self._usable(self._idle[-1])):
            await self.give_back(await self.borrow())

    async def give_back(self, connection: C, *, broken: bool = False) -> None:
        """Return a borrowed connection; a `broken` one is closed."""
        known = id(connection) in self._lent
        self._lent.discard(id(connection))
        if known and not broken:
            self._idle.append(connection)
        self._look(broken=broken)
        self._wake()
        if broken or not known:
            await self._end(connection)

    async def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back. The pool can be used again.

        What was lent at once is closed at once.
        """
        opening, self._opening = self._opening, None
        lent, self._lent_at_once = self._lent_at_once, {}
        for connection in lent:
            await self._end(connection)
        await self._retire()
        if opening is not None:  # asyncio loses the socket of TLS that is cancelled in its first moments
            await asyncio.wait({opening}, timeout=_GRACE)
            opening.cancel()
            await asyncio.wait({opening}, timeout=_GRACE)
        await asyncio.sleep(0)  # what was aborted is closed in the next turn

    async def _retire(self) -> None:
        idle, self._idle = self._idle, []
        self._lent.clear()
        self._moves += 1
        for connection in idle:
            await self._end(connection)

    async def _end_lent(self, connection: C) -> None:
        await self._end(connection)
        self._lent_at_once.pop(connection, None)
        self._wake()

    def _look(self, *, broken: bool) -> None:
        if self._find and (broken or time.monotonic() - self._found > LOOK_AGAIN):
            self._open(look=True)

    def _open(self, *, look: bool = False) -> None:
        lent = len(self._lent) + len(self._lent_at_once)
        if self._opening is None and (look or lent + len(self._idle) < self._size):
            self._opening = asyncio.get_running_loop().create_task(self._open_one(look=look))

    async def _open_one(self, *, look: bool) -> None:
        task = asyncio.current_task()
        try:
            if await self._stays() and look:
                return
            connection = await self._make(self._place)
            if self._opening is task:
                self._idle.append(connection)
            else:  # closed meanwhile: the client library may lose a cancellation
                await self._end(connection)
        except Exception as error:  # noqa: BLE001  # whatever it is, a waiting request must hear of it
            while self._waiting and not (self._lent or self._lent_at_once):
                self._wake(not_connected(error))
        finally:
            if self._opening is task:
                self._opening = None
            self._wake()

    async def _stays(self) -> bool:
        """Whether the server is where it was."""
        if self._find is None:
            return True
        self._found = time.monotonic()
        before, self._place = self._place, await self._find()
        if before != self._place:
            await self._retire()
        return before == self._place

    def _wake(self, error: StoreError | None = None) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error) if error else turn.set_result(None)
                return

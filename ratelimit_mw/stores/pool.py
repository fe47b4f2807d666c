"""Open connections, ready to be borrowed. Opening is off the request and one at a time.

So a request never pays for TLS and AUTH, a crowd of requests does not become a crowd of handshakes, and a server that
takes longer than a request may wait still gets its connection opened for the next one.
"""

import asyncio
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

from ratelimit_mw.errors import StoreError
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.patience import Patience

C = TypeVar("C")

_GRACE: Final = 0.1  # seconds that closing waits for a connection that is being opened
_LOOK_AGAIN: Final = 0.5  # seconds: how often a server that may move is looked for, while there are requests


class Pool(Generic[C]):
    """At most `size` connections for threads.

    `make` opens one (it may block), `end` closes one, `usable` says if one still is. `find` says where the server is
    (it may block): when one is opened, when one broke, and twice a second. When it moved, those that lead to its old
    place are closed. `make` is told the place; None without `find`.
    """

    def __init__(
        self,
        make: Callable[[Any], C],
        end: Callable[[C], None],
        usable: Callable[[C], bool],
        size: int,
        find: Callable[[], object] | None = None,
    ) -> None:
        self._make, self._end, self._usable, self._size, self._find = make, end, usable, size, find
        start_over_in_child(self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[C] = []
        self._lent: set[int] = set()
        self._opening = False
        self._attempts = 0
        self._place: object = None
        self._found = 0.0  # monotonic seconds
        self._error: Exception | None = None
        weakref.finalize(self, _end_all, self._idle, self._end)  # who forgets to close leaves no open socket behind

    def borrow(self, patience: Patience) -> C:
        """A connection. Raises `StoreError` when none is free in time, or none can be had."""
        with self._changed:
            before = self._attempts
            while True:
                while self._idle:
                    connection = self._idle.pop()
                    if self._usable(connection):
                        self._lent.add(id(connection))
                        return connection
                    self._end(connection)
                if self._attempts > before and self._error and not self._lent:
                    raise _not_connected(self._error) from self._error
                self._open()
                if patience.left <= 0:
                    raise StoreError("no connection was free in time")
                since = time.monotonic()
                self._changed.wait(patience.slice())
                patience.spend(since)

    def give_back(self, connection: C, *, broken: bool = False) -> None:
        """Return a borrowed connection; a `broken` one is closed."""
        with self._changed:
            known = id(connection) in self._lent
            self._lent.discard(id(connection))
            if known and not broken:
                self._idle.append(connection)
            if self._find and (broken or time.monotonic() - self._found > _LOOK_AGAIN):
                self._open(look=True)
            self._changed.notify()
        if broken or not known:
            self._end(connection)

    def close(self) -> None:
        """Close what is idle now, and what is lent when it comes back. The pool can be used again."""
        with self._changed:
            idle = self._idle.copy()
            self._idle.clear()
            self._lent.clear()
        _end_all(idle, self._end)

    def _open(self, *, look: bool = False) -> None:
        if not self._opening and (look or len(self._lent) + len(self._idle) < self._size):
            self._opening = True
            threading.Thread(target=self._open_one, args=(look,), name="ratelimit_mw connect", daemon=True).start()

    def _open_one(self, look: bool) -> None:  # noqa: FBT001  # a thread is given its arguments in order
        connection, error = None, None
        try:
            if not (self._stays() and look):
                connection = self._make(self._place)
        except Exception as reason:  # noqa: BLE001  # whatever it is, a waiting request must hear of it
            error = reason
        with self._changed:
            self._opening = False
            self._attempts += 1
            self._error = error
            if connection is not None:
                self._idle.append(connection)
            self._changed.notify_all()

    def _stays(self) -> bool:
        """Whether the server is where it was."""
        if self._find is None:
            return True
        self._found = time.monotonic()
        before, self._place = self._place, self._find()
        if before != self._place:
            self.close()
        return before == self._place


def _not_connected(error: Exception) -> StoreError:
    return StoreError(f"cannot connect: {str(error) or type(error).__name__}")  # a timeout has no text


def _end_all(connections: list[C], end: Callable[[C], None]) -> None:
    for connection in connections:
        end(connection)


class AsyncPool(Generic[C]):
    """The same for the tasks of one event loop. `free`: says at once, and of doubt no, if a connection is usable."""

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
        self._lent_at_once: set[C] = set()  # with no task that would give it back where the loop ends
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
        self._lent_at_once.add(connection)
        return connection

    def take_back(self, connection: C, *, broken: bool) -> None:
        """The other end of `lend`. One that is `broken` is closed soon."""
        if connection not in self._lent_at_once:
            return  # closed with the pool
        if broken:
            end = asyncio.get_running_loop().create_task(self._end_lent(connection))
            self._ends.add(end)
            end.add_done_callback(self._ends.discard)
        else:
            self._lent_at_once.discard(connection)
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
        lent, self._lent_at_once = self._lent_at_once, set()
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
        for connection in idle:
            await self._end(connection)

    async def _end_lent(self, connection: C) -> None:
        await self._end(connection)
        self._lent_at_once.discard(connection)
        self._wake()

    def _look(self, *, broken: bool) -> None:
        if self._find and (broken or time.monotonic() - self._found > _LOOK_AGAIN):
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
                self._wake(_not_connected(error))
        finally:
            if self._opening is task:
                self._opening = None
            self._wake()

    async def _stays(self) -> bool:
        """See `Pool._stays`."""
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

"""Open connections of threads, ready to be borrowed. Opening is off the request and one at a time, as in `pool.py`."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic

from ratelimit_mw.errors import StoreError
from ratelimit_mw.kept import made_once
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.patience import Patience
from ratelimit_mw.stores.pool import LOOK_AGAIN, C, not_connected


class Pool(Generic[C]):
    """The same for threads. `make`, `end`, `usable` and `find` may block."""

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
        self.__dict__.pop("changed", None)
        self._idle: list[C] = []
        self._lent: set[int] = set()
        self._opening = False
        self._attempts = 0
        self._place: object = None
        self._found = 0.0  # monotonic seconds
        self._error: Exception | None = None
        weakref.finalize(self, _end_all, self._idle, self._end)  # who forgets to close leaves no open socket behind

    @property
    def _changed(self) -> threading.Condition:
        """Made when it is first needed: gevent's workers patch `threading` after an app was loaded and forked."""
        return made_once(self, "changed", threading.Condition)

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
                    raise not_connected(self._error) from self._error
                self._open()
                if patience.left <= 0:
                    raise self._too_late()
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
            if self._find and (broken or time.monotonic() - self._found > LOOK_AGAIN):
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

    def _too_late(self) -> StoreError:
        """Names why the latest attempt to connect failed, as it may take longer than a request waits."""
        if self._error is None or self._lent:
            return StoreError("no connection was free in time")
        found = not_connected(self._error)
        return StoreError(f"no connection was free in time; {found}", rejected=found.rejected)

    def _open(self, *, look: bool = False) -> None:
        if not self._opening and (look or len(self._lent) + len(self._idle) < self._size):
            self._opening = True
            try:
                threading.Thread(target=self._open_one, args=(look,), name="ratelimit_mw connect", daemon=True).start()
            except RuntimeError as error:  # no thread can be started now: this attempt is over
                self._end_attempt(error)

    def _open_one(self, look: bool) -> None:  # noqa: FBT001  # a thread is given its arguments in order
        connection, error = None, None
        try:
            if not (self._stays() and look):
                connection = self._make(self._place)
        except Exception as reason:  # noqa: BLE001  # whatever it is, a waiting request must hear of it
            error = reason
        with self._changed:
            if connection is not None:
                self._idle.append(connection)
            self._end_attempt(error)

    def _end_attempt(self, error: Exception | None) -> None:
        self._opening = False
        self._attempts += 1
        self._error = error
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


def _end_all(connections: list[C], end: Callable[[C], None]) -> None:
    for connection in connections:
        end(connection)

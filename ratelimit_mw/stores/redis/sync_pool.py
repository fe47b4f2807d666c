"""Pools connections for threads. Opens them in the background, one at a time, as `async_pool.py` does."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.stores.lifecycle import after_fork_in_child
from ratelimit_mw.stores.redis.async_pool import FIND_INTERVAL, C, no_connection_error
from ratelimit_mw.stores.redis.deadline import Deadline


class Pool(Generic[C]):
    """At most `size` connections for threads. See `AsyncPool`; `make`, `end`, `usable` and `find` may block."""

    def __init__(
        self,
        make: Callable[[Any], C],
        end: Callable[[C], None],
        usable: Callable[[C], bool],
        size: int,
        find: Callable[[], object] | None = None,
    ) -> None:
        self._make, self._end, self._usable, self._size, self._find = make, end, usable, size, find
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        self.__dict__.pop("changed", None)
        self._idle: list[C] = []
        self._in_use: set[int] = set()
        self._opening = False
        self._attempts = 0
        self._address: object = None
        self._last_find = 0.0  # monotonic seconds
        self._error: Exception | None = None
        weakref.finalize(self, _close_all, self._idle, self._end)  # if the pool is never closed

    @property
    def _changed(self) -> threading.Condition:
        """The lock of the pool, created on first use: gevent patches `threading` after an app was loaded and forked."""
        return get_or_create(self, "changed", threading.Condition)

    def acquire(self, deadline: Deadline) -> C:
        """Return a connection. Raises `StoreError` if none is free in time, or none can be opened."""
        with self._changed:
            before = self._attempts
            while True:
                while self._idle:
                    connection = self._idle.pop()
                    if self._usable(connection):
                        self._in_use.add(id(connection))
                        return connection
                    self._end(connection)
                if self._attempts > before and self._error and not self._in_use:
                    raise no_connection_error(self._error) from self._error
                self._open()
                if deadline.left <= 0:
                    raise self._timeout_error()
                since = time.monotonic()
                self._changed.wait(deadline.next_wait())
                deadline.record_wait(since)

    def release(self, connection: C, *, broken: bool = False) -> None:
        """Return a connection to the pool; a `broken` one is closed."""
        with self._changed:
            known = id(connection) in self._in_use
            self._in_use.discard(id(connection))
            if known and not broken:
                self._idle.append(connection)
            if self._find and (broken or time.monotonic() - self._last_find > FIND_INTERVAL):
                self._open(only_if_moved=True)
            self._changed.notify()
        if broken or not known:
            self._end(connection)

    def close(self) -> None:
        """Close idle connections now, and connections in use on release. The pool can be used again."""
        with self._changed:
            idle = self._idle.copy()
            self._idle.clear()
            self._in_use.clear()
        _close_all(idle, self._end)

    def _timeout_error(self) -> StoreError:
        """Return the error of a timeout, with the reason why the latest attempt to connect failed."""
        if self._error is None or self._in_use:
            return StoreError("no connection was free in time")
        problem = no_connection_error(self._error)
        return StoreError(f"no connection was free in time; {problem}", rejected=problem.rejected)

    def _open(self, *, only_if_moved: bool = False) -> None:
        if not self._opening and (only_if_moved or len(self._in_use) + len(self._idle) < self._size):
            self._opening = True
            try:
                threading.Thread(
                    target=self._open_one, args=(only_if_moved,), name="ratelimit_mw connect", daemon=True
                ).start()
            except RuntimeError as error:  # no thread can start
                self._end_attempt(error)

    def _open_one(self, only_if_moved: bool) -> None:  # noqa: FBT001  # a thread's argument
        connection, error = None, None
        try:
            if not (self._refresh_address() and only_if_moved):
                connection = self._make(self._address)
        except Exception as reason:  # noqa: BLE001  # a waiting request must receive any error
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

    def _refresh_address(self) -> bool:
        """Find the address again, and close the idle connections if it has changed. Return whether it has not."""
        if self._find is None:
            return True
        self._last_find = time.monotonic()
        before, self._address = self._address, self._find()
        if before != self._address:
            self.close()
        return before == self._address


def _close_all(connections: list[C], end: Callable[[C], None]) -> None:
    for connection in connections:
        end(connection)

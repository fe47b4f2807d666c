"""Keeps one connection of this process to the file, with a lock and deadlines, across forks and faults.

The threads of a process take turns at one connection. SQLite has one writer at a time anyway. A thread that waits for a
lock of Python is woken at once, while a thread that waits for a lock of SQLite has to poll.
"""

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock, get_ident
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet, finalize

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.forks import after_fork_in_child, around_fork
from ratelimit_mw.core.log import warn
from ratelimit_mw.stores.sqlite.faults import Locked, is_busy, is_corrupt, primary_code
from ratelimit_mw.stores.sqlite.files import Identity, identity_of, log_size
from ratelimit_mw.stores.sqlite.opening import open_checked, open_file, replace_broken

T = TypeVar("T")

_START_TIMEOUT: Final = 5.0  # seconds that the start waits for other processes that open the file
# Seconds after each failed try for the write lock; the last value is for all later tries. First, only other threads may
# run, because a take lasts some 20 microseconds.
_PAUSES: Final = (0.0, 0.0, 0.0, 0.0001, 0.0002, 0.0004, 0.0008, 0.001)
_LOOK_INTERVAL: Final = 1.0  # seconds between two checks whether a file was removed or replaced
_LONG_LOG: Final = 64_000_000  # bytes of the log from which to warn; some 60,000 takes
_FORK_TIMEOUT: Final = 5.0  # seconds that a fork waits for the end of a call


class Busy(Exception):
    """Another thread or process uses the file, and the caller must not wait."""


class FileUse(NamedTuple):
    """What a `Database` does to its file.

    `checks`: its constructor creates or checks the file. `owns`: a call creates a file that is missing, and moves a
    broken one aside; otherwise it raises `StoreError`.
    """

    checks: bool
    owns: bool


class Database:
    """A file, opened when it is first used. Thread-safe.

    `register`: prepares each new connection, and returns a cursor that is closed with it.

    If the constructor checks the file, it moves a broken one aside, and raises `ConfigError` for a path or a file that
    cannot be used. If other processes keep the file locked, or the disk is full or fails, it only warns.
    """

    def __init__(self, path: Path, register: Callable[[sqlite3.Connection], sqlite3.Cursor], use: FileUse) -> None:
        self._path: Final = path
        self._owns_file: Final = use.owns
        self._register: Final = register
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._finalizer: finalize[[], Database] | None = None  # closes the connection when this object is deleted
        self._cursor: sqlite3.Cursor | None = None
        self._identity = Identity(None, None, None)
        self._forking_thread: int | None = None  # the thread that has the lock during a fork
        self._look_at = 0.0  # when to check again whether a file was replaced, in monotonic seconds
        self._log_is_long = False
        try:
            if use.checks:
                open_checked(path, time.monotonic() + _START_TIMEOUT)
        except StoreError as error:
            warn("store: no answer at start (%s); on_store_error decides", error, code="RL-129")
        _databases.add(self)

    def run(self, work: Callable[[sqlite3.Connection, T], Any], argument: T, timeout: float | None) -> Any:
        """Return `work(connection, argument)`. Calls `work` again while another process has the write lock.

        `timeout`: seconds after which `StoreError` is raised. None: raise `Busy` instead of waiting. An exception of
        `work` rolls its transaction back. Errors of SQLite are raised as `StoreError`.
        """
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        if not self._lock.acquire(False):  # `blocking`; the keyword would take time in every call
            if timeout is None:
                raise Busy
            if not self._lock.acquire(timeout=timeout):
                raise StoreError("no turn in time: other threads of this process use the file")
        tries = 0
        try:
            while True:
                try:
                    connection = self._connection
                    if connection is None or now >= self._look_at:
                        connection = self._usable_connection(deadline)
                    return work(connection, argument)
                except BaseException as error:
                    self._roll_back()
                    if not isinstance(error, sqlite3.Error) or not is_busy(error):
                        raise
                    if deadline is None:
                        raise Busy from None
                now = _pause_until_next(tries, deadline)
                tries += 1
        except sqlite3.Error as error:
            raise self._failure(error, deadline) from error
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        with self._lock:
            self._close()

    def _roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _usable_connection(self, deadline: float | None) -> sqlite3.Connection:
        """Return the connection to the file that is at the path now. Requires the lock."""
        now = time.monotonic()
        self._look_at = now + _LOOK_INTERVAL
        if self._connection is not None and identity_of(self._path) != self._identity:
            self._close()
        connection = self._connection
        if connection is None:
            try:
                opened = open_file(self._path, now if deadline is None else deadline, create=self._owns_file)
            except (ConfigError, OSError) as error:  # the file was checked at startup, so this is a fault like others
                raise StoreError(str(error)) from None
            except Locked:
                if deadline is None:
                    raise Busy from None
                raise
            connection, self._identity = opened
            self._cursor = self._register(connection)
            self._connection = connection
            self._finalizer = finalize(self, connection.close)  # for a store that is never closed
            self._finalizer.atexit = False
        self._warn_of_long_log()
        return connection

    def _warn_of_long_log(self) -> None:
        """Warn once, until the log is shorter again. SQLite cannot empty it while a reader may need its pages."""
        size, before = log_size(self._path), self._log_is_long
        self._log_is_long = size >= _LONG_LOG
        if self._log_is_long and not before:
            warn(
                "store: %s-wal has %d MB and grows, because a program reads the file in a transaction that it does not "
                "end; end that program",
                self._path,
                size // 1_000_000,
                code="RL-241",
            )

    def _failure(self, error: sqlite3.Error, deadline: float | None) -> StoreError:
        """Return the error to raise. Closes a connection that may be useless, and replaces a broken file."""
        if primary_code(error) != sqlite3.SQLITE_FULL:
            identity = self._identity
            self._close()
            if is_corrupt(error) and self._owns_file:
                try:
                    now = time.monotonic()
                    replace_broken(self._path, identity, str(error), now if deadline is None else deadline)
                except (StoreError, ConfigError, OSError) as other:
                    return StoreError(f"{self._path} is broken, and cannot be replaced: {other}")
        return StoreError(f"{self._path}: {error}")

    def _close(self) -> None:
        self._connection = None
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
        if self._finalizer is not None:
            self._finalizer()  # once only
            self._finalizer = None

    def _before_fork(self) -> None:
        """Close the connection, because a child must neither use nor close it, nor inherit its locks."""
        if self._lock.acquire(timeout=_FORK_TIMEOUT):
            self._forking_thread = get_ident()
            self._close()

    def _after_fork_in_parent(self) -> None:
        if self._forking_thread == get_ident():
            self._forking_thread = None
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        if self._connection is not None:  # a call had not ended before the fork
            _inherited.append(self._connection)
            self._connection = self._cursor = None
            if self._finalizer is not None:
                self._finalizer.detach()
        self._forking_thread = None
        self._lock = Lock()


def _pause_until_next(tries: int, deadline: float) -> float:
    """Pause before the next try for the write lock, and return the time, in monotonic seconds.

    `tries`: how many tries failed before the latest. Raises `StoreError` after the deadline. Even if this process is
    late, there was one try after the deadline.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise StoreError("no write lock in time: another process writes to the file")
    time.sleep(min(_PAUSES[min(tries, len(_PAUSES) - 1)], left))
    return time.monotonic()


_databases: Final[WeakSet[Database]] = WeakSet()
_inherited: Final[list[sqlite3.Connection]] = []  # never closed, because that would release locks of the parent


def _before_fork() -> None:
    for database in list(_databases):
        database._before_fork()  # noqa: SLF001  # the same module


def _after_fork_in_parent() -> None:
    for database in list(_databases):
        database._after_fork_in_parent()  # noqa: SLF001


def _after_fork_in_child() -> None:
    for database in list(_databases):
        database._after_fork_in_child()  # noqa: SLF001


around_fork(_before_fork, _after_fork_in_parent)
after_fork_in_child(_after_fork_in_child)

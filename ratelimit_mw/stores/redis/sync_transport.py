"""Sends commands to a server, for threads, over a pool of connections.

redis-py opens connections, but commands bypass it. It restarts the timeout of a socket with each read, so a reply that
arrives in small pieces may take forever. Here, the deadline of a call is for the whole reply.
"""

import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import hiredis
from redis.connection import DefaultParser
from redis.exceptions import InvalidResponse, ResponseError

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.stores.lifecycle import after_fork_in_child
from ratelimit_mw.stores.redis.deadline import CONNECT_TIMEOUT, FIND_INTERVAL, REPLY_GRACE, Deadline
from ratelimit_mw.stores.redis.failures import (
    CALL_ERRORS,
    ServerKind,
    classify_and_log,
    connection_error,
    error_for_waiting_requests,
    is_replica_error,
)
from ratelimit_mw.stores.redis.protocol import Address, Command, RoutedCommand
from ratelimit_mw.stores.redis.scripts import script
from ratelimit_mw.stores.redis.url import ConnectionFactory

_MAX_CONNECTIONS: Final = 64  # for each server
_HANDSHAKE_TIMEOUT: Final = 3.0  # seconds for connecting, AUTH, SELECT and the like together
_READ_SIZE: Final = 65536  # bytes


class SyncConnection:
    """An open connection of redis-py, for one call at a time."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._socket = connection._sock  # noqa: SLF001  # redis-py has no public access to it

    def query(self, command: Command, deadline: Deadline) -> Any:
        """Return the reply. Raises an error reply; without a reply, `TimeoutError` or the error of the connection."""
        self._socket.settimeout(max(REPLY_GRACE, deadline.left))
        self._socket.sendall(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub is for one word
        reply = self._reader.gets()
        while reply is False:
            last = deadline.left <= 0  # this read is the one that `REPLY_GRACE` allows
            self._read(deadline)
            reply = self._reader.gets()
            if last and reply is False:
                raise TimeoutError
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _read(self, deadline: Deadline) -> None:
        since = time.monotonic()
        self._socket.settimeout(max(REPLY_GRACE, deadline.next_wait()))
        try:
            data = self._socket.recv(_READ_SIZE)
        except TimeoutError:
            pass
        else:
            if not data:
                raise StoreError("the connection was lost: the server closed it")
            self._reader.feed(data)
        deadline.record_wait(since)

    def usable(self) -> bool:
        """Return whether nothing has arrived since the last reply, neither an end of file nor a stray reply."""
        try:
            return not self._reader.has_data() and not self._connection.can_read(0)
        except Exception:  # noqa: BLE001  # a connection that cannot be checked is not usable
            return False

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


def connect(connection: Any) -> SyncConnection:
    """Open a connection of redis-py, and abort the attempt if it takes too long.

    redis-py only limits each read, so a server that replies in small pieces could prolong the attempt forever.
    """
    timer = threading.Timer(_HANDSHAKE_TIMEOUT, _shut_down, [connection])
    timer.daemon = True
    with suppress(RuntimeError):  # if no thread can start, connect without this time limit
        timer.start()
    try:
        connection.connect()
    finally:
        timer.cancel()
    return SyncConnection(connection)


def _shut_down(connection: Any) -> None:
    opened = connection._sock  # noqa: SLF001  # redis-py has no public access to it
    if opened is not None:
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)


class Pool:
    """At most `_MAX_CONNECTIONS` connections for threads.

    A request that finds no idle connection starts a background thread, which opens one. The request then waits, up to
    its timeout, for that connection or for one that another request releases. The thread continues after the timeout,
    so that a connection that takes long to open serves later requests. Connections are opened one at a time, so that
    many requests do not cause many handshakes at once.

    `make` opens a connection. `find` returns the server's address; the pool calls it before it opens a connection,
    after one broke, and twice a second. If the address changes, connections to the old one are closed. `make` receives
    the address, or None without `find`.
    """

    def __init__(
        self, make: Callable[[Address | None], SyncConnection], find: Callable[[], Address] | None = None
    ) -> None:
        self._make, self._find = make, find
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        self.__dict__.pop("changed", None)
        self._idle: list[SyncConnection] = []
        self._in_use: set[SyncConnection] = set()
        self._opening = False
        self._attempts = 0
        self._closes = 0
        self._address: Address | None = None
        self._last_find = 0.0  # monotonic seconds
        self._error: Exception | None = None
        weakref.finalize(self, _close_all, self._idle)  # closes idle connections if the pool is never closed

    @property
    def _changed(self) -> threading.Condition:
        """The pool's lock. Created on first use, as gevent patches `threading` after an app was loaded and forked."""
        return get_or_create(self, "changed", threading.Condition)

    def acquire(self, deadline: Deadline) -> SyncConnection:
        """Return a connection.

        Raises `StoreError` if none is free in time, or if none is in use and none can be opened.
        """
        with self._changed:
            before = self._attempts
            while True:
                while self._idle:
                    connection = self._idle.pop()
                    if connection.usable():
                        self._in_use.add(connection)
                        return connection
                    connection.close()
                # An attempt to connect has failed after this call began, and no request will release a connection.
                if self._attempts > before and self._error and not self._in_use:
                    raise error_for_waiting_requests(self._error) from self._error
                self._open()
                if deadline.left <= 0:
                    raise self._timeout_error()
                since = time.monotonic()
                self._changed.wait(deadline.next_wait())
                deadline.record_wait(since)

    def release(self, connection: SyncConnection, *, broken: bool = False) -> None:
        """Return a connection to the pool; a `broken` one is closed."""
        with self._changed:
            known = connection in self._in_use
            self._in_use.discard(connection)
            if known and not broken:
                self._idle.append(connection)
            if self._find and (broken or time.monotonic() - self._last_find > FIND_INTERVAL):
                self._open(only_if_moved=True)
            self._changed.notify()
        if broken or not known:
            connection.close()

    def close(self) -> None:
        """Close idle connections now, those in use when they are released, and those being opened when they are open.

        The pool can be used again.
        """
        with self._changed:
            self._closes += 1
            idle = self._idle.copy()
            self._idle.clear()
            self._in_use.clear()
        _close_all(idle)

    def _timeout_error(self) -> StoreError:
        """Return the error of a timeout, with the reason why the latest attempt to connect failed."""
        if self._error is None or self._in_use:
            return StoreError("no connection was free in time")
        problem = error_for_waiting_requests(self._error)
        return StoreError(f"no connection was free in time; {problem}", rejected=problem.rejected)

    def _open(self, *, only_if_moved: bool = False) -> None:
        if not self._opening and (only_if_moved or len(self._in_use) + len(self._idle) < _MAX_CONNECTIONS):
            self._opening = True
            try:
                threading.Thread(
                    target=self._open_one, args=(only_if_moved,), name="ratelimit_mw connect", daemon=True
                ).start()
            except RuntimeError as error:  # no thread can start
                self._end_attempt(error)

    def _open_one(self, only_if_moved: bool) -> None:  # noqa: FBT001  # a thread's argument
        connection, error, closes = None, None, 0
        try:
            # With `only_if_moved`, a connection is opened only if the server has another address now.
            if not (self._refresh_address() and only_if_moved):
                closes = self._closes
                connection = self._make(self._address)
        except Exception as reason:  # noqa: BLE001  # a waiting request must receive any error
            error = reason
        with self._changed:
            # If the pool was closed meanwhile, the connection is closed below, as perhaps no request would release it.
            closed = closes != self._closes
            if connection is not None and not closed:
                self._idle.append(connection)
            self._end_attempt(error)
        if connection is not None and closed:
            connection.close()

    def _end_attempt(self, error: Exception | None) -> None:
        self._opening = False
        self._attempts += 1
        self._error = error
        self._changed.notify_all()

    def _refresh_address(self) -> bool:
        """Find the address again. Return whether it is unchanged; otherwise, close the idle connections."""
        if self._find is None:
            return True
        self._last_find = time.monotonic()
        before, self._address = self._address, self._find()
        if before != self._address:
            self.close()
        return before == self._address


def _close_all(connections: list[SyncConnection]) -> None:
    for connection in connections:
        connection.close()


class ServerTransport:
    """Pooled connections to one server, for threads.

    `find` returns the server's address, for a server whose address may change; it may block. `on_lost` is called when
    the server at that address does not accept a connection, or is a replica.
    """

    is_cluster = False

    def __init__(
        self,
        factory: ConnectionFactory,
        timeout: float,
        find: Callable[[], Address] | None = None,
        *,
        server_kind: ServerKind = "server",
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._timeout, self._label, self._server_kind, self._on_lost = timeout, factory.label, server_kind, on_lost

        def make(address: Address | None) -> SyncConnection:
            target = factory.at(address)
            self._label = target.label
            try:
                return _open_connection(target, server_kind)
            except Exception:
                on_lost()
                raise

        self._pool = Pool(make, find)

    def send(self, command: Command, deadline: Deadline, *, asking: bool = False) -> Any:
        """See `Transport.send`. `asking`: send ASKING first, for a key that may be moving to this node of a cluster."""
        connection = self._pool.acquire(deadline)
        broken = True
        try:
            if asking:
                connection.query(("ASKING",), deadline)
            reply = connection.query(command, deadline)
            broken = False
        except TimeoutError as error:
            raise StoreError(f"no answer within {self._timeout} seconds") from error
        except CALL_ERRORS as error:
            if is_replica_error(error):
                self._on_lost()
            # After an error reply the connection is usable, unless a replica sent it: the master is somewhere else.
            broken = not isinstance(error, ResponseError) or is_replica_error(error)
            raise classify_and_log(self._label, error, self._server_kind) from error
        finally:
            self._pool.release(connection, broken=broken)
        return reply

    def primaries(self, _: Deadline) -> "Sequence[ServerTransport]":
        """See `Transport.primaries`."""
        return [self]

    def close(self) -> None:
        """See `Transport.close`."""
        self._pool.close()


def _open_connection(factory: ConnectionFactory, server_kind: ServerKind) -> SyncConnection:
    raw_connection = factory.raw_connection()
    try:
        connection = connect(raw_connection)
        connection.query(("SCRIPT", "LOAD", script("take", "msgpack").text), Deadline(CONNECT_TIMEOUT))
    except CALL_ERRORS as error:
        raw_connection.disconnect()
        raise connection_error(factory, error, server_kind) from error
    except BaseException:
        raw_connection.disconnect()
        raise
    return connection


async def query_once(
    factory: ConnectionFactory, server_kind: ServerKind, routed_command: RoutedCommand, seconds: float = CONNECT_TIMEOUT
) -> Any:
    """Send a command on a new connection to its server and return the reply. Blocks. Raises `StoreError`.

    `seconds`: the time for the whole reply. Connecting has a timeout of its own. With its first two arguments bound, it
    is a `SendTo`.
    """
    server = factory.at(routed_command.address)
    raw_connection = server.raw_connection()
    try:
        return connect(raw_connection).query(routed_command.command, Deadline(seconds))
    except CALL_ERRORS as error:
        raise connection_error(server, error, server_kind) from error
    finally:
        raw_connection.disconnect()

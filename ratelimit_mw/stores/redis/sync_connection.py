"""Connections for threads. redis-py opens them; commands bypass it.

redis-py restarts the timeout of a socket with each read, so a reply that arrives in small pieces may take forever. Here
the deadline of a call is for the whole reply.
"""

import socket
import threading
import time
from contextlib import suppress
from typing import Any, Final, Protocol

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.commands import Command
from ratelimit_mw.stores.redis.deadline import Deadline

_REPLY_GRACE: Final = 0.001  # seconds: a reply that is in the socket at the deadline is used
_HANDSHAKE_TIMEOUT: Final = 3.0  # seconds for connecting, AUTH, SELECT and the like together
_READ_SIZE: Final = 65536  # bytes


def connect(connection: Any) -> None:
    """Open a connection of redis-py, and abort the attempt if it takes too long.

    redis-py only limits each read, so a server that replies in small pieces could prolong the attempt forever.
    """
    timer = threading.Timer(_HANDSHAKE_TIMEOUT, _shut_down, [connection])
    timer.daemon = True
    with suppress(RuntimeError):  # if no thread can start, connect without this limit
        timer.start()
    try:
        connection.connect()
    finally:
        timer.cancel()


def _shut_down(connection: Any) -> None:
    opened = connection._sock  # noqa: SLF001  # redis-py has no public access to it
    if opened is not None:
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)


class SyncConnection(Protocol):
    """An open connection, for one call at a time."""

    def query(self, command: Command, deadline: Deadline) -> Any:
        """Return the reply. Raises an error reply as it is; without a reply, `TimeoutError` or another error."""
        ...

    def usable(self) -> bool:
        """Return whether nothing arrived since the last reply: neither an end of file nor a stray reply."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class PlainSyncConnection:
    """A connection that redis-py parses, for use without hiredis.

    A reply may exceed its deadline while its bytes arrive less than 5 ms apart.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, command: Command, deadline: Deadline) -> Any:
        """See `SyncConnection.query`."""
        self._connection.send_command(*command)
        while True:
            last, since = deadline.left <= 0, time.monotonic()
            # redis-py has no public way to limit a read
            self._connection._sock.settimeout(max(_REPLY_GRACE, deadline.next_wait()))  # noqa: SLF001
            try:
                return self._connection.read_response(disconnect_on_error=False)  # continues a partial reply
            except Exception as error:
                if not isinstance(error.__context__, TimeoutError):
                    raise
                if last:
                    raise TimeoutError from error
            deadline.record_wait(since)

    def usable(self) -> bool:
        """See `SyncConnection.usable`."""
        try:
            return not self._connection.can_read(0)
        except Exception:  # noqa: BLE001  # a connection that cannot be checked is not usable
            return False

    def close(self) -> None:
        """See `SyncConnection.close`."""
        self._connection.disconnect()


class HiredisSyncConnection(PlainSyncConnection):
    """A connection that hiredis parses. `connection`: an open one of redis-py; `reader` and `pack`: of hiredis."""

    def __init__(self, connection: Any, reader: Any, pack: Any) -> None:
        super().__init__(connection)
        self._reader, self._pack = reader, pack
        self._socket = connection._sock  # noqa: SLF001  # redis-py has no public access to it

    def query(self, command: Command, deadline: Deadline) -> Any:
        """See `SyncConnection.query`."""
        self._socket.settimeout(max(_REPLY_GRACE, deadline.left))
        self._socket.sendall(self._pack(command))
        reply = self._reader.gets()
        while reply is False:
            last = deadline.left <= 0
            self._read(deadline)
            reply = self._reader.gets()
            if last and reply is False:
                raise TimeoutError
        if isinstance(reply, Exception):
            raise reply
        return reply

    def _read(self, deadline: Deadline) -> None:
        since = time.monotonic()
        self._socket.settimeout(max(_REPLY_GRACE, deadline.next_wait()))
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
        """See `SyncConnection.usable`."""
        return not self._reader.has_data() and super().usable()

"""A connection for threads, opened by the client library and then spoken to without it.

The client library gives each read of a socket its timeout anew, so that a reply which drips in has all the time of the
world. Here a reply has the time that its call has, however it comes.
"""

import socket
import threading
import time
from contextlib import suppress
from typing import Any, Final, Protocol

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.commands import Command
from ratelimit_mw.stores.redis.deadline import Deadline

_REPLY_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used
_HANDSHAKE_TIMEOUT: Final = 3.0  # seconds that password, database and the like may take together
_READ_SIZE: Final = 65536  # bytes


def connect(connection: Any) -> None:
    """Connect, and end the attempt if it takes too long.

    The client library bounds each read, so a server whose replies drip in would keep the attempt alive for ever.
    """
    timer = threading.Timer(_HANDSHAKE_TIMEOUT, _shut_down, [connection])
    timer.daemon = True
    with suppress(RuntimeError):  # no thread can be started now
        timer.start()
    try:
        connection.connect()
    finally:
        timer.cancel()


def _shut_down(connection: Any) -> None:
    opened = connection._sock  # noqa: SLF001  # nothing public of the client library gives it away
    if opened is not None:
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)


class SyncConnection(Protocol):
    """An open connection, for one call at a time."""

    def query(self, command: Command, deadline: Deadline) -> Any:
        """The reply. Raises an error reply as it is, `TimeoutError` if there is none in time, or why there is none."""
        ...

    def usable(self) -> bool:
        """Whether nothing has come in since the last reply: the end of the connection, or a stray answer."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class PlainSyncConnection:
    """A line by redis-py alone, where there is no hiredis: a reply may drip in as long as no byte takes five ms."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def query(self, command: Command, deadline: Deadline) -> Any:
        """See `SyncConnection.query`."""
        self._connection.send_command(*command)
        while True:
            last, since = deadline.left <= 0, time.monotonic()
            # nothing public says for how long to read
            self._connection._sock.settimeout(max(_REPLY_GRACE, deadline.next_wait()))  # noqa: SLF001
            try:
                return self._connection.read_response(disconnect_on_error=False)  # goes on with what it has read
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
        except Exception:  # noqa: BLE001  # one that cannot even be looked at is of no use
            return False

    def close(self) -> None:
        """See `SyncConnection.close`."""
        self._connection.disconnect()


class HiredisSyncConnection(PlainSyncConnection):
    """A line by hiredis. `reader` and `pack` are its own; `connection` is one of redis-py, and open."""

    def __init__(self, connection: Any, reader: Any, pack: Any) -> None:
        super().__init__(connection)
        self._reader, self._pack = reader, pack
        self._socket = connection._sock  # noqa: SLF001  # nothing public of the client library gives it away

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

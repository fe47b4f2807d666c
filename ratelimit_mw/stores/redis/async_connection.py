"""Connections for asyncio. redis-py opens them; commands bypass it, with one write and one read.

redis-py does TLS, AUTH and SELECT. Its own work around each command would take longer than that of the server.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.commands import Command


class AsyncConnection(Protocol):
    """An open connection, for one call at a time."""

    async def query(self, command: Command) -> Any:
        """Return the reply. Raises an error reply as it is; without a reply, a `StoreError` or redis-py's error."""
        ...

    @property
    def free(self) -> bool:
        """Whether `begin` may be called now."""
        ...

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> None:
        """Send a command without a coroutine. `on_reply` receives the reply, or the error of `query`."""
        ...

    def abandon(self) -> None:
        """Abort the call in progress and close the connection. `on_reply` receives an error."""
        ...

    async def usable(self) -> bool:
        """Return whether nothing arrived since the last reply: neither an end of file nor a stray reply."""
        ...

    async def close(self) -> None:
        """Close the connection without waiting."""
        ...


async def drop(connection: Any) -> None:
    """Close a connection of redis.asyncio without waiting, open or not."""
    writer = connection._writer  # noqa: SLF001  # redis-py has no public access to it
    if writer is not None:
        writer.transport.abort()  # not close(): the loop may end before TLS has shut down
    await connection.disconnect(nowait=True)


class HiredisAsyncConnection(asyncio.Protocol):
    """A connection that hiredis parses. `connection`: an open one of redis-py; `reader` and `pack`: of hiredis."""

    def __init__(self, connection: Any, reader: Any, pack: Any) -> None:
        self._connection, self._reader, self._pack = connection, reader, pack
        self._loop = asyncio.get_running_loop()
        self._on_reply: Callable[[Any], None] | None = None  # of the call in progress
        self._no_stray_reply = True  # no data arrived without a call
        # redis-py has no public access to it
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
        self._transport.set_protocol(self)

    async def query(self, command: Command) -> Any:
        """See `AsyncConnection.query`."""
        future = self._loop.create_future()

        def on_reply(reply: Any) -> None:
            if not future.done():
                future.set_result(reply)

        self.begin(command, on_reply)
        reply = await future
        if isinstance(reply, Exception):
            raise reply
        return reply

    @property
    def free(self) -> bool:
        """See `AsyncConnection.free`."""
        return self._no_stray_reply and not self._transport.is_closing()

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> None:
        """See `AsyncConnection.begin`."""
        self._on_reply = on_reply
        self._transport.write(self._pack(command))

    def abandon(self) -> None:
        """See `AsyncConnection.abandon`."""
        self._transport.abort()

    async def usable(self) -> bool:
        """See `AsyncConnection.usable`."""
        return self.free

    async def close(self) -> None:
        """See `AsyncConnection.close`."""
        await drop(self._connection)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and deliver complete replies."""
        replies = []
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
        except Exception as error:  # noqa: BLE001  # hiredis may raise anything for invalid bytes
            replies.append(StoreError(f"{type(error).__name__}: {error}"))
            self._transport.abort()
        for reply in replies:
            self._deliver(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the call in progress."""
        if self._on_reply is not None:
            self._deliver(StoreError(f"the connection was lost: {exc or 'the server closed it'}"))

    def _deliver(self, reply: Any) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is None:
            self._no_stray_reply = False
        else:
            on_reply(reply)


class PlainAsyncConnection:
    """A connection that redis-py parses, for use without hiredis. Its calls have to be awaited."""

    free = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def query(self, command: Command) -> Any:
        """See `AsyncConnection.query`."""
        await self._connection.send_command(*command)
        return await self._connection.read_response()

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> None:  # noqa: ARG002  # a protocol's method
        """Raise TypeError: `free` is always False."""
        raise TypeError("without hiredis a connection has to be awaited")

    def abandon(self) -> None:
        """Do nothing: `begin` starts no call."""

    async def usable(self) -> bool:
        """See `AsyncConnection.usable`."""
        # its name before redis-py 8
        peek = getattr(self._connection, "can_read", None) or self._connection.can_read_destructive
        try:
            return not await peek()
        except Exception:  # noqa: BLE001  # a connection that cannot be checked is not usable
            return False

    async def close(self) -> None:
        """See `AsyncConnection.close`."""
        await drop(self._connection)

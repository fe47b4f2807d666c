"""A connection of asyncio, opened by the client library and then spoken to without it: one write, one read.

The client library opens it, with TLS, password and database; what it does around each command takes longer than the
server does.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.commands import Command


class AsyncConnection(Protocol):
    """An open connection, for one call at a time."""

    async def query(self, command: Command) -> Any:
        """The reply. Raises an error reply as it is, `StoreError` or the client library's error if there is none."""
        ...

    @property
    def free(self) -> bool:
        """Whether `begin` may be called now."""
        ...

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> None:
        """The same without a coroutine: `on_reply` is called with the reply, or with the error that there is none."""
        ...

    def abandon(self) -> None:
        """End what was begun, and the connection with it. Who waits for it hears so."""
        ...

    async def usable(self) -> bool:
        """Whether nothing has come in since the last reply: the end of the connection, or a stray answer."""
        ...

    async def close(self) -> None:
        """Close it, waiting for nothing."""
        ...


async def drop(connection: Any) -> None:
    """Close a connection of the client library for asyncio, open or not, waiting for nothing."""
    writer = connection._writer  # noqa: SLF001  # nothing public gives it away
    if writer is not None:
        writer.transport.abort()  # TLS would say goodbye first, and the loop may end before
    await connection.disconnect(nowait=True)


class HiredisAsyncConnection(asyncio.Protocol):
    """A line by hiredis. `reader` and `pack` are its own; `connection` is one of redis-py, and open."""

    def __init__(self, connection: Any, reader: Any, pack: Any) -> None:
        self._connection, self._reader, self._pack = connection, reader, pack
        self._loop = asyncio.get_running_loop()
        self._on_reply: Callable[[Any], None] | None = None  # by whoever asked
        self._no_stray_reply = True  # nothing came that nobody asked for
        # nothing public of the client library gives it away
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
        """A reply, or a part of one."""
        replies = []
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                replies.append(reply)
        except Exception as error:  # noqa: BLE001  # bytes that are no reply: whatever hiredis makes of them
            replies.append(StoreError(f"{type(error).__name__}: {error}"))
            self._transport.abort()
        for reply in replies:
            self._deliver(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whoever still waits does so in vain."""
        if self._on_reply is not None:
            self._deliver(StoreError(f"the connection was lost: {exc or 'the server closed it'}"))

    def _deliver(self, reply: Any) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is None:
            self._no_stray_reply = False
        else:
            on_reply(reply)


class PlainAsyncConnection:
    """A line by redis-py alone, where there is no hiredis. What it does has to be awaited."""

    free = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def query(self, command: Command) -> Any:
        """See `AsyncConnection.query`."""
        await self._connection.send_command(*command)
        return await self._connection.read_response()

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> None:  # noqa: ARG002  # of a line
        """Not to be called, as `free` says."""
        raise TypeError("redis-py alone has to be awaited")

    def abandon(self) -> None:
        """Nothing was begun."""

    async def usable(self) -> bool:
        """See `AsyncConnection.usable`."""
        # its name before redis-py 8
        peek = getattr(self._connection, "can_read", None) or self._connection.can_read_destructive
        try:
            return not await peek()
        except Exception:  # noqa: BLE001  # one that cannot even be looked at is of no use
            return False

    async def close(self) -> None:
        """See `AsyncConnection.close`."""
        await drop(self._connection)

"""Sends commands to a server, for asyncio. Each event loop pipelines its commands on one connection.

redis-py opens a connection, with TLS, AUTH and SELECT. Its work for each command would take longer than the work of the
server. So commands bypass it: the calls of a turn of the event loop need one or two writes and reads.
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import hiredis
from msgspec import Struct
from redis.asyncio.connection import DefaultParser
from redis.exceptions import InvalidResponse

from ratelimit_mw.core.errors import StoreError, StoreNotQueried
from ratelimit_mw.stores.lifecycle import on_loop_shutdown
from ratelimit_mw.stores.redis.deadline import CONNECT_TIMEOUT, FIND_INTERVAL, LATE_WORK_TIMEOUT, timeout_without_stalls
from ratelimit_mw.stores.redis.failures import (
    CALL_ERRORS,
    ServerKind,
    aconnection_error,
    classify_and_log,
    error_for_waiting_requests,
    is_replica_error,
)
from ratelimit_mw.stores.redis.protocol import Address, Command
from ratelimit_mw.stores.redis.scripts import script
from ratelimit_mw.stores.redis.url import ConnectionFactory

_OPENING_GRACE: Final = 0.5  # seconds that `close` waits for a connection that is being opened, e.g. over a slow link
_MAX_CONNECTIONS: Final = 32  # of one event loop to one server: one in use, and retired ones that are not closed yet
_SCRIPT_CALLS: Final = ("EVALSHA", "EVAL")
_NUMBER_SIZE: Final = 4  # bytes
UNLIMITED: Final = sys.maxsize

OnReply = Callable[[Any], None]
"""Receives the reply to a command, or a `RetryableReply` or `StoreError`."""


class Call(Struct, frozen=True, eq=False, gc=False):
    """A command to send, and the function that receives its reply. `slot`: the hash slot of its keys, in a cluster."""

    command: Command
    on_reply: OnReply
    slot: int = 0


class AsyncTransport(Protocol):
    """Sends commands to a server or a cluster, for one event loop."""

    is_cluster: bool  # whether a call reaches the keys of one hash slot only

    @property
    def room(self) -> int:
        """The number of commands that `send` accepts now: 0 without a connection, mostly `UNLIMITED` with one."""
        ...

    async def ready(self) -> None:
        """Wait until there is probably room. Raises `StoreError`."""
        ...

    def send(self, calls: Sequence[Call]) -> None:
        """Send commands, at most `room` of them."""
        ...

    async def query(self, command: Command) -> Any:
        """Send a command and return its reply. The caller limits the wait. Raises `RetryableReply` or `StoreError`."""
        ...

    def retire_late(self, timeout: float) -> None:
        """Retire each connection whose oldest command has had no reply for `timeout` seconds.

        A retired connection gets no further commands, but stays open for `LATE_WORK_TIMEOUT`. Threads close theirs at
        once.
        """
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


def drop(connection: Any) -> None:
    """Close a connection of redis.asyncio at once, open or not."""
    # redis-py has no public access to its writer, and no public way to close a connection outside of a task
    writer = connection._writer  # noqa: SLF001
    if writer is not None:
        writer.transport.abort()  # instead of close(), because the loop may end before TLS has shut down
    connection._close()  # noqa: SLF001


class AsyncConnection(asyncio.Protocol):
    """An open connection of redis-py. Replies arrive in the order of the commands.

    `convert_error` converts an error reply. `on_end` is called once, when the connection has ended.

    A script returns the number of its call before its reply. A reply with a wrong number ends the connection. So if a
    server or proxy sends a reply too many or too few, no request receives the reply to another one.
    """

    def __init__(
        self,
        connection: Any,
        convert_error: Callable[["AsyncConnection", Exception], Exception],
        on_end: Callable[["AsyncConnection"], object],
    ) -> None:
        self._connection, self._convert_error, self._on_end = connection, convert_error, on_end
        self._reader = hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)
        self._unanswered: deque[tuple[OnReply, bytes, float]] = deque()  # receiver, number of the call, time of sending
        self._last_number = 0
        self._has_ended = False
        # redis-py has no public access to it
        self._transport: asyncio.Transport = connection._writer.transport  # noqa: SLF001
        self._transport.set_protocol(self)
        self.is_closing: Final = self._transport.is_closing  # whether no command can be sent any more

    @property
    def unanswered_since(self) -> float:
        """When the oldest command without a reply was sent (`time.monotonic`); infinity without such a command."""
        return self._unanswered[0][2] if self._unanswered else float("inf")

    def send(self, calls: Sequence[Call]) -> None:
        """Send commands, in one write."""
        now = time.monotonic()
        packed = []
        for call in calls:
            command, number = call.command, b""
            if command[0] in _SCRIPT_CALLS:
                self._last_number = (self._last_number + 1) % 256**_NUMBER_SIZE
                number = self._last_number.to_bytes(_NUMBER_SIZE, "big")
                command = (*command, number)
            packed.append(hiredis.pack_command(command))  # type: ignore[arg-type]  # its stub means one word
            self._unanswered.append((call.on_reply, number, now))
        self._transport.write(b"".join(packed))

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and deliver complete replies."""
        replies: list[tuple[OnReply, Any]] = []
        unanswered, failure = self._unanswered, None
        try:
            self._reader.feed(data)
            while (reply := self._reader.gets()) is not False:
                if not unanswered:
                    failure = StoreError(f"the server sent {reply!r:.200}, which answers no command")
                    break
                on_reply, number, _ = unanswered[0]
                if number and type(reply) is bytes:
                    if not reply.startswith(number):
                        failure = StoreError(f"the server sent {reply!r:.200}, which answers another command")
                        break
                    reply = reply[_NUMBER_SIZE:]
                unanswered.popleft()
                replies.append((on_reply, reply))
        except Exception as error:  # noqa: BLE001  # hiredis may raise anything for invalid bytes
            failure = StoreError(f"{type(error).__name__}: {error}")
        for on_reply, reply in replies:
            on_reply(self._convert_error(self, reply) if isinstance(reply, Exception) else reply)
        if failure is not None:
            self.end(failure)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all commands without a reply."""
        self.end(StoreError(f"the connection was lost: {exc or 'the server closed it'}"))

    def end(self, error: StoreError) -> None:
        """Close the connection, and fail all commands without a reply."""
        if self._has_ended:
            return
        self._has_ended = True
        drop(self._connection)
        self._on_end(self)
        unanswered, self._unanswered = self._unanswered, deque()
        for on_reply, _, _ in unanswered:
            on_reply(error.copy())


class Channel:
    """The connections of one event loop to one server: one for new commands, and retired ones until they are closed.

    Without a connection for new commands, the next request starts a task that opens one. All requests wait for the
    task, each up to its timeout. The task continues after these timeouts, so that a connection that takes long to open
    serves later requests.

    `find` returns the server's address, for a server whose address may change. It is called before a connection is
    opened, and twice a second. `on_lost` is called when the server at that address does not accept a connection, or is
    a replica.
    """

    is_cluster = False

    def __init__(
        self,
        factory: ConnectionFactory,
        find: Callable[[], Awaitable[Address]] | None = None,
        *,
        server_kind: ServerKind = "server",
        on_lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._factory, self._find, self._server_kind, self._on_lost = factory, find, server_kind, on_lost
        self._loop = asyncio.get_running_loop()
        self._connection: AsyncConnection | None = None  # the connection for new commands
        self._open_connections: dict[AsyncConnection, None] = {}  # the oldest first
        self._opening: asyncio.Task[Exception | None] | None = None
        self._address: Address | None = None
        self._last_find = 0.0  # monotonic seconds
        self._shutdown_hook = on_loop_shutdown(self._close)

    @property
    def room(self) -> int:
        """See `AsyncTransport.room`."""
        connection = self._connection
        return 0 if connection is None or connection.is_closing() else UNLIMITED

    @property
    def is_connected(self) -> bool:
        """Whether commands can be sent now."""
        return self.room > 0

    async def ready(self) -> None:
        """See `AsyncTransport.ready`."""
        if self.is_connected:
            return
        opening = self._open()
        await asyncio.wait({opening})
        if opening.cancelled():
            raise StoreNotQueried("the store was closed")
        error = opening.result()
        if error is not None:
            raise error_for_waiting_requests(error) from error
        if not self.is_connected:
            raise StoreError("cannot connect: the server closed the connection")

    def send(self, calls: Sequence[Call]) -> None:
        """See `AsyncTransport.send`."""
        if self._connection is None:
            raise StoreError("no connection is open")
        self._connection.send(calls)
        if self._find and time.monotonic() - self._last_find > FIND_INTERVAL:
            self._open()

    async def query(self, command: Command, *, asking: bool = False) -> Any:
        """See `AsyncTransport.query`. `asking`: send ASKING first, as the key may be moving to this node."""
        await self.ready()
        replied: asyncio.Future[Any] = self._loop.create_future()
        calls = [Call(command, partial(_set_result, replied))]
        self.send([Call(("ASKING",), partial(_set_error, replied)), *calls] if asking else calls)
        reply = await replied
        if isinstance(reply, Exception):
            raise reply
        return reply

    def retire_late(self, timeout: float) -> None:
        """See `AsyncTransport.retire_late`."""
        if self._connection is not None and time.monotonic() - self._connection.unanswered_since >= timeout:
            self._retire()

    async def close(self) -> None:
        """See `AsyncTransport.close`."""
        await self._shutdown_hook.aclose()

    async def _close(self) -> None:
        opening, self._opening = self._opening, None
        for connection in list(self._open_connections):
            connection.end(StoreNotQueried("the store was closed"))
        if opening is not None:  # waits, because asyncio leaks the socket if a TLS handshake is canceled too early
            await asyncio.wait({opening}, timeout=_OPENING_GRACE)
            opening.cancel()
            await asyncio.wait({opening}, timeout=_OPENING_GRACE)
        await asyncio.sleep(0)  # aborted sockets close in the next turn

    def _open(self) -> "asyncio.Task[Exception | None]":
        """Find the server and open a connection where needed, in a task that returns the error, if there is one."""
        if self._opening is None:
            self._opening = self._loop.create_task(self._find_and_connect())
        return self._opening

    async def _find_and_connect(self) -> Exception | None:
        task = asyncio.current_task()
        try:
            if self._find is not None:
                self._last_find = time.monotonic()
                before, self._address = self._address, await self._find()
                if before != self._address:
                    self._retire()
            if not self.is_connected:
                await self._connect(task)
        except Exception as error:  # noqa: BLE001  # a waiting request must receive any error
            return error
        finally:
            if self._opening is task:
                self._opening = None
        return None

    async def _connect(self, task: object) -> None:
        factory = self._factory.at(self._address)
        try:
            opened = await _open_connection(factory, self._server_kind)
        except Exception:
            self._on_lost()
            raise
        if self._opening is not task:  # closed meanwhile, and redis-py swallowed the cancellation
            drop(opened)
            return
        self._connection = AsyncConnection(opened, partial(self._convert_error, factory.label), self._forget)
        self._open_connections[self._connection] = None
        if len(self._open_connections) > _MAX_CONNECTIONS:  # close the oldest one, which is retired
            next(iter(self._open_connections)).end(StoreError("no answer in time"))

    def _convert_error(self, label: str, connection: AsyncConnection, error: Exception) -> Exception:
        if is_replica_error(error) and connection is self._connection:
            self._retire()
            self._on_lost()
        return classify_and_log(label, error, self._server_kind)

    def _retire(self) -> None:
        """Retire the connection: it gets no further commands, but stays open for `LATE_WORK_TIMEOUT`.

        Until it is closed, it delivers the replies that other requests, settlements and refunds still wait for.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            self._loop.call_later(LATE_WORK_TIMEOUT, connection.end, StoreError("no answer in time"))

    def _forget(self, connection: AsyncConnection) -> None:
        self._open_connections.pop(connection, None)
        if self._connection is connection:
            self._connection = None


async def _open_connection(factory: ConnectionFactory, server_kind: ServerKind) -> Any:
    """Return an open connection of redis-py to a server that knows the script."""
    raw_connection = factory.raw_connection()
    try:
        async with timeout_without_stalls(CONNECT_TIMEOUT):
            await raw_connection.connect()
            await raw_connection.send_command("SCRIPT LOAD", script("take", "msgpack").text)
            await raw_connection.read_response()
    except CALL_ERRORS as error:
        drop(raw_connection)
        raise await aconnection_error(factory, error, server_kind) from error
    except BaseException:
        drop(raw_connection)
        raise
    return raw_connection


def _set_result(future: "asyncio.Future[Any]", reply: Any) -> None:
    if not future.done():
        future.set_result(reply)


def _set_error(future: "asyncio.Future[Any]", reply: Any) -> None:
    if isinstance(reply, Exception):
        _set_result(future, reply)

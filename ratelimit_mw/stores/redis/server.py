"""Connections to one Redis or Valkey server: a pool for threads, and a pool for each event loop."""

import asyncio
from collections.abc import Awaitable, Callable
from socket import gaierror
from typing import Any, Final

from redis import RedisError
from redis.asyncio.connection import DefaultParser
from redis.exceptions import (
    AskError,
    InvalidResponse,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
)

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.lifecycle import PerLoop, on_loop_shutdown
from ratelimit_mw.stores.redis.async_connection import (
    AsyncConnection,
    HiredisAsyncConnection,
    PlainAsyncConnection,
    drop,
)
from ratelimit_mw.stores.redis.async_pool import AsyncPool
from ratelimit_mw.stores.redis.commands import Command, NoCodec, NoScript
from ratelimit_mw.stores.redis.deadline import CONNECT_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.rejections import (
    ServerKind,
    as_store_error,
    log_and_label,
    missing_tls_file_error,
    not_redis_error,
    tls_mismatch_error,
)
from ratelimit_mw.stores.redis.scripts import Codec, script
from ratelimit_mw.stores.redis.sync_connection import (
    HiredisSyncConnection,
    PlainSyncConnection,
    SyncConnection,
    connect,
)
from ratelimit_mw.stores.redis.sync_pool import Pool
from ratelimit_mw.stores.redis.topology import Address, Redirected
from ratelimit_mw.stores.redis.url import ConnectionFactory

try:
    import hiredis
except ImportError:  # part of the extra `redis`; without it redis-py parses replies, more slowly
    hiredis = None  # type: ignore[assignment]

FAILURES: Final = (RedisError, RedisClusterException, OSError)  # errors of a server or of the network
_REDIRECTIONS: Final[dict[str, type[AskError]]] = {"ASK": AskError, "MOVED": MovedError}
_MAX_SYNC_CONNECTIONS: Final = 64  # for each server
_MAX_ASYNC_CONNECTIONS: Final = 32  # for each server and event loop


def _do_nothing() -> None:
    return None


class ServerTransport:
    """Pooled connections to one server, for threads.

    `find` returns the server's address, if that may change; it may block. `on_lost` is called when the server at that
    address does not accept a connection, or is a replica.
    """

    is_cluster = False
    codec: Codec = "msgpack"

    def __init__(
        self,
        factory: ConnectionFactory,
        timeout: float,
        find: Callable[[], Address] | None = None,
        *,
        server_kind: ServerKind = "server",
        on_lost: Callable[[], object] = _do_nothing,
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

        self._pool: Pool[SyncConnection] = Pool(
            make,
            lambda connection: connection.close(),
            lambda connection: connection.usable(),
            _MAX_SYNC_CONNECTIONS,
            find,
        )

    def send(self, command: Command, deadline: Deadline, *, asking: bool = False) -> Any:
        """See `Transport.send`. `asking`: send ASKING first, as the key may be moving to this node of a cluster."""
        connection = self._pool.acquire(deadline)
        broken = True
        try:
            if asking:
                connection.query(("ASKING",), deadline)
            reply = connection.query(command, deadline)
            broken = False
        except TimeoutError as error:
            raise StoreError(f"no answer within {self._timeout} seconds") from error
        except FAILURES as error:
            if _is_replica(error):
                self._on_lost()
            broken = not isinstance(error, ResponseError) or _is_replica(error)
            raise _classify_and_log(self._label, error, self._server_kind) from error
        finally:
            self._pool.release(connection, broken=broken)
        return reply

    def close(self) -> None:
        """See `Transport.close`."""
        self._pool.close()


class AsyncServerTransport:
    """Pooled connections to one server, for each event loop. See `ServerTransport`."""

    is_cluster = False
    codec: Codec = "msgpack"

    def __init__(
        self,
        factory: ConnectionFactory,
        find: Callable[[], Awaitable[Address]] | None = None,
        *,
        server_kind: ServerKind = "server",
        on_lost: Callable[[], object] = _do_nothing,
    ) -> None:
        async def make(address: Address | None) -> AsyncConnection:
            target = factory.at(address)
            self._label = target.label
            try:
                return await _open_async_connection(target, server_kind)
            except Exception:
                on_lost()
                raise

        def pool() -> AsyncPool[AsyncConnection]:
            made: AsyncPool[AsyncConnection]
            made = AsyncPool(
                make,
                lambda connection: connection.close(),
                lambda connection: connection.usable(),
                _MAX_ASYNC_CONNECTIONS,
                find,
                lambda connection: connection.free,
            )
            made.shutdown_hook = on_loop_shutdown(made.close)
            return made

        self._pools = PerLoop(pool)
        self._label, self._server_kind, self._on_lost = factory.label, server_kind, on_lost

    async def ready(self) -> None:
        """See `AsyncTransport.ready`."""
        await self._pools.get().ready()

    async def send(self, *command: Any, asking: bool = False) -> Any:
        """See `AsyncTransport.send` and `ServerTransport.send`."""
        pool = self._pools.get()
        connection = await pool.acquire()
        broken = True
        try:
            if asking:
                await connection.query(("ASKING",))
            reply = await connection.query(command)
            broken = False
        except FAILURES as error:
            if _is_replica(error):
                self._on_lost()
            broken = not isinstance(error, ResponseError) or _is_replica(error)
            raise _classify_and_log(self._label, error, self._server_kind) from error
        finally:
            await pool.release(connection, broken=broken)
        return reply

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> Callable[[], None] | None:
        """See `AsyncTransport.begin`."""
        pool = self._pools.get()
        connection = pool.acquire_nowait()
        if connection is None:
            return None

        def finish(reply: Any) -> None:
            failed = isinstance(reply, Exception)
            replica = failed and _is_replica(reply)
            if replica:
                self._on_lost()
            pool.release_nowait(connection, broken=replica or (failed and not isinstance(reply, ResponseError)))
            on_reply(_classify_and_log(self._label, reply, self._server_kind) if failed else reply)

        try:
            connection.begin(command, finish)
        except BaseException:
            pool.release_nowait(connection, broken=True)
            raise
        return connection.abandon

    async def close(self) -> None:
        """See `AsyncTransport.close`."""
        pool = self._pools.pop()
        if pool is not None and pool.shutdown_hook is not None:
            await pool.shutdown_hook.aclose()


def classify_error(error: Exception, server_kind: ServerKind = "cluster") -> Exception:
    """Convert an error of the client library to a `RetryableReply` or a `StoreError`."""
    if isinstance(error, NoScriptError):
        return NoScript()
    if server_kind == "cluster" and isinstance(to := _redirection(error), AskError):
        return Redirected((to.host, to.port), asking=not isinstance(to, MovedError))
    if isinstance(error, ResponseError) and ("cmsgpack" in str(error) or "struct" in str(error)):
        return NoCodec()
    return as_store_error(error, server_kind)


def _classify_and_log(label: str, error: Exception, server_kind: ServerKind) -> Exception:
    """Convert an error as `classify_error` does, and log it if it is a rejection."""
    problem = classify_error(error, server_kind)
    return log_and_label(label, server_kind, problem) if isinstance(problem, StoreError) else problem


def _redirection(error: Exception) -> Exception:
    """Return a MOVED or ASK error as its own type: before 6.0, only the cluster clients of redis-py do so."""
    code, _, rest = str(error).partition(" ")
    if type(error) is ResponseError and code in _REDIRECTIONS:
        return _REDIRECTIONS[code](rest)
    return error


def _is_replica(error: Exception) -> bool:
    """Return whether the server is read-only: the address may belong to another server by now.

    Before Redis 7 the error of a script has READONLY in its text only.
    """
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def connection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    """Return why a connection could not be opened. Logs a rejection. May block for a second."""
    problem = _connection_error(factory, error, server_kind)
    if _may_be_tls_mismatch(factory, error, problem):
        problem = _tls_mismatch_error(factory, problem)
    return log_and_label(factory.label, server_kind, problem, named=True)


async def aconnection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    """Do the same as `connection_error`, without blocking the event loop."""
    problem = _connection_error(factory, error, server_kind)
    if _may_be_tls_mismatch(factory, error, problem):
        problem = await asyncio.to_thread(_tls_mismatch_error, factory, problem)
    return log_and_label(factory.label, server_kind, problem, named=True)


def _connection_error(factory: ConnectionFactory, error: Exception, server_kind: ServerKind) -> StoreError:
    problem = as_store_error(error, server_kind)
    if isinstance(error, InvalidResponse):
        return not_redis_error(problem)
    if factory.tls and any(isinstance(one, FileNotFoundError) for one in (error, error.__cause__, error.__context__)):
        return missing_tls_file_error(problem)
    return problem


def _may_be_tls_mismatch(factory: ConnectionFactory, error: Exception, problem: StoreError) -> bool:
    """Return whether the cause may be that only one of server and client uses TLS."""
    causes = (error, error.__cause__, error.__context__)
    if problem.rejected or factory.address is None or isinstance(error, ResponseError):
        return False
    return not any(isinstance(one, (ConnectionRefusedError, gaierror)) for one in causes)


def _tls_mismatch_error(factory: ConnectionFactory, problem: StoreError) -> StoreError:
    return problem if factory.address is None else tls_mismatch_error(factory.address, problem, tls=factory.tls)


def _open_connection(factory: ConnectionFactory, server_kind: ServerKind) -> SyncConnection:
    raw_connection = factory.raw_connection()
    try:
        connection = _connect_and_wrap(raw_connection)
        connection.query(("SCRIPT", "LOAD", script("take", "msgpack").text), Deadline(CONNECT_TIMEOUT))
    except FAILURES as error:
        raw_connection.disconnect()
        raise connection_error(factory, error, server_kind) from error
    except BaseException:
        raw_connection.disconnect()
        raise
    return connection


def query_once(
    factory: ConnectionFactory, server_kind: ServerKind, command: Command, seconds: float = CONNECT_TIMEOUT
) -> Any:
    """Send one command on a new connection and return the reply. Raises `StoreError`.

    `seconds`: time for the whole reply; connecting has its own limit.
    """
    raw_connection = factory.raw_connection()
    try:
        return _connect_and_wrap(raw_connection).query(command, Deadline(seconds))
    except FAILURES as error:
        raise connection_error(factory, error, server_kind) from error
    finally:
        raw_connection.disconnect()


def _connect_and_wrap(raw_connection: Any) -> SyncConnection:
    connect(raw_connection)
    if hiredis is None:
        return PlainSyncConnection(raw_connection)
    return HiredisSyncConnection(raw_connection, _reader(), hiredis.pack_command)


async def _open_async_connection(factory: ConnectionFactory, server_kind: ServerKind) -> AsyncConnection:
    raw_connection = factory.raw_connection()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await raw_connection.connect()
            await raw_connection.send_command("SCRIPT LOAD", script("take", "msgpack").text)
            await raw_connection.read_response()
    except FAILURES as error:
        await drop(raw_connection)
        raise await aconnection_error(factory, error, server_kind) from error
    except BaseException:
        await drop(raw_connection)
        raise
    if hiredis is None:
        return PlainAsyncConnection(raw_connection)
    return HiredisAsyncConnection(raw_connection, _reader(), hiredis.pack_command)


def _reader() -> Any:
    return hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)

"""The way to one Redis or Valkey server, on connections of our own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from redis import ConnectionPool, RedisError
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio.connection import DefaultParser
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    InvalidResponse,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
)
from redis.retry import Retry

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.stores.loops import OfLoop, at_end
from ratelimit_mw.stores.patience import LINGER, Patience
from ratelimit_mw.stores.pool import AsyncPool
from ratelimit_mw.stores.scripts import Codec, script
from ratelimit_mw.stores.talk import Command, NoCodec, NoScript
from ratelimit_mw.stores.thread_pool import Pool
from ratelimit_mw.stores.thread_wire import PlainThreadLine, ThreadLine, ThreadWire
from ratelimit_mw.stores.topology import Address, Redirected
from ratelimit_mw.stores.wire import Line, PlainLine, Wire, drop

try:
    import hiredis
except ImportError:  # the extra brings it; redis-py does without it
    hiredis = None  # type: ignore[assignment]

SCHEMES: Final = ("redis://", "rediss://", "unix://")
CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
SENTINEL_SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
FAILURES: Final = (RedisError, RedisClusterException, OSError)  # of a server, or of the way to it
_REDIRECTIONS: Final[dict[str, type[AskError]]] = {"ASK": AskError, "MOVED": MovedError}
_THREADS: Final = 64  # connections at most
_TASKS: Final = 32  # connections at most, for each event loop


class Source(NamedTuple):
    """How to make connections to a server: a class of the client library, and its arguments."""

    kind: Any
    options: dict[str, Any]

    def __repr__(self) -> str:
        """Without the options, of which one may be a password: tools that show local variables show this."""
        return f"Source({self.kind.__name__})"

    def connection(self) -> Any:
        """A connection that is not open yet."""
        return self.kind(**self.options)

    def at(self, place: Address | None) -> "Source":
        """The same for another server, if there is one."""
        return Source(self.kind, self.options | {"host": place[0], "port": place[1]}) if place else self


class Connections:
    """Connections of our own to one server. `find` says where it is, if that may change; it may block."""

    slots = False
    codec: Codec = "packed"

    def __init__(self, source: Source, timeout: float, find: Callable[[], Address] | None = None) -> None:
        self._timeout = timeout
        self._pool: Pool[ThreadLine] = Pool(
            lambda place: _opened(source.at(place)),
            lambda line: line.close(),
            lambda line: line.usable(),
            _THREADS,
            find,
        )

    def send(self, command: Command, patience: Patience, *, asking: bool = False) -> Any:
        """See `Link.send`. `asking`: first say that the key may be on its way to this node of a cluster."""
        line = self._pool.borrow(patience)
        broken = True
        try:
            if asking:
                line.ask(("ASKING",), patience)
            reply = line.ask(command, patience)
            broken = False
        except TimeoutError as error:
            raise StoreError(f"no answer within {self._timeout} seconds") from error
        except FAILURES as error:
            broken = not isinstance(error, ResponseError) or _is_replica(error)
            raise meaning(error) from error
        finally:
            self._pool.give_back(line, broken=broken)
        return reply

    def close(self) -> None:
        """See `Link.close`."""
        self._pool.close()


class AsyncConnections:
    """The same for each event loop."""

    slots = False
    codec: Codec = "packed"

    def __init__(self, source: Source, find: Callable[[], Awaitable[Address]] | None = None) -> None:
        def make(place: Address | None) -> Awaitable[Line]:
            return _line(source.at(place))

        def pool() -> AsyncPool[Line]:
            made: AsyncPool[Line]
            made = AsyncPool(
                make, lambda line: line.close(), lambda line: line.usable(), _TASKS, find, lambda line: line.free
            )
            made.ending = at_end(made.close)
            return made

        self._pools = OfLoop(pool)

    async def ready(self) -> None:
        """See `AsyncLink.ready`."""
        await self._pools.get().ready()

    async def send(self, *command: Any, asking: bool = False) -> Any:
        """See `AsyncLink.send` and `Connections.send`."""
        pool = self._pools.get()
        line = await pool.borrow()
        broken = True
        try:
            if asking:
                await line.ask(("ASKING",))
            reply = await line.ask(command)
            broken = False
        except FAILURES as error:
            broken = not isinstance(error, ResponseError) or _is_replica(error)
            raise meaning(error) from error
        finally:
            await pool.give_back(line, broken=broken)
        return reply

    def begin(self, command: Command, heard: Callable[[Any], None]) -> Callable[[], None] | None:
        """See `AsyncLink.begin`."""
        pool = self._pools.get()
        line = pool.lend()
        if line is None:
            return None

        def over(reply: Any) -> None:
            failed = isinstance(reply, Exception)
            pool.take_back(line, broken=failed and (not isinstance(reply, ResponseError) or _is_replica(reply)))
            heard(meaning(reply) if failed and not isinstance(reply, StoreError) else reply)

        try:
            line.begin(command, over)
        except BaseException:
            pool.take_back(line, broken=True)
            raise
        return line.abandon

    async def close(self) -> None:
        """See `AsyncLink.close`."""
        pool = self._pools.pop()
        if pool is not None and pool.ending is not None:
            await pool.ending.aclose()


def meaning(error: Exception) -> Exception:
    """The error as the steps understand it."""
    if isinstance(error, NoScriptError):
        return NoScript()
    error = _redirection(error)
    if isinstance(error, AskError):
        return Redirected((error.host, error.port), asking=not isinstance(error, MovedError))
    if isinstance(error, ResponseError) and ("cmsgpack" in str(error) or "struct" in str(error)):
        return NoCodec()
    return StoreError(f"{type(error).__name__}: {error}")


def _redirection(error: Exception) -> Exception:
    """Before 6.0, redis-py knows what MOVED and ASK are in its clients for a cluster alone."""
    code, _, rest = str(error).partition(" ")
    if type(error) is ResponseError and code in _REDIRECTIONS:
        return _REDIRECTIONS[code](rest)
    return error


def _is_replica(error: ResponseError) -> bool:
    """Whether the server may not write: the address may belong to another one by now.

    Before Redis 7 a script's error carries the word in its text.
    """
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def source(url: str, timeout: float) -> Source:
    """What a URL says, for threads. Raises `ConfigError`."""
    return _source(ConnectionPool, url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


def async_source(url: str, timeout: float) -> Source:
    """What a URL says, for asyncio. Raises `ConfigError`."""
    return _source(AsyncConnectionPool, url, socket_timeout=timeout, retry=AsyncRetry(NoBackoff(), 0))


def _source(pool: Any, url: str, **options: Any) -> Source:
    if not url.startswith(SCHEMES):
        allowed = ", ".join([*SCHEMES, *CLUSTER_SCHEMES, *SENTINEL_SCHEMES])
        raise ConfigError(f"store: found {url.split('://', 1)[0]!r} as scheme, allowed are {allowed}")
    # no retry at all: an EVALSHA that is sent again charges again
    options |= {"socket_connect_timeout": LINGER, "protocol": 2, "decode_responses": False}
    try:
        read = pool.from_url(url, **options)  # how the client library reads it; nothing is opened
        found = Source(read.connection_class, read.connection_kwargs)
        found.connection()  # to hear of options that it does not know
        _check_database(url, found)
    except (ValueError, TypeError, RedisError):
        # without the error's own text: it may quote a piece of a password as the port
        raise ConfigError(
            "store: the URL cannot be read, allowed is redis://USER:PASSWORD@HOST:PORT/DB?OPTION=VALUE with a number "
            "from 0 as DB and the options of redis-py; in a password / # ? @ are written %2F %23 %3F %40"
        ) from None
    return found


def _check_database(url: str, read: Source) -> None:
    """The client library passes over a path that is no number, and then it is database 0. Raises `ValueError`."""
    path = "" if url.startswith("unix://") else unquote(urlsplit(url).path).strip("/")
    if (path and not path.isdecimal()) or read.options.get("db", 0) < 0:
        raise ValueError("no database")


def _opened(source: Source) -> ThreadLine:
    connection = source.connection()
    try:
        connection.connect()
        connection.send_command("SCRIPT LOAD", script("take", "packed").text)
        connection.read_response()
    except BaseException:
        connection.disconnect()
        raise
    if hiredis is None:
        return PlainThreadLine(connection)
    return ThreadWire(connection, _reader(), hiredis.pack_command)


async def _line(source: Source) -> Line:
    connection = source.connection()
    try:
        async with asyncio.timeout(LINGER):
            await connection.connect()
            await connection.send_command("SCRIPT LOAD", script("take", "packed").text)
            await connection.read_response()
    except BaseException:
        await drop(connection)
        raise
    if hiredis is None:
        return PlainLine(connection)
    return Wire(connection, _reader(), hiredis.pack_command)


def _reader() -> Any:
    return hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)

"""The way to one Redis or Valkey server, on connections of our own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from socket import gaierror
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from redis import ConnectionPool, RedisError, SSLConnection
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import SSLConnection as AsyncSSLConnection
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
from ratelimit_mw.stores.rejections import Role, failure, no_file, no_redis, other_protocol, told
from ratelimit_mw.stores.scripts import Codec, script
from ratelimit_mw.stores.talk import Command, NoCodec, NoScript
from ratelimit_mw.stores.thread_pool import Pool
from ratelimit_mw.stores.thread_wire import PlainThreadLine, ThreadLine, ThreadWire, connect
from ratelimit_mw.stores.topology import Address, Redirected
from ratelimit_mw.stores.wire import Line, PlainLine, Wire, drop
from ratelimit_mw.stores.wrong_url import wrong_part

try:
    import hiredis
except ImportError:  # the extra brings it; redis-py does without it
    hiredis = None  # type: ignore[assignment]

SCHEMES: Final = ("redis://", "rediss://", "unix://")
CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
SENTINEL_SCHEMES: Final = ("redis+sentinel://", "rediss+sentinel://")
FAILURES: Final = (RedisError, RedisClusterException, OSError)  # of a server, or of the way to it
_REDIRECTIONS: Final[dict[str, type[AskError]]] = {"ASK": AskError, "MOVED": MovedError}
_REPLIES: Final = {"protocol": 2, "decode_responses": False}  # as we read them, whatever the URL has
_PORT: Final = 6379  # unless the URL names one
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

    @property
    def address(self) -> Address | None:
        """Host and port; None for a socket in the file system."""
        if "path" in self.options:
            return None
        return self.options.get("host", "localhost"), self.options.get("port", _PORT)

    @property
    def place(self) -> str:
        """The server's place as log lines name it."""
        address = self.address
        return f"{self.options['path']}" if address is None else f"{address[0]}:{address[1]}"

    @property
    def tls(self) -> bool:
        """Whether the connections are over TLS."""
        return issubclass(self.kind, (SSLConnection, AsyncSSLConnection))


class Connections:
    """Connections of our own to one server. `find` says where it is, if that may change; it may block.

    `lost`: called when the place that `find` said is of no use.
    """

    slots = False
    codec: Codec = "packed"

    def __init__(
        self,
        source: Source,
        timeout: float,
        find: Callable[[], Address] | None = None,
        *,
        role: Role = "server",
        lost: Callable[[], object] = bool,
    ) -> None:
        self._timeout, self._place, self._role, self._lost = timeout, source.place, role, lost

        def make(place: Address | None) -> ThreadLine:
            there = source.at(place)
            self._place = there.place
            try:
                return _opened(there, role)
            except Exception:
                lost()
                raise

        self._pool: Pool[ThreadLine] = Pool(make, lambda line: line.close(), lambda line: line.usable(), _THREADS, find)

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
            if _is_replica(error):
                self._lost()
            broken = not isinstance(error, ResponseError) or _is_replica(error)
            raise _meaning_at(self._place, error, self._role) from error
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

    def __init__(
        self,
        source: Source,
        find: Callable[[], Awaitable[Address]] | None = None,
        *,
        role: Role = "server",
        lost: Callable[[], object] = bool,
    ) -> None:
        async def make(place: Address | None) -> Line:
            there = source.at(place)
            self._place = there.place
            try:
                return await _line(there, role)
            except Exception:
                lost()
                raise

        def pool() -> AsyncPool[Line]:
            made: AsyncPool[Line]
            made = AsyncPool(
                make, lambda line: line.close(), lambda line: line.usable(), _TASKS, find, lambda line: line.free
            )
            made.ending = at_end(made.close)
            return made

        self._pools = OfLoop(pool)
        self._place, self._role, self._lost = source.place, role, lost

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
            if _is_replica(error):
                self._lost()
            broken = not isinstance(error, ResponseError) or _is_replica(error)
            raise _meaning_at(self._place, error, self._role) from error
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
            replica = failed and _is_replica(reply)
            if replica:
                self._lost()
            pool.take_back(line, broken=replica or (failed and not isinstance(reply, ResponseError)))
            heard(_meaning_at(self._place, reply, self._role) if failed else reply)

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


def meaning(error: Exception, role: Role = "cluster") -> Exception:
    """The error as the steps understand it. `role`: what the server is taken for."""
    if isinstance(error, NoScriptError):
        return NoScript()
    if role == "cluster" and isinstance(to := _redirection(error), AskError):
        return Redirected((to.host, to.port), asking=not isinstance(to, MovedError))
    if isinstance(error, ResponseError) and ("cmsgpack" in str(error) or "struct" in str(error)):
        return NoCodec()
    return failure(error, role)


def _meaning_at(place: str, error: Exception, role: Role) -> Exception:
    """The same. A rejection is logged."""
    found = meaning(error, role)
    return told(place, role, found) if isinstance(found, StoreError) else found


def _redirection(error: Exception) -> Exception:
    """Before 6.0, redis-py knows what MOVED and ASK are in its clients for a cluster alone."""
    code, _, rest = str(error).partition(" ")
    if type(error) is ResponseError and code in _REDIRECTIONS:
        return _REDIRECTIONS[code](rest)
    return error


def _is_replica(error: Exception) -> bool:
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
    options["socket_connect_timeout"] = LINGER
    made: Source | None = None
    with suppress(ValueError, TypeError, RedisError):
        read = pool.from_url(url, **options)  # how the client library reads it; nothing is opened
        found = Source(read.connection_class, read.connection_kwargs | _REPLIES)
        found.connection()  # to hear of options that it does not know
        _check_database(url, found)
        made = found
    if made is None:  # without the error's own text: it may quote a piece of a password as the port
        raise ConfigError(
            f"store: the URL cannot be read{wrong_part(pool, url, options)}, allowed is "
            "redis://USER:PASSWORD@HOST:PORT/DB?OPTION=VALUE with a number from 0 as DB and the options of redis-py; "
            "in a password / # ? @ are written %2F %23 %3F %40"
        )
    return made


def _check_database(url: str, read: Source) -> None:
    """The client library passes over a path that is no number, and then it is database 0. Raises `ValueError`."""
    path = "" if url.startswith("unix://") else unquote(urlsplit(url).path).strip("/")
    if (path and not path.isdecimal()) or read.options.get("db", 0) < 0:
        raise ValueError("no database")


def not_opened(source: Source, error: Exception, role: Role) -> StoreError:
    """What is wrong with a connection that could not be opened. Logs a rejection. May block for a second."""
    found = _not_opened(source, error, role)
    if _is_unclear(source, error, found):
        found = _of_other_protocol(source, found)
    return told(source.place, role, found, named=True)


async def anot_opened(source: Source, error: Exception, role: Role) -> StoreError:
    """The same for asyncio."""
    found = _not_opened(source, error, role)
    if _is_unclear(source, error, found):
        found = await asyncio.to_thread(_of_other_protocol, source, found)
    return told(source.place, role, found, named=True)


def _not_opened(source: Source, error: Exception, role: Role) -> StoreError:
    found = failure(error, role)
    if isinstance(error, InvalidResponse):
        return no_redis(found)
    if source.tls and any(isinstance(one, FileNotFoundError) for one in (error, error.__cause__, error.__context__)):
        return no_file(found)
    return found


def _is_unclear(source: Source, error: Exception, found: StoreError) -> bool:
    """Whether the server may be there, and speak TLS where we do not, or the other way round."""
    causes = (error, error.__cause__, error.__context__)
    if found.rejected or source.address is None or isinstance(error, ResponseError):
        return False
    return not any(isinstance(one, (ConnectionRefusedError, gaierror)) for one in causes)


def _of_other_protocol(source: Source, found: StoreError) -> StoreError:
    return found if source.address is None else other_protocol(source.address, found, tls=source.tls)


def _opened(source: Source, role: Role) -> ThreadLine:
    connection = source.connection()
    try:
        line = _line_of(connection)
        line.ask(("SCRIPT", "LOAD", script("take", "packed").text), Patience(LINGER))
    except FAILURES as error:
        connection.disconnect()
        raise not_opened(source, error, role) from error
    except BaseException:
        connection.disconnect()
        raise
    return line


def ask_once(source: Source, role: Role, command: Command, seconds: float = LINGER) -> Any:
    """The reply to one command on a connection of its own. `seconds`: for all of the reply. Raises `StoreError`."""
    connection = source.connection()
    try:
        return _line_of(connection).ask(command, Patience(seconds))
    except FAILURES as error:
        raise not_opened(source, error, role) from error
    finally:
        connection.disconnect()


def _line_of(connection: Any) -> ThreadLine:
    connect(connection)
    if hiredis is None:
        return PlainThreadLine(connection)
    return ThreadWire(connection, _reader(), hiredis.pack_command)


async def _line(source: Source, role: Role) -> Line:
    connection = source.connection()
    try:
        async with asyncio.timeout(LINGER):
            await connection.connect()
            await connection.send_command("SCRIPT LOAD", script("take", "packed").text)
            await connection.read_response()
    except FAILURES as error:
        await drop(connection)
        raise await anot_opened(source, error, role) from error
    except BaseException:
        await drop(connection)
        raise
    if hiredis is None:
        return PlainLine(connection)
    return Wire(connection, _reader(), hiredis.pack_command)


def _reader() -> Any:
    return hiredis.Reader(protocolError=InvalidResponse, replyError=DefaultParser.parse_error)

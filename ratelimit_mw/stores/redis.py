"""States in Redis or Valkey, shared by many processes: every group of charges is one EVALSHA.

Needs the extra `redis`.
"""

import asyncio
import inspect
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from redis import ConnectionPool, RedisError
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError
from redis.retry import Retry

from ratelimit_mw.errors import ConfigError, StoreError
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.notices import logger
from ratelimit_mw.stores.patience import Patience
from ratelimit_mw.stores.pool import AsyncPool, Pool
from ratelimit_mw.stores.scripts import script
from ratelimit_mw.stores.talk import Command, NoCodec, NoScript, Steps, T, Talk

_THREADS: Final = 64  # connections at most
_TASKS: Final = 32  # connections at most, for each event loop
_LINGER: Final = 1.0  # seconds that opening, or a reply that no request waits for any more, may take
_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used, even when the event loop was late


class RedisStore(Talk):
    """For threads.

    `client_or_url`: `redis://`, `rediss://` or `unix://`, or a `redis.Redis`, which is used as it is and not closed.

    `prefix`: of all keys. `timeout`: seconds for a whole call, connecting included, more than 0; a client handed in
    has its own. `deny_cache`: seconds that a refusal may be remembered in this process; this version asks the server
    every time. `clock`: a callable giving seconds, for tests; None is the server's TIME. Raises `StoreError` when the
    server gives no usable answer.
    """

    def __init__(
        self,
        client_or_url: Any,
        *,
        prefix: str = "rl:",
        timeout: float = 0.05,  # seconds
        deny_cache: float = 1.0,  # seconds
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(prefix, timeout, deny_cache, clock)
        self._client = None if isinstance(client_or_url, str) else _sync_client(client_or_url, timeout)
        if self._client is None:
            options = {**_options(Retry(NoBackoff(), 0)), "socket_timeout": _LINGER}
            source = _from_url(ConnectionPool, client_or_url, options)
            self._pool = Pool(lambda: self._opened(source), _disconnect, _usable, _THREADS)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none."""
        return self._run(self._take(charges, commit=True))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What `take` would answer now; changes nothing."""
        return self._run(self._take(charges, commit=False))

    def settle(self, charges: Sequence[Charge]) -> None:
        """Correct what was taken: `cost` is signed, `at` comes from the decision."""
        self._run(self._settle(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        self._run(self._reset(charges))

    def close(self) -> None:
        """Close the connections that this store opened. It can be used again."""
        if self._client is None:
            self._pool.close()

    def _run(self, steps: Steps[T]) -> T:
        patience = Patience(self._timeout)
        send = self._send if self._client is None else self._send_by_client
        try:
            command = next(steps)
            while True:
                try:
                    reply = send(command, patience)
                except ResponseError as error:
                    command = steps.throw(_meaning(error))
                else:
                    command = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        except (RedisError, OSError) as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error

    def _send(self, command: Command, patience: Patience) -> Any:
        connection = self._pool.borrow(patience)
        broken = True
        try:
            connection.send_command(*command)
            self._wait_for_reply(connection, patience)
            # the rest of a reply of which a part is here has no more time than the whole; nothing public says so
            connection._sock.settimeout(max(_GRACE, patience.left))  # noqa: SLF001
            reply = connection.read_response()
            broken = False
        except ResponseError as error:
            broken = _is_replica(error)  # the address may belong to another server by now
            raise
        finally:
            self._pool.give_back(connection, broken=broken)
        return reply

    def _wait_for_reply(self, connection: Any, patience: Patience) -> None:
        since = time.monotonic()
        while not connection.can_read(patience.slice()):
            if patience.left <= 0:
                raise StoreError(f"no answer within {self._timeout} seconds")
            patience.spend(since)
            since = time.monotonic()

    def _send_by_client(self, command: Command, _: Patience) -> Any:
        return self._client.execute_command(*command)  # type: ignore[union-attr]  # only called when there is one

    def _opened(self, source: Any) -> Any:
        connection = source.connection_class(**source.connection_kwargs)
        try:
            connection.connect()
            connection.send_command("SCRIPT LOAD", script("take", self._codec).text)
            connection.read_response()
        except BaseException:
            connection.disconnect()
            raise
        return connection


class AsyncRedisStore(Talk):
    """For asyncio: the same as `RedisStore`, with a client of `redis.asyncio`.

    Each event loop has connections of its own.
    """

    ends_in_time: ClassVar[bool] = True  # nobody need watch over how long a call takes

    def __init__(
        self,
        client_or_url: Any,
        *,
        prefix: str = "rl:",
        timeout: float = 0.05,  # seconds
        deny_cache: float = 1.0,  # seconds
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(prefix, timeout, deny_cache, clock)
        self._client = None if isinstance(client_or_url, str) else _async_client(client_or_url)
        self._linger = _LINGER + timeout
        if self._client is None:
            options = {**_options(AsyncRetry(NoBackoff(), 0)), "socket_timeout": self._linger}
            self._source = _from_url(AsyncConnectionPool, client_or_url, options)
        self._pools: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncPool[Any]] = weakref.WeakKeyDictionary()
        self._calls: set[asyncio.Task[Any]] = set()

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.take`."""
        return await self._call(self._take(charges, commit=True))

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.peek`."""
        return await self._call(self._take(charges, commit=False))

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.settle`."""
        await self._call(self._settle(charges))

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.reset`."""
        await self._call(self._reset(charges))

    async def aclose(self) -> None:
        """See `RedisStore.close`."""
        for call in list(self._calls):
            if call.get_loop() is asyncio.get_running_loop():
                call.cancel()
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await pool.close()

    async def _call(self, steps: Steps[T]) -> T:
        """Run the steps in a task of their own.

        A request that is cancelled, or out of time, leaves no half-read reply behind.
        """
        call = asyncio.get_running_loop().create_task(self._run(steps))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        patience = Patience(self._timeout)
        while not call.done() and patience.left > 0:
            since = time.monotonic()
            await asyncio.wait({call}, timeout=patience.slice())
            patience.spend(since)
        if not call.done():
            await asyncio.wait({call}, timeout=_GRACE)
        if not call.done():
            raise StoreError(f"no answer within {self._timeout} seconds")
        return call.result()

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen: if the request still waits it gets it too

    async def _run(self, steps: Steps[T]) -> T:
        send = self._send if self._client is None else self._client.execute_command
        try:
            async with asyncio.timeout(self._linger):
                command = next(steps)
                while True:
                    try:
                        reply = await send(*command)
                    except ResponseError as error:
                        command = steps.throw(_meaning(error))
                    else:
                        command = steps.send(reply)
        except StopIteration as end:
            result: T = end.value
            return result
        except (RedisError, OSError) as error:
            raise StoreError(f"{type(error).__name__}: {error}") from error

    async def _send(self, *command: Any) -> Any:
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop)
        if pool is None:
            self._forget_closed_loops()
            pool = self._pools[loop] = AsyncPool(self._opened, _adisconnect, _ausable, _TASKS)
        connection = await pool.borrow()
        broken = True
        try:
            await connection.send_command(*command)
            reply = await connection.read_response()
            broken = False
        except ResponseError as error:
            broken = _is_replica(error)  # the address may belong to another server by now
            raise
        finally:
            await pool.give_back(connection, broken=broken)
        return reply

    def _forget_closed_loops(self) -> None:
        """A connection holds on to its loop, so the pool of a loop that ended without close does not go by itself."""
        for reference in self._pools.keyrefs():
            loop = reference()
            if loop is not None and loop.is_closed():
                self._pools.pop(loop, None)

    async def _opened(self) -> Any:
        connection = self._source.connection_class(**self._source.connection_kwargs)
        try:
            async with asyncio.timeout(_LINGER):
                await connection.connect()
                await connection.send_command("SCRIPT LOAD", script("take", self._codec).text)
                await connection.read_response()
        except BaseException:
            await _adisconnect(connection)
            raise
        return connection


def _meaning(error: ResponseError) -> Exception:
    """The error as the steps understand it."""
    if isinstance(error, NoScriptError):
        return NoScript()
    return NoCodec() if "NOCODEC" in str(error) else error


def _is_replica(error: ResponseError) -> bool:
    """Whether the server may not write. Before Redis 7 a script's error carries the word in its text."""
    return isinstance(error, ReadOnlyError) or "READONLY" in str(error)


def _from_url(pool: Any, url: str, options: dict[str, Any]) -> Any:
    """A pool of the client library, for how it reads URLs: its class of connection and their arguments.

    It opens none.
    """
    if not url.startswith(_SCHEMES):
        raise ConfigError(f"store: found {url.split('://', 1)[0]!r} as scheme, allowed are {', '.join(_SCHEMES)}")
    try:
        source = pool.from_url(url, **options)
        source.connection_class(**source.connection_kwargs)  # not opened: only to hear of options that it does not know
    except (ValueError, TypeError, RedisError):
        # without the error's own text: it may quote a piece of a password as the port
        raise ConfigError(
            "store: the URL cannot be read, allowed is redis://USER:PASSWORD@HOST:PORT/DB?OPTION=VALUE with the "
            "options of redis-py; in a password / # ? @ are written %2F %23 %3F %40"
        ) from None
    return source


def _options(retry: Any) -> dict[str, Any]:
    return {
        "socket_connect_timeout": _LINGER,
        "retry": retry,  # none at all: an EVALSHA that is sent again charges again
        "protocol": 2,
        "decode_responses": False,
    }


def _sync_client(client: Any, timeout: float) -> Any:
    if not callable(getattr(client, "execute_command", None)) or inspect.iscoroutinefunction(client.execute_command):
        raise ConfigError(
            f"client_or_url: found {type(client).__name__}, allowed is a URL or a redis.Redis for threads"
        )
    own = client.connection_pool.connection_kwargs.get("socket_timeout")
    if own is None or own > timeout:
        logger.warning(
            "ratelimit_mw: the Redis client handed in waits up to %s seconds, not %s; "
            "give it socket_timeout=%s and retry=Retry(NoBackoff(), 0)",
            own or "any number of",
            timeout,
            timeout,
        )
    return client


def _async_client(client: Any) -> Any:
    if not inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
        raise ConfigError(f"client_or_url: found {type(client).__name__}, allowed is a URL or a redis.asyncio.Redis")
    return client


def _disconnect(connection: Any) -> None:
    connection.disconnect()


def _usable(connection: Any) -> bool:
    """Whether nothing has come in since the last reply: the end of the connection, or a stray answer."""
    try:
        return not connection.can_read(0)
    except (RedisError, OSError):
        return False


async def _adisconnect(connection: Any) -> None:
    await connection.disconnect(nowait=True)


async def _ausable(connection: Any) -> bool:
    peek = getattr(connection, "can_read", None) or connection.can_read_destructive  # its name before redis-py 8
    try:
        return not await peek()
    except (RedisError, OSError):
        return False

"""Stores states in Redis or Valkey, shared by many processes. Each group of charges is one EVALSHA.

On Redis Cluster, a group is one EVALSHA for each slot. Needs the extra `redis`.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError, StoreError, require

with require("redis", "'ratelimit-mw[redis]'"):
    from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
    from redis.cluster import RedisCluster

from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.core.log import warn
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.stores.circuit_breaker import CircuitBreaker
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.guarded import AsyncGuardedStore, Guard, GuardedStore
from ratelimit_mw.stores.inventory import KeyPage
from ratelimit_mw.stores.redis.async_store import AsyncioStore
from ratelimit_mw.stores.redis.async_transport import UNLIMITED, AsyncTransport, Call, Channel
from ratelimit_mw.stores.redis.cluster import (
    AsyncClusterTransport,
    ClusterTransport,
    SlotMap,
    read_cluster_url,
)
from ratelimit_mw.stores.redis.deadline import LATE_WORK_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.failures import classify_error
from ratelimit_mw.stores.redis.protocol import Command, RetryableReply
from ratelimit_mw.stores.redis.sentinel import async_master_transport, master_transport
from ratelimit_mw.stores.redis.sync_transport import ServerTransport
from ratelimit_mw.stores.redis.thread_store import ThreadStore, Transport
from ratelimit_mw.stores.redis.url import (
    CLUSTER_SCHEMES,
    SENTINEL_SCHEMES,
    async_connection_factory,
    connection_factory,
)

_URL: Final = "first, as a URL: redis://USER:PASSWORD@HOST:6379/0"
_ARGUMENTS_ELSEWHERE: Final = {  # of clients, and of the stores of other rate limiters
    **dict.fromkeys(("uri", "url", "redis_url", "storage_uri", "redis", "client", "connection_pool"), _URL),
    **dict.fromkeys(("host", "port", "db", "username", "password", "ssl"), _URL),
    **dict.fromkeys(("key_prefix", "namespace"), "into `prefix`"),
    **dict.fromkeys(("socket_timeout", "store_timeout"), "into `timeout`"),
}
_PROBE_TIMEOUT: Final = 3.0  # seconds for each call of a probe, connecting included
_MAX_CLIENT_CALLS: Final = 2  # calls of one event loop in flight at once, with a client that was passed in
_READY_INTERVAL: Final = 0.005  # seconds between two checks whether such a client is ready
_PENALTY_ALGORITHM: Final = "ban"  # always used with another limit, which needs the same commands
_DEFAULT_ALGORITHM: Final = "sliding_window_counter"
_PROBE_SLOTS: Final = 16  # keys of a probe in a cluster; with three nodes, one probe in 200 misses a node


class RedisStore(GuardedStore):
    """A Redis store for threads.

    `client_or_url`: `redis://`, `rediss://`, `unix://`, `redis+cluster://HOST:PORT,HOST:PORT`, or
    `redis+sentinel://HOST:PORT,HOST:PORT/SERVICE`; or a `redis.Redis` or `redis.RedisCluster`. The store uses such a
    client as it is, and does not close it.

    `prefix`: the start of all keys. `timeout`: seconds for a whole call, including connecting; more than 0. A client
    that is passed in has its own timeouts. `deny_cache`: this process remembers a refusal for at most so many seconds.
    A settlement by another process may have no effect here for as long. 0 queries the server every time. `clock`: a
    callable that returns seconds, for tests; None uses the server's TIME. Raises `StoreError` when the server gives no
    usable answer.
    """

    @check_arguments(elsewhere=_ARGUMENTS_ELSEWHERE)
    def __init__(
        self,
        client_or_url: Any,
        *,
        prefix: str = "rl:",
        timeout: float = 0.05,  # seconds
        deny_cache: float = 1.0,  # seconds
        clock: Callable[[], float] | None = None,
    ) -> None:
        store = ThreadStore(_transport(client_or_url, timeout), prefix, timeout, clock)
        super().__init__(store, _guard(deny_cache, clock, is_cluster=store.is_cluster), timeout)
        self.probe = _prober(client_or_url, prefix)

    def list_refusing(self, limit_of: Callable[[str], Limit | None]) -> Iterator[KeyPage]:
        """See `RefusalFinder.list_refusing`."""
        pages: Iterator[KeyPage] = self._store.list_refusing(limit_of)
        return pages


class AsyncRedisStore(AsyncGuardedStore):
    """A Redis store for asyncio: like `RedisStore`, but with a client of `redis.asyncio`.

    Each event loop has its own connections.
    """

    @check_arguments(elsewhere=_ARGUMENTS_ELSEWHERE)
    def __init__(
        self,
        client_or_url: Any,
        *,
        prefix: str = "rl:",
        timeout: float = 0.05,  # seconds
        deny_cache: float = 1.0,  # seconds
        clock: Callable[[], float] | None = None,
    ) -> None:
        make_transport, is_cluster = _async_transport(client_or_url, timeout)
        guard = _guard(deny_cache, clock, is_cluster=is_cluster)
        store = AsyncioStore(make_transport, prefix, timeout, clock, guard, is_cluster=is_cluster)
        super().__init__(store, guard, timeout)
        self.probe = _prober(client_or_url, prefix)


def probe(url: str, prefix: str = "rl:", algorithms: Iterable[str] = ()) -> StoreError | None:
    """Take a unit with each of these algorithms, on new connections. Returns the error, or None.

    May block for some seconds. The probe's keys are not those of any request. It removes them, and they also expire. In
    a cluster it uses many keys, so that it probably reaches every node.
    """
    names = [name for name in SCRIPTED if name in set(algorithms) - {_PENALTY_ALGORITHM}] or [_DEFAULT_ALGORITHM]
    store = RedisStore(url, prefix=prefix, timeout=_PROBE_TIMEOUT, deny_cache=0)
    charges = [
        Charge(f"{{ratelimit-mw-check-{number}}}:check", SCRIPTED[name](100, 60))
        for number in range(_PROBE_SLOTS if store.is_cluster else 1)
        for name in names
    ]
    try:
        store.take(charges)
        store.reset(charges)
    except StoreError as error:
        return error.copy()
    finally:
        store.close()
    return None


def _prober(client_or_url: Any, prefix: str) -> Callable[[Iterable[str]], StoreError | None] | None:
    """Return a function that probes this URL, without the password in its repr; None if a client was passed in."""
    if not isinstance(client_or_url, str):
        return None
    return lambda algorithms: probe(client_or_url, prefix, algorithms)


def _guard(deny_cache: float, clock: Callable[[], float] | None, *, is_cluster: bool) -> Guard:
    """Return the guard. A cluster has no breaker, because the other nodes may work while one fails."""
    return Guard(DenyCache(deny_cache), None if is_cluster else CircuitBreaker(), clock)


def _transport(client_or_url: Any, timeout: float) -> Transport:
    if isinstance(client_or_url, str):
        if client_or_url.startswith(CLUSTER_SCHEMES):
            return ClusterTransport(client_or_url, timeout)
        if client_or_url.startswith(SENTINEL_SCHEMES):
            return master_transport(client_or_url, timeout)
        return ServerTransport(connection_factory(client_or_url), timeout)
    execute = getattr(client_or_url, "execute_command", None)
    if not callable(execute) or inspect.iscoroutinefunction(execute):
        raise ConfigError(
            f"client_or_url: got {_class_of(client_or_url)}, expected a URL or a redis.Redis for threads",
            code="RL-040",
        )
    _check_replies(client_or_url)
    _warn_of_long_waits(client_or_url, timeout)
    return _ClientTransport(client_or_url)


def _async_transport(client_or_url: Any, timeout: float) -> tuple[Callable[[], AsyncTransport], bool]:
    """Return a function that makes the transport for an event loop, and whether it is one to a cluster."""
    if isinstance(client_or_url, str):
        if client_or_url.startswith(CLUSTER_SCHEMES):
            nodes, start = read_cluster_url(client_or_url, async_connection_factory)
            slot_map = SlotMap(start)
            return lambda: AsyncClusterTransport(nodes, slot_map), True
        if client_or_url.startswith(SENTINEL_SCHEMES):
            return async_master_transport(client_or_url), False
        server = async_connection_factory(client_or_url)
        return lambda: Channel(server), False
    if not inspect.iscoroutinefunction(getattr(client_or_url, "execute_command", None)):
        raise ConfigError(
            f"client_or_url: got {_class_of(client_or_url)}, expected a URL or a redis.asyncio.Redis", code="RL-040"
        )
    _check_replies(client_or_url)
    is_cluster = isinstance(client_or_url, AsyncRedisCluster)
    return lambda: _AsyncClientTransport(client_or_url, timeout, is_cluster=is_cluster), is_cluster


def _class_of(value: object) -> str:
    """Return the name of an object's class, with its module if that is not `builtins`: two clients are named Redis."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


class _ClientTransport:
    """Sends commands with the caller's client, for threads."""

    def __init__(self, client: Any) -> None:
        self._client, self._execute = client, client.execute_command
        self.is_cluster = isinstance(client, RedisCluster)

    def send(self, command: Command, _: Deadline) -> Any:
        """See `Transport.send`."""
        try:
            return self._execute(*command)
        except Exception as error:  # every exception of the client is a failed call
            raise classify_error(error, "cluster" if self.is_cluster else "server") from error

    def primaries(self, _: Deadline) -> "Sequence[_ClientTransport]":
        """See `Transport.primaries`."""
        if not self.is_cluster:
            return [self]
        nodes = self._client.get_primaries()
        return [_ClientTransport(self._client.get_redis_connection(node)) for node in nodes]

    def close(self) -> None:
        """Do nothing: the client belongs to the caller."""


class _AsyncClientTransport:
    """Sends commands with the caller's client, for asyncio: each in a task."""

    def __init__(self, client: Any, timeout: float, *, is_cluster: bool) -> None:
        self._client, self._timeout, self.is_cluster = client, timeout, is_cluster
        self._tasks: set[asyncio.Task[None]] = set()
        self._late_tasks: set[asyncio.Task[None]] = set()

    @property
    def room(self) -> int:
        """See `AsyncTransport.room`. It is limited, because the client's pool of connections may be."""
        return UNLIMITED if self.is_cluster else max(0, _MAX_CLIENT_CALLS - len(self._tasks))

    async def ready(self) -> None:
        """See `AsyncTransport.ready`."""
        while not self.room:
            await asyncio.wait(self._tasks, timeout=_READY_INTERVAL, return_when=asyncio.FIRST_COMPLETED)

    def send(self, calls: Sequence[Call]) -> None:
        """See `AsyncTransport.send`."""
        for call in calls:
            task = asyncio.get_running_loop().create_task(self._query_for(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def query(self, command: Command) -> Any:
        """See `AsyncTransport.query`."""
        try:
            if self.is_cluster:
                await self._client.initialize()  # otherwise redis-py fails if the first commands run concurrently
            return await self._client.execute_command(*command)
        except Exception as error:  # every exception of the client is a failed call
            raise classify_error(error, "cluster" if self.is_cluster else "server") from error

    def retire_late(self, timeout: float) -> None:  # noqa: ARG002  # a protocol's method
        """See `AsyncTransport.retire_late`. Calls in flight end on their own."""
        for task in self._tasks:
            self._late_tasks.add(task)
            task.add_done_callback(self._late_tasks.discard)
        self._tasks.clear()

    async def close(self) -> None:
        """Cancel the calls in flight. The client belongs to the caller."""
        for task in self._tasks | self._late_tasks:
            task.cancel()

    async def _query_for(self, call: Call) -> None:
        try:
            async with asyncio.timeout(LATE_WORK_TIMEOUT + self._timeout):
                reply = await self.query(call.command)
        except (RetryableReply, StoreError, TimeoutError) as error:
            reply = StoreError("no answer in time") if isinstance(error, TimeoutError) else error
        call.on_reply(reply)


def _options_of(client: Any) -> Mapping[str, Any]:
    """Return the options of a client's connections; empty if the client hides them."""
    connections = getattr(client, "connection_pool", None) or getattr(client, "nodes_manager", None)
    options: Mapping[str, Any] = getattr(connections, "connection_kwargs", {})
    return options


def _check_replies(client: Any) -> None:
    """Raise `ConfigError` for a client that decodes replies to text, because the replies of the scripts are binary."""
    if _options_of(client).get("decode_responses"):
        raise ConfigError(
            "client_or_url: got a client with decode_responses=True, expected one that returns bytes; "
            "give the store a client of its own, without decode_responses",
            code="RL-041",
        )


def _warn_of_long_waits(client: Any, timeout: float) -> None:
    socket_timeout = _options_of(client).get("socket_timeout")
    if socket_timeout is None or socket_timeout > timeout:
        warn(
            "the Redis client that was passed in waits up to %s seconds, not %s; "
            "give it socket_timeout=%s and retry=Retry(NoBackoff(), 0)",
            socket_timeout or "any number of",
            timeout,
            timeout,
            code="RL-130",
        )

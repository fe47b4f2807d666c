"""The way to a Redis Cluster, by redis-py's client, which knows which node has which slot."""

import asyncio
import inspect
import threading
from typing import Any, Final

from redis import ConnectionPool
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.cluster import RedisCluster as AsyncRedisCluster
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import parse_url
from redis.retry import Retry

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.patience import Patience
from ratelimit_mw.stores.redis_server import FAILURES, OfLoop, from_url, meaning
from ratelimit_mw.stores.talk import Command

CLUSTER_SCHEMES: Final = ("redis+cluster://", "rediss+cluster://")
_TASKS: Final = 96  # calls at once, for each event loop; redis-py has at most 100 connections to a node


class Cluster:
    """A client of our own for a cluster. The first call makes it, because it connects as it is made."""

    slots = True
    in_time = False

    def __init__(self, url: str, timeout: float) -> None:
        options = _of_cluster(RedisCluster, Retry(NoBackoff(), 0), socket_timeout=timeout)
        nodes, options = _cluster_from_url(ConnectionPool, url, options)
        node: Any = ClusterNode  # redis-py does not say what it takes
        self._make = lambda: RedisCluster(startup_nodes=[node(*place) for place in nodes], **options)
        start_over_in_child(self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        self._making = threading.Lock()
        self._client: Any = None

    def send(self, command: Command, _: Patience) -> Any:
        """See `Link.send`."""
        try:
            with self._making:
                client = self._client = self._client or self._make()
            return client.execute_command(*command)
        except FAILURES as error:
            raise meaning(error) from error

    def close(self) -> None:
        """See `Link.close`."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class AsyncCluster:
    """A client of our own for a cluster, for each event loop."""

    slots = True

    def __init__(self, url: str, linger: float) -> None:
        options = _of_cluster(AsyncRedisCluster, AsyncRetry(NoBackoff(), 0), socket_timeout=linger)
        nodes, options = _cluster_from_url(AsyncConnectionPool, url, options)

        node: Any = AsyncClusterNode  # redis-py does not say what it takes

        def make() -> tuple[Any, asyncio.Semaphore]:
            client = AsyncRedisCluster(startup_nodes=[node(*place) for place in nodes], **options)
            return client, asyncio.Semaphore(_TASKS)

        self._clients = OfLoop(make)

    async def send(self, *command: Any) -> Any:
        """See `AsyncLink.send`."""
        client, turn = self._clients.get()
        try:
            async with turn:
                return await client.execute_command(*command)
        except FAILURES as error:
            raise meaning(error) from error

    async def close(self) -> None:
        """See `AsyncLink.close`."""
        made = self._clients.pop()
        if made is not None:
            await made[0].aclose()


def _cluster_from_url(pool: Any, url: str, options: dict[str, Any]) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """The nodes that a URL names, and the arguments of a client."""
    scheme, _, rest = url.partition("+cluster://")
    place, slash, path = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    nodes: list[tuple[str, int]] = []
    found: dict[str, Any] = {}
    for host in hosts.split(","):
        one = f"{scheme}://{login}{at}{host}{slash}{path}"
        from_url(pool, one)
        found = dict(parse_url(one))  # type: ignore[no-untyped-call]  # redis-py's
        nodes.append((found.pop("host", "localhost"), found.pop("port", 6379)))
    if found.pop("db", 0):
        raise ConfigError("store: a cluster has database 0 only")
    found.pop("connection_class", None)
    return nodes, {**found, **options, "ssl": scheme == "rediss"}


def _of_cluster(cluster: Any, retry: Any, **options: Any) -> dict[str, Any]:
    """What our own client of a cluster is told: to ask once, and to go on with the slots that there are."""
    once = {"retry": retry}
    if "retry" not in inspect.signature(cluster.__init__).parameters:  # before redis-py 6
        once = {"cluster_error_retry_attempts": 0}
    return {**once, **options, "require_full_coverage": False, "protocol": 2}

"""Connections to each node of a Redis Cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.stores.redis.commands import Command, adrive, drive
from ratelimit_mw.stores.redis.deadline import CONNECT_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.scripts import Codec
from ratelimit_mw.stores.redis.server import AsyncServerTransport, ServerTransport
from ratelimit_mw.stores.redis.topology import Address, RoutedCommand, SlotMap
from ratelimit_mw.stores.redis.url import ConnectionFactory, async_connection_factory, connection_factory


class ClusterTransport:
    """Sends each command to the node of its key, for threads."""

    is_cluster = True
    codec: Codec = "msgpack"

    def __init__(self, url: str, timeout: float) -> None:
        self._timeout = timeout
        self._factory, start = read_cluster_url(url)
        self._slot_map = SlotMap(start)
        self._nodes: dict[Address, ServerTransport] = {}

    def send(self, command: Command, deadline: Deadline) -> Any:
        """See `Transport.send`."""
        return drive(self._slot_map.route(command), partial(self._run, deadline))

    def close(self) -> None:
        """See `Transport.close`."""
        for node in list(self._nodes.values()):
            node.close()

    def _run(self, deadline: Deadline, routed_command: RoutedCommand) -> Any:
        node = self._nodes.get(routed_command.address)
        if node is None:  # setdefault: two threads that get here at once use the same node
            node = self._nodes.setdefault(
                routed_command.address,
                ServerTransport(self._factory.at(routed_command.address), self._timeout, server_kind="cluster"),
            )
        return node.send(routed_command.command, deadline, asking=routed_command.asking)


class AsyncClusterTransport:
    """Sends each command to the node of its key, for asyncio."""

    is_cluster = True
    codec: Codec = "msgpack"

    def __init__(self, url: str, timeout: float) -> None:
        self._factory, start = _nodes([async_connection_factory(one, timeout) for one in _urls(url)])
        self._slot_map = SlotMap(start)
        self._nodes: dict[Address, AsyncServerTransport] = {}

    async def ready(self) -> None:
        """See `AsyncTransport.ready`. Returns at once, as the node is not known yet."""

    async def send(self, *command: Any) -> Any:
        """See `AsyncTransport.send`."""
        return await adrive(self._slot_map.route(command), self._run)

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> None:
        """See `AsyncTransport.begin`. Returns None, as finding the node may need a query."""

    async def close(self) -> None:
        """See `AsyncTransport.close`."""
        for node in list(self._nodes.values()):
            await node.close()

    async def _run(self, routed_command: RoutedCommand) -> Any:
        node = self._nodes.get(routed_command.address)
        if node is None:
            node = self._nodes[routed_command.address] = AsyncServerTransport(
                self._factory.at(routed_command.address), server_kind="cluster"
            )
        return await node.send(*routed_command.command, asking=routed_command.asking)


def read_cluster_url(url: str) -> tuple[ConnectionFactory, list[Address]]:
    """Return how threads connect, and the addresses of the first nodes. Raises `ConfigError`."""
    return _nodes([connection_factory(one, CONNECT_TIMEOUT) for one in _urls(url)])


def _urls(url: str) -> list[str]:
    """Return a URL for each node in `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT/?OPTION=VALUE`."""
    scheme, _, rest = url.partition("+cluster://")
    authority, slash, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    return [f"{scheme}://{login}{at}{host}{slash}{path}" for host in hosts.split(",")]


def _nodes(factories: list[ConnectionFactory]) -> tuple[ConnectionFactory, list[Address]]:
    """Return how to connect, and the addresses of the first nodes."""
    if factories[0].options.get("db"):
        raise ConfigError("store: a cluster has database 0 only")
    return factories[0], [(one.options.get("host", "localhost"), one.options.get("port", 6379)) for one in factories]

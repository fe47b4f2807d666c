"""The way to a Redis Cluster, on connections of our own to each of its nodes."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.stores.patience import LINGER, Patience
from ratelimit_mw.stores.redis_server import AsyncConnections, Connections, Source, async_source, source
from ratelimit_mw.stores.scripts import Codec
from ratelimit_mw.stores.talk import Command, adrive, drive
from ratelimit_mw.stores.topology import Address, Errand, Topology


class Cluster:
    """For threads."""

    slots = True
    codec: Codec = "packed"

    def __init__(self, url: str, timeout: float) -> None:
        self._timeout = timeout
        self._source, start = nodes_of(url)
        self._topology = Topology(start)
        self._nodes: dict[Address, Connections] = {}

    def send(self, command: Command, patience: Patience) -> Any:
        """See `Link.send`."""
        return drive(self._topology.route(command), partial(self._run, patience))

    def close(self) -> None:
        """See `Link.close`."""
        for node in list(self._nodes.values()):
            node.close()

    def _run(self, patience: Patience, errand: Errand) -> Any:
        node = self._nodes.get(errand.address)
        if node is None:  # of two threads that are here at once, one goes on with the node of the other
            node = self._nodes.setdefault(
                errand.address, Connections(self._source.at(errand.address), self._timeout, role="cluster")
            )
        return node.send(errand.command, patience, asking=errand.asking)


class AsyncCluster:
    """For asyncio."""

    slots = True
    codec: Codec = "packed"

    def __init__(self, url: str, linger: float) -> None:
        self._source, start = _nodes([async_source(one, linger) for one in _urls(url)])
        self._topology = Topology(start)
        self._nodes: dict[Address, AsyncConnections] = {}

    async def ready(self) -> None:
        """See `AsyncLink.ready`: which node is asked shows when it is."""

    async def send(self, *command: Any) -> Any:
        """See `AsyncLink.send`."""
        return await adrive(self._topology.route(command), self._run)

    def begin(self, command: Command, heard: Callable[[Any], None]) -> None:
        """See `AsyncLink.begin`: which node is asked shows when it is."""

    async def close(self) -> None:
        """See `AsyncLink.close`."""
        for node in list(self._nodes.values()):
            await node.close()

    async def _run(self, errand: Errand) -> Any:
        node = self._nodes.get(errand.address)
        if node is None:
            node = self._nodes[errand.address] = AsyncConnections(self._source.at(errand.address), role="cluster")
        return await node.send(*errand.command, asking=errand.asking)


def nodes_of(url: str) -> tuple[Source, list[Address]]:
    """How threads connect, and to which nodes at first. Raises `ConfigError`."""
    return _nodes([source(one, LINGER) for one in _urls(url)])


def _urls(url: str) -> list[str]:
    """One URL for each node that this one names: `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT/?OPTION=VALUE`."""
    scheme, _, rest = url.partition("+cluster://")
    place, slash, path = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    return [f"{scheme}://{login}{at}{host}{slash}{path}" for host in hosts.split(",")]


def _nodes(sources: list[Source]) -> tuple[Source, list[Address]]:
    """How to connect, and to which nodes at first."""
    if sources[0].options.get("db"):
        raise ConfigError("store: a cluster has database 0 only")
    return sources[0], [(one.options.get("host", "localhost"), one.options.get("port", 6379)) for one in sources]

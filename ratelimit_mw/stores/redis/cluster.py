"""Sends commands to the nodes of a Redis Cluster: maps hash slots to nodes, and follows redirections."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores.contract import SCRIPT_ERROR
from ratelimit_mw.stores.redis.async_transport import UNLIMITED, Call, Channel
from ratelimit_mw.stores.redis.deadline import Deadline
from ratelimit_mw.stores.redis.hash_slots import slot
from ratelimit_mw.stores.redis.protocol import (
    Address,
    Command,
    Redirected,
    RetryableReply,
    RoutedCommand,
    SendTo,
)
from ratelimit_mw.stores.redis.sync_transport import ServerTransport
from ratelimit_mw.stores.redis.url import ConnectionFactory, connection_factory

_MAX_REDIRECTIONS: Final = 5  # for one command
_SLOTS_COMMAND: Final = ("CLUSTER", "SLOTS")
_SCRIPT_CALLS: Final = ("EVALSHA", "EVAL")  # commands whose first key follows a script and the number of keys
_REFRESH_INTERVAL: Final = 0.5  # the least seconds between two refreshes because of a failing node


class SlotMap:
    """Knows which node owns each slot of a cluster. `start`: the first nodes to query."""

    def __init__(self, start: list[Address]) -> None:
        self._nodes = list(start)  # in the order in which to query them for the owners
        self._owners: dict[int, Address] = {}
        self._last_refresh = self._last_update = 0.0  # monotonic seconds

    def owner(self, number: int) -> Address | None:
        """Return the node of a slot; None if it is unknown."""
        return self._owners.get(number)

    async def route(self, command: Command, send_to: SendTo) -> Any:
        """Send a command to the node of its first key, and return the reply. Raises `StoreError`."""
        number = slot(_first_key(command))
        address, asking = self._owners.get(number), False
        if address is None:
            await self.refresh(send_to)
            address = self._owners.get(number)
        if address is None:
            raise StoreError(f"no node of the cluster has slot {number}")
        for _ in range(_MAX_REDIRECTIONS):
            try:
                return await send_to(RoutedCommand(address, command, asking))
            except Redirected as to:
                address, asking = self.learn(number, to, address), to.asking
            except StoreError as error:
                self.on_error(address, error)
                raise
        raise StoreError(f"slot {number} was redirected {_MAX_REDIRECTIONS} times")

    def learn(self, number: int, to: Redirected, asked_node: Address) -> Address:
        """Return the node to which a slot was redirected, and remember it if that is permanent."""
        address = to.address[0] or asked_node[0], to.address[1]
        if not to.asking:
            self._owners[number] = address
        return address

    async def refresh(self, send_to: SendTo) -> None:
        """Query the known nodes in order for the owners of all slots, until one answers. Raises `StoreError`."""
        self._last_refresh = since = monotonic()
        errors: list[StoreError] = []
        for address in self._nodes.copy():
            try:
                reply = await send_to(RoutedCommand(address, _SLOTS_COMMAND))
            except StoreError as error:
                self._move_to_end(address)
                errors.append(error)
                continue
            # skip this reply if another refresh has updated the map meanwhile; an update takes 1 ms
            if self._last_update < since or not self._owners:
                self._update(address, reply)
            return
        raise next((error for error in errors if error.rejected), errors[-1])

    def slots_by_node(self) -> dict[Address, list[int]]:
        """Return the known slots of each node."""
        by_node: dict[Address, list[int]] = {}
        for number, address in self._owners.items():
            by_node.setdefault(address, []).append(number)
        return by_node

    def _update(self, asked_node: Address, reply: Any) -> None:
        owners: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in reply:
            has_host = host and host != b"?"  # some nodes do not know their own host
            owners.update(dict.fromkeys(range(first, last + 1), (host.decode() if has_host else asked_node[0], port)))
        self._last_update = monotonic()
        self._owners = owners  # one assignment, because other threads read it
        self._nodes = list(dict.fromkeys([asked_node, *owners.values(), *self._nodes]))

    def on_error(self, address: Address, error: StoreError) -> None:
        """Forget all owners after a failure of a node, because another node may have taken over its slots.

        If a script rejects its arguments, the node works. Any other rejection counts as a failure, because another
        server may have the node's address now.
        """
        if SCRIPT_ERROR not in str(error) and monotonic() - self._last_refresh > _REFRESH_INTERVAL:
            self._owners = {}
            self._move_to_end(address)

    def _move_to_end(self, address: Address) -> None:
        self._nodes.sort(key=address.__eq__)  # the others keep their order


class ClusterTransport:
    """Sends each command to the node of its key, for threads."""

    is_cluster = True

    def __init__(self, url: str, timeout: float) -> None:
        self._timeout = timeout
        self._factory, start = read_cluster_url(url)
        self._slot_map = SlotMap(start)
        self._nodes: dict[Address, ServerTransport] = {}

    def send(self, command: Command, deadline: Deadline) -> Any:
        """See `Transport.send`."""
        return run(self._slot_map.route(command, partial(self._send_to, deadline)))

    def primaries(self, deadline: Deadline) -> Sequence[ServerTransport]:
        """See `Transport.primaries`."""
        run(self._slot_map.refresh(partial(self._send_to, deadline)))
        return [self._node(address) for address in self._slot_map.slots_by_node()]

    def close(self) -> None:
        """See `Transport.close`."""
        for node in list(self._nodes.values()):
            node.close()

    async def _send_to(self, deadline: Deadline, routed_command: RoutedCommand) -> Any:
        node = self._node(routed_command.address)
        return node.send(routed_command.command, deadline, asking=routed_command.asking)

    def _node(self, address: Address) -> ServerTransport:
        node = self._nodes.get(address)
        if node is None:  # setdefault, so that two threads that get here at once use the same node
            node = self._nodes.setdefault(
                address, ServerTransport(self._factory.at(address), self._timeout, server_kind="cluster")
            )
        return node


class AsyncClusterTransport:
    """Sends each command to the node of its key, for one event loop. The loops of a store share `slot_map`."""

    is_cluster = True
    room = UNLIMITED

    def __init__(self, factory: ConnectionFactory, slot_map: SlotMap) -> None:
        self._factory, self._slot_map = factory, slot_map
        self._channels: dict[Address, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def ready(self) -> None:
        """See `AsyncTransport.ready`. Returns at once: `send` connects in tasks."""

    def send(self, calls: Sequence[Call]) -> None:
        """See `AsyncTransport.send`. Each node receives its commands in one write."""
        by_node: dict[Channel, list[Call]] = {}
        for call in calls:
            address = self._slot_map.owner(call.slot)
            channel = None if address is None else self._channels.get(address)
            if address is None or channel is None or not channel.is_connected:
                self._spawn_query(call)
            else:
                on_reply = partial(self._on_reply, call, address)
                by_node.setdefault(channel, []).append(Call(call.command, on_reply))
        for channel, node_calls in by_node.items():
            channel.send(node_calls)

    async def query(self, command: Command) -> Any:
        """See `AsyncTransport.query`."""
        return await self._slot_map.route(command, self._send_to)

    def retire_late(self, timeout: float) -> None:
        """See `AsyncTransport.retire_late`."""
        for channel in self._channels.values():
            channel.retire_late(timeout)

    async def close(self) -> None:
        """See `AsyncTransport.close`."""
        for task in self._tasks:
            task.cancel()
        for channel in self._channels.values():
            await channel.close()

    def _on_reply(self, call: Call, address: Address, reply: Any) -> None:
        if isinstance(reply, Redirected):
            self._slot_map.learn(call.slot, reply, address)
            self._spawn_query(call)
            return
        if isinstance(reply, StoreError):
            self._slot_map.on_error(address, reply)
        call.on_reply(reply)

    def _spawn_query(self, call: Call) -> None:
        """Send a command in a task, because a node has to be found or connected."""
        task = asyncio.get_running_loop().create_task(self._query_for(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _query_for(self, call: Call) -> None:
        try:
            reply = await self.query(call.command)
        except (RetryableReply, StoreError) as error:
            reply = error
        call.on_reply(reply)

    async def _send_to(self, routed_command: RoutedCommand) -> Any:
        address = routed_command.address
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = Channel(self._factory.at(address), server_kind="cluster")
        return await channel.query(routed_command.command, asking=routed_command.asking)


def read_cluster_url(
    url: str, read: Callable[[str], ConnectionFactory] = connection_factory
) -> tuple[ConnectionFactory, list[Address]]:
    """Read `redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT/?OPTION=VALUE`. `read`: reads the URL of one node.

    Returns how to connect, and the addresses of the first nodes. Raises `ConfigError`.
    """
    scheme, _, rest = url.partition("+cluster://")
    authority, slash, path = rest.partition("/")
    login, at, hosts = authority.rpartition("@")
    factories = [read(f"{scheme}://{login}{at}{host}{slash}{path}") for host in hosts.split(",")]
    if factories[0].options.get("db"):
        raise ConfigError("store: a cluster has database 0 only", code="RL-038")
    return factories[0], [(one.options.get("host", "localhost"), one.options.get("port", 6379)) for one in factories]


def _first_key(command: Command) -> bytes:
    key = command[3 if command[0] in _SCRIPT_CALLS else 1]
    return key if isinstance(key, bytes) else str(key).encode()

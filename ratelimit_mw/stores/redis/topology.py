"""Which node of a cluster has which slot, and what to do when a node says otherwise. Does no I/O."""

from collections.abc import Generator
from time import monotonic
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.commands import Command, RetryableReply
from ratelimit_mw.stores.redis.slots import slot

Address = tuple[str, int]  # host and port

_MAX_REDIRECTIONS: Final = 5  # followed by one command
_SLOTS_COMMAND: Final = ("CLUSTER", "SLOTS")
_REFRESH_INTERVAL: Final = 0.5  # seconds: how often a node that fails makes us ask who has its slots now


class Redirected(RetryableReply):
    """The slot is at another node: for good, or (`asking`) for this key only, while it moves."""

    def __init__(self, address: Address, *, asking: bool) -> None:
        super().__init__(address)
        self.address = address
        self.asking = asking


class RoutedCommand(NamedTuple):
    """A command, and the node that is to be sent it."""

    address: Address
    command: Command
    asking: bool = False


class SlotMap:
    """What is known of a cluster, from a few nodes to start with."""

    def __init__(self, start: list[Address]) -> None:
        self._nodes = list(start)  # the next one to ask who has which slot comes first
        self._owners: dict[int, Address] = {}
        self._last_refresh = 0.0  # monotonic seconds

    def route(self, command: Command) -> Generator[RoutedCommand, Any, Any]:
        """Steps that lead a command to the node that has its first key. Yields errands, and is sent their replies."""
        number = slot(_first_key(command))
        address, asking = self._owners.get(number), False
        if address is None:
            yield from self.refresh()
            address = self._owners.get(number)
        if address is None:
            raise StoreError(f"no node of the cluster has slot {number}")
        for _ in range(_MAX_REDIRECTIONS):
            try:
                return (yield RoutedCommand(address, command, asking))
            except Redirected as to:
                address, asking = (to.address[0] or address[0], to.address[1]), to.asking
                if not asking:
                    self._owners[number] = address
            except StoreError:
                self._on_node_failure(address)
                raise
        raise StoreError(f"slot {number} was sent from node to node {_MAX_REDIRECTIONS} times")

    def refresh(self) -> Generator[RoutedCommand, Any, None]:
        """Ask who has which slot: the nodes that are known, one after the other, until one answers."""
        self._last_refresh = monotonic()
        errors: list[StoreError] = []
        for address in self._nodes.copy():
            try:
                return self._update(address, (yield RoutedCommand(address, _SLOTS_COMMAND)))
            except StoreError as error:
                self._nodes.sort(key=address.__eq__)  # it comes last
                errors.append(error)
        raise next((error for error in errors if error.rejected), errors[-1])

    def slots_by_node(self) -> dict[Address, list[int]]:
        """The slots of each node, as far as they are known."""
        by_node: dict[Address, list[int]] = {}
        for number, address in self._owners.items():
            by_node.setdefault(address, []).append(number)
        return by_node

    def _update(self, asked_node: Address, reply: Any) -> None:
        owners: dict[int, Address] = {}
        for first, last, (host, port, *_), *_ in reply:
            has_host = host and host != b"?"  # a node that does not know its own host is where it was asked
            owners.update(dict.fromkeys(range(first, last + 1), (host.decode() if has_host else asked_node[0], port)))
        self._owners = owners  # at once: other threads look
        self._nodes = list(dict.fromkeys([asked_node, *owners.values(), *self._nodes]))

    def _on_node_failure(self, address: Address) -> None:
        """A node that fails may have lost its slots to another one."""
        if monotonic() - self._last_refresh > _REFRESH_INTERVAL:
            self._owners = {}
            self._nodes.sort(key=address.__eq__)


def _first_key(command: Command) -> bytes:
    key = command[1 if command[0] == "UNLINK" else 3]  # EVALSHA digest count key ...
    return key if isinstance(key, bytes) else str(key).encode()

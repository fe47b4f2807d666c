"""Maps hash slots to the nodes of a cluster, and follows redirections. Does no I/O."""

from collections.abc import Generator
from time import monotonic
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.commands import Command, RetryableReply
from ratelimit_mw.stores.redis.hash_slots import slot

Address = tuple[str, int]  # host and port

_MAX_REDIRECTIONS: Final = 5  # for one command
_SLOTS_COMMAND: Final = ("CLUSTER", "SLOTS")
_REFRESH_INTERVAL: Final = 0.5  # seconds at least between refreshes because of a failing node


class Redirected(RetryableReply):
    """The slot is at another node: permanently, or for this key only while it moves (`asking`)."""

    def __init__(self, address: Address, *, asking: bool) -> None:
        super().__init__(address)
        self.address = address
        self.asking = asking


class RoutedCommand(NamedTuple):
    """A command and the address of its node."""

    address: Address
    command: Command
    asking: bool = False


class SlotMap:
    """The known owners of a cluster's slots. `start`: the first nodes to query."""

    def __init__(self, start: list[Address]) -> None:
        self._nodes = list(start)  # in the order of queries for the slot owners
        self._owners: dict[int, Address] = {}
        self._last_refresh = 0.0  # monotonic seconds

    def route(self, command: Command) -> Generator[RoutedCommand, Any, Any]:
        """Send a command to the node of its first key, and return the reply.

        Yields a `RoutedCommand` for each attempt and receives its reply. Raises `StoreError`.
        """
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
        raise StoreError(f"slot {number} was redirected {_MAX_REDIRECTIONS} times")

    def refresh(self) -> Generator[RoutedCommand, Any, None]:
        """Query the known nodes in order for the owners of all slots, until one answers. Raises `StoreError`."""
        self._last_refresh = monotonic()
        errors: list[StoreError] = []
        for address in self._nodes.copy():
            try:
                return self._update(address, (yield RoutedCommand(address, _SLOTS_COMMAND)))
            except StoreError as error:
                self._nodes.sort(key=address.__eq__)  # to the end
                errors.append(error)
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
        self._owners = owners  # a single assignment, as other threads read it
        self._nodes = list(dict.fromkeys([asked_node, *owners.values(), *self._nodes]))

    def _on_node_failure(self, address: Address) -> None:
        """Forget all owners, as another node may have the slots of a failing one by now."""
        if monotonic() - self._last_refresh > _REFRESH_INTERVAL:
            self._owners = {}
            self._nodes.sort(key=address.__eq__)


def _first_key(command: Command) -> bytes:
    key = command[1 if command[0] == "UNLINK" else 3]  # EVALSHA digest count key ...
    return key if isinstance(key, bytes) else str(key).encode()

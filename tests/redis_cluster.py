"""A real Redis Cluster: three masters on loopback that share the 16384 slots and redirect to each other."""

import itertools
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from redis_servers import RedisServer, RedisServerError, free_port

_SLOTS = 16384
_NODES = 3  # the fewest that Redis calls a cluster
_BUS = 10_000  # above the port; the setting that would move the bus port came with 7.0
# Milliseconds of silence after which a node counts as failed, and the others refuse all keys. No test waits for that;
# many pause a node, for longer on a busy machine than they meant to.
_OPTIONS = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")
_SETTLED_WITHIN = 60.0  # seconds; a fresh node always refuses keys for its first two


class _Member(NamedTuple):
    """A node of the cluster, as another node lists it."""

    address: str
    flags: str
    epoch: str
    slots: tuple[str, ...]

    def owns(self, slot: int) -> bool:
        """Return whether `slot` is in one of its ranges, written "7" or "0-5460"."""
        ends = (part.partition("-") for part in self.slots if not part.startswith("["))  # [: a slot that is migrating
        return any(int(first) <= slot <= int(last or first) for first, _, last in ends)


class RedisCluster(AbstractContextManager["RedisCluster", None]):
    """Three running redis-servers that form a cluster, each with a third of the slots; a context manager.

    A node may be paused, killed and restarted. It keeps its port and slots, and refuses keys for two seconds after a
    restart. Raises RedisServerError if a node does not start, or if the nodes do not agree within 60 seconds.
    """

    def __init__(self, binary: Path) -> None:
        self.binary = binary
        self._homes: dict[int, RedisServer] = {}
        with ExitStack() as running:
            self.nodes = [
                running.enter_context(RedisServer(binary, *_OPTIONS, choose_port=free_cluster_port))
                for _ in range(_NODES)
            ]
            self._join()
            self.wait_settled()
            self._running = running.pop_all()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The URL of all nodes, for this package."""
        return "redis+cluster://" + ",".join(map(_address, self.nodes))

    @property
    def redis_url(self) -> str:
        """The URL of the first node, for redis-py's `RedisCluster.from_url`, which finds the other nodes itself."""
        return self.nodes[0].url

    def _join(self) -> None:
        for turn, node in enumerate(self.nodes):
            # Nodes with equal epochs would resolve the conflict themselves, but that takes time.
            _tell(node, f"CLUSTER SET-CONFIG-EPOCH {turn + 1}")
            slots = range(turn * _SLOTS // _NODES, (turn + 1) * _SLOTS // _NODES)
            _tell(node, f"CLUSTER ADDSLOTS {' '.join(map(str, slots))}")  # ADDSLOTSRANGE came with 7.0
        for node, other in itertools.combinations(self.nodes, 2):
            _tell(node, f"CLUSTER MEET 127.0.0.1 {other.port}")

    def wait_settled(self) -> None:
        """Wait until all nodes agree and accept keys. After a restart this takes some time."""
        deadline = time.monotonic() + _SETTLED_WITHIN
        while True:
            try:
                return self._check()
            except (RedisServerError, OSError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _check(self) -> None:
        """Raise RedisServerError if the nodes do not agree, or if one of them does not accept keys."""
        views = [_view(node) for node in self.nodes]
        members = views[0].values()
        agreed = all(view == views[0] for view in views)
        complete = {member.address for member in members} == set(map(_address, self.nodes))
        sound = all(member.flags == "master" for member in members)
        distinct = len({member.epoch for member in members}) == len(members)
        taking = all("cluster_state:ok\r" in node.ask("CLUSTER INFO") for node in self.nodes)
        if not (agreed and complete and sound and distinct and taking):
            raise RedisServerError(f"{self.binary}: these nodes are no cluster (keys taken: {taking}): {views}")

    def owner(self, slot: int) -> RedisServer:
        """Return the node that owns `slot`, in the view of the first node."""
        address = next(member.address for member in _view(self.nodes[0]).values() if member.owns(slot))
        return next(node for node in self.nodes if _address(node) == address)

    def move_slot(self, slot: int, to: RedisServer) -> None:
        """Move `slot`, which must not contain keys, from its owner to `to`. Returns when every node knows the new
        owner.
        """
        source = self.owner(slot)
        if (held := source.ask(f"CLUSTER COUNTKEYSINSLOT {slot}")) != ":0":
            raise RedisServerError(f"keys in slot {slot}: {held}")
        self._homes.setdefault(slot, source)
        # A node that ends an import raises its epoch above all others. A node that is merely assigned the slot does
        # not. It loses the slot again to a ping that the old owner sent before the move reached that node.
        _tell(to, f"CLUSTER SETSLOT {slot} IMPORTING {_own_id(source)}")
        for node in sorted(self.nodes, key=lambda node: node is not to):
            _tell(node, f"CLUSTER SETSLOT {slot} NODE {_own_id(to)}")
        self.wait_settled()

    def flush(self) -> None:
        """Remove all keys and scripts from all nodes."""
        for node in self.nodes:
            node.flush()

    def reset(self) -> None:
        """Restore the initial state: resume paused nodes, remove keys and scripts, and return moved slots.

        Raises RedisServerError or OSError if a node is dead, or marked as failed by the others. A new cluster is needed
        then.
        """
        for node in self.nodes:
            node.resume()
        self._check()
        self.flush()
        for slot, home in self._homes.items():
            if self.owner(slot) is not home:
                self.move_slot(slot, home)

    def stop(self) -> None:
        """End all processes and remove their folders; may be called again."""
        self._running.close()


def _view(node: RedisServer) -> Mapping[str, _Member]:
    """Return all nodes that `node` lists, by id."""
    known = {}
    for line in node.ask("CLUSTER NODES").splitlines()[1:]:
        name, address, flags, _primary, _ping, _pong, epoch, _transport, *slots = line.split()
        known[name] = _Member(address.partition("@")[0], flags.removeprefix("myself,"), epoch, tuple(slots))
    return known


def _own_id(node: RedisServer) -> str:
    return node.ask("CLUSTER MYID").splitlines()[-1]


def _address(node: RedisServer) -> str:
    return f"127.0.0.1:{node.port}"


def _tell(node: RedisServer, command: str) -> None:
    if (reply := node.ask(command, timeout=5.0)) != "+OK":
        raise RedisServerError(f"{command[:60]}: {reply}")


def free_cluster_port() -> int:
    """Return a free loopback port whose bus port is free too. Raises RedisServerError if it finds none."""
    for _ in range(100):
        port = free_port()
        with suppress(OSError, OverflowError):  # the bus port is taken, or above 65535
            return free_port(port + _BUS) - _BUS
    raise RedisServerError(f"no free port with a free one {_BUS} above it")

"""Starts a Redis Cluster for a run."""

import time
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final

from benchmarks.lab import package
from benchmarks.redis_server import RedisServer, free_port

_NODES: Final = 3  # the fewest of a cluster
_SLOTS: Final = 16384
_BUS: Final = 10_000  # added to a node's port, for the connections between the nodes
_HIGHEST_PORT: Final = 65535
_READY_WITHIN: Final = 30.0  # seconds


class RedisCluster(AbstractContextManager["RedisCluster", None]):
    """Three redis-servers on loopback that form a cluster, each with a third of the slots.

    Raises FileNotFoundError without a redis-server on the PATH, and RuntimeError if the nodes do not agree in time.
    """

    def __init__(self) -> None:
        with ExitStack() as running:
            nodes = [
                running.enter_context(RedisServer("--cluster-enabled", "yes", port=_free_cluster_port()))
                for _ in range(_NODES)
            ]
            self.url: Final = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
            clients = [running.enter_context(package("redis").Redis.from_url(node.url)) for node in nodes]
            for number, client in enumerate(clients):
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                slots = range(number * _SLOTS // _NODES, (number + 1) * _SLOTS // _NODES)
                client.execute_command("CLUSTER", "ADDSLOTS", *slots)
                for node in nodes[:number]:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
            deadline = time.monotonic() + _READY_WITHIN
            while not all(map(_is_ready, clients)):
                if time.monotonic() > deadline:
                    raise RuntimeError("the nodes did not become a cluster")
                time.sleep(0.05)
            self._running: Final = running.pop_all()

    def __exit__(self, *_: object) -> None:
        self._running.close()


def _is_ready(client: Any) -> bool:
    info = str(client.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in info and f"cluster_known_nodes:{_NODES}" in info


def _free_cluster_port() -> int:
    """Return a free port whose bus port exists. The node does not start if another program uses the bus port."""
    while (port := free_port()) + _BUS > _HIGHEST_PORT:
        pass
    return port

"""Tests an app while a node of its cluster dies, and while slots move together with their keys."""

from collections.abc import Callable

import pytest
from redis import Redis

from faults.load import HOT, Load
from ratelimit_mw.stores.redis.hash_slots import slot
from redis_cluster import RedisCluster
from redis_servers import RedisServer

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(8), pytest.mark.promise(6)]

Tell = Callable[[float], None]


def test_app_survives_cluster_nodes_that_are_killed_and_restarted_empty(
    served: type[Load], redis_cluster: RedisCluster, tell_recovery: Tell
) -> None:
    """Kill each node in turn, including the node of the client with the most requests, which loses its counts."""
    with served(store=redis_cluster.url) as load:
        load.goes_on()
        for node in redis_cluster.nodes:
            node.kill()
            load.goes_on_without()
            node.restart()
            redis_cluster.wait_settled()
            tell_recovery(load.recovers(everywhere=True))
    load.held(quotas=2)
    assert every_key_expires(redis_cluster)


def test_app_survives_slots_that_move_with_their_keys(
    served: type[Load], redis_cluster: RedisCluster, tell_recovery: Tell
) -> None:
    """No count is lost. Only a request for a key that is moving is decided without the store."""
    with served(store=redis_cluster.url, store_timeout=2.0, plain_keys=True) as load:
        load.goes_on()
        for turn, number in enumerate(held(redis_cluster)[:30]):
            source = redis_cluster.owner(number)
            others = [node for node in redis_cluster.nodes if node is not source]
            move(number, source, others[turn % 2], redis_cluster)
        tell_recovery(load.recovers(everywhere=True))
    load.held()
    by_store = sum(one.source == "store" for one in load.seen)
    by_itself = sum(one.source == "local" for one in load.seen)
    assert by_itself <= by_store / 10
    assert every_key_expires(redis_cluster)


def held(cluster: RedisCluster) -> list[int]:
    """Return the slots that have keys, beginning with the slot of the client with the most requests."""
    keys = [key for node in cluster.nodes for key in keys_of(node)]
    assert any(HOT.encode() in key for key in keys)
    return list(dict.fromkeys(slot(key) for key in sorted(keys, key=lambda key: HOT.encode() not in key)))


def keys_of(node: RedisServer) -> list[bytes]:
    with Redis.from_url(node.url) as client:
        return list(client.scan_iter(count=1000))


def every_key_expires(cluster: RedisCluster) -> bool:
    """Return whether all keys have a time to live."""
    lasting = list[bytes]()
    for node in cluster.nodes:
        with Redis.from_url(node.url) as client:
            lasting += [key for key in client.scan_iter(count=1000) if client.pttl(key) == -1]
    return lasting == []


def move(number: int, source: RedisServer, to: RedisServer, cluster: RedisCluster) -> None:
    """Move a slot and its keys, as redis-cli does, while clients go on writing them."""
    ids = {node: node.ask("CLUSTER MYID").splitlines()[-1] for node in (source, to)}
    assert to.ask(f"CLUSTER SETSLOT {number} IMPORTING {ids[source]}") == "+OK"
    assert source.ask(f"CLUSTER SETSLOT {number} MIGRATING {ids[to]}") == "+OK"
    with Redis.from_url(source.url) as client:
        while keys := client.cluster("GETKEYSINSLOT", number, 100):
            client.execute_command("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "REPLACE", "KEYS", *keys)
    for node in sorted(cluster.nodes, key=lambda node: node is not to):
        assert node.ask(f"CLUSTER SETSLOT {number} NODE {ids[to]}") == "+OK"

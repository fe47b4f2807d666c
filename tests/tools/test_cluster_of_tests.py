"""Tests the cluster fixture: with a cluster that never redirects or is not clean, other tests would prove nothing."""

import contextlib
import socket
from collections.abc import Mapping
from typing import Any

import pytest
from redis import RedisCluster as Client

from redis_cluster import RedisCluster, free_cluster_port
from redis_servers import RedisServer, RedisServerError

SLOT = 12539  # of "key", as CLUSTER KEYSLOT returns it


def others(cluster: RedisCluster, node: RedisServer) -> list[RedisServer]:
    return [other for other in cluster.nodes if other is not node]


def test_keys_are_spread_over_all_nodes(redis_cluster: RedisCluster) -> None:
    with contextlib.closing(Client.from_url(redis_cluster.redis_url)) as client:
        for number in range(30):
            client.set(f"key-{number}", 1)
    held = [int(node.ask("DBSIZE")[1:]) for node in redis_cluster.nodes]
    assert min(held) > 0
    assert sum(held) == 30


def test_url_names_all_nodes(redis_cluster: RedisCluster) -> None:
    first, second, third = (f"127.0.0.1:{node.port}" for node in redis_cluster.nodes)
    assert redis_cluster.url == f"redis+cluster://{first},{second},{third}"
    assert redis_cluster.redis_url == f"redis://{first}/0"


def test_each_cluster_runs_the_version_in_its_name(redis_clusters: Mapping[str, RedisCluster]) -> None:
    for name, cluster in redis_clusters.items():
        for node in cluster.nodes:
            assert node.version() == name


def test_each_node_redirects_to_the_owner(redis_cluster: RedisCluster) -> None:
    owner = redis_cluster.owner(SLOT)
    assert owner.ask("CLUSTER KEYSLOT key") == f":{SLOT}"
    assert owner.ask("SET key 1") == "+OK"
    for node in others(redis_cluster, owner):
        assert node.ask("GET key") == f"-MOVED {SLOT} 127.0.0.1:{owner.port}"


def test_moved_slot_is_served_by_its_new_owner_only(redis_cluster: RedisCluster) -> None:
    for target in [*redis_cluster.nodes, *redis_cluster.nodes]:  # there and back: no earlier claim of a slot may win
        if redis_cluster.owner(SLOT) is not target:
            redis_cluster.move_slot(SLOT, target)
        assert redis_cluster.owner(SLOT) is target
        assert target.ask("INCR key") == ":1"
        for node in others(redis_cluster, target):
            assert node.ask("INCR key") == f"-MOVED {SLOT} 127.0.0.1:{target.port}"
        assert target.ask("DEL key") == ":1"


def test_slot_with_keys_cannot_be_moved(redis_cluster: RedisCluster) -> None:
    owner = redis_cluster.owner(SLOT)
    owner.ask("SET key 1")
    with pytest.raises(RedisServerError, match=f"keys in slot {SLOT}: :1"):
        redis_cluster.move_slot(SLOT, others(redis_cluster, owner)[0])
    assert owner.ask("GET key") == "$1\r\n1"


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_fixture_clears_data_and_repairs_servers_between_tests(redis_cluster: RedisCluster, turn: int) -> None:
    third = redis_cluster.nodes[2]
    assert redis_cluster.owner(SLOT) is third
    for node in redis_cluster.nodes:
        assert node.ask("DBSIZE") == ":0"
        assert "number_of_cached_scripts:0\r" in node.ask("INFO memory")
    if turn == 1:
        redis_cluster.move_slot(SLOT, redis_cluster.nodes[0])
        assert redis_cluster.nodes[0].ask("SET key 1") == "+OK"
    else:
        assert third.ask("SET key 1") == "+OK"
    for node in redis_cluster.nodes:
        node.ask('SCRIPT LOAD "return 1"')
    if turn == 2:
        third.kill()
    else:
        third.pause()


def test_restarted_node_keeps_its_slots(redis_cluster: RedisCluster) -> None:
    owner = redis_cluster.owner(SLOT)
    assert owner.ask("SET key 1") == "+OK"
    owner.restart()
    redis_cluster.wait_settled()
    assert owner.ask("GET key") == "$-1"
    for node in others(redis_cluster, owner):
        assert node.ask("GET key") == f"-MOVED {SLOT} 127.0.0.1:{owner.port}"


def test_stop_ends_all_processes(redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RedisCluster, "wait_settled", lambda _: None)  # a cluster that is not ready can be stopped, too
    with RedisCluster(redis_cluster.binary) as cluster:
        cluster.nodes[0].pause()
        cluster.nodes[1].kill()
    assert [node.process.returncode for node in cluster.nodes] == [0, -9, 0]
    cluster.stop()


def test_failed_start_leaves_no_process(redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[RedisServer] = []

    def start(*args: Any, **options: Any) -> RedisServer:
        started.append(RedisServer(*args, **options))
        return started[-1]

    monkeypatch.setattr("redis_cluster.RedisServer", start)
    monkeypatch.setattr("redis_cluster._SETTLED_WITHIN", 0.0)
    with pytest.raises(RedisServerError, match="no cluster"):
        RedisCluster(redis_cluster.binary)
    assert [node.process.returncode for node in started] == [0, 0, 0]


def test_start_is_retried_if_the_bus_port_is_taken(redis_cluster: RedisCluster) -> None:
    with socket.socket() as taker:
        lost = free_cluster_port()
        taker.bind(("127.0.0.1", lost + 10_000))
        taker.listen()
        ports = iter([lost, free_cluster_port()])
        with RedisServer(redis_cluster.binary, "--cluster-enabled", "yes", choose_port=ports.__next__) as server:
            assert server.port != lost
            assert list(ports) == []

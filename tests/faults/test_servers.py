"""Tests faults of the Redis server, under load over ASGI and WSGI, until the server is back."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from faults.load import QUOTA, Load, settled
from faults.servers import LoadingServer, crowded_out, evictions, leaves_nothing, long_script
from redis_servers import RedisServer

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(8), pytest.mark.promise(6)]

Tell = Callable[[float], None]


@pytest.fixture
def binary(redis_servers: Mapping[str, RedisServer]) -> Path:
    """The binary of the first server. These tests start servers with a configuration of their own."""
    return next(iter(redis_servers.values())).binary


def test_app_survives_a_server_that_is_killed_and_restarted_empty(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    with served(store=redis_server.url) as load:
        load.goes_on()
        redis_server.kill()
        load.goes_on_without()
        redis_server.restart()
        tell_recovery(load.recovers())
    load.held(quotas=2)
    leaves_nothing(redis_server)


def test_app_survives_a_server_that_is_stopped_and_resumed(
    served: type[Load], redis_server: RedisServer, tell_recovery: Tell
) -> None:
    with served(store=redis_server.url) as load:
        load.goes_on()
        redis_server.pause()
        load.goes_on_without()
        redis_server.resume()
        tell_recovery(load.recovers())
    load.held()
    leaves_nothing(redis_server)


def test_app_survives_a_server_that_runs_a_long_script(served: type[Load], binary: Path, tell_recovery: Tell) -> None:
    with RedisServer(binary, "--lua-time-limit", "5") as server:
        with served(store=server.url) as load:
            load.goes_on()
            with long_script(server):
                load.goes_on_without()
            tell_recovery(load.recovers())
        load.held()
        leaves_nothing(server)


def test_app_survives_a_server_that_loads_its_saved_data(served: type[Load], binary: Path, tell_recovery: Tell) -> None:
    """The server loses the charges after the save, at most one quota."""
    with LoadingServer(binary, *LoadingServer.SLOWLY) as server:
        with served(store=server.url) as load:
            load.goes_on()
            server.save()
            starting = server.restart_loading()
            load.goes_on_without()
            starting.join()
            tell_recovery(load.recovers())
        load.held(quotas=2)
        leaves_nothing(server)


def test_app_survives_a_server_that_refuses_writes_as_it_cannot_save(
    served: type[Load], binary: Path, tmp_path: Path, tell_recovery: Tell
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with RedisServer(binary, "--dir", str(folder), "--save", "3600 1") as server:
        folder.rmdir()
        with served(store=server.url) as load:
            load.goes_on()
            server.ask("BGSAVE")
            assert not settled(lambda: not server.ask("SET mine 1 EX 9").startswith("-MISCONF"))
            load.goes_on_without()
            server.ask('CONFIG SET save ""')
            tell_recovery(load.recovers())
        load.held()
        leaves_nothing(server)


def test_app_survives_a_server_without_memory_or_eviction(
    served: type[Load], binary: Path, tell_recovery: Tell
) -> None:
    with RedisServer(binary) as server:
        with served(store=server.url) as load:
            load.goes_on()
            server.ask("CONFIG SET maxmemory 1")
            load.goes_on_without()
            server.ask("CONFIG SET maxmemory 0")
            tell_recovery(load.recovers())
        load.held()
        leaves_nothing(server)


def test_each_eviction_of_a_key_admits_at_most_one_more_quota(
    served: type[Load], binary: Path, tell_recovery: Tell
) -> None:
    """The app does not notice evictions."""
    options = ("--maxmemory-policy", "allkeys-lru", "--notify-keyspace-events", "Ee")
    with RedisServer(binary, *options) as server:
        with evictions(server) as most_evictions:
            with served(store=server.url) as load:
                load.goes_on()
                for _ in range(3):
                    assert crowded_out(server) > 1000
                    load.goes_on()
                tell_recovery(load.recovers())
            evicted = most_evictions()
            assert evicted >= 1
            load.held(quotas=1 + evicted)
        leaves_nothing(server)


def test_app_survives_a_server_that_is_made_a_replica_and_a_primary_again(
    served: type[Load], binary: Path, tell_recovery: Tell
) -> None:
    """As a replica, the server takes over the data of its primary, which is empty."""
    with RedisServer(binary) as server, RedisServer(binary, "--repl-diskless-sync-delay", "0") as primary:
        with served(store=server.url) as load:
            load.goes_on()
            server.ask(f"REPLICAOF 127.0.0.1 {primary.port}")
            assert not settled(lambda: "master_link_status:up" not in server.ask("INFO replication"), 15.0)
            load.goes_on_without()
            server.ask("REPLICAOF NO ONE")
            tell_recovery(load.recovers())
        load.held(quotas=2)
        leaves_nothing(server)


def test_repeated_outages_renew_no_quota_of_the_process(served: type[Load], redis_server: RedisServer) -> None:
    """Units that this process admitted without the store count until the window ends, even if the store returns."""
    with served(store=redis_server.url) as load:
        for _ in range(4):
            redis_server.pause()
            load.goes_on()
            redis_server.resume()
            load.recovers()
    load.held()
    assert load.admitted("local") == QUOTA
    leaves_nothing(redis_server)

"""Tests that Redis, a file and the memory of a process keep the same counts for the dashboard, within their bounds."""

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from dashboard.reported import NOW, report
from ratelimit_mw.stores.live import (
    BY_MINUTE,
    BY_SECOND,
    KEPT_PROCESS,
    MAX_PROCESSES,
    OTHER,
    RINGS,
    Live,
    LiveKeeper,
    Report,
    Row,
    Wanted,
    safe_name,
)
from ratelimit_mw.stores.local_board import LocalBoard
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from redis_cluster import RedisCluster
from redis_servers import RedisServer

pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")


@pytest.fixture(params=["server", "cluster", "file", "memory"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield LocalBoard()
        return
    if request.param == "file":
        store: Any = SQLiteStore(tmp_path / "limits.db", timeout=5.0)
    else:
        servers: Mapping[str, RedisServer | RedisCluster] = request.getfixturevalue(f"redis_{request.param}s")
        server = next(iter(servers.values()))
        server.flush() if isinstance(server, RedisServer) else server.reset()
        store = RedisStore(server.url, timeout=5.0)
    yield store
    store.close()


def read(keeper: LiveKeeper, at: int = NOW, back: int = 3) -> Live:
    return keeper.read_live(Wanted({ring.name: range(at // ring.unit - back, at // ring.unit + 1) for ring in RINGS}))


def test_counts_of_processes_are_added_by_second_and_minute(keeper: Any) -> None:
    keeper.add_live([report({"login": (2, 1, 0)}), report({"login": (1, 0, 0), "a b": (0, 0, 3)}, NOW + 1, number=2)])
    keeper.add_live([report({"login": (0, 4, 0)}, process="two")])
    live = read(keeper, NOW + 1)
    assert live.rows["seconds"] == {NOW: {"login": (2, 5, 0)}, NOW + 1: {"login": (1, 0, 0), "a b": (0, 0, 3)}}
    assert live.rows["minutes"] == {NOW // 60: {"login": (3, 5, 0), "a b": (0, 0, 3)}}
    assert sorted(seen for seen, _ in live.processes) == [NOW, NOW + 1]


def test_a_report_that_is_sent_again_is_added_once(keeper: Any) -> None:
    first, second = report({"login": (2, 1, 0)}), report({"login": (1, 0, 0)}, NOW + 1, number=2)
    keeper.add_live([first])
    keeper.add_live([first, second])
    keeper.add_live([first, second])
    assert read(keeper, NOW + 1).rows["minutes"] == {NOW // 60: {"login": (3, 1, 0)}}


def test_a_slot_is_reused_and_a_late_report_is_left_out(keeper: Any) -> None:
    later = NOW + BY_SECOND.size
    keeper.add_live([report({"login": (2, 1, 0)})])
    keeper.add_live([report({"login": (7, 0, 0)}, later, number=2)])
    assert read(keeper, later).rows["seconds"] == {later: {"login": (7, 0, 0)}}
    assert read(keeper, NOW).rows["seconds"] == {}
    keeper.add_live([report({"login": (1, 1, 1)}, NOW, number=3)])  # its slot has a later second
    assert read(keeper, later).rows["seconds"] == {later: {"login": (7, 0, 0)}}


def test_names_beyond_the_room_of_a_slot_count_as_other(keeper: Any) -> None:
    counts = {f"rule-{number:03}": (1, 2, 3) for number in range(100)}
    keeper.add_live([report(counts)])
    keeper.add_live([report({**counts, "late": (5, 0, 0)}, number=2)])
    found = read(keeper).rows["seconds"][NOW]
    kept = BY_SECOND.most // len("rule-000\t1\t2\t3\n")
    assert len(found) == kept + 1
    assert found["rule-000"] == (2, 4, 6)
    left = 100 - kept
    assert found[OTHER] == (2 * left + 5, 4 * left, 6 * left)


def test_a_process_that_ends_or_falls_silent_is_forgotten(keeper: Any) -> None:
    for process in ("one", "two", "three"):
        keeper.add_live([report({}, process=process)])
    keeper.add_live([report({"login": (1, 0, 0)}, process="two", number=2, ends=True)])
    assert len(read(keeper).processes) == 2
    assert read(keeper).rows["seconds"] == {NOW: {"login": (1, 0, 0)}}
    keeper.add_live([report({}, NOW + KEPT_PROCESS, process="one", number=2)])
    assert len(read(keeper).processes) == 2
    keeper.add_live([report({}, NOW + KEPT_PROCESS + 1, process="one", number=3)])
    assert len(read(keeper).processes) == 1


def test_the_number_of_processes_is_bounded(keeper: Any) -> None:
    for number in range(MAX_PROCESSES + 3):
        keeper.add_live([report({}, process=f"process {number}")])
    assert len(read(keeper).processes) == MAX_PROCESSES


def test_hostile_names_stay_names(keeper: Any) -> None:
    names = ["<img src=x onerror=alert(1)>", "a\tb\n9\t9\t9\t9\n", "\udc80\x00\x1b[2J", "x" * 500]
    counts = {safe_name(name): (1, 0, 0) for name in names}
    keeper.add_live([report(counts)])
    assert read(keeper).rows["seconds"] == {NOW: counts}
    assert max(map(len, counts)) == 120
    assert [name.isprintable() for name in counts] == [True, True, False, True]


@pytest.mark.one_redis
def test_asyncio_adds_the_same(redis_server: RedisServer) -> None:
    redis_server.flush()

    async def add() -> None:
        store = AsyncRedisStore(redis_server.url, timeout=5.0)
        await store.aadd_live([report({"login": (2, 1, 0)})])
        await store.aclose()

    asyncio.run(add())
    store = RedisStore(redis_server.url, timeout=5.0)
    assert read(store).rows["seconds"] == {NOW: {"login": (2, 1, 0)}}
    store.close()


@pytest.mark.one_redis
@pytest.mark.parametrize("rules", [12, 100])
def test_a_day_takes_less_than_three_megabytes_in_redis(rules: int, redis_server: RedisServer) -> None:
    redis_server.flush()
    client = Redis.from_url(redis_server.url)
    before = client.info("memory")["used_memory"]
    store = RedisStore(redis_server.url, timeout=5.0)
    counts = {f"rule-{number}": (1234, 567, 89) for number in range(rules)}
    clients = {f"{{{number:022}}}:rule-{number % 3}": (99, 99, 0) for number in range(64)}
    number = 0
    for minute in range(24 * 60 + 10):  # one report a minute, and each second of the last six minutes
        at = NOW + 60 * minute
        for second in range(60) if minute > 24 * 60 else (0,):
            number += 1
            store.add_live([report(counts, at + second, number=number, clients=clients)])
    rows = store.read_live(Wanted({BY_MINUTE.name: range(at // 60 - 1439, at // 60 + 1)})).rows[BY_MINUTE.name]
    assert len(rows) == 1440
    used = client.info("memory")["used_memory"] - before
    assert used < 3_000_000
    assert [client.ttl(key) > 0 for key in client.scan_iter()] == [True] * 4
    store.close()


@pytest.mark.one_redis
def test_a_report_of_a_minute_is_one_command(redis_server: RedisServer) -> None:
    redis_server.flush()
    client = Redis.from_url(redis_server.url)
    store = RedisStore(redis_server.url, timeout=5.0)
    store.add_live([report({})])
    client.config_resetstat()
    rows = {ring.name: [Row(NOW // ring.unit + one, {"a": (1, 1, 1)}) for one in range(60)] for ring in RINGS}
    store.add_live([Report("one", 2, NOW + 60, b"{}", rows)])
    store.read_live(Wanted({ring.name: range(NOW, NOW + ring.size) for ring in RINGS}))
    assert client.info("commandstats")["cmdstat_eval"]["calls"] == 2
    store.close()

"""Tests that Redis, a file and the memory of a process keep the same counts for the dashboard, within their bounds."""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from dashboard.reported import NOW, report
from ratelimit_mw.stores.live import (
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

DAY = 86_400  # seconds

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


def test_counts_that_outgrow_the_room_of_a_slot_count_as_other(keeper: Any) -> None:
    names = [f"rule-{number:03}" for number in range(31)]
    for number in range(1, 4):
        keeper.add_live([report(dict.fromkeys(names, (333_333, 333_333, 333_333)), number=number)])
    found = read(keeper).rows["seconds"][NOW]
    kept = BY_SECOND.most // len("rule-000\t999999\t999999\t999999\n")
    assert (kept, len(found)) == (30, 31)
    assert {found[name] for name in names[:kept]} == {(999_999, 999_999, 999_999)}
    assert found[OTHER] == (999_999, 999_999, 999_999)


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


def size(keeper: Any, server: RedisServer) -> int:
    """Return the bytes that a store uses. `server`: of `RedisStore`."""
    if isinstance(keeper, RedisStore):
        with Redis.from_url(server.url) as client:
            return sum(client.memory_usage(key, samples=0) for key in client.scan_iter())
    connection: Any = keeper._connection if isinstance(keeper, LocalBoard) else sqlite3.connect(keeper.path)
    with closing(connection):
        (pages,), (of_page,) = (connection.execute(f"PRAGMA page_{part}").fetchone() for part in ("count", "size"))
    return pages * of_page  # type: ignore[no-any-return]  # a number


@pytest.mark.parametrize("keeper", ["server", "file", "memory"], indirect=True)
@pytest.mark.parametrize("rules", [12, 100])
def test_a_day_takes_less_than_three_megabytes(
    rules: int, keeper: Any, redis_servers: Mapping[str, RedisServer]
) -> None:
    counts = {f"rule-{number}": (20, 9, 1) for number in range(rules)}
    rest = dict.fromkeys(counts, (1000, 450, 60))  # counts of a minute have more digits than its first report
    clients = {f"{{{number:022}}}:rule-{number % 3}": (99, 99, 0) for number in range(64)}
    last = NOW + DAY + 600
    instants: Any = (*(at + one for at in range(NOW, last, 60) for one in (0, 1)), *range(last, last + 360))
    for number, at in enumerate(instants, 1):
        some = rest if at < last and at % 60 else counts
        keeper.add_live([report(some, at, number=number, clients=clients)])
    for ring in RINGS:
        instants = range((at + 1) // ring.unit - ring.size + 30, (at + 1) // ring.unit)
        assert len(keeper.read_live(Wanted({ring.name: instants})).rows[ring.name]) == len(instants)
    assert 1_000_000 < size(keeper, next(iter(redis_servers.values()))) < 3_000_000


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

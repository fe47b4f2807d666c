"""Tests that each store that processes share keeps overrides, and how a process looks for them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from ratelimit_mw import MemoryStore, StoreError, admin
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.refresh import Refresher, refresher_of
from ratelimit_mw.rules.override_entries import Override, encode_overrides
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore, declared
from ratelimit_mw.stores.kept_overrides import CHANGES_TIME, KEPT_CHANGES, AsyncOverrideKeeper, KeptOverrides
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock
from redis_cluster import RedisCluster
from redis_servers import RedisServer
from web.plain_request import PlainRequest

FIRST, SECOND = KeptOverrides("1", b"one", "mac of one"), KeptOverrides("2", b"\xfftwo\n", "")
SECRET = "one secret of the tests"  # not a secret
CLIENT = "192.0.2.1"


@pytest.fixture(params=["server", "cluster", "file"])
def keepers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """The store for threads, and the one for asyncio."""
    if request.param == "file":
        store = SQLiteStore(tmp_path / "limits.db", timeout=5.0)
        yield store, store
        store.close()
        return
    servers: Mapping[str, RedisServer | RedisCluster] = request.getfixturevalue(f"redis_{request.param}s")
    server = next(iter(servers.values()))
    server.flush() if isinstance(server, RedisServer) else server.reset()
    url = server.url
    redis_store = RedisStore(url, timeout=5.0)
    yield redis_store, AsyncRedisStore(url, timeout=5.0)
    redis_store.close()


async def read_and_close(keeper: AsyncOverrideKeeper, known: str) -> KeptOverrides | None:
    try:
        return await keeper.aread_overrides(known)
    finally:
        await keeper.aclose()  # type: ignore[attr-defined]  # of a store


def test_a_store_keeps_a_set_and_its_changes(keepers: tuple[Any, Any]) -> None:
    keeper, async_keeper = keepers
    assert (keeper.read_overrides(""), keeper.read_overrides("1"), keeper.read_changes()) == (None, KeptOverrides(), [])
    assert keeper.write_overrides("", FIRST, b"the first")
    assert not keeper.write_overrides("", SECOND, b"an operator who has not read the first")
    assert (keeper.read_overrides(""), keeper.read_overrides("1")) == (FIRST, None)
    assert asyncio.run(read_and_close(async_keeper, "")) == FIRST
    assert asyncio.run(read_and_close(async_keeper, "1")) is None
    assert keeper.write_overrides("1", SECOND, b"the second")
    assert keeper.read_overrides("1") == SECOND
    assert keeper.read_changes() == [b"the second", b"the first"]


def test_a_store_keeps_the_latest_changes(keepers: tuple[Any, Any], request: pytest.FixtureRequest) -> None:
    assert (KEPT_CHANGES, CHANGES_TIME) == (1000, 30 * 24 * 60 * 60)
    keeper, _ = keepers
    monkeypatch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for module in ("redis.kept_overrides", "sqlite.kept_overrides"):
        monkeypatch.setattr(f"ratelimit_mw.stores.{module}.KEPT_CHANGES", 3)
    for number in range(5):
        version = "" if number == 0 else str(number - 1)
        assert keeper.write_overrides(version, KeptOverrides(str(number)), b"%d" % number)
    assert keeper.read_changes() == [b"4", b"3", b"2"]


def test_the_keys_in_redis_are_one_hash_and_a_list_that_expires(redis_url: str, client: Redis) -> None:
    settings = {"limits": "1/hour", "store": redis_url}
    admin.switch(settings, "off")
    assert sorted(client.keys()) == [b"rl:1:{overrides}", b"rl:1:{overrides}:changes"]
    assert sorted(client.hkeys("rl:1:{overrides}")) == [b"entries", b"mac", b"version"]
    assert CHANGES_TIME - 60 < client.ttl("rl:1:{overrides}:changes") <= CHANGES_TIME
    assert admin.keys(settings).keys == []


class Kept(MemoryStore):
    """A store whose set the test chooses, and that counts the reads."""

    suspends = True  # as a store on a server

    def __init__(self) -> None:
        super().__init__()
        self.kept = KeptOverrides()
        self.error: Exception | None = None
        self.reads: list[str] = []

    def set(self, version: str, *overrides: Override, mac: str = "") -> None:
        self.kept = KeptOverrides(version, encode_overrides(overrides), mac)

    def read_overrides(self, known: str) -> KeptOverrides | None:
        self.reads.append(known)
        if self.error is not None:
            raise self.error
        return None if known == self.kept.version else self.kept

    async def aread_overrides(self, known: str) -> KeptOverrides | None:
        await asyncio.sleep(0)
        return self.read_overrides(known)

    def write_overrides(self, known: str, kept: KeptOverrides, change: bytes) -> bool:
        raise NotImplementedError

    def read_changes(self) -> list[bytes]:
        return []


def exempt(until: float = 2e9, who: str = f"ip={CLIENT}", **other: Any) -> Override:
    return Override(
        **{"id": "a1", "rule": None, "who": who, "action": "exempt", "limits": None, "until": until, **other}
    )


class World:
    """A gate over such a store, with clocks of the test."""

    def __init__(self, *, is_async: bool = False, **options: Any) -> None:
        self.store, self.monotonic, self.wall = Kept(), Clock(0.0), Clock()
        settings = Settings(**{"limits": "1/hour", "key": "ip", "store": self.store, **options})
        self.gate: Any = (AsyncGate if is_async else Gate)(settings)
        refresher = self.gate._refresher
        assert isinstance(refresher, Refresher)
        refresher.clock, refresher._wall = self.monotonic, self.wall
        self.is_async = is_async

    def admits(self, client: str = CLIENT, times: int = 1) -> list[bool]:
        return [verdict is None or verdict.allowed for verdict in (self._take(client) for _ in range(times))]

    def _take(self, client: str) -> Any:
        async def take() -> Any:
            way, charges, _ = self.gate.rule_set.short_way("GET", "/", client, lambda _: ())
            taken = (
                self.gate.take(way, charges) if way is not None else self.gate.admit(PlainRequest("/", client=client))
            )
            verdict = await taken if self.is_async else taken
            for task in asyncio.all_tasks() - {asyncio.current_task()}:  # a look
                with suppress(asyncio.CancelledError):
                    await task
            return verdict

        return asyncio.run(take())


WORLDS = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])


@WORLDS
def test_the_first_request_waits_for_the_first_look(*, is_async: bool) -> None:
    world = World(is_async=is_async)
    world.store.set("1", exempt())
    assert world.admits(times=3) == [True, True, True]
    assert world.store.reads == [""]


@WORLDS
def test_looks_are_one_interval_apart_and_only_while_requests_come(*, is_async: bool) -> None:
    world = World(is_async=is_async, refresh=2.0)
    assert world.admits(times=3) == [True, False, False]
    assert world.store.reads == [""]
    world.store.set("1", exempt())
    world.monotonic.advance(1.999)
    assert world.admits(times=2) == [False, False]
    world.monotonic.advance(0.001)
    assert world.admits(times=2) == [False, True]  # the look of the first request finds it
    world.monotonic.advance(100.0)
    assert world.store.reads == ["", ""]
    assert world.admits() == [True]
    assert world.store.reads == ["", "", "1"]
    world.store.set("2")
    world.monotonic.advance(2.0)
    world.admits()
    assert world.admits() == [False]


@pytest.mark.promise(9)
@WORLDS
def test_an_override_ends_without_a_look(*, is_async: bool) -> None:
    world = World(is_async=is_async, refresh=1000.0)
    world.store.set("1", exempt(until=world.wall.now + 60.0))
    assert world.admits(times=2) == [True, True]
    for seconds in (59.0, 0.999):
        world.wall.advance(seconds)
        world.monotonic.advance(seconds)
        assert world.admits(times=2) == [True, True]
    world.wall.advance(0.001)
    world.monotonic.advance(0.001)
    assert world.admits(times=2) == [True, False]
    assert world.store.reads == [""]


@pytest.mark.promise(8)
@WORLDS
@pytest.mark.usefixtures("unthrottled_log")
def test_while_the_store_is_away_the_last_known_state_stays_until_it_ends(
    is_async: bool,  # a parameter of the test
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(is_async=is_async)
    world.store.set("1", exempt(until=world.wall.now + 60.0))
    assert world.admits(times=2) == [True, True]
    world.store.error = StoreError("down")
    for _ in range(3):
        world.monotonic.advance(1.0)
        assert world.admits(times=2) == [True, True]
    assert caplog.text.count("overrides: the store did not answer (down)") == 1
    world.wall.advance(60.0)
    world.monotonic.advance(60.0)
    assert world.admits(times=2) == [True, False]
    world.store.error = None
    world.store.set("2", exempt())
    world.monotonic.advance(1.0)
    world.admits()
    assert world.admits() == [True]


@WORLDS
@pytest.mark.usefixtures("unthrottled_log")
def test_a_rejection_is_left_to_the_store_which_logs_it_with_the_fix(
    is_async: bool,  # a parameter of the test
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(is_async=is_async)
    world.store.error = StoreError("WRONGPASS", rejected=True)
    assert world.admits() == [True]
    assert caplog.text == ""


@pytest.mark.promise(8)
@WORLDS
def test_a_store_that_is_away_at_the_start_holds_up_one_request_only(*, is_async: bool) -> None:
    world = World(is_async=is_async)
    world.store.error = StoreError("down")
    assert world.admits(times=3) == [True, False, False]
    assert world.store.reads == [""]


def test_no_look_without_refresh_or_with_limiting_off_or_over_a_store_that_keeps_none() -> None:
    for options in ({"refresh": 0.0}, {"enabled": False}):
        store = Kept()
        gate = Gate(Settings(limits="1/hour", key="ip", store=store, **options))
        gate.admit(PlainRequest("/"))
        assert (store.reads, gate._refresher) == ([], None)
    assert Gate(Settings(limits="1/hour"))._refresher is None


def test_gates_of_one_store_share_a_set() -> None:
    store = Kept()
    settings = Settings(limits="1/hour", store=store)
    gate = Gate(settings)
    assert gate.nested._refresher is gate._refresher is refresher_of(store, settings, is_async=False)
    assert Gate(Settings(limits="1/hour", store=Kept()))._refresher is not gate._refresher


def test_a_store_of_ones_own_may_keep_overrides() -> None:
    class Own:
        read_overrides, write_overrides, read_changes = Kept.read_overrides, Kept.write_overrides, Kept.read_changes
        aread_overrides = Kept.aread_overrides

    own = Own()
    assert (declared(own).override_keeper, declared(own).async_override_keeper) == (own, own)
    assert (BaseStore().override_keeper, BaseStore().async_override_keeper) == (None, None)
    assert (declared(object()).override_keeper, declared(object()).async_override_keeper) == (None, None)


FORGED = "overrides: those in the store have no right MAC and are ignored"
OLD = "overrides: those in the store are older than those of this process and are ignored"


@pytest.mark.promise(9)
@pytest.mark.usefixtures("unthrottled_log")
def test_a_forged_or_an_old_set_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"sqlite://{tmp_path}/limits.db"
    source = SQLiteStore(url)
    options: Mapping[str, Any] = {"limits": "1/hour", "store": url, "key_secret": SECRET}
    world = World(key_secret=SECRET)

    def copied() -> KeptOverrides:
        kept = source.read_overrides("none")
        assert kept is not None
        return kept

    def look() -> None:
        world.monotonic.advance(1.0)
        world.admits("203.0.113.9")

    world.wall.now = 0.0
    admin.set_override(options, ip=CLIENT, exempt=True)
    world.store.kept = old = copied()
    assert world.admits(times=2) == [True, True]
    forged = exempt(who="ip=192.0.2.2")
    for mac in ("", "0" * 64, old.mac):
        world.store.set(f"{int(old.version) + 1:016d}", forged, mac=mac)
        look()
        look()
        assert (world.admits(times=2), world.admits("192.0.2.2", times=2)[-1]) == ([True, True], False)
    assert caplog.text.count(FORGED) == 1
    admin.clear_override(options, ip=CLIENT)
    world.store.kept = copied()
    look()
    assert world.admits(times=2) == [True, False]
    world.store.kept = old  # with the right MAC
    look()
    look()
    assert world.admits() == [False]
    assert caplog.text.count(OLD) == 1
    world.store.kept = KeptOverrides(f"{int(copied().version) + 9:016d}", old.text, old.mac)  # as if it was new
    look()
    look()
    assert world.admits() == [False]
    source.close()


@pytest.mark.promise(9)
@pytest.mark.usefixtures("unthrottled_log")
def test_an_entry_that_cannot_be_read_is_ignored_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.store.set("1", exempt(who="ip=192.0.2.0/33", id="bad1"), exempt())
    world.store.kept = world.store.kept._replace(text=world.store.kept.text + b'\n{"id": "bad2"}')
    assert world.admits(times=2) == [True, True]
    for id_of_bad in ("bad1", "bad2"):
        assert lines_with(caplog.text, id_of_bad) == 1
    world.store.set("2", exempt(action="limits", limits="1/fortnight", id="bad3"))
    world.monotonic.advance(1.0)
    world.admits()
    assert world.admits(times=2) == [False, False]  # those of the rule
    assert lines_with(caplog.text, "bad3") == 1


def lines_with(text: str, word: str) -> int:
    return sum(word in line for line in text.splitlines())

"""With Redis Sentinel, the store queries the Sentinels for the address of the master, and follows failovers."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import pytest
from redis import Redis

from awaited import awaited
from ratelimit_mw import Charge, ConfigError, Decision, FixedWindow, StoreError, admin
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.redis.protocol import RoutedCommand
from ratelimit_mw.stores.redis.sentinel import Sentinels
from ratelimit_mw.testing import Clock
from redis_sentinels import SERVICE, RedisSentinels
from redis_servers import RedisServer
from stores.opened import Open, each_kind
from stores.stalls import run_stalled
from web.plain_request import PlainRequest

pytestmark = pytest.mark.promise(8)

PATIENCE = 20.0  # seconds
RECOVERS = 10.0  # seconds; recovery takes less than one, unless the machine is busy
WINDOW = FixedWindow(1_000_000, 3600)
CHARGES = [Charge("{k}:r", WINDOW)]


@pytest.fixture(scope="module")
def started(redis_servers: dict[str, RedisServer]) -> Iterator[dict[str, RedisSentinels]]:
    running: dict[str, RedisSentinels] = {}
    yield running
    for one in running.values():
        one.stop()


@pytest.fixture
def sentinels(redis_server: RedisServer, started: dict[str, RedisSentinels]) -> RedisSentinels:
    """Sentinels, a master without data and its replica. A test may fail over, or kill them."""
    name = str(redis_server.binary)
    if name in started and not started[name].is_settled():
        started.pop(name).stop()
    if name not in started:
        started[name] = RedisSentinels(redis_server.binary)
    started[name].master().flush()
    return started[name]


def answered(store: Store, charge: Charge = CHARGES[0]) -> Decision:
    """Take until a call succeeds, and return its decision."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return store.take([charge])[0]
        except StoreError:
            assert time.monotonic() < end


def kept(server: RedisServer) -> int:
    """Return how many buckets this server has."""
    return int(server.ask("DBSIZE").removeprefix(":"))


@each_kind
def test_store_finds_the_master_even_if_the_first_sentinel_is_down(opened: Open, sentinels: RedisSentinels) -> None:
    with opened(sentinels.url, timeout=5) as store:
        assert [store.take(CHARGES)[0].remaining for _ in range(2)] == [999_999, 999_998]
    first, _, rest = sentinels.hosts.partition(",")
    with opened(f"redis+sentinel://127.0.0.1:1,{rest},{first}/{SERVICE}/0", timeout=5) as store:
        assert store.take(CHARGES)[0].remaining == 999_997
    with opened(f"{sentinels.url}/3?socket_keepalive=yes", timeout=5) as store:
        assert store.take(CHARGES)[0].remaining == 999_999


@pytest.mark.parametrize("turn", range(1, 30, 2))
def test_stalled_event_loop_still_connects_to_the_master(turn: int, sentinels: RedisSentinels) -> None:
    """The store does not mistake the stall for a slow Sentinel or master."""

    async def work() -> int:
        store = AsyncRedisStore(sentinels.url, timeout=5)
        (decision,) = await store.atake(CHARGES)
        await store.aclose()
        return decision.remaining

    assert run_stalled(work(), turn) == 999_999


class Load:
    """Threads that take repeatedly, and record when each call succeeded or failed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(8)]
        self.answers: list[float] = []
        self.failures: list[float] = []
        self.wrong: list[Exception] = []

    def _ask(self, number: int) -> None:
        while not self._ends.is_set():
            try:
                self._store.take([Charge(f"{number}", WINDOW)])
                self.answers.append(time.monotonic())
            except StoreError:
                self.failures.append(time.monotonic())
            except Exception as error:  # noqa: BLE001  # the test expects no other error, and shows it
                self.wrong.append(error)
            time.sleep(0.005)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.one_redis
@each_kind
def test_failover_under_load_fails_calls_only_briefly(opened: Open, sentinels: RedisSentinels) -> None:
    with opened(sentinels.url) as store:
        answered(store)
        with Load(store) as load:
            new = sentinels.fail_over()
            new.flush()
            since = time.monotonic()
            until(lambda: kept(new) >= 8)  # all threads take from the new master, not from the old one
            assert time.monotonic() - since < RECOVERS
            done = len(load.answers)
            until(lambda: len(load.answers) > done + 100)
    assert load.wrong == []
    assert [failure for failure in load.failures if failure > since + RECOVERS] == []


@pytest.mark.one_redis
@each_kind
@pytest.mark.parametrize("end", [RedisServer.kill, RedisServer.pause])
def test_store_uses_the_new_master_after_the_old_one_is_lost(
    opened: Open, end: Callable[[RedisServer], None], sentinels: RedisSentinels
) -> None:
    old = sentinels.master()
    try:
        with opened(sentinels.url) as store:
            answered(store)
            with Load(store) as load:
                until(lambda: len(load.answers) > 50)
                end(old)
                new = sentinels.wait_for_another(old)
                since = time.monotonic()
                done = len(load.answers)
                until(lambda: len(load.answers) > done)
                assert time.monotonic() - since < RECOVERS
            assert load.wrong == []
            assert kept(new) >= 1
    finally:
        old.kill()


@pytest.mark.one_redis
@each_kind
def test_store_uses_the_master_while_all_sentinels_hang(opened: Open, sentinels: RedisSentinels) -> None:
    with opened(sentinels.url, timeout=5) as store:
        assert store.take(CHARGES)[0].remaining == 999_999
        for one in sentinels.sentinels:
            one.pause()
        try:
            for turn in range(2, 32):  # for longer than an unsuccessful search for another master takes
                assert store.take(CHARGES)[0].remaining == 1_000_000 - turn
                time.sleep(0.05)
        finally:
            for one in sentinels.sentinels:
                one.resume()


@each_kind
def test_unknown_service_is_a_store_error(opened: Open, sentinels: RedisSentinels) -> None:
    with (
        opened(f"redis+sentinel://{sentinels.hosts}/limit", timeout=5) as store,
        pytest.raises(StoreError, match=r"no service 'limit', did you mean 'limits'\?; there are 'limits'"),
    ):
        store.take(CHARGES)


@each_kind
def test_error_names_each_unreachable_sentinel(opened: Open) -> None:
    with (
        opened("redis+sentinel://127.0.0.1:1,127.0.0.1:2/limits", timeout=5) as store,
        pytest.raises(StoreError, match=r"^cannot connect: Sentinel 127.0.0.1:1: .*; Sentinel 127.0.0.1:2: "),
    ):
        store.take(CHARGES)


@each_kind
def test_store_uses_separate_credentials_for_servers_and_sentinels(opened: Open, sentinels: RedisSentinels) -> None:
    watcher = "ACL SETUSER watcher on >of:sentinels resetkeys resetchannels -@all +sentinel"
    limiter = "ACL SETUSER limiter on >of/servers ~rl:1:* resetchannels -@all +eval +evalsha +script +time +get +set"
    for one in sentinels.sentinels:
        assert one.ask(watcher) == "+OK"
        assert one.ask("ACL SETUSER nobody on >x -@all") == "+OK"
    for server in sentinels.servers:
        assert server.ask(limiter) == "+OK"
    url = "redis+sentinel://limiter:of%2Fservers@{}/{}?sentinel_username={}&sentinel_password={}"
    hosts = sentinels.hosts
    with opened(url.format(hosts, SERVICE, "watcher", "of%3Asentinels"), timeout=5) as store:
        assert store.take(CHARGES)[0].remaining == 999_999
    with opened(url.format(hosts, SERVICE, "watcher", "hunter2"), timeout=5) as store:
        with pytest.raises(StoreError, match=r"Sentinel.*invalid username-password") as caught:
            store.take(CHARGES)
        assert "hunter2" not in str(caught.value)
    with (
        opened(url.format(hosts, SERVICE, "nobody", "x"), timeout=5) as store,
        pytest.raises(StoreError, match=r"Sentinel.*no permissions"),
    ):
        store.take(CHARGES)


@each_kind
@pytest.mark.one_redis
def test_new_master_whose_clock_is_behind_refills_nothing_early(opened: Open, sentinels: RedisSentinels) -> None:
    """A set of servers can fail over only once in ten seconds, so this tests one algorithm."""
    check_clock_that_goes_back(opened, "gcra", sentinels, fails_over=True)


@each_kind
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.one_redis
def test_master_whose_clock_steps_back_refills_nothing_early(
    opened: Open, name: str, sentinels: RedisSentinels
) -> None:
    check_clock_that_goes_back(opened, name, sentinels, fails_over=False)


def check_clock_that_goes_back(opened: Open, name: str, sentinels: RedisSentinels, *, fails_over: bool) -> None:
    """Check that no unit is available early, and that a client waits no longer than after it has just used its quota.

    `fails_over`: the clock that is behind is that of a new master.
    """
    clock = Clock(1_800_000_000.0)
    idle: dict[str, Any] = {"max_burst": 0} if name == "smooth" else {}
    charge = Charge("{k}:r", ALGORITHMS[name](10, 60, **idle), 10)
    with opened(sentinels.url, timeout=5, clock=clock) as store:
        assert answered(store, charge).remaining == 0
        if fails_over:
            old = sentinels.master()
            with Redis.from_url(old.url, socket_timeout=2 * PATIENCE) as client:
                assert client.execute_command("WAIT", 1, int(PATIENCE * 1000)) == 1
            sentinels.fail_over()
            old.kill()
        clock.now -= 3600
        refused = answered(store, charge)
        assert (refused.allowed, refused.remaining) == (False, 0)
        assert refused.retry_after == (
            114 if name == "sliding_window_counter" else 60
        )  # the wait after the quota has just been used
        clock.advance(refused.retry_after)
        assert answered(store, charge).allowed


@pytest.mark.one_redis
@pytest.mark.parametrize("kind", [Gate, AsyncGate])
def test_overrides_outlast_a_failover_and_are_changed_on_the_new_master(
    kind: type[Gate | AsyncGate], sentinels: RedisSentinels
) -> None:
    client, other = "192.0.2.1", "192.0.2.2"
    settings = Settings(limits="0/hour", on_store_error="deny", store=sentinels.url, store_timeout=5.0)
    old = sentinels.master()
    override = admin.set_override(settings, ip=client, exempt=True, duration=3600)
    with Redis.from_url(old.url, socket_timeout=2 * PATIENCE) as master:
        assert master.execute_command("WAIT", 1, int(PATIENCE * 1000)) == 1

    async def check() -> None:
        gate: Any = kind(settings)
        refresher = gate._refresher
        assert refresher is not None
        refresher.clock, refresher._wall = monotonic, wall = Clock(0.0), Clock(time.time())

        async def admits(address: str) -> bool:
            """Request after the look that is due."""
            for _ in range(2):
                found = gate.admit(PlainRequest("/", client=address))
                verdict = found if found is None or isinstance(found, Verdict) else await found
                if looks := asyncio.all_tasks() - {asyncio.current_task()}:
                    await asyncio.wait(looks, timeout=PATIENCE)
            return verdict is None or verdict.allowed

        async def becomes(expected: list[bool]) -> None:
            end = time.monotonic() + PATIENCE
            while [await admits(client), await admits(other)] != expected:
                assert time.monotonic() < end
                monotonic.advance(1.0)  # the next look is due
                await asyncio.sleep(0.05)

        await becomes([True, False])
        old.kill()
        for _ in range(3):  # the last known state stays
            monotonic.advance(1.0)
            assert [await admits(client), await admits(other)] == [True, False]
        assert refresher._is_away
        await asyncio.to_thread(sentinels.wait_for_another, old)
        while refresher._is_away:
            await becomes([True, False])
            monotonic.advance(1.0)
        await asyncio.to_thread(admin.switch, settings, "off", duration=7200)
        await becomes([True, True])
        assert admin.overrides(settings).overrides[0] == override
        await asyncio.to_thread(admin.switch, settings, "on")
        await becomes([True, False])
        wall.advance(3600)
        await becomes([False, False])
        if (closing := gate.close()) is not None:
            await closing

    asyncio.run(check())


def test_store_queries_sentinels_in_turn_and_the_last_useful_one_first() -> None:
    sentinels = Sentinels("s", [("a", 1), ("b", 2), ("c", 3)])
    steps = sentinels.master(awaited)
    command = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "s")
    assert steps.send(None) == RoutedCommand(("a", 1), command)
    assert steps.throw(StoreError("it is lost")) == RoutedCommand(("b", 2), command)
    assert steps.send(None) == RoutedCommand(("b", 2), ("SENTINEL", "MASTERS"))
    assert steps.send([[b"name", b"x", b"ip", b"name"], [b"port", b"1", b"name", b"y"]]) == RoutedCommand(
        ("c", 3), command
    )
    with pytest.raises(StopIteration) as end:
        steps.send([b"h", b"6379"])
    assert end.value.value == ("h", 6379)
    steps = sentinels.master(awaited)
    assert steps.send(None) == RoutedCommand(("c", 3), command)  # the Sentinel that knew the master
    assert steps.throw(StoreError("x")).address == ("a", 1)
    steps.send(None)
    assert steps.send([[b"name", b"x"], [b"name", b"y"]]).address == ("b", 2)
    with pytest.raises(
        StoreError, match=r"^Sentinel c:3: x; Sentinel a:1: no service 's'; there are 'x', 'y'; Sentinel b:2: y$"
    ):
        steps.throw(StoreError("y"))


@pytest.mark.promise(9)
@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis+sentinel://h:1", "names no service"),
        ("redis+sentinel://h:1/", "names no service"),
        ("redis+sentinel://h:1/?db=1", "names no service"),
        ("redis+sentinel:///s", "cannot be read"),
        ("redis+sentinel://h:1,/s", "cannot be read"),
        ("redis+sentinel://h:x/s", "cannot be read"),
        ("redis+sentinel://h:1/s/x", "cannot be read"),
        ("redis+sentinel://h:1/s/1/2", "cannot be read"),
        ("redis+sentinel://u:se/cret@h:1/s", "cannot be read"),
        ("redis+sentinel://h:1/s?no_such=1", "cannot be read"),
        ("rediss+sentinel://h:1/s?sentinel_passwort=secret", "cannot be read"),
    ],
)
def test_invalid_url_is_a_config_error_without_the_password(kind: Any, url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^store: the URL {message}, expected redis") as caught:
        kind(url)
    assert "cret" not in str(caught.value)


def test_default_port_of_a_sentinel_is_26379() -> None:
    async def ask() -> str:
        store = AsyncRedisStore("redis+sentinel://[::1]/s", timeout=5)
        with pytest.raises(StoreError) as caught:
            await store.atake(CHARGES)
        await store.aclose()
        return str(caught.value)

    assert asyncio.run(ask()).startswith("cannot connect: Sentinel ::1:26379: ")

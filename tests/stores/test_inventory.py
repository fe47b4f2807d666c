"""Tests the inventory of a store on a server: the keys of its buckets, and the refused clients."""

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from redis.cluster import RedisCluster as ClusterClient

from ratelimit_mw import Charge, FixedWindow, SlidingWindowLog, StoreError
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.inventory import AsyncInventory, Inventory, Refusal
from ratelimit_mw.stores.kept_overrides import KeptOverrides
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from redis_cluster import RedisCluster
from redis_servers import RedisServer, free_port

pytestmark = pytest.mark.one_redis

PATIENT = 5.0  # seconds
LIMIT = FixedWindow(10, 3600)
LATEST = [
    Refusal("{a}:login", "5/60s using gcra", 1_700_000_000.25, 1.5),
    Refusal("{ip=\udc80\x1b[2J}:rule", "1 at once", 1_700_000_001.0, math.inf),
]


@pytest.fixture
def one(redis_server: RedisServer) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_server.url, timeout=PATIENT)) as store:
        yield store


@pytest.fixture
def several(redis_cluster: RedisCluster) -> Iterator[RedisStore]:
    with closing(RedisStore(redis_cluster.url, timeout=PATIENT)) as store:
        yield store


def listed(store: Inventory) -> set[str]:
    return {key for page in store.list_keys() for key in page.keys}


def test_a_redis_store_is_an_inventory(redis_server: RedisServer) -> None:
    assert isinstance(RedisStore(redis_server.url), Inventory)
    assert isinstance(AsyncRedisStore(redis_server.url), AsyncInventory)


def all_keys_of_all_servers_are_listed_and_no_others(store: RedisStore, url: str) -> None:
    charges = [Charge(f"{{{number}}}:r", LIMIT) for number in range(2500)]
    charges.append(Charge("{ip=é}:log", SlidingWindowLog(3, 60, name="named")))
    for start in range(0, len(charges), 500):
        store.take(charges[start : start + 500])
    pages = list(store.list_keys())
    assert {key for page in pages for key in page.keys} == {f"{one.key}:{one.limit.bucket}" for one in charges}
    assert len(pages) >= 3
    seen = [page.seen for page in pages]
    assert seen == sorted(seen)
    assert seen[0] < 0.9
    assert [one for one in seen if one == 1.0] == [seen[-1]]


def test_an_empty_store_lists_one_empty_page(one: RedisStore) -> None:
    assert [(page.keys, page.seen) for page in one.list_keys()] == [([], 1.0)]


def test_a_prefix_with_wildcards_lists_only_its_own_keys(redis_server: RedisServer) -> None:
    with (
        closing(RedisStore(redis_server.url, prefix="a*[b]?\\:", timeout=PATIENT)) as store,
        closing(RedisStore(redis_server.url, prefix="axb?\\:", timeout=PATIENT)) as other,
        Redis.from_url(redis_server.url) as client,
    ):
        store.take([Charge("{k}:mine", LIMIT)])
        other.take([Charge("{k}:other", LIMIT)])
        client.set(b"a*[b]?\\:1:{\xff}", "x")  # not UTF-8
        client.set("a*[b]?\\:1:other program", "x")
        assert listed(store) == {f"{{k}}:mine:{LIMIT.bucket}"}


def refusals_are_added_up_and_the_highest_are_kept(store: RedisStore, url: str) -> None:
    since = time.time()
    store.add_refused({"{a}:login": 3, "{ip=\udc80\x1b[2J}:rule": 1}, [])
    store.add_refused({"{a}:login": 4}, [])
    assert store.most_refused(since) == {"{a}:login": 7, "{ip=\udc80\x1b[2J}:rule": 1}
    store.add_refused({f"{{{number}}}:r": 2 for number in range(1200)}, [])
    counts = store.most_refused(since)
    assert counts["{a}:login"] == 7
    assert len(counts) in (1000, 1002)  # 1,000 for each minute; a minute may have begun in between
    assert store.most_refused(time.time() + 180) == {}


def the_latest_refusals_come_in_order_and_once(store: RedisStore, url: str) -> None:
    assert store.latest_refusals(None, 10) == []
    store.add_refused({}, LATEST)
    first, second = store.latest_refusals(None, 10)
    assert [first.refusal, second.refusal] == LATEST
    assert store.latest_refusals(None, 1) == [second]
    assert store.latest_refusals(first.number, 10) == [second]
    assert store.latest_refusals(second.number, 10) == []


def test_about_10000_of_the_latest_refusals_are_kept(one: RedisStore, redis_server: RedisServer) -> None:
    one.add_refused({}, [LATEST[0]] * 12_000)
    with Redis.from_url(redis_server.url) as client:
        assert 10_000 <= client.xlen("rl:1:{tail}") < 10_200
        assert 3_500_000 < client.pttl("rl:1:{tail}") <= 3_600_000


def test_every_key_has_a_time_to_live(one: RedisStore, redis_server: RedisServer) -> None:
    one.add_refused({"{a}:login": 3}, LATEST)
    with Redis.from_url(redis_server.url) as client:
        keys = sorted(client.keys("*"))
        assert [key.rpartition(b":")[0] for key in keys] == [b"rl:1", b"rl:1:{top}"]
        assert all(3_590_000 < client.pttl(key) <= 3_600_000 for key in keys)


def test_adding_no_refusals_writes_nothing(one: RedisStore, redis_server: RedisServer) -> None:
    one.add_refused({}, [])
    with Redis.from_url(redis_server.url) as client:
        assert client.dbsize() == 0


def an_app_under_asyncio_adds_the_same(store: RedisStore, url: str) -> None:
    async def add() -> None:
        asynchronous = AsyncRedisStore(url, timeout=PATIENT)
        await asynchronous.aadd_refused({"{a}:login": 2}, LATEST)
        await asynchronous.aclose()

    since = time.time()
    asyncio.run(add())
    assert store.most_refused(since) == {"{a}:login": 2}
    assert [one.refusal for one in store.latest_refusals(None, 10)] == LATEST


def a_client_that_was_passed_in_gives_the_same(_: RedisStore, url: str) -> None:
    is_cluster = url.startswith("redis+cluster")
    node = url.replace("redis+cluster", "redis").split(",")[0]
    opened: Redis | ClusterClient = ClusterClient.from_url(node) if is_cluster else Redis.from_url(node)
    since, store = time.time(), RedisStore(opened)
    charges = [Charge("{a}:r", LIMIT), Charge("{b}:r", LIMIT), Charge("{c}:r", LIMIT)]
    for charge in charges:
        store.take([charge])
    assert listed(store) == {f"{one.key}:{LIMIT.bucket}" for one in charges}
    store.add_refused({"{a}:login": 2}, LATEST)
    assert store.most_refused(since) == {"{a}:login": 2}
    assert [one.refusal for one in store.latest_refusals(None, 10)] == LATEST
    opened.close()


CHECKS = [
    all_keys_of_all_servers_are_listed_and_no_others,
    refusals_are_added_up_and_the_highest_are_kept,
    the_latest_refusals_come_in_order_and_once,
    an_app_under_asyncio_adds_the_same,
    a_client_that_was_passed_in_gives_the_same,
]
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)


@each_check
def test_the_inventory_works_on_a_server(
    one: RedisStore, redis_server: RedisServer, check: Callable[[RedisStore, str], None]
) -> None:
    check(one, redis_server.url)


@each_check
def test_the_inventory_works_on_a_cluster(
    several: RedisStore, redis_cluster: RedisCluster, check: Callable[[RedisStore, str], None]
) -> None:
    check(several, redis_cluster.url)


def test_documented_rights_suffice_for_apps_and_operators(redis_server: RedisServer) -> None:
    """One page has the rights of an app, and another the rights of an operator."""
    app, *_ = rules_on("docs/how-to/redis.md")
    reporting, operating = rules_on("docs/how-to/who-is-limited.md")
    log = [Charge("{a}:log", SlidingWindowLog(3, 60))]
    with RedisServer(redis_server.binary) as server:
        assert server.ask(f"ACL SETUSER ratelimit {app}") == "+OK"
        with closing(RedisStore(server.url.replace("://", "://ratelimit:a-long-password@"), timeout=PATIENT)) as store:
            store.take(log)
            with pytest.raises(StoreError):
                store.add_refused({"{a}:login": 1}, LATEST)
            assert server.ask(f"ACL SETUSER ratelimit {reporting}") == "+OK"
            store.add_refused({"{a}:login": 1}, LATEST)
            assert store.read_overrides("1") == KeptOverrides()
            for change in (lambda: store.write_overrides("", KeptOverrides("1"), b""), store.read_changes):
                with pytest.raises(StoreError):
                    change()
            with pytest.raises(StoreError):
                store.latest_refusals(None, 1)
            assert server.ask(f"ACL SETUSER ratelimit {operating}") == "+OK"
            assert store.most_refused(0) == {"{a}:login": 1}
            assert len(store.latest_refusals(store.latest_refusals(None, 2)[0].number, 2)) == 1
            assert f"{log[0].key}:{log[0].limit.bucket}" in listed(store)
            assert store.write_overrides("", KeptOverrides("1"), b"a change")
            assert (store.read_overrides("1"), store.read_changes()) == (None, [b"a change"])
            assert list(store.list_refusing(lambda _: log[0].limit))[-1].seen == 1.0


def rules_on(page: str) -> list[str]:
    """Return the rights that a page grants, without the name of the user."""
    text = (Path(__file__).resolve().parents[2] / page).read_text("utf-8")
    return re.findall(r"^ +ACL SETUSER \w+ (.*)$", text, re.MULTILINE)


def test_an_entry_of_another_program_is_a_store_error(one: RedisStore, redis_server: RedisServer) -> None:
    with Redis.from_url(redis_server.url) as client:
        client.xadd("rl:1:{tail}", {"what": "else"})
    with pytest.raises(StoreError, match="has an entry of another program"):
        one.latest_refusals(None, 10)


@pytest.mark.parametrize(
    "ask",
    [
        listed,
        lambda store: store.add_refused({"{a}:r": 1}, []),
        lambda store: store.most_refused(0),
        lambda store: store.latest_refusals(None, 1),
    ],
)
def test_an_unreachable_server_is_a_store_error(ask: Callable[[Store], Mapping[str, int]]) -> None:
    with closing(RedisStore(f"redis://127.0.0.1:{free_port()}", timeout=PATIENT)) as store, pytest.raises(StoreError):
        ask(store)

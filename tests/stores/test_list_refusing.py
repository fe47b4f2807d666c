"""Tests `keys --limited` on Redis: in each page of keys, a script finds the buckets that a peek would refuse."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import fakeredis
import pytest
from redis import Redis

from profiles import PROOF
from ratelimit_mw import Charge, FixedWindow, Limit, StoreError, admin, parse
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.inventory import KeyPage, RefusalFinder
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.stores.redis.hash_slots import slot
from ratelimit_mw.stores.redis.inventory import FoundLimits
from ratelimit_mw.testing import Clock
from redis_cluster import RedisCluster
from redis_servers import RedisServer
from stores.random_steps import RandomSteps

pytestmark = pytest.mark.one_redis

PATIENT = 5.0  # seconds
STEPS = 150 if PROOF else 50
FULL = FixedWindow(1, 3600)
TESTED_BY_TEXT = ["fixed_window", "sliding_window_counter", "gcra", "token_bucket", "leaky_bucket", "ban"]


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read about ten keys in each call."""
    monkeypatch.setattr("ratelimit_mw.stores.redis.commands.SCAN_COUNT", 10)
    monkeypatch.setattr("ratelimit_mw.stores.redis.inventory.SCAN_COUNT", 10)


def end_of(charge: Charge) -> str:
    return f"{charge.key.rpartition('}:')[2]}:{charge.limit.bucket}"


def key_of(charge: Charge) -> str:
    return f"{charge.key}:{charge.limit.bucket}"


def known(charges: list[Charge]) -> FoundLimits:
    """Return the limits that a listing has found after it has read the keys of these charges."""
    limits = {end_of(charge): charge.limit for charge in charges}
    found_limits = FoundLimits(limits.get)
    found_limits.learn([key_of(charge).encode() for charge in charges])
    return found_limits


def listed(store: RedisStore, found_limits: FoundLimits) -> list[str]:
    """Return the keys that a listing finds to refuse."""
    inner: Any = store._store
    pages: Iterator[KeyPage] = inner._pages(lambda cursor, server: inner._scan_refusing(cursor, found_limits, server))
    return sorted({key for page in pages for key in page.keys})


def finds_what_a_peek_refuses(algorithm: str, client_or_url: Any) -> None:
    refused = 0
    for seed in range(4):
        steps = RandomSteps(algorithm, seed, apart=True)
        met: dict[str, Charge] = {}
        with closing(
            RedisStore(client_or_url, clock=steps.clock, timeout=PATIENT, deny_cache=0, prefix=f"{algorithm}{seed}:")
        ) as store:
            for _ in range(STEPS):
                verb, charges = steps.next()
                decisions = getattr(store, verb)(charges)
                if verb == "take":
                    steps.heard(charges, decisions)
                met |= {key_of(charge): Charge(charge.key, charge.limit) for charge in charges}
            kept = {key for page in store.list_keys() for key in page.keys}
            expected = [key for key, one in met.items() if key in kept and not store.peek([one])[0].allowed]
            assert listed(store, known(list(met.values()))) == sorted(expected)
        refused += len(expected)
    assert refused > 0


each_algorithm = pytest.mark.parametrize("algorithm", SCRIPTED)


@each_algorithm
def test_redis_lists_the_keys_that_a_peek_refuses(algorithm: str, redis_server: RedisServer) -> None:
    finds_what_a_peek_refuses(algorithm, redis_server.url)


@each_algorithm
def test_cluster_lists_the_keys_that_a_peek_refuses(algorithm: str, redis_cluster: RedisCluster) -> None:
    finds_what_a_peek_refuses(algorithm, redis_cluster.url)


@pytest.mark.parametrize("algorithm", SCRIPTED if PROOF else ["gcra", "ban", "concurrency"])  # fakeredis is slow
def test_server_without_msgpack_lists_the_keys_that_a_peek_refuses(algorithm: str) -> None:
    finds_what_a_peek_refuses(algorithm, fakeredis.FakeRedis())


@pytest.mark.parametrize("algorithm", TESTED_BY_TEXT)
def test_buckets_with_room_are_read_with_one_mget_per_page(algorithm: str, redis_server: RedisServer) -> None:
    """No GET reads a single state."""
    limit = Ban(9, 3600, ban=60) if algorithm == "ban" else parse(f"9/hour using {algorithm}")[0]
    charges = [Charge(f"{{{number}}}:r", limit) for number in range(100)]
    with closing(RedisStore(redis_server.url, timeout=PATIENT)) as store, Redis.from_url(redis_server.url) as client:
        store.take(charges)
        client.config_resetstat()
        assert listed(store, known(charges)) == []
        stats = client.info("commandstats")
    assert stats["cmdstat_mget"]["calls"] == stats["cmdstat_scan"]["calls"]
    assert "cmdstat_get" not in stats


@pytest.mark.parametrize("algorithm", ["gcra", "token_bucket", "leaky_bucket"])
def test_a_full_bucket_is_listed_until_a_unit_has_drained(algorithm: str, redis_server: RedisServer) -> None:
    """A unit drains in 30 seconds."""
    clock = Clock()
    charge = Charge("{a}:r", parse(f"2/minute burst 2 using {algorithm}")[0])
    found = []
    with closing(RedisStore(redis_server.url, timeout=PATIENT, deny_cache=0, clock=clock)) as store:
        store.take([charge])
        store.take([charge])
        for seconds in (0, 20, 9.5, 0.5):
            clock.advance(seconds)
            found.append(listed(store, known([charge])))
    assert found == [[key_of(charge)]] * 3 + [[]]


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter"])
def test_a_full_window_is_listed_until_it_has_passed(algorithm: str, redis_server: RedisServer) -> None:
    clock = Clock()
    charge = Charge("{a}:r", parse(f"2/minute using {algorithm}")[0])
    found = []
    with closing(RedisStore(redis_server.url, timeout=PATIENT, deny_cache=0, clock=clock)) as store:
        for seconds in (0, 0, 59, 61):
            clock.advance(seconds)
            found.append(listed(store, known([charge])))
            if len(found) < 3:
                store.take([charge])
    assert found == [[], [], [key_of(charge)], []]


@pytest.mark.usefixtures("small_pages")
def test_listing_finds_all_full_keys_among_600_limits(redis_server: RedisServer) -> None:
    charges = [Charge(f"{{{number}}}:r{number}", FixedWindow(1 + number % 2, 3600)) for number in range(600)]
    with closing(RedisStore(redis_server.url, timeout=PATIENT)) as store:
        assert isinstance(store, RefusalFinder)
        for start in range(0, 600, 100):
            store.take(charges[start : start + 100])
        found_limits = known(charges)
        assert len(found_limits.charges) == 250
        full = {key_of(charge) for charge in charges if charge.limit == FULL}
        found = set(listed(store, found_limits))
        assert full <= found
        assert len(found) < 600
    limited = admin.keys(Settings(limits="1/minute", store=redis_server.url, store_timeout=PATIENT), limited=True)
    assert sorted(one.key for one in limited.keys) == sorted(str(number) for number in range(0, 600, 2))


@pytest.mark.usefixtures("small_pages")
def test_later_pages_use_the_limit_found_in_the_first_page(redis_server: RedisServer) -> None:
    open_to_all = [Charge(f"{{{number}}}:r", FixedWindow(2, 3600)) for number in range(300)]
    asked: list[str] = []

    def limit_of(end: str) -> Limit | None:
        asked.append(end)
        return FixedWindow(2, 3600)

    with closing(RedisStore(redis_server.url, timeout=PATIENT)) as store:
        store.take(open_to_all)
        pages = list(store.list_refusing(limit_of))
    assert asked == [end_of(open_to_all[0])]
    assert [bool(page.keys) for page in pages] == [True] + [False] * (len(pages) - 1)
    assert len(pages) > 20
    assert pages[-1].seen == 1.0


def test_a_key_that_moves_to_another_node_is_listed(redis_cluster: RedisCluster) -> None:
    charge = Charge("{a}:r", FULL)
    number, key = slot(b"a"), f"rl:1:{key_of(charge)}"
    source = redis_cluster.owner(number)
    target = next(node for node in redis_cluster.nodes if node is not source)
    ids = [node.ask("CLUSTER MYID").splitlines()[1] for node in (source, target)]
    settings = Settings(limits="1/hour", store=redis_cluster.url, store_timeout=PATIENT, plain_keys=True)
    with closing(RedisStore(redis_cluster.url, timeout=PATIENT)) as store:
        store.take([charge])
        try:
            assert target.ask(f"CLUSTER SETSLOT {number} IMPORTING {ids[0]}") == "+OK"
            assert source.ask(f"CLUSTER SETSLOT {number} MIGRATING {ids[1]}") == "+OK"
            assert source.ask(f"MIGRATE 127.0.0.1 {target.port} {key} 0 5000", timeout=10.0) == "+OK"
            assert listed(store, known([charge])) == [key_of(charge)]
            assert [one.key for one in admin.keys(settings, limited=True).keys] == ["a"]
        finally:
            target.ask(f"DEL {key}")
            for node in (source, target):
                node.ask("FLUSHALL")
                node.ask(f"CLUSTER SETSLOT {number} STABLE")


@pytest.mark.parametrize("reply", [b"OK", None, [0, []], [b"0", [], [], []]])
def test_malformed_reply_raises_store_error(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, reply: object
) -> None:
    async def answer(*_: object) -> object:
        return reply

    with closing(RedisStore(redis_server.url, timeout=PATIENT)) as store:
        monkeypatch.setattr(store._store, "_evaluate", answer)
        with pytest.raises(StoreError, match=r"the server answered .* to refusing\.lua"):
            list(store.list_refusing(lambda _: FULL))


def test_listing_skips_non_utf8_keys_and_includes_malformed_ones(redis_server: RedisServer) -> None:
    ask: Callable[[str], str] = redis_server.ask
    for key in ('"rl:1:{\\xff}:r:1/3600s_using_fixed_window"', '"rl:1:{a}:\\xff"', "rl:1:{a", "rl:1:{}:}:", "rl:1:{}"):
        assert ask(f"SET {key} x") == "+OK"
    with closing(RedisStore(redis_server.url, timeout=PATIENT)) as store:
        store.take([Charge("{a}}:r", FULL)])
        found_limits = known([Charge("{a}}:r", FULL)])
        assert listed(store, found_limits) == ["{a", "{a}}:r:1/3600s_using_fixed_window", "{}", "{}:}:"]

"""Runs the store suite for each store of this package. Async stores run in an event loop of their own."""

from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
from fakeredis import aioredis

from ratelimit_mw import Charge, ConfigError, FixedWindow, LeakyBucket, MemoryStore, TokenBucket
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock, RecordingStore
from ratelimit_mw.testing.blocking import blocking
from ratelimit_mw.testing.store_suite import StoreSuite
from redis_cluster import RedisCluster

pytestmark = [pytest.mark.promise(1), pytest.mark.promise(2)]

BUCKET = TokenBucket(10, 10, burst=5)


class OwnSuite(StoreSuite):
    """The store suite, and tests of what only the stores of this package guarantee."""

    def test_store_can_be_used_again_after_close(self, store: Store) -> None:
        store.take([Charge("k", BUCKET)])
        store.close()
        assert store.take([Charge("other", BUCKET)])[0].allowed

    def test_decision_about_a_shared_bucket_depends_on_at_once(self, store: Store) -> None:
        """`at_once` does not change the state, so both limits use one bucket. They admit different amounts at once."""
        queue, none = LeakyBucket(10, 10, max_delay=5, at_once=4), FixedWindow(1, 10)
        store.take([Charge("k", LeakyBucket(10, 10, max_delay=5), 1), Charge("n", none)])
        for limit, remaining in ((queue, 9), (LeakyBucket(10, 10, max_delay=5), 0)):
            room, refused = store.take([Charge("k", limit), Charge("n", none)])
            assert (room.allowed, room.remaining, refused.allowed) == (True, remaining, False)
            assert room == store.peek([Charge("k", limit, 0)])[0]

    def test_config_error_names_the_invalid_charge(self, store: Store) -> None:
        with pytest.raises(ConfigError, match=r"charges\[1\].*same bucket"):
            store.take([Charge("k", BUCKET), Charge("k", BUCKET, role="shadow")])
        for verb in (store.take, store.peek):
            with pytest.raises(ConfigError, match=r"charges\[1\]: cost -3"):
                verb([Charge("k", BUCKET), Charge("k", BUCKET, -3, at=1)])

    def test_no_penalty_counts_during_a_ban(self, store: Store) -> None:
        limit, ban, other = (
            Charge("k", FixedWindow(1, 10)),
            Charge("p", FixedWindow(1, 600), role="penalty"),
            Charge("p", FixedWindow(5, 600), role="penalty"),
        )
        group = [limit, ban, other]
        answers = [[(one.allowed, one.remaining) for one in store.take(group)] for _ in range(3)]
        assert answers[0] == [(True, 0), (True, 1), (True, 5)]
        assert answers[1] == [(False, 0), (True, 0), (True, 4)]
        assert answers[2] == [(False, 0), (False, 0), (True, 4)]


class TestMemoryStore(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Store:
        return MemoryStore(clock=clock)


class TestMemoryStoreAsync(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Iterator[Store]:
        with blocking(MemoryStore(clock=clock)) as store:
            yield store


class TestRecordingStore(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Store:
        return RecordingStore(clock=clock)


class TestSQLiteStore(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "limits.db", clock=clock, timeout=5)
        yield store
        store.close()


class TestSQLiteStoreAsync(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock, tmp_path: Path) -> Iterator[Store]:
        with blocking(SQLiteStore(tmp_path / "limits.db", clock=clock, timeout=5)) as store:
            yield store


class TestRedisStore(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock, redis_url: str) -> Iterator[Store]:
        store = RedisStore(redis_url, clock=clock, timeout=5)
        yield store
        store.close()


class TestAsyncRedisStore(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock, redis_url: str) -> Iterator[Store]:
        with blocking(AsyncRedisStore(redis_url, clock=clock, timeout=5)) as store:
            yield store


class TestFakeRedis(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Iterator[Store]:
        with fakeredis.FakeRedis() as client:
            yield RedisStore(client, clock=clock, timeout=5)


class TestAsyncFakeRedis(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Iterator[Store]:
        client = aioredis.FakeRedis()
        with blocking(AsyncRedisStore(client, clock=clock, timeout=5)) as store:
            yield store


class TestRedisCluster(OwnSuite):
    """The keys are in different slots, so most groups take several calls."""

    @pytest.fixture
    def store(self, clock: Clock, redis_cluster: RedisCluster) -> Iterator[Store]:
        store = RedisStore(redis_cluster.url, clock=clock, timeout=5)
        yield store
        store.close()


class TestAsyncRedisCluster(OwnSuite):
    @pytest.fixture
    def store(self, clock: Clock, redis_cluster: RedisCluster) -> Iterator[Store]:
        with blocking(AsyncRedisStore(redis_cluster.url, clock=clock, timeout=5)) as store:
            yield store

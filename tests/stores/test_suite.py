"""The suite of every store, over each store of this package; the asynchronous ones through a loop of their own."""

from collections.abc import Iterator

import fakeredis
import pytest
from fakeredis import aioredis

from ratelimit_mw import MemoryStore
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore
from stores.blocking import blocking
from stores.store_suite import StoreSuite

pytestmark = [pytest.mark.promise(1), pytest.mark.promise(2)]


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Store:
        return MemoryStore(clock=clock)


class TestMemoryStoreAsync(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Iterator[Store]:
        with blocking(MemoryStore(clock=clock)) as store:
            yield store


class TestRecordingStore(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Store:
        return RecordingStore(clock=clock)


class TestRedisStore(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock, redis_url: str) -> Iterator[Store]:
        store = RedisStore(redis_url, clock=clock, timeout=5)
        yield store
        store.close()


class TestAsyncRedisStore(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock, redis_url: str) -> Iterator[Store]:
        with blocking(AsyncRedisStore(redis_url, clock=clock, timeout=5)) as store:
            yield store


class TestFakeRedis(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Iterator[Store]:
        with fakeredis.FakeRedis() as client:
            yield RedisStore(client, clock=clock, timeout=5)


class TestAsyncFakeRedis(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Iterator[Store]:
        client = aioredis.FakeRedis()
        with blocking(AsyncRedisStore(client, clock=clock, timeout=5)) as store:
            yield store

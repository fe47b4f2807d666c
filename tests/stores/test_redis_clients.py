"""A store uses a redis-py client as it is configured, with either protocol. Also tests the database of a URL."""

import asyncio
import logging
from typing import Any

import pytest
import redis.asyncio
from redis import Redis

from ratelimit_mw import Charge, ConfigError, SlidingWindowCounter, TokenBucket
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore

BUCKET = TokenBucket(10, 10, burst=5)
WINDOW = SlidingWindowCounter(10, 10)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"protocol": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_store_uses_a_given_client_and_does_not_close_it(options: dict[str, Any], redis_url: str) -> None:
    with Redis.from_url(redis_url, **options, socket_timeout=5) as client:
        store = RedisStore(client, timeout=5)
        (decision,) = store.take([Charge("k", BUCKET, 2)])
        store.settle([Charge("k", BUCKET, -1, at=decision.at)])
        assert store.take([Charge("k", BUCKET), Charge("k", WINDOW, 11)])[1].retry_after == float("inf")
        store.reset([Charge("other", BUCKET)])
        store.close()
        assert store.peek([Charge("k", BUCKET, 0)])[0].remaining == 4
        assert client.ping()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_async_store_uses_a_given_client_and_does_not_close_it(options: dict[str, Any], redis_url: str) -> None:
    async def use() -> None:
        async with redis.asyncio.Redis.from_url(redis_url, **options) as client:
            store = AsyncRedisStore(client, timeout=5)
            (decision,) = await store.atake([Charge("k", BUCKET, 2)])
            await store.asettle([Charge("k", BUCKET, -1, at=decision.at)])
            await store.areset([Charge("other", BUCKET)])
            await store.aclose()
            assert (await store.apeek([Charge("k", BUCKET, 0)]))[0].remaining == 4
            assert await client.ping()

    asyncio.run(use())


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("kind", "client"),
    [
        (RedisStore, Redis(decode_responses=True)),
        (RedisStore, Redis(decode_responses=True, protocol=3)),
        (AsyncRedisStore, redis.asyncio.Redis(decode_responses=True)),
    ],
)
def test_client_that_decodes_replies_is_a_config_error(kind: Any, client: Any) -> None:
    with pytest.raises(ConfigError, match=r"^client_or_url: got .* decode_responses=True, .* without decode_responses"):
        kind(client)


def test_client_with_a_longer_timeout_than_the_store_logs_a_warning(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Redis.from_url(redis_url, socket_timeout=0.01) as quick:
        RedisStore(quick)
    assert caplog.records == []
    with Redis.from_url(redis_url, socket_timeout=None) as slow:
        RedisStore(slow)
    assert [(record.name, record.levelno) for record in caplog.records] == [("ratelimit_mw", logging.WARNING)]
    assert "socket_timeout" in caplog.text


@pytest.mark.promise(9)
@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
@pytest.mark.parametrize("path", ["/x", "/-1", "/1/2", "/0x1", "/%2d1", "?db=-1", "?db=x", "/1?db=-1"])
def test_invalid_database_in_a_url_is_a_config_error(path: str, kind: Any) -> None:
    """The client library would use another database instead."""
    with pytest.raises(ConfigError, match="with a number from 0 as DB"):
        kind(f"redis://localhost{path}")


@pytest.mark.parametrize(("path", "database"), [("", 0), ("/", 0), ("/3", 3), ("/3/", 3), ("/%33", 3), ("/?db=3", 3)])
def test_store_uses_the_database_of_its_url(path: str, database: int, redis_url: str) -> None:
    server = redis_url.rpartition("/")[0]
    store = RedisStore(server + path, timeout=5)
    store.take([Charge("k", BUCKET)])
    store.close()
    with Redis.from_url(server, db=database) as client:
        assert client.dbsize() == 1
        client.flushdb()


def test_unix_socket_path_is_not_read_as_a_database() -> None:
    RedisStore("unix:///run/redis/server.sock?db=2")


def test_async_take_adds_no_coroutine_of_the_store() -> None:
    """A coroutine would cost each request as much time as the deny cache and the circuit breaker."""

    async def use() -> None:
        inner = AsyncRedisStore("redis://localhost")._store
        assert isinstance(inner.start_take([Charge("k", BUCKET)]), asyncio.Future)
        await inner.aclose()

    asyncio.run(use())

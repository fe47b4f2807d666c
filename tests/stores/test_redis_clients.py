"""Clients handed in: used as they are, whatever they decode and whichever protocol they speak."""

import asyncio
import logging
from typing import Any

import pytest
import redis.asyncio
from redis import Redis

from ratelimit_mw import Charge, SlidingWindowCounter, TokenBucket
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore

BUCKET = TokenBucket(10, 10, burst=5)
WINDOW = SlidingWindowCounter(10, 10)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"decode_responses": True},
    {"protocol": 3},
    {"protocol": 3, "decode_responses": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_client_handed_in_is_used_as_it_is_and_not_closed(options: dict[str, Any], redis_url: str) -> None:
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
def test_an_async_client_handed_in_is_used_as_it_is_and_not_closed(options: dict[str, Any], redis_url: str) -> None:
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


def test_a_client_that_waits_longer_than_the_store_may_is_warned_about(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Redis.from_url(redis_url, socket_timeout=0.01) as quick:
        RedisStore(quick)
    assert caplog.records == []
    with Redis.from_url(redis_url, socket_timeout=None) as slow:
        RedisStore(slow)
    assert [(record.name, record.levelno) for record in caplog.records] == [("ratelimit_mw", logging.WARNING)]
    assert "socket_timeout" in caplog.text

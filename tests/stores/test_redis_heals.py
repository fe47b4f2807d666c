"""What a server forgot, or what somebody else wrote under our keys, counts as nothing and heals."""

import struct
from collections.abc import Callable

import pytest
from redis import Redis

from ratelimit_mw import Charge, SlidingWindowCounter, TokenBucket
from ratelimit_mw.stores.redis import RedisStore

BUCKET = TokenBucket(10, 10, burst=5)
WINDOW = SlidingWindowCounter(10, 10)


@pytest.mark.promise(8)
@pytest.mark.parametrize(("scripts", "used"), [(True, 1), (False, 0)])
def test_forgotten_scripts_and_states_heal(redis_store: RedisStore, client: Redis, used: int, *, scripts: bool) -> None:
    (decision,) = redis_store.take([Charge("k", WINDOW)])
    forget = client.script_flush if scripts else client.flushall
    forget()
    assert redis_store.take([Charge("k", WINDOW)])[0].remaining == 9 - used
    forget()
    redis_store.settle([Charge("k", WINDOW, -1, at=decision.at)])
    assert redis_store.peek([Charge("k", WINDOW, 0)])[0].remaining == 10 - used


def numbers(*values: float) -> Callable[[Redis, bytes], object]:
    return lambda client, key: client.set(key, struct.pack(f"<{len(values)}d", *values))


NOW = 1_700_000_000_000_000
GARBAGE: dict[str, Callable[[Redis, bytes], object]] = {
    "a list": lambda client, key: client.rpush(key, "1", "2"),
    "a hash": lambda client, key: client.hset(key, "1", "2"),
    "a sorted set": lambda client, key: client.zadd(key, {"1": 2}),
    "empty": lambda client, key: client.set(key, b""),
    "text": lambda client, key: client.set(key, b"5 1700000000000000"),
    "15 bytes": lambda client, key: client.set(key, b"\xff" * 15),
    "16 bytes of ones": lambda client, key: client.set(key, b"\xff" * 16),
    "24 bytes of ones": lambda client, key: client.set(key, b"\xff" * 24),
    "NaN": numbers(float("nan"), NOW),
    "NaN as time": numbers(5, float("nan")),
    "inf": numbers(float("inf"), NOW),
    "inf as time": numbers(5, float("inf")),
    "negative": numbers(-5, NOW),
    "negative time": numbers(5, -NOW),
    "fraction": numbers(5_000_000.5, NOW),
    "fraction as time": numbers(5_000_000, NOW + 0.5),
    "too large": numbers(2.0**54, NOW),
    "three, NaN": numbers(NOW, float("nan"), 5),
    "three, inf": numbers(NOW, 5, float("inf")),
    "three, negative": numbers(NOW, -5, 5),
    "three, fraction": numbers(NOW, 5, 0.5),
}


@pytest.mark.promise(8)
@pytest.mark.parametrize("limit", [BUCKET, WINDOW], ids=["token_bucket", "sliding_window_counter"])
@pytest.mark.parametrize("garbage", GARBAGE)
def test_wrong_types_and_garbage_count_as_nothing_and_heal(
    limit: "TokenBucket | SlidingWindowCounter", garbage: str, redis_store: RedisStore, client: Redis
) -> None:
    charge = Charge("k", limit)
    (fresh,) = redis_store.take([charge])
    (key,) = client.scan_iter()
    client.delete(key)
    GARBAGE[garbage](client, key)
    redis_store.settle([Charge("k", limit, -1, at=fresh.at)])  # nothing there to give back
    (shown,) = redis_store.peek([charge])
    (healed,) = redis_store.take([charge])
    assert (shown.allowed, shown.remaining, healed.remaining) == (True, fresh.remaining, fresh.remaining)
    assert redis_store.take([charge])[0].remaining == fresh.remaining - 1
    assert 0 < client.pttl(key) <= 20_001


def test_garbage_is_reset(redis_store: RedisStore, client: Redis) -> None:
    client.rpush("rl:1:k:10/10s_using_sliding_window_counter", 1)
    redis_store.reset([Charge("k", WINDOW)])
    assert client.dbsize() == 0

"""Tests which keys a Redis store writes, when they expire, and how many commands the store sends."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from ratelimit_mw import (
    GCRA,
    Charge,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock

BUCKET = TokenBucket(10, 10, burst=5)
WINDOW = SlidingWindowCounter(10, 10)
HOUR = 3_600_000  # milliseconds


def calls(client: Redis, command: str) -> int:
    """Return how often the server received this command since its statistics were reset."""
    statistics: dict[str, dict[str, int]] = client.info("commandstats")
    return statistics.get(f"cmdstat_{command}", {"calls": 0})["calls"]


def test_redis_key_contains_format_bucket_key_and_limit(redis_store: RedisStore, client: Redis) -> None:
    redis_store.take(
        [Charge("{0123}:login", BUCKET), Charge("{0123}:login", SlidingWindowCounter(5, 0.25, name="quick"))]
    )
    assert {key.decode() for key in client.scan_iter()} == {
        "rl:1:{0123}:login:10/10s_burst_5_using_token_bucket",
        "rl:1:{0123}:login:quick:5/250000us_using_sliding_window_counter",
    }


def test_stores_with_different_prefixes_share_no_bucket(redis_store: RedisStore, redis_url: str) -> None:
    other = RedisStore(redis_url, timeout=5, prefix="other:")
    redis_store.take([Charge("k", BUCKET, 5)])
    assert other.take([Charge("k", BUCKET)])[0].remaining == 4
    other.close()


@pytest.mark.promise(6)
@pytest.mark.parametrize(
    ("limit", "life"),  # life: microseconds after one hit until the state has no effect
    [
        (TokenBucket(7, 1), 142_858),
        (TokenBucket(1, 0.000001), 1),
        (TokenBucket(1, 1), 1_000_000),
        (TokenBucket(999_999_937, 24 * 3600, burst=3), 100_000),
        (SlidingWindowCounter(7, 1), 2_000_000),
        (SlidingWindowCounter(7, 1, buckets=3), 4 * 333_334),
        (SlidingWindowCounter(10**9, 24 * 3600), 2 * 24 * 3600 * 1_000_000),
        (FixedWindow(7, 1.0005), 1_000_500),
        (SlidingWindowLog(7, 1.0005), 1_000_500),
        (GCRA(7, 1), 142_858),
        (GCRA(999_999_937, 24 * 3600, burst=3), 100_000),
        (LeakyBucket(7, 1), 142_858),
        (Smooth(7, 1), 142_858),
        (Smooth(7, 1, max_burst=0), 142_858),
        (Smooth(2, 1, warmup=4), 1_375_000 + 500_000),
        (LeakyBucket(999_999_937, 24 * 3600, burst=3), 100_000),
    ],
)
def test_ttl_with_an_injected_clock_is_the_state_life_and_an_hour(
    limit: Limit, life: int, redis_url: str, client: Redis
) -> None:
    store = RedisStore(redis_url, timeout=5, clock=Clock())  # an injected clock may step back, so keys live longer
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        store.take([Charge("k", limit)])
        written = next(command for command in said(monitor) if command.startswith(("SET ", "PEXPIRE ")))
    assert written.split()[-1] == str(-(-life // 1000) + 1 + HOUR)
    store.close()


def said(monitor: Any) -> Iterator[str]:
    """Yield each command that the server runs, including those in scripts."""
    while True:
        yield monitor.next_command()["command"]


@pytest.mark.promise(6)
def test_expiry_with_the_server_clock_is_an_instant_rounded_up(redis_store: RedisStore, client: Redis) -> None:
    redis_store.peek([Charge("k", WINDOW, 0)])  # sends the script to the server
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        (decision,) = redis_store.take([Charge("k", FixedWindow(7, 1.0005))])
        written = next(command for command in said(monitor) if command.startswith("SET "))
    assert written.split()[-2:] == ["PXAT", str(-(-(decision.at + 1_000_500) // 1000))]


@pytest.mark.promise(6)
def test_ttl_with_the_server_clock_has_no_extra_hour(redis_store: RedisStore, client: Redis) -> None:
    (decision,) = redis_store.take([Charge("k", TokenBucket(1, 3600))])
    (key,) = client.scan_iter()
    assert decision.reset_after == 3600.0
    assert 0 < client.pttl(key) <= HOUR + 1


ENDS = """
local state, left = redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])
local time = redis.call('TIME')
return {state, time[1] * 1000 + (time[2] - time[2] % 1000) / 1000 + left}
"""


@pytest.mark.promise(6)
@pytest.mark.parametrize(
    ("limit", "start", "life"),  # start: index of the window's start in the state; life: milliseconds from that start
    [
        (FixedWindow(100_000, 0.05), 1, 50),
        (SlidingWindowCounter(100_000, 0.05), 0, 100),
        (SlidingWindowCounter(100_000, 0.05, buckets=2), 0, 75),
    ],
)
def test_key_expires_with_its_window_after_repeated_writes(
    limit: Limit, start: int, life: int, redis_store: RedisStore, client: Redis
) -> None:
    seen: dict[float, int] = {}
    late: list[float] = []
    for _ in range(20_000):
        redis_store.take([Charge("k", limit)])
        state, ends = client.eval(ENDS, 1, f"rl:1:k:{limit.bucket}")
        if state is not None:  # otherwise the key expired before the read
            began = struct.unpack(f"<{len(state) // 8}d", state)[start]
            seen[began] = seen.get(began, 0) + 1
            late.append(ends - (began / 1000 + life))
            assert late[-1] >= -1  # milliseconds; PTTL is rounded, and two clocks are compared
        if len(seen) > 3 and max(seen.values()) > 1:  # on a busy machine a window may see one write
            break
    assert min(late) <= 2
    assert max(seen.values()) > 1  # the store wrote some keys again in their window
    assert len(seen) > 3  # new windows began


@pytest.mark.promise(1)
@pytest.mark.parametrize("charges", [1, 2, 20])
def test_each_call_sends_one_evalsha_for_any_number_of_charges(
    charges: int, redis_store: RedisStore, client: Redis
) -> None:
    group = [Charge(f"k{number % 7}", WINDOW if number % 2 else BUCKET, 0) for number in range(charges)]
    redis_store.take(group)
    client.config_resetstat()
    for verb in (redis_store.take, redis_store.peek):
        verb(group)
    assert (calls(client, "evalsha"), calls(client, "eval"), calls(client, "script|load")) == (2, 0, 0)


def test_calls_that_charge_nothing_write_no_key(redis_store: RedisStore, client: Redis) -> None:
    redis_store.take([Charge("k", BUCKET, 0), Charge("k", WINDOW, 0)])
    redis_store.take([Charge("k", BUCKET, 6), Charge("k", WINDOW)])
    redis_store.peek([Charge("k", BUCKET), Charge("k", WINDOW)])
    redis_store.settle([Charge("k", BUCKET, -1, at=1), Charge("k", WINDOW, -1, at=1)])
    assert client.dbsize() == 0


def test_full_refund_leaves_no_key(redis_store: RedisStore, client: Redis) -> None:
    group = [Charge("k", BUCKET, 2), Charge("k", WINDOW, 2)]
    decisions = redis_store.take(group)
    assert client.dbsize() == 2
    redis_store.settle([Charge("k", c.limit, -2, at=d.at) for c, d in zip(group, decisions, strict=True)])
    assert client.dbsize() == 0

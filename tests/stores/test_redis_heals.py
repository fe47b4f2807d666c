"""The store treats states that the server lost, or that another program overwrote, as empty, and repairs them."""

import math
import struct
from collections.abc import Callable

import pytest
from redis import Redis

from algorithms.at_once import TAKEN, at_once
from ratelimit_mw import Charge, Limit, SlidingWindowLog
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock


def limit_of(kind: type[Limit]) -> Limit:
    return kind(10, 10, burst=5) if issubclass(kind, BucketLimit) else at_once(kind, 10, 10)


each_algorithm = pytest.mark.parametrize("limit", [limit_of(kind) for kind in TAKEN.values()], ids=TAKEN)


@pytest.mark.promise(8)
@each_algorithm
@pytest.mark.parametrize(("scripts", "used"), [(True, 1), (False, 0)])
def test_store_recovers_from_flushed_scripts_and_data(
    limit: Limit, redis_store: RedisStore, client: Redis, used: int, *, scripts: bool
) -> None:
    most = redis_store.peek([Charge("k", limit, 0)])[0].remaining
    (decision,) = redis_store.take([Charge("k", limit)])
    forget = client.script_flush if scripts else client.flushall
    forget()
    assert redis_store.take([Charge("k", limit)])[0].remaining == most - 1 - used
    forget()
    redis_store.settle([Charge("k", limit, -1, at=decision.at)])
    assert redis_store.peek([Charge("k", limit, 0)])[0].remaining == most - used


def numbers(*values: float) -> Callable[[Redis, bytes], object]:
    return lambda client, key: client.set(key, struct.pack(f"<{len(values)}d", *values))


NOW = 1_700_000_000_000_000
UNIT = f"{1:016}"  # the form of the names of a log's units


def server_now(client: Redis) -> int:
    seconds, microseconds = client.time()
    return int(seconds) * 1_000_000 + int(microseconds)


def unit(name: str = UNIT, score: float | None = None, later: float = 0) -> Callable[[Redis, bytes], object]:
    """Return a function that writes a sorted set of one member.

    `score`: if None, it is the server's time plus `later` microseconds.
    """
    return lambda client, key: client.zadd(key, {name: server_now(client) + later if score is None else score})


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
    "fraction as first of one": numbers(NOW + 0.5),
    "foreign member": unit("abc"),
    "name of 15 digits": unit(f"{1:015}"),
    "name of 17 digits": unit(f"{1:017}"),
    "name of 16 bytes": unit("\0" * 16),
    "hexadecimal name": unit("0x00000000000001"),
    "name of hexadecimal digits": unit("00000000000000ff"),
    "name with an exponent": unit("0000000000001e15"),
    "negative name": unit("-000000000000001"),
    "name with a line after it": unit(f"{UNIT}\n"),
    "name that is no exact number": unit(str(2**53 + 1)),
    "name with no exact number after it": unit(str(2**53)),
    "fraction as score": unit(later=0.5),
    "negative score": unit(score=-NOW),
    "too large a score": unit(score=2.0**60),
    "inf as score": unit(score=math.inf),
    "-inf as score": unit(score=-math.inf),
}


def spoil(charge: Charge, garbage: str, store: RedisStore, client: Redis) -> tuple[bytes, int]:
    """Write garbage as the only key, that of this charge. Return the key, and the units that a first charge leaves."""
    client.flushall()
    (fresh,) = store.take([charge])
    (key,) = client.scan_iter()
    client.delete(key)
    GARBAGE[garbage](client, key)
    return key, fresh.remaining


@pytest.mark.promise(8)
@each_algorithm
def test_take_treats_garbage_as_an_empty_state_and_repairs_it(
    limit: Limit, redis_store: RedisStore, client: Redis
) -> None:
    for garbage in GARBAGE:
        name = f"after {garbage}"  # a new key for each case, because the deny cache may refuse an earlier key
        charge = Charge(name, limit)
        key, remaining = spoil(charge, garbage, redis_store, client)
        redis_store.settle([Charge(name, limit, -1, at=server_now(client))])  # there is nothing to refund
        (shown,) = redis_store.peek([charge])
        (healed,) = redis_store.take([charge])
        assert (shown.allowed, shown.remaining, healed.remaining) == (True, remaining, remaining), garbage
        assert redis_store.take([charge])[0].remaining == remaining - 1, garbage
        assert redis_store.take([Charge(name, limit, remaining - 1)])[0].remaining == 0, garbage
        assert not redis_store.take([charge])[0].allowed, garbage
        assert 0 < client.pttl(key) <= 2000 * limit.window + 1, garbage


@pytest.mark.promise(8)
@each_algorithm
def test_settlement_repairs_garbage(limit: Limit, redis_store: RedisStore, client: Redis) -> None:
    for garbage in GARBAGE:
        charge = Charge(f"after {garbage}", limit)
        key, remaining = spoil(charge, garbage, redis_store, client)
        redis_store.settle([Charge(charge.key, limit, 1, at=server_now(client))])
        assert redis_store.peek([charge])[0].remaining == remaining - 1, garbage
        assert 0 < client.pttl(key) <= 2000 * limit.window + 1, garbage


LOG = SlidingWindowLog(10, 10)
LOG_KEY = f"rl:1:k:{LOG.bucket}"


@pytest.mark.promise(6)
@pytest.mark.promise(8)
@pytest.mark.parametrize(("units", "allowed", "left"), [(1, True, 8), (9, True, 0), (10, False, 0), (2500, False, 0)])
def test_log_units_from_the_future_count_as_taken_now(
    redis_store: RedisStore, client: Redis, units: int, left: int, *, allowed: bool
) -> None:
    ahead = server_now(client) + 10**15
    client.zadd(LOG_KEY, {f"{number:016}": ahead + number for number in range(units)})
    (decision,) = redis_store.take([Charge("k", LOG)])
    assert (decision.allowed, decision.remaining) == (allowed, left)
    assert decision.retry_after == (0 if allowed else 10)
    assert client.zcount(LOG_KEY, "-inf", decision.at) == client.zcard(LOG_KEY) == units + allowed
    assert 0 < client.pttl(LOG_KEY) <= 10_001


@pytest.mark.promise(7)
def test_expired_log_units_are_dropped_beside_a_unit_from_the_future(redis_store: RedisStore, client: Redis) -> None:
    now = server_now(client)
    client.zadd(LOG_KEY, {f"{0:016}": now - 11_000_000, f"{1:016}": now + 60_000_000})
    assert redis_store.take([Charge("k", LOG)])[0].remaining == 8
    assert client.zrange(LOG_KEY, 0, -1) == [f"{1:016}".encode(), f"{2:016}".encode()]


@pytest.mark.promise(8)
@pytest.mark.parametrize(("name", "later"), [("abc", -1), ("abc", -0.5), ("0", 0), (UNIT, -0.5), ("", -5_000_000)])
def test_foreign_log_members_count_for_at_most_one_window(
    redis_url: str, client: Redis, name: str, later: float
) -> None:
    clock = Clock()
    now = round(clock.now * 1e6)
    client.zadd(LOG_KEY, {name: now + later, f"{7:016}": now})
    store = RedisStore(redis_url, clock=clock, timeout=5)
    assert store.take([Charge("k", LOG)])[0].remaining == 7
    clock.advance(10)
    assert store.take([Charge("k", LOG)])[0].remaining == 9
    assert client.zrange(LOG_KEY, 0, -1, withscores=True) == [(f"{9:016}".encode(), now + 10_000_000)]
    store.close()


@each_algorithm
def test_reset_deletes_garbage(limit: Limit, redis_store: RedisStore, client: Redis) -> None:
    spoil(Charge("k", limit), "a hash", redis_store, client)
    redis_store.reset([Charge("k", limit)])
    assert client.dbsize() == 0

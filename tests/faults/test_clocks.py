"""Tests a store on a real server with clocks that jump by an hour."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ratelimit_mw import Charge, Limit
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock
from ratelimit_mw.testing.blocking import blocking
from redis_servers import RedisServer

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(6)]

HOUR = 3600.0
WINDOW = 60.0  # seconds
QUOTA = 10


@contextmanager
def opened(server: RedisServer, clock: Clock, *, awaited: bool) -> Iterator[Store]:
    if awaited:
        with blocking(AsyncRedisStore(server.url, timeout=5, clock=clock, deny_cache=0)) as store:
            yield store
    else:
        plain = RedisStore(server.url, timeout=5, clock=clock, deny_cache=0)
        yield plain
        plain.close()


def admitted(store: Store, limit: Limit) -> int:
    """Return how many of 3 * QUOTA requests at one instant are admitted."""
    return sum(store.take([Charge("k", limit)])[0].allowed for _ in range(3 * QUOTA))


@pytest.mark.parametrize("awaited", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_clock_jump_ahead_by_an_hour_refills_one_quota(
    algorithm: str, awaited: bool, redis_server: RedisServer
) -> None:
    """The jump counts as an hour that has passed: the window is over, and one quota is available, once."""
    limit, clock = ALGORITHMS[algorithm](QUOTA, WINDOW), Clock()
    with opened(redis_server, clock, awaited=awaited) as store:
        first = admitted(store, limit)
        assert 1 <= first <= QUOTA
        clock.advance(HOUR)
        assert [admitted(store, limit), admitted(store, limit)] == [first, 0]


@pytest.mark.parametrize("awaited", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_clock_jump_back_by_an_hour_refills_nothing(algorithm: str, awaited: bool, redis_server: RedisServer) -> None:
    """Nothing is refilled, and no client waits longer than for one refill: two windows, because one slides."""
    limit, clock = ALGORITHMS[algorithm](QUOTA, WINDOW), Clock()
    with opened(redis_server, clock, awaited=awaited) as store:
        first = admitted(store, limit)
        clock.now -= HOUR
        assert admitted(store, limit) == 0
        (refused,) = store.take([Charge("k", limit)])
        assert 0 < refused.retry_after <= WINDOW
        clock.advance(2 * WINDOW)
        assert [admitted(store, limit), admitted(store, limit)] == [first, 0]

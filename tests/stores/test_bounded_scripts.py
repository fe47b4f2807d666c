"""Checks that no number from a client makes a script run long: stores write and drop units in parts."""

import asyncio
from typing import Any

import pytest
from redis import Redis

from ratelimit_mw import Charge, MemoryStore, SlidingWindowLog
from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import MOST_RECENT
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.group import in_parts
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.stores.redis.deadline import Deadline
from ratelimit_mw.stores.redis.protocol import Command
from ratelimit_mw.stores.redis.sync_transport import ServerTransport
from ratelimit_mw.stores.redis.thread_store import ThreadStore
from ratelimit_mw.stores.redis.url import connection_factory
from ratelimit_mw.testing import Clock
from stores.opened import Open, each_kind, threads

pytestmark = pytest.mark.promise(8)

LOG = SlidingWindowLog(100_000, 60)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def scripts(client: Redis) -> int:
    """Return how many scripts ran, except calls that failed because the script was not loaded."""
    stats = client.info("commandstats")
    found = [stats.get(f"cmdstat_{name}", {"calls": 0, "failed_calls": 0}) for name in ("eval", "evalsha")]
    return sum(int(one["calls"]) - int(one["failed_calls"]) for one in found)


def left(store: Store) -> int:
    return store.peek([Charge("k", LOG, 0)])[0].remaining


@each_kind
def test_a_large_settlement_is_made_in_parts_of_1000_units(
    opened: Open, redis_url: str, client: Redis, clock: Clock
) -> None:
    with opened(redis_url, clock=clock, timeout=20) as store:
        store.settle([Charge("k", LOG, 1)])  # connects, and loads the script
        client.config_resetstat()
        store.settle([Charge("k", LOG, 2500), Charge("other", LOG, 7)])
        assert scripts(client) == 3
        assert left(store) == 100_000 - 2501
        client.config_resetstat()
        store.settle([Charge("k", LOG, -2501, at=MOST_RECENT)])
        assert scripts(client) == 3
        assert left(store) == 100_000


def test_a_settlement_in_parts_caps_debt_like_the_memory_store(redis_url: str, clock: Clock) -> None:
    limit, memory = SlidingWindowLog(1500, 60), MemoryStore(clock=clock)
    with threads(redis_url, clock=clock, timeout=20) as store:
        for own in (store, memory):
            own.settle([Charge("k", limit, 3500)])
            own.settle([Charge("k", limit, -1501, at=MOST_RECENT)])
            assert own.peek([Charge("k", limit, 0)])[0].remaining == 1


@each_kind
def test_expired_units_are_dropped_in_parts(opened: Open, redis_url: str, client: Redis, clock: Clock) -> None:
    """Each charge drops up to 2,000 expired units, twice what it can add. UNLINK drops a key without other units."""
    with opened(redis_url, clock=clock, timeout=20) as store:
        for _ in range(5):
            store.take([Charge("k", LOG, 1000)])
        clock.advance(30)
        store.take([Charge("k", LOG)])
        clock.advance(30)
        (key,) = client.keys()
        sizes = []
        for _ in range(4):
            assert store.take([Charge("k", LOG)])[0].allowed
            sizes.append(client.zcard(key))
        assert sizes == [3002, 1003, 4, 5]
        assert left(store) == 100_000 - 5
        clock.advance(60)
        client.config_resetstat()
        store.take([Charge("k", LOG)])
        assert client.zcard(key) == 1
        assert client.info("commandstats")["cmdstat_unlink"]["calls"] == 1


def test_charges_of_many_units_do_not_share_a_call(redis_url: str, client: Redis) -> None:
    async def main() -> int:
        store = AsyncRedisStore(redis_url, timeout=20)
        await store.atake([Charge("first", LOG)])
        client.config_resetstat()
        found = await asyncio.gather(*(store.atake([Charge(f"k{number}", LOG, 1000)]) for number in range(20)))
        assert [decision.remaining for (decision,) in found] == [99_000] * 20
        await store.aclose()
        return scripts(client)

    assert asyncio.run(main()) == 20


@pytest.mark.parametrize(
    ("units", "parts"),
    [
        (0, [0]),
        (7, [7]),
        (1000, [1000]),
        (1001, [1000, 1]),
        (2500, [1000, 1000, 500]),
        (3000, [1000, 1000, 1000]),
        (3001, [1000, 1000, 1001]),
        (10**15, [1000, 1000, 10**15 - 2000]),
        (-2000, [-1000, -1000]),
        (-2001, [-1000, -1000, -1]),
        (-(10**15), [-1000, -1000, 2000 - 10**15]),
    ],
)
def test_units_are_split_into_parts_that_add_up(units: int, parts: list[int]) -> None:
    assert in_parts(units, SlidingWindowLog(1500, 60)) == parts


def test_units_on_a_small_quota_are_not_split() -> None:
    assert in_parts(10**15, SlidingWindowLog(5, 60)) == [10**15]


@each_kind
@pytest.mark.parametrize("units", [10**9, 9 * 10**15])
def test_settlements_of_any_size_need_three_calls(
    opened: Open, redis_url: str, client: Redis, clock: Clock, units: int
) -> None:
    limit = SlidingWindowLog(1500, 60)
    with opened(redis_url, clock=clock, timeout=20) as store:
        store.settle([Charge("other", LOG, 1)])
        client.config_resetstat()
        store.settle([Charge("k", limit, units)])
        assert scripts(client) == 3
        client.config_resetstat()
        store.settle([Charge("k", limit, -units, at=MOST_RECENT)])
        assert scripts(client) == 3
        assert store.peek([Charge("k", limit, 0)])[0].remaining == 1500


def test_many_settlements_are_split_into_several_calls(redis_url: str, client: Redis, clock: Clock) -> None:
    """A script fails for more than 727 charges, so each call has fewer."""
    with threads(redis_url, clock=clock, timeout=20) as store:
        store.settle([Charge("k", LOG, 1)])
        client.config_resetstat()
        store.settle([Charge(f"k{number}", LOG, 1) for number in range(1200)])
        assert scripts(client) == 3


class Slow(ServerTransport):
    """A transport that subtracts 15 seconds from the deadline for each call, without waiting."""

    def send(self, command: Command, deadline: Deadline, *, asking: bool = False) -> Any:
        reply = super().send(command, deadline, asking=asking)
        deadline.left -= 15.0
        if deadline.left < 0:
            raise StoreError("no answer in time")
        return reply


def test_each_call_of_a_large_settlement_has_its_own_timeout(redis_url: str, clock: Clock) -> None:
    link = Slow(connection_factory(redis_url, 20.0), 20.0)
    store = ThreadStore(link, "rl:", 20.0, clock)
    try:
        store.settle([Charge("k", LOG, 5000)])
        assert left(store) == 95_000
    finally:
        store.close()

"""Tests repeated calls of `settle`: the last cost counts, and the units of other requests stay charged."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from algorithms.at_once import YEAR
from profiles import PROOF
from ratelimit_mw import Charge, Limit, MemoryStore, Smooth, StoreError
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.limit import MOST_RECENT
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.testing import Clock
from redis_servers import RedisServer
from stores.opened import threads

SLOW = 1_000_000_000  # seconds; far less than a unit drains in one second
REQUESTS = 10_000
SOME = REQUESTS if PROOF else 1_000  # over Redis, where each request makes calls to the server
CLIENTS = 20
BUCKETS = ("token_bucket", "gcra", "leaky_bucket", "smooth")


def slow(algorithm: str) -> Limit:
    """Return a limit with room for all requests, from which nothing drains or expires during the test."""
    if algorithm == "smooth":
        return Smooth(10**6, SLOW, max_burst=SLOW)
    quota = 100_000 if algorithm == "sliding_window_log" else 10**6
    return ALGORITHMS[algorithm](quota, YEAR if algorithm == "calendar_window" else SLOW)


def small(algorithm: str) -> Limit:
    if algorithm == "smooth":
        return Smooth(100, SLOW, max_burst=SLOW)
    return ALGORITHMS[algorithm](100, YEAR if algorithm == "calendar_window" else SLOW)


def outcome_of(gate: Any, charges: Sequence[Charge], decisions: Any, *, in_app: bool = False) -> RateLimitState:
    policies = [Policy("r", charge.limit) for charge in charges]
    return RateLimitState(verdict_of(charges, decisions, "r", "store", policies), gate, in_app=in_app)


def request(
    gate: Any, store: Store, limit: Limit, cost: int, client: int = 0, *, in_app: bool = False
) -> RateLimitState:
    """Charge a request, and return the state that the app finds in it."""
    charges = [Charge(f"{{k}}{client}:r", limit, cost)]
    return outcome_of(gate, charges, store.take(charges), in_app=in_app)


def used(store: Store, limit: Limit, client: int = 0) -> int:
    (now,) = store.peek([Charge(f"{{k}}{client}:r", limit, 0)])
    return now.limit - now.remaining


def words(random: Random, most: int) -> list[int]:
    return [random.randint(0, most) for _ in range(random.randint(1, 5))]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore(clock=clock)
        return
    server: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
    server.flush()
    with threads(server.url, clock=clock, timeout=60.0) as made:
        yield made


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeated_settlements_end_with_the_exact_total(algorithm: str, store: Store, clock: Clock) -> None:
    """Time passes between the settlements, but nothing drains or leaves its window."""
    random, limit = Random(algorithm), slow(algorithm)  # noqa: S311  # tests need no secrets
    gate, total = Gate(Settings(limits=[], store=store)), [0] * CLIENTS
    for number in range(REQUESTS if isinstance(store, MemoryStore) else SOME):
        client = number % CLIENTS
        outcome = request(gate, store, limit, random.randint(0, 9), client, in_app=True)
        said = words(random, 9)
        for word in said:
            clock.advance(random.choice((0.0, 0.00001, 0.001)))
            outcome.settle(word)
        outcome.app_returned()
        total[client] += said[-1]
    assert [used(store, limit, client) for client in range(CLIENTS)] == total


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_repeated_settlements_are_exact_under_asyncio_with_redis(
    algorithm: str, redis_servers: Any, clock: Clock
) -> None:
    server: RedisServer = next(iter(redis_servers.values()))
    server.flush()
    random, limit = Random(algorithm), slow(algorithm)  # noqa: S311  # tests need no secrets
    totals: list[int] = []

    async def app(store: AsyncRedisStore, gate: AsyncGate) -> None:
        charges = [Charge("{k}0:r", limit, random.randint(0, 9))]
        outcome = outcome_of(gate, charges, await store.atake(charges), in_app=True)
        said = words(random, 9)
        for word in said:
            clock.advance(random.choice((0.0, 0.00001, 0.001)))
            outcome.settle(word)
            for _ in range(random.choice((0, 0, 1, 5))):
                await asyncio.sleep(0)
        outcome.app_returned()
        totals.append(said[-1])

    async def main() -> int:
        store = AsyncRedisStore(server.url, clock=clock, timeout=60.0)
        gate = AsyncGate(Settings(limits=[], store=store, store_timeout=60.0))
        for _ in range(SOME // 10):
            # few enough for one call: with an injected clock, a later call may have an earlier time
            await asyncio.gather(*(app(store, gate) for _ in range(10)))
            await gate.close()  # sends the settlements
        (now,) = await store.apeek([Charge("{k}0:r", limit, 0)])
        await store.aclose()
        return now.limit - now.remaining

    assert asyncio.run(main()) == sum(totals)
    assert len(totals) == SOME


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_after_the_app_returns_the_estimate_is_refunded_only_once(algorithm: str, store: Store, clock: Clock) -> None:
    """Units that a settlement added stay charged."""
    limit, gate = small(algorithm), Gate(Settings(limits=[], store=store))
    outcome = request(gate, store, limit, 10)
    found = []
    for word in (7, 7, 2, 12, 5, 30, 0):
        clock.advance(0.001)
        outcome.settle(word)
        found.append(used(store, limit))
    assert found == [7, 7, 7, 12, 12, 30, 30]


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_shadow_limit_that_would_refuse_is_not_settled(algorithm: str, store: Store) -> None:
    limit, shadow = slow(algorithm), small(algorithm)
    gate = Gate(Settings(limits=[], store=store))
    charges = [Charge("{k}0:r", limit, 101), Charge("{k}1:r", shadow, 101, role="shadow")]
    outcome = outcome_of(gate, charges, store.take(charges))
    found = []
    for actual in (150, 30):
        outcome.settle(actual)
        found.append((used(store, limit), used(store, shadow, 1)))
    assert found == [(150, 0), (79, 0)]


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_units_beyond_the_maximum_debt_are_not_refunded(algorithm: str, store: Store) -> None:
    """With debt, a bucket has room for two quotas. Other requests have charged 40 units, which stay charged."""
    random, limit = Random(algorithm), small(algorithm)  # noqa: S311  # tests need no secrets
    gate = Gate(Settings(limits=[], store=store))
    store.take([Charge("{k}0:r", limit, 40)])
    outcome = request(gate, store, limit, 1)
    for word in (1000, 59, 2000, 700, 0, 5000, 3):
        outcome.settle(word)
    for _ in range(50):
        for word in words(random, 300):
            outcome.settle(word)
        outcome.settle(random.randint(0, 59))
    store.settle([Charge("{k}0:r", limit, -99, at=MOST_RECENT)])
    assert used(store, limit) >= 100


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", [*BUCKETS, "sliding_window_log"])
def test_settlements_never_refund_units_of_other_requests(algorithm: str, clock: Clock) -> None:
    """A bucket with a request that settles many times is never emptier than one without that request."""
    random = Random(algorithm)  # noqa: S311  # tests need no secrets
    limit: Limit = Smooth(1000, 100, max_burst=100) if algorithm == "smooth" else ALGORITHMS[algorithm](1000, 100)
    for _ in range(400):
        store, without = MemoryStore(clock=clock), MemoryStore(clock=clock)
        gate = Gate(Settings(limits=[], store=store))
        outcome = request(gate, store, limit, random.randint(0, 30))
        for _ in range(12):
            clock.advance(random.choice((0.0, 0.05, 0.1, 1.0, 3.0)))
            if random.random() < 0.5:
                others = [Charge("{k}0:r", limit, random.randint(1, 20))]
                store.settle(others)
                without.settle(others)
            else:
                outcome.settle(random.randint(0, 60))
            assert used(store, limit) >= used(without, limit)


class Broken(MemoryStore):
    """A store whose settlements fail while `broken` is true."""

    broken = False

    def settle(self, charges: Sequence[Charge]) -> None:
        if self.broken:
            raise StoreError("secret")
        super().settle(charges)


@pytest.mark.parametrize("make", [Gate, AsyncGate])
def test_units_of_a_failed_settlement_are_not_refunded(make: Callable[..., Any]) -> None:
    store, limit = Broken(clock=Clock()), small("gcra")
    store.take([Charge("{k}0:r", limit, 40)])

    async def main() -> list[int]:
        outcome = request(make(Settings(limits=[], store=store, store_timeout=60.0)), store, limit, 10)
        found = []
        for word, broken in ((30, True), (15, False), (25, False), (5, False)):
            store.broken = broken
            outcome.settle(word)
            await asyncio.sleep(0.001)
            found.append(used(store, limit) - 40)
        return found

    assert asyncio.run(main()) == [10, 10, 10, 5]

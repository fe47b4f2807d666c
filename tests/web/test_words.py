"""The true cost said again and again: the last word counts, whatever was said before, and nobody else's units go."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

from profiles import PROOF
from ratelimit_mw import Charge, Limit, MemoryStore, Smooth, StoreError
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.response import Policy
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer
from stores.opened import threads

SLOW = 1_000_000_000  # seconds: what drains in a second is less than a unit by far
REQUESTS = 10_000
SOME = REQUESTS if PROOF else 1_000  # the same where each word is a call
CLIENTS = 20
BUCKETS = ("token_bucket", "gcra", "leaky_bucket", "smooth")


def slow(algorithm: str) -> Limit:
    """One with room for all requests, of which nothing drains or leaves while they come."""
    if algorithm == "smooth":
        return Smooth(10**6, SLOW, max_burst=SLOW)
    return ALGORITHMS[algorithm](100_000 if algorithm == "sliding_window_log" else 10**6, SLOW)


def small(algorithm: str) -> Limit:
    return Smooth(100, SLOW, max_burst=SLOW) if algorithm == "smooth" else ALGORITHMS[algorithm](100, SLOW)


def outcome_of(gate: Any, charges: Sequence[Charge], decisions: Any) -> RateLimitState:
    policies = [Policy("r", charge.limit) for charge in charges]
    return RateLimitState(verdict_of(charges, decisions, "r", "store", policies), gate)


def request(gate: Any, store: Store, limit: Limit, cost: int, client: int = 0) -> RateLimitState:
    """What an app finds in its request, after this was charged for it."""
    charges = [Charge(f"{{k}}{client}:r", limit, cost)]
    return outcome_of(gate, charges, store.take(charges))


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
def test_requests_that_say_it_several_times_end_with_the_exact_total(
    algorithm: str, store: Store, clock: Clock
) -> None:
    """Also while time passes between the words, in which nothing drains or leaves its window."""
    random, limit = Random(algorithm), slow(algorithm)  # noqa: S311  # tests need no secrets
    gate, total = Gate(Settings(limits=[], store=store)), [0] * CLIENTS
    for number in range(REQUESTS if isinstance(store, MemoryStore) else SOME):
        client = number % CLIENTS
        outcome = request(gate, store, limit, random.randint(0, 9), client)
        said = words(random, 9)
        for word in said:
            clock.advance(random.choice((0.0, 0.00001, 0.001)))
            outcome.settle(word)
        total[client] += said[-1]
    assert [used(store, limit, client) for client in range(CLIENTS)] == total


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_under_asyncio_over_redis_too_where_words_come_while_one_is_under_way(
    algorithm: str, redis_servers: Any, clock: Clock
) -> None:
    server: RedisServer = next(iter(redis_servers.values()))
    server.flush()
    random, limit = Random(algorithm), slow(algorithm)  # noqa: S311  # tests need no secrets
    totals: list[int] = []

    async def app(store: AsyncRedisStore, gate: AsyncGate) -> None:
        charges = [Charge("{k}0:r", limit, random.randint(0, 9))]
        outcome = outcome_of(gate, charges, await store.atake(charges))
        said = words(random, 9)
        for word in said:
            clock.advance(random.choice((0.0, 0.00001, 0.001)))
            outcome.settle(word)
            for _ in range(random.choice((0, 0, 1, 5))):
                await asyncio.sleep(0)
        totals.append(said[-1])
        for _ in range(5000):
            if outcome.request_settlements is None or not outcome.request_settlements._in_flight:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it is under way still")

    async def main() -> int:
        store = AsyncRedisStore(server.url, clock=clock, timeout=60.0)
        gate = AsyncGate(Settings(limits=[], store=store, store_timeout=60.0))
        for _ in range(SOME // 10):
            # few enough for one call: with a told clock, another one may bring an earlier time later
            await asyncio.gather(*(app(store, gate) for _ in range(10)))
        (now,) = await store.apeek([Charge("{k}0:r", limit, 0)])
        await gate.close()
        await store.aclose()
        return now.limit - now.remaining

    assert asyncio.run(main()) == sum(totals)
    assert len(totals) == SOME


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_lower_word_gives_back_what_a_higher_one_added(algorithm: str, store: Store, clock: Clock) -> None:
    limit, gate = small(algorithm), Gate(Settings(limits=[], store=store))
    outcome = request(gate, store, limit, 1)
    found = []
    for word in (30, 10, 10, 0, 20, 5, 6):
        clock.advance(0.001)
        outcome.settle(word)
        found.append(used(store, limit))
    assert found == [30, 10, 10, 0, 20, 5, 6]


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_was_forgiven_is_not_given_back(algorithm: str, store: Store) -> None:
    """Two quotas fit, with the debt; others have taken 40, which stay theirs."""
    random, limit = Random(algorithm), small(algorithm)  # noqa: S311  # tests need no secrets
    gate = Gate(Settings(limits=[], store=store))
    store.take([Charge("{k}0:r", limit, 40)])
    outcome = request(gate, store, limit, 1)
    for word in (1000, 59, 2000, 700, 0, 5000, 3):
        outcome.settle(word)
        if word < 60:
            assert used(store, limit) == 40 + word
    for _ in range(50):
        for word in words(random, 300):
            outcome.settle(word)
        outcome.settle(last := random.randint(0, 59))
        assert used(store, limit) == 40 + last


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", [*BUCKETS, "sliding_window_log"])
def test_no_word_frees_what_others_took(algorithm: str, clock: Clock) -> None:
    """A bucket in which a request says many words is never emptier than one in which it was not made at all."""
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


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_units_that_have_drained_are_not_given_back(algorithm: str, store: Store, clock: Clock) -> None:
    """A hundred in a hundred seconds: of the 30 that a word added, 20 have drained when the next one comes."""
    limit = Smooth(100, 100, max_burst=100) if algorithm == "smooth" else ALGORITHMS[algorithm](100, 100)
    gate = Gate(Settings(limits=[], store=store))
    outcome = request(gate, store, limit, 0)
    clock.advance(50)
    outcome.settle(30)
    clock.advance(20)
    assert used(store, limit) == 10
    store.take([Charge("{k}0:r", limit, 40)])
    outcome.settle(0)
    assert used(store, limit) == 40


def test_of_words_that_come_while_one_is_under_way_only_the_last_is_sent() -> None:
    limit, sent = small("gcra"), []

    class Late(RecordingStore):
        """An AsyncStore that is waited for."""

        async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
            sent.append([charge.cost for charge in charges])
            await go.wait()
            return self.settle(charges)

        async def atake(self, charges: Sequence[Charge]) -> Any:
            return self.take(charges)

    async def main() -> int:
        store = Late(clock=Clock())
        outcome = request(AsyncGate(Settings(limits=[], store=store, store_timeout=60.0)), store, limit, 1)
        for word in (30, 0, 99, 10):
            outcome.settle(word)
            await asyncio.sleep(0)
        assert sent == [[29]]
        go.set()
        for _ in range(1000):
            if used(store, limit) == 10:
                return 10
            await asyncio.sleep(0.001)
        return used(store, limit)

    go = asyncio.Event()
    assert asyncio.run(main()) == 10
    assert sent == [[29], [-20]]


class Silent(MemoryStore):
    """A store that does not say what a settle took, or fails."""

    broken = False

    def settle(self, charges: Sequence[Charge]) -> None:
        if self.broken:
            raise StoreError("secret")
        super().settle(charges)


@pytest.mark.parametrize("algorithm", ["fixed_window", *BUCKETS])
def test_a_store_that_does_not_say_what_it_took_gives_back_all_the_same(algorithm: str) -> None:
    """As if it had been taken with the request."""
    store, limit = Silent(clock=Clock()), small(algorithm)
    outcome = request(Gate(Settings(limits=[], store=store)), store, limit, 1)
    for word in (30, 10, 20, 0):
        outcome.settle(word)
        assert used(store, limit) == word


@pytest.mark.parametrize("make", [Gate, AsyncGate])
def test_what_may_not_have_been_taken_is_not_given_back(make: Callable[..., Any]) -> None:
    store, limit = Silent(clock=Clock()), small("gcra")
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

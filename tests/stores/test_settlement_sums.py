"""Settlements add up: estimates are corrected to the actual costs, and a debt is at most one quota."""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from profiles import PROOF
from ratelimit_mw import Charge, Decision, Limit, MemoryStore
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock
from redis_servers import RedisServer
from stores.opened import tasks, threads

REQUESTS = 10_000
CLIENTS = 20
MOST = 9  # units of a request
DEBTS = 400 if PROOF else 40

Opened = Iterator[Store]


def limit_of(algorithm: str) -> Limit:
    """Return a limit with room for all requests."""
    quota = 100_000 if algorithm == "sliding_window_log" else 10**7
    return ALGORITHMS[algorithm](quota, 3600)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis", "redis, asyncio"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Opened:
    if request.param == "memory":
        yield MemoryStore(clock=clock)
        return
    server: RedisServer = next(iter(request.getfixturevalue("redis_servers").values()))
    server.flush()
    opened: Callable[..., Any] = threads if request.param == "redis" else tasks
    with opened(server.url, clock=clock, timeout=5.0) as made:
        yield made


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_settlements_of_random_costs_reach_the_exact_total(algorithm: str, store: Store) -> None:
    """There are 10,000 requests of 20 clients. Each settlement has the time of its charge."""
    random, limit = Random(algorithm), limit_of(algorithm)  # noqa: S311  # tests need no secrets
    total = [0] * CLIENTS
    for _ in range(REQUESTS // CLIENTS):
        estimates = [random.randint(0, MOST) for _ in range(CLIENTS)]
        group = [Charge(f"{{all}}{client}:r", limit, cost) for client, cost in enumerate(estimates)]
        decisions = store.take(group)
        assert all(decision.allowed for decision in decisions)
        corrections = []
        for client, (charge, decision) in enumerate(zip(group, decisions, strict=True)):
            actual = random.randint(0, MOST)
            total[client] += actual
            if actual != charge.cost:
                corrections.append(Charge(charge.key, limit, actual - charge.cost, at=decision.at))
        store.settle(corrections)
    left = store.peek([Charge(f"{{all}}{client}:r", limit, 0) for client in range(CLIENTS)])
    assert [one.limit - one.remaining for one in left] == total


@pytest.mark.promise(3)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_debt_is_at_most_one_quota(algorithm: str, store: Store, clock: Clock) -> None:
    """Units beyond this debt have no effect, neither on the decision nor on the wait."""
    random, limit = Random(algorithm), ALGORITHMS[algorithm](100, 3600)  # noqa: S311  # tests need no secrets
    full = [Charge("full", limit, 0)]
    store.settle([Charge("full", limit, 1000)])
    for number in range(DEBTS):
        key, said = f"{{k}}{number}:r", 0
        while said < 200:
            said += (delta := random.randint(1, 130))
            store.settle([Charge(key, limit, delta)])
        store.settle([Charge(key, limit, 5)])
        assert store.peek([Charge(key, limit, 0)]) == store.peek(full)
        assert not store.peek([Charge(key, limit, 1)])[0].allowed


def test_peek_shows_a_ban_and_reset_ends_it(store: Store, clock: Clock) -> None:
    limit, ban = (
        Charge("{k}:r", ALGORITHMS["fixed_window"](1, 60)),
        Charge("{k}:r", Ban(2, 60, ban=900), role="penalty"),
    )
    now = round(clock.now * 1e6)
    store.take([limit, ban])
    assert store.peek([ban])[0] == Decision(True, 2, 2, 0.0, 900.0, 0.0, 0.0, now)
    store.take([limit, ban])
    assert store.peek([Charge(ban.key, ban.limit, 0)])[0] == Decision(True, 2, 1, 0.0, 900.0, 60.0, 0.0, now)
    assert store.take([limit, ban])[1] == Decision(True, 2, 0, 0.0, 900.0, 900.0, 0.0, now)
    clock.advance(100)
    assert store.peek([ban])[0] == Decision(False, 2, 0, 800.0, 800.0, 800.0, 0.0, now + 100_000_000)
    assert [one.allowed for one in store.take([limit, ban])] == [True, False]
    store.reset([ban])
    assert store.peek([ban])[0] == Decision(True, 2, 2, 0.0, 900.0, 0.0, 0.0, now + 100_000_000)
    assert [one.allowed for one in store.take([limit, ban])] == [True, True]


def test_ban_applies_in_all_stores_of_one_server(redis_servers: Any, clock: Clock) -> None:
    server: RedisServer = next(iter(redis_servers.values()))
    server.flush()
    group = [
        Charge("{k}:r", ALGORITHMS["fixed_window"](1, 3600)),
        Charge("{k}:r", Ban(2, 60, ban=900), role="penalty"),
    ]
    with (
        threads(server.url, clock=clock, timeout=5.0) as one,
        threads(server.url, clock=clock, timeout=5.0) as other,
    ):
        assert [all(d.allowed for d in store.take(group)) for store in (one, other, one)] == [True, False, False]
        clock.advance(899.999999)
        refused = other.take(group)
        assert [decision.allowed for decision in refused] == [False, False]
        assert refused[1].retry_after == 0.000001
        clock.advance(0.000001)
        assert [decision.allowed for decision in other.take(group)] == [False, True]

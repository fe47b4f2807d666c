"""Limits that take over what others counted decide alike in memory, in a file and on Redis, in any order."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import SystemRandom

import fakeredis
import pytest
from redis import Redis

from profiles import PROOF
from ratelimit_mw import (
    Charge,
    Concurrency,
    FixedWindow,
    Limit,
    Limiter,
    MemoryStore,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.takeover import KINDS, OnChange, taking_over
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock
from redis_cluster import RedisCluster
from stores.model_store import ModelStore
from stores.opener import KINDS as STORES
from stores.opener import Opener
from stores.random_steps import RandomSteps

ROUNDS = 40 if PROOF else 2
STEPS = 150  # with the same limits
SEED = int(os.environ.get("TEST_SEED", SystemRandom().randrange(10**9)))  # a failure message contains it

pytestmark = [pytest.mark.promise(5), pytest.mark.one_redis]


class RandomTurns(RandomSteps):
    """Random steps of limits that share one bucket for each client."""

    def __init__(self, algorithm: str, seed: int, on_change: OnChange, *, kind: str) -> None:
        # the file cannot hold the TAT of some quotas of gcra above a thousand units a microsecond
        self._most = 1500 if kind == "file" else 10**9
        both_ways = kind in ("msgpack", "text")  # other stores may have dropped states that had expired
        others = {"ban": Ban} if algorithm == "ban" else ALGORITHMS
        super().__init__(algorithm, seed, both_ways=both_ways, others=others)
        self._limits = [taking_over(limit, on_change, "rule~1") for limit in self._limits]

    def _limit(self, algorithm: str) -> Limit:
        while (limit := super()._limit(algorithm)).name is not None or limit.quota > self._most:
            pass
        return limit


def compare(steps: RandomTurns, store: Store, place: str) -> None:
    model = ModelStore(steps.clock)
    for number in range(STEPS):
        verb, charges = steps.next()
        expected, got = list(getattr(model, verb)(charges) or ()), list(getattr(store, verb)(charges) or ())
        assert got == expected, f"TEST_SEED={SEED}, {place}, step {number}: {verb} {charges} at {steps.clock.now}"
        if verb == "take":
            steps.heard(charges, got)


@pytest.fixture(params=STORES)
def opened(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Opener:
    return Opener(request.param, redis_url, tmp_path)


@pytest.mark.parametrize("on_change", ["used", "share"])
@pytest.mark.parametrize("algorithm", sorted({kind.algorithm for kind in KINDS}))
def test_limits_take_turns_on_each_store_as_in_the_model(opened: Opener, algorithm: str, on_change: OnChange) -> None:
    kind = opened.kind
    for turn in range(ROUNDS):
        steps = RandomTurns(algorithm, SEED + turn, on_change, kind=kind)
        with closing(opened(steps.clock, f"{algorithm}-{on_change}-{turn}")) as store:
            compare(steps, store, kind)


@pytest.mark.parametrize("algorithm", ["sliding_window_log", "gcra"])
def test_limits_take_turns_on_fakeredis_as_in_the_model(algorithm: str) -> None:
    steps = RandomTurns(algorithm, SEED, "used", kind="text")
    with fakeredis.FakeRedis() as client:
        compare(steps, RedisStore(client, clock=steps.clock, timeout=5, deny_cache=0), "fakeredis")


def test_limits_take_turns_on_several_nodes_of_a_cluster(redis_cluster: RedisCluster) -> None:
    old, new = both(SlidingWindowLog(10, 600), TokenBucket(20, 600))
    with closing(RedisStore(redis_cluster.url, timeout=5, deny_cache=0)) as store:
        groups = [[Charge(f"{{{client}}}:rule", limit, 4) for client in range(6)] for limit in (old, new, old)]
        assert [[one.remaining for one in store.take(group)] for group in groups] == [[6] * 6, [12] * 6, [2] * 6]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(opened: Opener, clock: Clock) -> Iterator[Store]:
    with closing(opened(clock, "one")) as one:
        yield one


def remaining(store: Store, limit: Limit) -> int:
    return store.peek([Charge("k", limit, 0)])[0].remaining


def both(old: Limit, new: Limit, on_change: OnChange = "used") -> tuple[Limit, Limit]:
    return taking_over(old, on_change, "rule~1"), taking_over(new, on_change, "rule~1")


def test_a_refusal_changes_nothing_so_the_old_limit_keeps_its_units(store: Store, clock: Clock) -> None:
    old, new = both(TokenBucket(100, 60), TokenBucket(20, 60))
    store.take([Charge("k", old, 100)])
    for _ in range(3):
        (refused,) = store.take([Charge("k", new)])
        assert (refused.allowed, refused.remaining) == (False, 0)
        assert refused.retry_after == pytest.approx(81 * 0.6)  # at the rate of the old limit
    assert remaining(store, old) == 0
    clock.advance(refused.retry_after)
    assert store.take([Charge("k", new)])[0].remaining == 0
    assert remaining(store, old) == 80


@pytest.mark.parametrize("at", [0, 10**7])
def test_a_correction_of_a_state_that_no_longer_counts_changes_nothing(store: Store, clock: Clock, at: int) -> None:
    old, new = both(Ban(1, 10, ban=11), Ban(100, 60, ban=3600))
    (decision,) = store.take([Charge("k", old)])
    clock.advance(12)
    store.settle([Charge("k", new, -33, at=decision.at + at)])
    assert (remaining(store, old), remaining(store, new)) == (1, 100)
    clock.now -= 5  # in the ban again
    assert (remaining(store, old), remaining(store, new)) == (0, 0)


def test_a_correction_goes_to_the_limit_that_wrote_the_state(store: Store) -> None:
    old, new = both(FixedWindow(100, 60), FixedWindow(20, 60))
    (decision,) = store.take([Charge("k", old, 60)])
    store.settle([Charge("k", new, 30)])  # with the new limit's debt of one quota, 50 units would come back
    assert remaining(store, old) == 10
    store.settle([Charge("k", new, -80, at=decision.at)])
    assert (remaining(store, old), remaining(store, new)) == (90, 10)


def test_limits_of_one_call_take_over_what_the_first_one_writes(store: Store) -> None:
    old, new = both(FixedWindow(100, 60), TokenBucket(20, 60))
    store.settle([Charge("k", old, 3), Charge("k", new, 4)])
    assert (remaining(store, old), remaining(store, new)) == (93, 13)


def test_a_reset_by_either_limit_forgets_the_units(store: Store) -> None:
    old, new = both(FixedWindow(100, 60), TokenBucket(20, 60))
    for limit, other in ((old, new), (new, old)):
        store.take([Charge("k", old, 10)])
        store.reset([Charge("k", limit)])
        assert (remaining(store, limit), remaining(store, other)) == (limit.quota, other.quota)


def test_limits_of_one_series_share_units_in_a_group_with_others(store: Store) -> None:
    old, new = both(FixedWindow(10, 60), FixedWindow(20, 60))
    other = FixedWindow(5, 60)
    assert [one.remaining for one in store.take([Charge("k", old, 4), Charge("k", other, 4)])] == [6, 1]
    group = [Charge("k", new, 4), Charge("k", other, 2)]
    assert [(one.allowed, one.remaining) for one in store.take(group)] == [(True, 16), (False, 1)]
    assert remaining(store, old) == 6  # all or nothing


def test_a_limiter_uses_such_limits_as_others(store: Store, clock: Clock) -> None:
    limiter = Limiter(store)
    old, new = both(TokenBucket(100, 60), TokenBucket(200, 60, max_delay=60.0))
    limiter.hit(old, "bob", 60)
    assert limiter.peek(new, "bob").remaining == 140
    limiter.settle(new, "bob", -10)
    assert limiter.acquire(new, "bob", 150).delay == 0.0
    assert limiter.hit(new, "bob").delay == pytest.approx(0.3)
    limiter.reset(old, "bob")
    assert limiter.peek(new, "bob").remaining == 200


@pytest.mark.parametrize("limit", [Concurrency(5), FixedWindow(5, 60)])
def test_slots_and_fresh_limits_take_over_nothing(limit: Limit) -> None:
    assert taking_over(limit, "fresh" if isinstance(limit, FixedWindow) else "used", "rule~1") is limit


def test_a_quota_of_0_admits_nothing_and_leaves_the_units(store: Store) -> None:
    old, new = both(FixedWindow(10, 60), FixedWindow(0, 60))
    store.take([Charge("k", old, 4)])
    assert not store.take([Charge("k", new)])[0].allowed
    assert remaining(store, old) == 6


@pytest.mark.parametrize("new", [FixedWindow(10, 3600), SlidingWindowCounter(10, 3600), SlidingWindowLog(10, 3600)])
@pytest.mark.parametrize("old", [FixedWindow(10, 30), TokenBucket(10, 30), SlidingWindowLog(10, 30)])
def test_a_key_lives_as_long_as_the_units_of_the_new_limit_count(redis_url: str, old: Limit, new: Limit) -> None:
    before, after = both(old, new)
    with closing(RedisStore(redis_url, timeout=5, deny_cache=0)) as store, Redis.from_url(redis_url) as client:
        store.take([Charge("k", before)])
        store.take([Charge("k", after)])
        (key,) = client.keys()
        assert 3500 < client.ttl(key) <= 7200
        assert remaining(store, after) == 8


def test_a_log_has_the_head_of_the_limit_that_wrote_it_last(redis_url: str) -> None:
    with closing(RedisStore(redis_url, timeout=5, deny_cache=0)) as store, Redis.from_url(redis_url) as client:
        for limit in both(SlidingWindowLog(10, 3600), SlidingWindowLog(20, 3600)):
            store.take([Charge("k", limit)])
            (key,) = client.keys()
            assert client.zcount(key, "-inf", "-inf") == 1
        assert remaining(store, limit) == 18


def test_the_fallback_takes_over_units_but_no_refusal_of_another_limit(clock: Clock) -> None:
    fallback = FallbackStore(0.5, clock=clock)
    old, new = both(FixedWindow(10, 60), FixedWindow(20, 60))
    fallback.take([Charge("k", old, 4)])
    refused = MemoryStore(clock=clock)
    refused.take([Charge("k", old, 10)])
    fallback.observe([Charge("k", old)], refused.take([Charge("k", old)]))
    assert fallback.take([Charge("k", old)])[0].allowed is False  # as the store refused
    assert fallback.take([Charge("k", new)])[0].remaining == 5  # of half the quota

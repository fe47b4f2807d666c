"""Compares every algorithm on every store with its exact model, and checks the waits to the microsecond."""

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings

from algorithms.models import model_of
from algorithms.strategies import both_ways, forward, of_each_algorithm
from profiles import PROOF
from ratelimit_mw import Charge, Limit, MemoryStore
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock
from ratelimit_mw.testing.walks import START, Step
from redis_cluster import RedisCluster

EXAMPLES = 400 if PROOF else 25
KEYS = itertools.count()

few = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
pytestmark = [
    pytest.mark.promise(3),
    pytest.mark.promise(4),
    pytest.mark.parametrize("algorithm", ALGORITHMS),
    pytest.mark.one_redis,
]


def hold_to_the_model(store: Store, clock: Clock, limit: Limit, steps: list[Step]) -> None:
    """Peek and take in each step. After a refusal, peek a microsecond before the wait is over, and when it is over."""
    key, model, now, last = f"{{{next(KEYS)}}}:r", model_of(limit), START, None
    for step in steps:
        now = step.time(now, limit, last)
        clock.now = now / 1_000_000
        charge = Charge(key, limit, step.cost(limit))
        expected = model.decide(now, charge.cost, limit.effective_max_delay_us)
        (seen,) = store.peek([charge])
        (last,) = store.take([charge])
        assert seen == last == expected
        if 0 < last.retry_after < math.inf:
            wait = round(last.retry_after * 1_000_000)
            clock.now = (now + wait - 1) / 1_000_000
            assert store.peek([charge])[0].retry_after == 0.000001
            clock.now = (now + wait) / 1_000_000
            assert store.peek([charge])[0].allowed


def over(make: Callable[[Clock], Store], algorithm: str, *, back: bool) -> None:
    clock = Clock()
    store = make(clock)

    @few
    @given(of_each_algorithm[algorithm], both_ways if back else forward)
    def hold(limit: Limit, steps: list[Step]) -> None:
        hold_to_the_model(store, clock, limit, steps)

    hold()
    store.close()


def test_the_memory_store_matches_the_exact_models(algorithm: str) -> None:
    """The clock does not step back here, because the store may have dropped a state that expired before."""
    over(lambda clock: MemoryStore(clock=clock), algorithm, back=False)


# Without a deny cache, so that every step queries the server: cached decisions have an old `remaining`.
def test_a_redis_server_matches_the_exact_models(algorithm: str, redis_url: str) -> None:
    over(lambda clock: RedisStore(redis_url, clock=clock, timeout=5, deny_cache=0), algorithm, back=True)


def test_a_cluster_matches_the_exact_models(algorithm: str, redis_cluster: RedisCluster) -> None:
    over(lambda clock: RedisStore(redis_cluster.url, clock=clock, timeout=5, deny_cache=0), algorithm, back=True)

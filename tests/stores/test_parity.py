"""Python and Lua return equal decisions: a model store and Redis get the same random steps, compared with `==`."""

import os
from collections.abc import Callable
from random import SystemRandom

import fakeredis
import pytest

from profiles import PROOF
from ratelimit_mw import MemoryStore
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from redis_servers import RedisServer
from stores.model_store import ModelStore
from stores.random_steps import RandomSteps

STEPS = 20_000 if PROOF else 1_000  # per algorithm and server
ON_FAKEREDIS = 500 if PROOF else 250  # fakeredis is slow
Record = Callable[[str, object], None]
ROUND = 250  # steps with the same limits
SEED = int(os.environ.get("TEST_SEED", SystemRandom().randrange(10**9)))  # a failure message contains it

pytestmark = [
    pytest.mark.promise(5),
    pytest.mark.parametrize("algorithm", SCRIPTED),
    pytest.mark.one_redis,
]


def compare(steps: RandomSteps, store: Store, seed: int) -> int:
    """Run one round of steps, and return how many decisions were compared."""
    model, count = ModelStore(steps.clock), 0
    for number in range(ROUND):
        verb, charges = steps.next()
        expected, got = list(getattr(model, verb)(charges) or ()), list(getattr(store, verb)(charges) or ())
        assert got == expected, f"TEST_SEED={seed}, step {number}: {verb} {charges} at {steps.clock.now}"
        if verb == "take":
            steps.heard(charges, got)
        count += len(got)
    return count


def compare_with_redis(algorithm: str, client_or_url: object, steps: int, place: str) -> str:
    decisions = 0
    for turn in range(steps // ROUND):
        walk = RandomSteps(algorithm, SEED + turn)
        store = RedisStore(client_or_url, clock=walk.clock, timeout=5, deny_cache=0, prefix=f"{algorithm}:{turn}:")
        decisions += compare(walk, store, SEED + turn)
        store.close()
    return f"{algorithm} on {place}: {steps} steps, {decisions} decisions, all equal"


def test_memory_store_decides_like_the_model(algorithm: str) -> None:
    """The clock does not step back here, because the memory store may have dropped expired states by then."""
    for turn in range(STEPS // ROUND):
        walk = RandomSteps(algorithm, SEED + turn, both_ways=False)
        compare(walk, MemoryStore(clock=walk.clock), SEED + turn)


def test_redis_server_decides_like_the_model(
    algorithm: str, redis_server: RedisServer, record_property: Record
) -> None:
    record_property("parity", compare_with_redis(algorithm, redis_server.url, STEPS, redis_server.version()))


def test_fakeredis_decides_like_the_model(algorithm: str, record_property: Record) -> None:
    with fakeredis.FakeRedis() as client:
        record_property("parity", compare_with_redis(algorithm, client, ON_FAKEREDIS, "fakeredis"))

"""`keep` of a limit: a charge is decided as cost + keep and takes its cost, alike in memory, in a file and in Redis."""

import random
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.limit import Charge, Limit
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock

STORES: dict[str, Callable[[str, Path, Clock], Any]] = {
    "memory": lambda _, __, clock: MemoryStore(clock=clock),
    "file": lambda _, folder, clock: SQLiteStore(str(folder / "limits.db"), timeout=5, clock=clock),
    "redis": lambda url, _, clock: RedisStore(url, timeout=5, deny_cache=0, clock=clock),
}
NOTATIONS = [
    "10/minute using fixed_window",
    "10/minute using sliding_window_counter",
    "10/minute using sliding_window_counter buckets 4 strict",
    "10/minute using sliding_window_log",
    "10/minute burst 10 using token_bucket",
    "10/minute burst 10 using gcra",
    "10/minute burst 10 using leaky_bucket",
    "10/minute using calendar_window in UTC",
]


def limits_of(notation: str) -> tuple[Limit, Limit]:
    """Return a limit, and the same with a `keep` of 4 units."""
    (limit,) = parse(notation)
    return limit, replace(limit, keep=4)


@pytest.mark.promise(4)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_a_charge_leaves_what_its_limit_keeps(kind: str, notation: str, redis_url: str, tmp_path: Path) -> None:
    """A batch job takes 6 of 10 units, and a chat the last 4. What `Retry-After` says of the batch job is true."""
    clock = Clock()
    store = STORES[kind](redis_url, tmp_path, clock)
    chat, batch = (Charge("{all}:app", limit) for limit in limits_of(notation))

    assert [store.take([batch])[0].allowed for _ in range(8)] == [True] * 6 + [False] * 2
    refused = store.peek([batch])[0]
    assert (refused.allowed, refused.remaining) == (False, 4)
    assert [store.take([chat])[0].allowed for _ in range(5)] == [True] * 4 + [False]
    wait = store.take([batch])[0].retry_after
    clock.now += ceil(wait * 1_000_000 - 1) / 1_000_000 - 0.001
    assert not store.take([batch])[0].allowed
    clock.now += 0.002
    assert store.take([batch])[0].allowed


@pytest.mark.promise(5)
@pytest.mark.parametrize("notation", NOTATIONS)
def test_all_stores_decide_alike(notation: str, redis_url: str, tmp_path: Path) -> None:
    clock, steps = Clock(), random.Random(notation)  # noqa: S311  # no secret
    stores = [make(redis_url, tmp_path, clock) for make in STORES.values()]
    limits = limits_of(notation)
    for _ in range(60):
        clock.now += steps.choice([0.0, 0.5, 3.0, 20.0])
        charges = [Charge("{all}:app", steps.choice(limits), steps.choice([0, 1, 2, 3]))]
        if steps.random() < 0.3:
            charges.append(Charge("{bob}:rule", limits[0]))
        first, *others = ([*store.take(charges)] for store in stores)
        assert others == [first, first]

"""Compares limits whose numbers change with the examples that bucket4j publishes for its `TokensInheritanceStrategy`.

`share` is its PROPORTIONALLY. `used` has no counterpart: it counts what was used, where ADDITIVE and AS_IS count what
is left. It equals ADDITIVE if the quota is raised, and is stricter than both if it is lowered.
"""

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import (
    GCRA,
    Charge,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratelimit_mw.algorithms.takeover import OnChange, taking_over
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock

ALGORITHMS: list[type[Any]] = [FixedWindow, SlidingWindowCounter, SlidingWindowLog, TokenBucket, GCRA, LeakyBucket]
BUCKET4J = {  # tokens left after a change of the capacity, if 40 of 100 are left: by strategy
    200: {"PROPORTIONALLY": 80, "AS_IS": 40, "ADDITIVE": 140, "RESET": 200},
    20: {"PROPORTIONALLY": 8, "AS_IS": 20, "ADDITIVE": 20, "RESET": 20},
}
OURS: dict[int, dict[OnChange, int]] = {
    200: {"share": 80, "used": 140, "fresh": 200},
    20: {"share": 8, "used": 0, "fresh": 20},
}
CHANGES = [*product([100], [200, 20, 1, 100]), *product([1, 7], [3, 1000])]  # quotas before and after
FILLINGS = [0.0, 0.01, 0.6, 1.0]  # the part of the old quota that was used

pytestmark = [pytest.mark.promise(3), pytest.mark.one_redis]


@pytest.fixture
def all_stores(stores: list[Store], clock: Clock, tmp_path: Path) -> Iterator[list[Store]]:
    """The two stores of these tests, and one in a file."""
    file = SQLiteStore(tmp_path / "limits.db", clock=clock, timeout=5, deny_cache=0)
    yield [*stores, file]
    file.close()


def test_share_and_fresh_are_strategies_of_bucket4j() -> None:
    for capacity, theirs in BUCKET4J.items():
        assert (OURS[capacity]["share"], OURS[capacity]["fresh"]) == (theirs["PROPORTIONALLY"], theirs["RESET"])
    assert OURS[200]["used"] == BUCKET4J[200]["ADDITIVE"]
    assert OURS[20]["used"] < BUCKET4J[20]["AS_IS"]


@pytest.mark.parametrize("capacity", OURS)
def test_the_published_examples_give_the_same_units(all_stores: list[Store], capacity: int) -> None:
    for on_change, left in OURS[capacity].items():
        old, new = (taking_over(TokenBucket(quota, 60), on_change, "rule~1") for quota in (100, capacity))
        for store in all_stores:
            store.reset([Charge("k", old), Charge("k", new)])
            assert store.take([Charge("k", old, 60)])[0].remaining == 40
            assert store.peek([Charge("k", new, 0)])[0].remaining == left


def expected(used: int, before: int, after: int, on_change: OnChange) -> int:
    """Return the units that are left after a change, in exact numbers."""
    if on_change == "fresh":
        return after
    return max(0, after - used) if on_change == "used" else (before - used) * after // before


@pytest.mark.parametrize("old", ALGORITHMS)
@pytest.mark.parametrize("on_change", ["fresh", "used", "share"])
def test_every_change_of_algorithm_and_quota_leaves_exactly_the_units_of_the_model(
    all_stores: list[Store], old: type[Any], on_change: OnChange
) -> None:
    """For each new algorithm, quota and filling: what is left passes, and not one unit more."""
    number = 0
    for new, (before, after), filling in product(ALGORITHMS, CHANGES, FILLINGS):
        if on_change == "fresh" and (old, before) == (new, after):
            continue  # no change
        number += 1
        used = round(before * filling)
        left = expected(used, before, after, on_change)
        limits: list[Limit] = [
            taking_over(old(before, 60), on_change, "r"),
            taking_over(new(after, 60), on_change, "r"),
        ]
        first, looks, rest, more = (
            [Charge(f"k{number}", limit, cost)]
            for limit, cost in ((limits[0], used), (limits[1], 0), (limits[1], left), (limits[1], 1))
        )
        for store in all_stores:
            place = (new.__name__, before, after, used)
            assert store.take(first)[0].allowed
            assert (place, store.peek(looks)[0].remaining) == (place, left)
            assert (place, store.take(rest)[0].allowed, store.take(more)[0].allowed) == (place, True, False)

"""Tests `Concurrency` with a small model and the laws that do not concern waits, as no wait is known."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from algorithms.strategies import walks
from ratelimit_mw import Charge, Concurrency, ConfigError, MemoryStore, parse
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.testing import Clock, laws
from ratelimit_mw.testing.laws import Law
from ratelimit_mw.testing.walks import Walk

START = 1_000_000_000_000_000  # microseconds
LAWS = [
    pytest.param(laws.is_pure, marks=pytest.mark.promise(3)),
    pytest.param(laws.changes_nothing_for_cost_0, marks=pytest.mark.promise(6)),
    pytest.param(laws.counts_what_it_admits_and_nothing_else, marks=pytest.mark.promise(3)),
    pytest.param(laws.never_admits_more_than_the_most, marks=pytest.mark.promise(4)),
    pytest.param(laws.peeks_what_the_next_hit_answers, marks=pytest.mark.promise(4)),
    pytest.param(laws.decides_like_none_once_expired, marks=pytest.mark.promise(6)),
]
limits = st.builds(Concurrency, st.integers(1, 12), st.sampled_from([0.5, 1, 10, 60]))


@pytest.mark.parametrize("law", LAWS)
@settings(suppress_health_check=[HealthCheck.filter_too_much])  # some laws do not apply to most walks
@given(limits, walks)
def test_concurrency_obeys_each_law(law: Law, limit: Concurrency, walk: Walk) -> None:
    assume(law(limit, walk))


moves = st.lists(
    st.tuples(st.sampled_from(["take", "release", "renew", "wait"]), st.integers(0, 9), st.integers(1, 3)), max_size=60
)


@pytest.mark.promise(3)
@given(st.integers(1, 6), moves)
def test_decisions_match_a_list_of_holders(quota: int, steps: list[tuple[str, int, int]]) -> None:
    """The list is a model: it has the slots of each holder, and the time at which they expire."""
    limit, now, state = Concurrency(quota, 10), START, None
    holders: list[dict[str, int]] = []
    for move, which, number in steps:
        alive = [one for one in holders if one["end"] > now]
        used = sum(one["slots"] for one in alive)
        if move == "wait":
            now += (0, 1, 1_000_000, 9_999_999, 10_000_000)[which % 5]
        elif move == "take":
            decision, state = limit.decide(state, now, number, None)
            assert decision.allowed == (used + number <= quota)
            assert decision.remaining == quota - used - decision.allowed * number
            if decision.allowed:
                holders.append({"at": decision.at, "slots": number, "end": now + 10_000_000})
        elif alive:
            one = alive[which % len(alive)]
            state = limit.settle(state, now, one["slots"] * (1 if move == "renew" else -1), one["at"])
            one["end"] = now + 10_000_000 if move == "renew" else 0
        alive = [one for one in holders if one["end"] > now]
        assert limit.decide(state, now, 0, None)[0].remaining == quota - sum(one["slots"] for one in alive)
    names = [name for one in holders if one["end"] > now for name in range(one["at"], one["at"] + one["slots"])]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quota": 0}, "quota: got 0, expected a whole number from 1 to 9007199254740991"),
        ({"quota": 10_001}, "quota: got 10001, expected at most 10000 slots"),
        ({"quota": 1, "window": 0}, "window: got 0 seconds, expected one microsecond to a hundred years"),
        ({"quota": 1, "retry": 0}, "retry: got 0, expected more than 0 seconds"),
        ({"quota": 1, "retry": math.inf}, "retry: got inf, expected a finite number of seconds, 0 or more"),
    ],
)
def test_invalid_options_raise_a_config_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Concurrency(**options)
    assert str(error.value) == says


def test_limit_has_a_notation_a_bucket_and_numbers() -> None:
    limit = Concurrency(20, 30, name="reports", retry=2)
    assert (limit.notation, limit.bucket) == ("20 at once", "reports:30s_using_concurrency")
    assert (limit.most, limit.max_per_window, limit.max_wait) == (20, None, 2)
    assert limit.numbers == (30_000_000, 20, 2_000_000)


def test_charge_rejects_a_lease_of_slots() -> None:
    with pytest.raises(
        ConfigError, match="lease: slots of 20 at once are held by requests in progress, and cannot be taken in advance"
    ):
        Charge("k", Concurrency(20), lease=5)


@pytest.mark.promise(3)
@pytest.mark.parametrize(("cost", "remembered"), [(1, False), (3, True)])
def test_deny_cache_keeps_only_permanent_refusals_of_slots(cost: int, *, remembered: bool) -> None:
    """Another process may release a slot at any time."""
    clock, cache = Clock(), DenyCache(1.0)
    store, limit = MemoryStore(clock=clock), Concurrency(2)
    store.take([Charge("k", limit, 2)])
    charges = [Charge("k", limit, cost)]
    cache.remember(charges, store.take(charges), clock(), clock)
    assert (cache.find(charges, clock()) is not None) == remembered


@pytest.mark.promise(3)
def test_deny_cache_keeps_a_refusal_shared_with_a_rate_until_the_rate_admits() -> None:
    clock, cache = Clock(), DenyCache(60.0)
    store, (rate,) = MemoryStore(clock=clock), parse("1 per 10 seconds using fixed_window")
    charges = [Charge("k", Concurrency(1)), Charge("k", rate)]
    store.take(charges)
    refused = store.take(charges)
    assert [one.allowed for one in refused] == [False, False]
    cache.remember(charges, refused, clock(), clock)
    assert cache.find(charges, clock() + 9.999) is not None
    assert cache.find(charges, clock() + 10) is None

"""A group is decided as the sequential model does: what it writes and shows includes only the charges that count."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import GCRA, Charge, Decision, FixedWindow, LeakyBucket, Limit, MemoryStore, SlidingWindowLog
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.core.limit import Role
from ratelimit_mw.stores.group import cost_to_decide, decide_group
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(7)]

FIVE, ONE = FixedWindow(5, 60), FixedWindow(1, 60)
LIMITS = (FIVE, GCRA(4, 40), SlidingWindowLog(3, 60), LeakyBucket(4, 60, burst=2, max_delay=30))
BAN = Ban(2, 60, ban=90)
Group = list[tuple[Charge, int]]


def full(kind: str, folder: Path) -> Any:
    """Return a store that is full: `FIVE`, `ONE` and `BAN` have one overflow bucket each for all new keys."""
    store: Any = MemoryStore(max_keys=1, clock=Clock())
    if kind == "sqlite":
        store = SQLiteStore(folder / "limits.db", max_keys=1, clock=Clock())
    for _ in range(2):
        store.take([Charge("first", ONE)])
    return store


def left(store: Any, limit: Limit) -> int:
    """Return what is left in the overflow bucket of a limit."""
    decision: Decision = store.peek([Charge("another", limit)])[0]
    return decision.remaining + decision.allowed


def charge(key: str, limit: Limit, cost: int = 1, role: Role = "limit") -> Charge:
    return Charge(f"{{{key}}}:x", limit, cost, role=role)


both = pytest.mark.parametrize("kind", ["memory", "sqlite"])


@both
def test_a_shadow_that_does_not_count_takes_no_units_of_a_shared_bucket(kind: str, tmp_path: Path) -> None:
    """Not even if a later charge of the same bucket counts, or refuses."""
    store = full(kind, tmp_path)
    shadows = [charge("a", FIVE, 2, "shadow"), charge("b", FIVE, 6, "shadow")]  # the second refuses, so none counts
    assert [one.allowed for one in store.take(shadows)] == [True, False]
    assert left(store, FIVE) == 5
    shown = store.take([shadows[0], charge("c", FIVE, 1), shadows[1]])
    assert [(one.allowed, one.remaining) for one in shown[:2]] == [(True, 5), (True, 4)]
    assert left(store, FIVE) == 4
    store.close()


@both
def test_a_penalty_counts_a_refusal_in_a_shared_bucket(kind: str, tmp_path: Path) -> None:
    roomy, store = MemoryStore(clock=Clock()), full(kind, tmp_path)
    group = [charge("a", FIVE, 6), *(charge(key, BAN, 1, "penalty") for key in "ab")]  # only the penalty of a counts
    assert store.take(group)[:2] == roomy.take(group)[:2]
    (shown,) = store.peek([charge("c", BAN, 1, "penalty")])
    assert shown == roomy.peek([charge("a", BAN, 1, "penalty")])[0] != roomy.peek([charge("b", BAN, 1, "penalty")])[0]
    store.close()


def groups() -> st.SearchStrategy[Group]:
    """Return groups of charges, each with the number of its bucket among those of its limit."""
    limit = st.sampled_from(LIMITS).flatmap(
        lambda limit: st.tuples(st.integers(0, limit.most), st.sampled_from(["limit", "limit", "shadow"])).map(
            lambda drawn: Charge("{k}:x", limit, drawn[0], role=drawn[1])  # type: ignore[arg-type]  # a role
        )
    )
    penalty = st.sampled_from(["{k}:x", "{other}:x"]).map(lambda key: Charge(key, BAN, 1, role="penalty"))
    return st.lists(st.tuples(st.one_of(limit, limit, penalty), st.integers(0, 1)), min_size=1, max_size=6)


@given(st.lists(st.tuples(groups(), st.integers(-1, 40)), min_size=1, max_size=12))
def test_states_and_decisions_are_those_of_the_charges_that_count(steps: list[tuple[Group, int]]) -> None:
    states: dict[object, Any] = {}
    now = 10**12
    for group, seconds in steps:
        now += seconds * 1_000_000
        charges, buckets = [one for one, _ in group], [(one.limit, number) for one, number in group]
        outcome = decide_group(charges, [states.get(bucket) for bucket in buckets], now, buckets)
        pairs = zip(charges, outcome.decisions, strict=True)
        assert outcome.refused == any(not decision.allowed and one.role != "shadow" for one, decision in pairs)
        for index, (one, bucket) in enumerate(zip(charges, buckets, strict=True)):
            decision, new = one.limit.decide(states.get(bucket), now, cost_to_decide(one), one.max_delay_us)
            if outcome.charged[index]:
                states[bucket] = new
                assert outcome.decisions[index] == decision
            elif outcome.decisions[index].allowed:
                assert outcome.decisions[index] == one.limit.decide(states.get(bucket), now, 0, None)[0]
            elif not decision.allowed:
                states[bucket] = new
            look = [one.limit.decide(state, now, 0, None)[0] for state in (outcome.states[index], states.get(bucket))]
            assert look[0] == look[1]

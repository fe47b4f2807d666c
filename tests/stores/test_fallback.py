"""Tests the fallback store, which decides in this process while another store fails.

It admits a share of each limit, and repeats the refusals of the other store.
"""

import math
from typing import Any

import pytest

from ratelimit_mw import GCRA, Charge, Decision, FixedWindow, LeakyBucket, Limit, MemoryStore, SlidingWindowLog, parse
from ratelimit_mw.core.limit import Role, scaled
from ratelimit_mw.stores import fallback as local
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.testing import Clock, RecordingStore, freeze

pytestmark = pytest.mark.promise(8)

HOUR = FixedWindow(10, 3600)


def charge(key: str = "k", limit: Limit = HOUR, cost: int = 1, **more: Any) -> Charge:
    return Charge(key, limit, cost, **more)


def refused(retry_after: float) -> Decision:
    return Decision(False, 10, 0, retry_after, retry_after, retry_after, 0.0, 0)


def admitted(store: FallbackStore, asked: Charge) -> int:
    """Take the charge 100 times, and return how often it is admitted."""
    return sum(store.take([asked])[0].allowed for _ in range(100))


@pytest.mark.parametrize(
    ("limit", "share", "expected"),
    [
        ("10/hour", 1.0, "10/hour"),
        ("10/hour", 1, "10/hour"),
        ("10/hour", 0.25, "2/hour"),
        ("10/hour using sliding_window_log", 0.5, "5/hour using sliding_window_log"),
        ("10/hour using fixed_window", 0.01, "1/hour using fixed_window"),
        ("100/hour", 0.29, "29/hour"),  # 28.999999999999996 in floats
        ("9/hour", 1 / 3, "3/hour"),
        ("100/hour burst 20 using gcra", 0.1, "10/hour burst 2 using gcra"),
        ("100/hour burst 5 using token_bucket", 0.1, "10/hour burst 1 using token_bucket"),
        ("100/hour burst 20 using leaky_bucket at_once 10", 0.1, "10/hour burst 2 using leaky_bucket at_once 1"),
        ("60/hour using sliding_window_counter buckets 6", 0.5, "30/hour using sliding_window_counter buckets 6"),
    ],
)
def test_scaled_limits_are_rounded_down_to_at_least_one(limit: str, share: float, expected: str) -> None:
    assert [scaled(*parse(limit), share)] == [*parse(expected)]


def test_scaling_keeps_an_at_once_of_0_and_the_name() -> None:
    limit = LeakyBucket(100, 60, burst=20, max_delay=2, at_once=0, name="slow")
    assert scaled(limit, 0.5) == LeakyBucket(50, 60, burst=10, max_delay=2, at_once=0, name="slow")


@pytest.mark.parametrize(("share", "passes"), [(1.0, 10), (0.5, 5), (0.25, 2), (0.001, 1)])
def test_the_fallback_store_admits_its_share(share: float, passes: int) -> None:
    store = FallbackStore(share, clock=Clock())
    assert admitted(store, charge()) == passes
    (decision,) = store.peek([charge()])
    assert (decision.limit, decision.allowed) == (passes, False)


def test_a_cost_over_the_share_but_within_the_quota_can_be_admitted() -> None:
    clock = Clock()
    store = FallbackStore(0.25, clock=clock)
    assert [store.take([charge(cost=8)])[0].allowed for _ in range(2)] == [True, False]
    clock.advance(3600)
    assert store.take([charge(cost=10)])[0].allowed
    clock.advance(3600)
    assert store.take([charge(cost=11)])[0].retry_after == math.inf


def test_a_refund_or_reset_restores_the_share() -> None:
    store = FallbackStore(0.25, clock=Clock())
    (taken,) = store.take([charge(cost=8)])
    store.settle([charge(cost=-8, at=taken.at)])
    assert store.peek([charge(cost=0)])[0].remaining == 2
    store.take([charge(cost=8)])
    store.reset([charge()])
    assert store.peek([charge(cost=0)])[0].remaining == 2


def test_a_charge_with_a_lease_over_the_share_is_admitted() -> None:
    store = FallbackStore(0.25, clock=Clock())
    assert store.take([charge(lease=5)])[0].allowed


def test_observed_refusals_apply_until_their_wait_ends() -> None:
    clock = Clock()
    store = FallbackStore(clock=clock)
    store.observe([charge()], [refused(60.0)])
    clock.advance(59.5)
    (decision,) = store.take([charge()])
    assert (decision.allowed, decision.retry_after, decision.remaining) == (False, 0.5, 0)
    assert store.peek([charge()]) == [decision]
    assert store.take([charge("other")])[0].allowed
    assert store.take([charge(limit=FixedWindow(11, 3600))])[0].allowed
    clock.advance(0.5)
    assert admitted(store, charge()) == 10


def test_a_refused_group_is_not_charged() -> None:
    store = FallbackStore(clock=Clock())
    store.observe([charge()], [refused(60.0)])
    for _ in range(3):
        known, other = store.take([charge(), charge("other")])
        assert (known.allowed, other.allowed, other.remaining) == (False, True, 10)


def test_a_smaller_cost_than_the_refused_one_can_be_admitted() -> None:
    clock = Clock()
    store = FallbackStore(clock=clock)
    store.observe([charge(cost=5)], [refused(60.0)])
    assert store.take([charge(cost=4)])[0].allowed
    assert not store.take([charge(cost=5)])[0].allowed
    store.observe([charge(cost=2)], [refused(30.0)])
    store.observe([charge(cost=5)], [refused(61.0)])  # ignored, because the smaller refused cost applies
    assert not store.take([charge(cost=2)])[0].allowed
    clock.advance(30)
    assert store.take([charge(cost=2)])[0].allowed


def test_an_observed_admission_removes_a_refusal() -> None:
    store = FallbackStore(clock=Clock())
    assert not store.refusals
    store.observe([charge(cost=2)], [refused(60.0)])
    store.observe([charge(cost=1)], [Decision(True, 10, 1, 0.0, 60.0, 60.0, 0.0, 0)])  # two units may still be refused
    assert not store.take([charge(cost=2)])[0].allowed
    store.observe([charge(cost=2)], [Decision(True, 10, 1, 0.0, 60.0, 60.0, 0.0, 0)])
    assert store.take([charge(cost=2)])[0].allowed
    assert not store.refusals


@pytest.mark.parametrize(("role", "retry_after"), [("shadow", 60.0), ("limit", math.inf)])
def test_refusals_by_shadow_limits_or_without_end_are_not_kept(role: Role, retry_after: float) -> None:
    store = FallbackStore(clock=Clock())
    store.observe([charge(role=role)], [refused(retry_after)])
    assert not store.refusals


def test_a_reset_or_the_end_of_a_freeze_removes_refusals() -> None:
    store = FallbackStore(clock=Clock())
    store.observe([charge()], [refused(60.0)])
    store.reset([charge()])
    assert store.take([charge()])[0].allowed
    store.observe([charge()], [refused(60.0)])
    with freeze():
        assert store.refusals
    assert not store.refusals


def test_a_clock_that_steps_back_removes_refusals() -> None:
    clock = Clock()
    store = FallbackStore(clock=clock)
    store.observe([charge()], [refused(60.0)])
    clock.now -= 1
    assert store.take([charge()])[0].allowed


def test_the_number_of_kept_refusals_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_REFUSALS", 3)
    store = FallbackStore(clock=Clock())
    for key in "abac":
        store.observe([charge(key)], [refused(60.0)])
    store.observe([charge("d")], [refused(60.0)])
    assert [store.take([charge(key)])[0].allowed for key in "abcd"] == [False, True, False, False]


def test_repeated_refusals_of_gcra_and_log_equal_those_of_the_store() -> None:
    clock = Clock()
    for limit in (GCRA(10, 60), SlidingWindowLog(10, 60)):
        told, store = MemoryStore(clock=clock), FallbackStore(clock=clock)
        asked = charge(limit=limit)
        told.take([charge(limit=limit, cost=10)])
        decisions = told.take([asked])
        store.observe([asked], decisions)
        clock.advance(1.25)
        assert store.take([asked]) == told.peek([asked])


def test_only_a_memory_store_needs_no_fallback() -> None:
    assert not MemoryStore().can_fail
    assert RecordingStore().can_fail

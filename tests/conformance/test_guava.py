"""`token_bucket` against Guava's SmoothBursty, as far as no caller pays for the one before.

There a fresh limiter has nothing stored and lets one caller through; here that is a bucket of one unit more than Guava
stores, emptied down to that unit.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest

from conformance.tables import GUAVA
from ratelimit_mw import Charge, ConfigError, TokenBucket
from ratelimit_mw.limit import LONGEST
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(4)]

MAX_BURST = 1  # seconds of permits that SmoothBursty stores
CASES = {case["name"]: case for case in GUAVA.data["cases"] if case["name"] in GUAVA.cases}
ERRORS = {"acquire(0)", "acquire(-1)", "tryAcquire(0)", "rate 0"}
LONG_MAX = "long_max"  # Guava saturates there; here the longest time there is are a hundred years


def test_every_case_has_a_test() -> None:
    assert set(GUAVA.cases) == {*CASES, *[f"error {call}" for call in ERRORS]}


class Bursty:
    """`RateLimiter.create(rate)`: its calls, and a caller that sleeps as long as it is told."""

    def __init__(self, store: Store, clock: Clock, rate: int) -> None:
        self.store, self.clock = store, clock
        self.limit = TokenBucket(rate, 1, burst=MAX_BURST * rate + 1, max_delay=3600)
        store.reset([Charge("k", self.limit)])
        store.settle([Charge("k", self.limit, MAX_BURST * rate)])

    def sleep_ms(self, milliseconds: int) -> list[Any]:
        self.clock.advance(milliseconds / 1000)
        return [milliseconds]

    def acq(self, permits: int, *_: float) -> list[Any]:
        (decision,) = self.store.take([Charge("k", self.limit, permits)])
        assert decision.allowed
        self.clock.advance(decision.delay)
        return [permits, decision.delay]

    def try_(self, permits: int, timeout: int | str, *_: bool) -> list[Any]:
        patience = LONGEST if timeout == LONG_MAX else int(timeout) / 1000
        (decision,) = self.store.take([Charge("k", self.limit, permits, max_delay=patience)])
        self.clock.advance(decision.delay)
        return [permits, timeout, decision.allowed]


@pytest.mark.parametrize("name", CASES)
def test_bursty(name: str, stores: list[Store], clock: Clock) -> None:
    case = CASES[name]
    for store in stores:
        limiter = Bursty(store, clock, **case["create"])
        steps: dict[str, Callable[..., list[Any]]] = {
            "sleep_ms": limiter.sleep_ms,
            "acq": limiter.acq,
            "try": limiter.try_,
        }
        assert [[verb, *steps[verb](*given)] for verb, *given in case["steps"]] == case["steps"]


def test_a_weight_is_paid_by_who_asks_for_it(stores: list[Store], clock: Clock) -> None:
    """There 2 permits are had after a second, and the next caller waits 2. Here they are had when they are there."""
    (weights,) = (case for case in GUAVA.data["cases"] if case["name"] == "SimpleWeights")
    assert weights["steps"][:4] == [["acq", 1, 0.0], ["acq", 1, 1.0], ["acq", 2, 1.0], ["acq", 4, 2.0]]
    for store in stores:
        limiter = Bursty(store, clock, **weights["create"])
        assert [limiter.acq(permits) for permits in (1, 1, 2)] == [[1, 0.0], [1, 1.0], [2, 2.0]]
        (never,) = store.peek([Charge("k", limiter.limit, 4)])  # more than it ever stores
        assert (never.allowed, never.retry_after) == (False, math.inf)


@pytest.mark.parametrize("call", ["acquire(0)", "tryAcquire(0)"])
def test_0_permits_are_an_error_there_and_a_look_here(call: str, stores: list[Store]) -> None:
    assert call in GUAVA.data["errors"]
    for store in stores:
        (decision,) = store.take([Charge("k", TokenBucket(5, 1), 0)])
        assert (decision.allowed, decision.remaining) == (True, 5)


@pytest.mark.parametrize("call", ["acquire(-1)"])
def test_fewer_permits_than_0_are_an_error(call: str, stores: list[Store]) -> None:
    assert call in GUAVA.data["errors"]
    for store in stores:
        with pytest.raises(ConfigError, match="cost: found -1"):
            store.take([Charge("k", TokenBucket(5, 1), -1)])


@pytest.mark.parametrize("call", ["rate 0"])
def test_a_rate_of_0_is_an_error(call: str) -> None:
    assert call in GUAVA.data["errors"]
    with pytest.raises(ConfigError, match="quota: found 0"):
        TokenBucket(0, 1)

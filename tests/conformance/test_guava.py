"""Compares `smooth` with Guava's RateLimiter.

`create(rate)` stores the permits of a second; `create(rate, warmup)` starts cold. A fresh SmoothBursty has no stored
permits, but a fresh `smooth` has all it can store: the tests take these first. Guava's callers may acquire any number
of permits, callers here at most the quota: the tests use the same rate with a longer window.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from conformance.tables import GUAVA
from ratelimit_mw import Charge, ConfigError, Smooth, parse
from ratelimit_mw.core.limit import MICROSECONDS
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(4), pytest.mark.one_redis]

MAX_BURST = 1  # seconds of permits that SmoothBursty stores
MOST = 10  # seconds of permits, the most that these tables acquire at once
PATIENT = 10_000_000.0  # seconds; `acquire` waits for as long as it takes
CASES = {case["name"]: case for case in GUAVA.data["cases"] if case["name"] in GUAVA.cases}
BURST, WARM_UP = GUAVA.data["properties"]
ERRORS = {"acquire(0)", "acquire(-1)", "tryAcquire(0)", "setRate(0)", "setRate(-10)", "rate 0", "warmup -1"}


def test_every_case_has_a_test() -> None:
    assert set(GUAVA.cases) == {*CASES, BURST["name"], WARM_UP["name"], *[f"error {call}" for call in ERRORS]}
    assert {f"error {call}" for call in GUAVA.data["errors"]} == {f"error {call}" for call in ERRORS}


def smooth(rate: float, warmup: float = 0, cold_factor: int = 3) -> Smooth:
    """Return the limit for `RateLimiter.create(rate, warmup, cold_factor)`, for charges of up to `MOST` seconds."""
    per_second = Fraction(rate).limit_denominator(1000)
    quota, window = per_second.numerator * MOST, per_second.denominator * MOST
    return Smooth(quota, window, warmup=warmup, cold_factor=cold_factor)


def half_up(seconds: float) -> float:
    """Round to two decimals as Java does: 1.125 becomes 1.13."""
    return (round(seconds * MICROSECONDS) + 5_000) // 10_000 / 100


class RateLimiter:
    """Guava's methods, for a caller that sleeps for each delay."""

    def __init__(
        self, store: Store, clock: Clock, rate: float, warmup_ms: int = 0, cold_factor: int = 3, **_: object
    ) -> None:
        self.store, self.clock = store, clock
        self.warmup, self.cold_factor = warmup_ms / 1000, cold_factor
        self.limit = smooth(rate, self.warmup, cold_factor)
        store.reset([Charge("k", self.limit)])
        if not warmup_ms:
            store.settle([Charge("k", self.limit, int(MAX_BURST * rate))])

    def sleep_ms(self, milliseconds: int) -> list[Any]:
        self.clock.advance(milliseconds / 1000)
        return [milliseconds]

    def set_rate(self, rate: float) -> list[Any]:
        bucket = self.limit.bucket
        self.limit = smooth(rate, self.warmup, self.cold_factor)
        assert self.limit.bucket == bucket
        return [rate]

    def acq(self, permits: int, *_: float) -> list[Any]:
        (decision,) = self.store.take([Charge("k", self.limit, permits, max_delay=PATIENT)])
        assert decision.allowed
        self.clock.advance(decision.delay)
        return [permits, half_up(decision.delay)]

    def acq_seq(self, waits: list[float]) -> list[Any]:
        return [[self.acq(1)[1] for _ in waits]]

    def try_(self, permits: int, timeout: int | str, *_: bool) -> list[Any]:
        longest = self.limit.max_ticks / MICROSECONDS  # 71 years; Guava saturates at 2**63 - 1
        patience = (
            {"long_max": longest, "long_min": 0}.get(str(timeout)) if isinstance(timeout, str) else timeout / 1000
        )
        assert patience is not None
        (decision,) = self.store.take([Charge("k", self.limit, permits, max_delay=max(0, patience))])
        self.clock.advance(decision.delay)
        return [permits, timeout, decision.allowed]


@pytest.mark.parametrize("name", CASES)
def test_smooth_returns_the_results_of_guava(name: str, stores: list[Store], clock: Clock) -> None:
    case = CASES[name]
    for store in stores:
        limiter = RateLimiter(store, clock, **case["create"])
        steps: dict[str, Callable[..., list[Any]]] = {
            "sleep_ms": limiter.sleep_ms,
            "set_rate": limiter.set_rate,
            "acq": limiter.acq,
            "acq_seq": limiter.acq_seq,
            "try": limiter.try_,
        }
        assert [[verb, *steps[verb](*given)] for verb, *given in case["steps"]] == case["steps"]


def seconds_for(limiter: RateLimiter, permits: int, random: Random) -> float:
    """Return how long it takes to acquire the permits in random chunks, and one more that pays for the last chunk."""
    start = limiter.clock.now
    while permits > 0:
        chunk = max(1, random.randrange(permits))
        permits -= chunk
        limiter.acq(chunk)
    limiter.acq(1)
    return limiter.clock.now - start


@pytest.mark.parametrize("seed", range(5))
def test_burst_never_exceeds_a_second_of_permits(seed: int, stores: list[Store], clock: Clock) -> None:
    assert BURST["name"] == "WeNeverGetABurstMoreThanOneSec"
    for store in stores:
        limiter, random = RateLimiter(store, clock, **BURST["create"]), Random(seed)  # noqa: S311  # a test needs no secret
        for rate in BURST["for_rate_in"]:
            limiter.sleep_ms(rate * 1000)
            limiter.set_rate(rate)
            assert round(seconds_for(limiter, rate, random), 6) <= 1
            assert round(seconds_for(limiter, rate, random), 6) >= 1


@pytest.mark.parametrize("cold_factor", WARM_UP["cold_factor"])
@pytest.mark.parametrize("qps", WARM_UP["qps"])
def test_warm_up_takes_its_time_with_charges_of_any_cost(
    cold_factor: int, qps: float, stores: list[Store], clock: Clock
) -> None:
    assert (WARM_UP["name"], WARM_UP["warmup_ms"]) == (
        "TimeToWarmUpIsHonouredEvenWithWeights",
        "long((1+cf)*10/(2*qps)*1000)",
    )
    warmup_ms = int((1 + cold_factor) * 10 / (2 * qps) * 1000)
    for store in stores:
        for seed in range(5):
            limiter = RateLimiter(store, clock, qps, warmup_ms, cold_factor)
            took = seconds_for(limiter, 10, Random(seed))  # noqa: S311  # a test needs no secret
            assert round(took * 1000, 3) == warmup_ms


@pytest.mark.parametrize("call", ["acquire(0)", "tryAcquire(0)"])
def test_charge_of_0_permits_is_admitted_unlike_in_guava(call: str, stores: list[Store]) -> None:
    assert call in GUAVA.data["errors"]
    for store in stores:
        (decision,) = store.take([Charge("k", Smooth(5, 1), 0)])
        assert (decision.allowed, decision.remaining) == (True, 6)  # five are stored, one is paid by the next charge


@pytest.mark.parametrize("call", ["acquire(-1)"])
def test_negative_permits_are_an_error(call: str, stores: list[Store]) -> None:
    assert call in GUAVA.data["errors"]
    for store in stores:
        with pytest.raises(ConfigError, match="cost: got -1"):
            store.take([Charge("k", Smooth(5, 1), -1)])


def test_negative_rate_is_an_error() -> None:
    assert "setRate(-10)" in GUAVA.data["errors"]
    with pytest.raises(ConfigError, match="quota: got -10"):
        Smooth(-10, 1)


def test_rate_of_0_admits_nothing(stores: list[Store]) -> None:
    """Guava raises an error."""
    assert {"rate 0", "setRate(0)"} <= set(GUAVA.data["errors"])
    for store in stores:
        (decision,) = store.take([Charge("k", Smooth(0, 1))])
        assert (decision.allowed, decision.retry_after) == (False, math.inf)


@pytest.mark.parametrize("call", ["warmup -1"])
def test_negative_warm_up_is_an_error(call: str) -> None:
    assert call in GUAVA.data["errors"]
    with pytest.raises(ConfigError, match="warmup: got -1"):
        Smooth(1, 1, warmup=-1)


def test_infinite_and_almost_zero_rates_are_errors() -> None:
    """The replay leaves out these cases."""
    assert {case["create"]["rate"] for case in GUAVA.data["cases"] if case["name"] in GUAVA.left} == {"inf", 5e-324}
    with pytest.raises(ConfigError, match="got no rate"):
        parse("inf/second using smooth")
    with pytest.raises(ConfigError, match="quota: got inf"):
        Smooth(float("inf"), 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"window: got .* expected at most a hundred years"):
        Smooth(1, 1 / 2e-308)

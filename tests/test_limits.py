"""Limits, charges and decisions as values: their fields, errors for wrong values, and the names of their buckets."""

import math
import re
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from ratelimit_mw import (
    GCRA,
    Charge,
    ConfigError,
    Decision,
    FixedWindow,
    LeakyBucket,
    Limit,
    Limiter,
    MemoryStore,
    RateLimited,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
    Verdict,
    parse,
)
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.bucket import BucketLimit, DelayableLimit
from ratelimit_mw.algorithms.concurrency import Concurrency
from ratelimit_mw.algorithms.notation import limit_of_bucket
from ratelimit_mw.core.limit import scaled
from ratelimit_mw.settings.limits import parse_limit_specs
from ratelimit_mw.testing import Clock

YEAR = 365 * 24 * 3600.0  # seconds
BUCKET = TokenBucket(10, 60)
BUCKETS = [kind for kind in ALGORITHMS.values() if issubclass(kind, BucketLimit)]
DELAYING = [kind for kind in ALGORITHMS.values() if issubclass(kind, DelayableLimit)]
WINDOWS = [kind for kind in ALGORITHMS.values() if not issubclass(kind, DelayableLimit)]

# The fields in section 5 of the design, and `keep`.
FIELDS: dict[type[Struct], str] = {
    Limit: "quota window name keep",
    BucketLimit: "quota window name keep burst max_delay",
    TokenBucket: "quota window name keep burst max_delay",
    GCRA: "quota window name keep burst max_delay",
    LeakyBucket: "quota window name keep burst max_delay at_once",
    Smooth: "quota window name keep max_burst warmup cold_factor max_delay",
    FixedWindow: "quota window name keep",
    SlidingWindowCounter: "quota window name keep buckets strict",
    SlidingWindowLog: "quota window name keep",
    Charge: "key limit cost max_delay role at lease lease_time",
    Decision: "allowed limit remaining retry_after next_after reset_after delay at",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_fields_are_those_of_the_design(kind: type[Struct]) -> None:
    assert {field.name for field in fields(kind)} == set(FIELDS[kind].split())


def test_positional_fields_have_the_order_of_the_design() -> None:
    for kind in ALGORITHMS.values():
        assert kind(10, 60) == kind(quota=10, window=60)
        with pytest.raises(TypeError):
            kind(10, 60, 5)  # type: ignore[call-arg,arg-type]
    given = Charge("k", BUCKET, 2, 1.5, "shadow", 7)
    assert given == Charge(key="k", limit=BUCKET, cost=2, max_delay=1.5, role="shadow", at=7)
    decision = Decision(True, 1, 2, 3.0, 4.0, 5.0, 6.0, 7)
    names = FIELDS[Decision].split()
    assert [getattr(decision, name) for name in names] == [True, 1, 2, 3.0, 4.0, 5.0, 6.0, 7]


def test_defaults_are_those_of_the_design() -> None:
    assert all(kind(10, 60).name is None for kind in ALGORITHMS.values())
    for bucket in (TokenBucket(10, 60), GCRA(10, 60), LeakyBucket(10, 60)):
        assert (bucket.burst, bucket.max_delay) == (None, 0.0)
    assert LeakyBucket(10, 60).at_once is None
    smooth = Smooth(10, 60)
    assert (smooth.max_burst, smooth.warmup, smooth.cold_factor, smooth.max_delay) == (1.0, 0.0, 3, 0.0)
    counter = SlidingWindowCounter(10, 60)
    assert (counter.buckets, counter.strict) == (1, False)
    charge = Charge("k", BUCKET)
    assert (charge.cost, charge.max_delay, charge.role, charge.at) == (1, None, "limit", None)


def test_verdict_has_the_attributes_of_the_design() -> None:
    fields_of_its_own = {"allowed", "charges", "decisions", "rule", "source"}
    of_what_binds = {"limit", "remaining", "retry_after", "next_after", "reset_after", "delay"}
    names = {field.name for field in fields(Verdict)}
    assert fields_of_its_own <= names
    assert all(isinstance(getattr(Verdict, name), property) for name in of_what_binds)


NO_COUNT = [0, -1, 1.0, 1.5, "5", None, True, math.nan, math.inf, 2**53, 10**400, [1], 5j]
NO_TIME = [-1, -0.001, math.nan, math.inf, -math.inf, "60", True, False, [60], 10**400, 1e300, 100 * YEAR + 1]
NO_NAME = ["", "a b", "a" * 65, "ü", "a/b", "a:b", "a\n", 5, b"a", True]
COUNT_FROM_0 = f"a whole number from 0 to {2**53 - 1}"
COUNT_FROM_1 = f"a whole number from 1 to {2**53 - 1}"

WRONG: list[tuple[type[Limit], str, Any, str]] = [
    *[(kind, "quota", value, COUNT_FROM_0) for kind in ALGORITHMS.values() for value in NO_COUNT if value != 0],
    *[(kind, "window", value, "") for kind in ALGORITHMS.values() for value in [*NO_TIME, None, 0, 1e-7]],
    *[(kind, "name", value, "1 to 64 of A-Z a-z 0-9 _ . -") for kind in ALGORITHMS.values() for value in NO_NAME],
    *[(kind, "burst", value, COUNT_FROM_1) for kind in BUCKETS for value in NO_COUNT if value is not None],
    *[(kind, "burst", 10 * 100 * 366 * 24 * 60, "a hundred years") for kind in BUCKETS],
    *[(kind, "max_delay", value, "") for kind in DELAYING for value in [*NO_TIME, None]],
    *[(LeakyBucket, "at_once", value, COUNT_FROM_0) for value in NO_COUNT if value],
    *[(Smooth, field, value, "") for field in ("max_burst", "warmup") for value in [*NO_TIME, None]],
    *[(Smooth, field, 4e-7, "0 or a microsecond and more") for field in ("max_burst", "warmup")],
    (Smooth, "warmup", 100 * YEAR - 59, "at most a hundred years with the window"),
    *[(Smooth, "cold_factor", value, COUNT_FROM_1) for value in NO_COUNT],
    (Smooth, "cold_factor", 101, "at most 100"),
    (Smooth, "cold_factor", 2, "3, or a warmup"),
    (LeakyBucket, "at_once", False, "a whole number from 0"),
    (LeakyBucket, "at_once", 11, "at most the burst, 10"),
    *[(SlidingWindowLog, "quota", value, "at most 100000") for value in (100_001, 2**53 - 1)],
    *[(SlidingWindowCounter, "buckets", value, COUNT_FROM_1) for value in NO_COUNT],
    *[(SlidingWindowCounter, "strict", value, "true or false") for value in (1, 0, "yes", None)],
    (SlidingWindowCounter, "buckets", 1001, "at most 1000"),
]


def shortened(value: object) -> str:
    return repr(value) if len(repr(value)) < 30 else f"{repr(value)[:10]}..."


@pytest.mark.parametrize(
    ("kind", "field", "value", "allowed"),
    [pytest.param(*row, id=f"{row[0].algorithm}-{row[1]}-{shortened(row[2])}") for row in WRONG],
)
def test_error_for_an_invalid_limit_names_field_value_and_allowed_values(
    kind: type[Limit], field: str, value: object, allowed: str
) -> None:
    given: dict[str, Any] = {"quota": 10, "window": 60, field: value}
    with pytest.raises(ConfigError, match=rf"^{field}: got .*, expected .*{re.escape(allowed)}") as caught:
        kind(**given)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *[
            (lambda kind=kind: kind(2**52, 1), "quota 4503599627370496 with burst 4503599627370496 is too large")
            for kind in BUCKETS
        ],
        *[
            (lambda kind=kind: kind(1, 0.000001, burst=2**51), "quota 1 with burst 2251799813685248 is too large")
            for kind in BUCKETS
        ],
        (lambda: Smooth(2**52, 1), "quota 4503599627370496 is too large to count exactly: its price"),
        (lambda: Smooth(10**9, 0.000001, max_delay=7.0), "max_delay: got 7.0 seconds, expected at most 2.25"),
        (lambda: Smooth(5, 1, max_burst=2, warmup=4), "max_burst: got 2 with a warmup, which stores no burst"),
        (lambda: FixedWindow(2**52, 1), "quota 4503599627370496 is too large"),
        (lambda: SlidingWindowCounter(2**52, 1), "quota 4503599627370496 is too large"),
        (lambda: SlidingWindowCounter(1, 0.000001, buckets=2), "buckets: got 2, expected at most 1"),
        *[
            (lambda kind=kind: kind(10**9, 0.000001, max_delay=7.0), "max_delay: got 7.0 seconds, expected at most 4.5")
            for kind in BUCKETS
        ],
        (lambda: Charge("k", TokenBucket(10**9, 0.000001), max_delay=7.0), "max_delay: got 7.0 seconds, expected"),
    ],
)
def test_limits_with_incompatible_or_too_large_fields_raise_a_config_error(make: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        *[("key", value, "a string that is not empty") for value in ("", None, b"k", 5, ("a",))],
        *[("limit", value, "a Limit") for value in ("10/minute", None, TokenBucket, 5)],
        *[("cost", value, f"a whole number from 0 to {2**53 - 1}") for value in (-1, 1.0, "1", None, True, 2**53)],
        *[("max_delay", value, "") for value in NO_TIME],
        *[("role", value, "one of limit, shadow, penalty") for value in ("", "Limit", None, 5)],
        *[("at", value, "") for value in (1.5, "1", True, 2**53)],
    ],
)
def test_error_for_an_invalid_charge_names_field_value_and_allowed_values(
    field: str, value: object, allowed: str
) -> None:
    given: dict[str, Any] = {"key": "k", "limit": BUCKET, field: value}
    with pytest.raises(ConfigError, match=rf"^{field}: got .*, expected .*{re.escape(allowed)}") as caught:
        Charge(**given)
    assert repr(value) in str(caught.value)


def test_charge_with_an_instant_may_have_a_negative_cost() -> None:
    assert Charge("k", BUCKET, -5, at=0).cost == -5
    with pytest.raises(ConfigError, match="cost: got -9007199254740992"):
        Charge("k", BUCKET, -(2**53), at=0)


def test_limits_accept_the_largest_allowed_numbers() -> None:
    assert FixedWindow(2**52 - 1, 1).numbers == (1_000_000, 2**52 - 1)
    assert SlidingWindowLog(100_000, 1).most == 1000
    assert LeakyBucket(10, 60, burst=20, at_once=20).at_once == 20
    assert LeakyBucket(10, 60, at_once=0).at_once == 0


@pytest.mark.parametrize("kind", WINDOWS)
def test_max_delay_is_rejected_for_window_algorithms(kind: type[Limit]) -> None:
    for max_delay in (0.0, 1.0):
        with pytest.raises(ConfigError, match=f"^max_delay: {kind.algorithm} cannot delay requests; a bucket "):
            Charge("k", kind(10, 60), max_delay=max_delay)


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        *[(kind, field) for kind in WINDOWS for field in ("burst", "max_delay", "at_once")],
        *[(kind, field) for kind in BUCKETS for field in ("buckets", "strict", "warmup")],
        (Smooth, "burst"),
        (TokenBucket, "at_once"),
        (GCRA, "at_once"),
    ],
)
def test_field_of_another_algorithm_raises_a_type_error(kind: type[Limit], field: str) -> None:
    given: dict[str, Any] = {field: 1}
    with pytest.raises(TypeError, match=f"'{field}'"):
        kind(10, 60, **given)


def test_limits_compare_and_hash_by_their_fields() -> None:
    assert TokenBucket(10, 60, burst=5) == TokenBucket(10, 60.0, burst=5)
    assert len({TokenBucket(10, 60), TokenBucket(10, 60), SlidingWindowCounter(10, 60)}) == 2
    different = [
        TokenBucket(10, 60),
        TokenBucket(11, 60),
        TokenBucket(10, 61),
        TokenBucket(10, 60, burst=5),
        TokenBucket(10, 60, max_delay=1.0),
        TokenBucket(10, 60, name="x"),
        GCRA(10, 60),
        GCRA(10, 60, burst=5),
        LeakyBucket(10, 60),
        LeakyBucket(10, 60, at_once=0),
        LeakyBucket(10, 60, at_once=10),
        LeakyBucket(10, 60, max_delay=1.0),
        Smooth(10, 60),
        Smooth(10, 60, max_burst=0),
        Smooth(10, 60, warmup=4),
        Smooth(10, 60, warmup=4, cold_factor=2),
        FixedWindow(10, 60),
        SlidingWindowLog(10, 60),
        SlidingWindowCounter(10, 60),
        SlidingWindowCounter(10, 60, buckets=2),
        SlidingWindowCounter(10, 60, strict=True),
    ]
    assert len(set(different)) == len(different)
    assert len({limit.notation for limit in different}) == len(different) - 3  # without max_delay (two rows) and name


@pytest.mark.parametrize(
    "value",
    [
        *[kind(10, 60) for kind in ALGORITHMS.values()],
        Charge("k", BUCKET),
        Decision(True, 1, 1, 0.0, 0.0, 0.0, 0.0, 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_immutable_and_hashable(value: Struct) -> None:
    for name in value.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, 1)
    assert len({value, replace(value)}) == 1


@pytest.mark.parametrize(
    ("limit", "bucket"),
    [
        (TokenBucket(10, 60), "10/60s_using_token_bucket"),
        (TokenBucket(10, 60, burst=10, max_delay=5.0), "10/60s_using_token_bucket"),
        (TokenBucket(10, 60, burst=5), "10/60s_burst_5_using_token_bucket"),
        (TokenBucket(10, 60, burst=5, name="a.b-c_D"), "a.b-c_D:10/60s_burst_5_using_token_bucket"),
        (TokenBucket(1, 0.25), "1/250000us_using_token_bucket"),
        (TokenBucket(1, 1.000001), "1/1000001us_using_token_bucket"),
        (GCRA(10, 60), "10/60s_using_gcra"),
        (GCRA(10, 60, burst=5, max_delay=5.0), "10/60s_burst_5_using_gcra"),
        (GCRA(10, 60, burst=10), "10/60s_using_gcra"),
        (LeakyBucket(10, 60), "10/60s_using_leaky_bucket"),
        (LeakyBucket(10, 60, at_once=0), "10/60s_using_leaky_bucket"),
        (LeakyBucket(10, 60, burst=10, at_once=10), "10/60s_using_leaky_bucket"),
        (LeakyBucket(10, 60, burst=5, max_delay=5.0, at_once=3), "10/60s_burst_5_using_leaky_bucket"),
        (Smooth(10, 60), "using_smooth"),  # without the rate: a change of the rate keeps the stored units
        (Smooth(7, 0.5, max_burst=1, max_delay=3), "using_smooth"),
        (Smooth(10, 60, max_burst=0, name="x"), "x:max_burst_0_using_smooth"),
        (Smooth(10, 60, max_burst=2.5), "max_burst_2.5_using_smooth"),
        (Smooth(10, 60, warmup=4), "warmup_4_using_smooth"),
        (Smooth(11, 60, warmup=4.0, cold_factor=3), "warmup_4_using_smooth"),
        (Smooth(10, 60, warmup=0.000001, cold_factor=10), "warmup_0.000001_cold_factor_10_using_smooth"),
        (FixedWindow(10, 60), "10/60s_using_fixed_window"),
        (FixedWindow(10, 60, name="x"), "x:10/60s_using_fixed_window"),
        (SlidingWindowLog(10, 0.5), "10/500000us_using_sliding_window_log"),
        (SlidingWindowCounter(10, 86400), "10/86400s_using_sliding_window_counter"),
        (SlidingWindowCounter(10, 60, buckets=10), "10/60s_buckets_10_using_sliding_window_counter"),
        (SlidingWindowCounter(10, 60, strict=True), "10/60s_strict_using_sliding_window_counter"),
        (
            SlidingWindowCounter(9, 1, buckets=2, strict=True, name="x"),
            "x:9/1s_buckets_2_strict_using_sliding_window_counter",
        ),
    ],
)
def test_bucket_name_contains_every_field_that_affects_the_state(limit: Limit, bucket: str) -> None:
    assert limit.bucket == bucket


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        *[(kind(10, 60), 10) for kind in ALGORITHMS.values()],
        *[(kind(10, 60, burst=3), 3) for kind in BUCKETS],
        *[(kind(10, 60, burst=30, max_delay=60), 30) for kind in BUCKETS],
        (LeakyBucket(10, 60, burst=3, at_once=0), 3),
        (SlidingWindowLog(1000, 60), 1000),
        (SlidingWindowLog(1001, 60), 1000),
    ],
)
def test_most_is_the_largest_cost_that_can_be_admitted(limit: Limit, most: int) -> None:
    assert limit.most == most
    assert limit.decide(None, 0, most, None)[0].allowed
    assert limit.decide(None, 0, most + 1, None)[0].retry_after == math.inf


def test_limit_without_an_algorithm_names_the_missing_methods() -> None:
    class Mine(Limit, frozen=True, kw_only=True):
        pass

    for call in (lambda: Mine(1, 1).decide(None, 0, 1, None), lambda: Mine(1, 1).settle(None, 0, 1, 0)):
        with pytest.raises(TypeError, match=r"Mine must define (decide|settle)\(\)"):
            call()
    with pytest.raises(TypeError, match=r"Mine must define expires\(\)"):
        Mine(1, 1).expires(None)


@pytest.mark.parametrize(
    "text",
    [
        *(f"0/minute using {name}" for name in ALGORITHMS),
        "0/minute burst 20 using gcra",
        "0/minute burst 20 using leaky_bucket at_once 8",
        "0/minute using sliding_window_counter buckets 10 strict",
        "0/minute using smooth max_burst 0",
        "0/minute using smooth warmup 4",
    ],
)
def test_a_quota_of_zero_admits_nothing_under_any_algorithm(text: str) -> None:
    (limit,) = parse(text)
    assert parse(limit.notation) == (limit,)
    at_once = {"at_once": None} if "at_once" in text else {}  # not part of the bucket id
    assert limit_of_bucket(limit.bucket) == (None if limit.algorithm == "smooth" else replace(limit, **at_once))
    assert (limit.most, limit.max_per_window, limit.max_wait > 0) == (0, 0, True)
    clock = Clock()
    store = MemoryStore(clock=clock)
    charges = [Charge("k", limit, 3, max_delay=5.0 if limit.can_delay else None), Charge("k", FixedWindow(9, 60))]
    for _ in range(2):
        closed, other = store.take(charges)
        assert (closed.allowed, closed.limit, closed.remaining, closed.retry_after) == (False, 0, 0, math.inf)
        assert (closed.next_after, closed.reset_after, closed.delay) == (60.0, 0.0, 0.0)
        assert (other.allowed, other.remaining) == (True, 9)
        clock.now += 61
    (shown,) = store.peek([Charge("k", limit, 0)])
    assert (shown.allowed, shown.limit, shown.remaining) == (True, 0, 0)
    assert scaled(limit, 0.5).quota == 0


def test_a_static_cost_or_lease_beside_a_quota_of_zero_is_no_mistake() -> None:
    (spec,) = parse_limit_specs("limits", {"limit": "0/minute", "cost": 5, "lease": 10})
    assert (spec.limit.quota, spec.cost, spec.lease) == (0, 5, 10)
    limiter = Limiter(MemoryStore())
    with pytest.raises(RateLimited) as caught:
        limiter.limit("0/minute", key="k", cost=5)(lambda: None)()
    assert caught.value.verdict.retry_after == math.inf
    with pytest.raises(RateLimited):
        limiter.acquire("0/minute using gcra", "k")


@pytest.mark.parametrize("make", [lambda: Ban(0, 60, ban=5), lambda: Concurrency(0)])
def test_a_ban_and_slots_have_a_quota_of_at_least_one(make: Any) -> None:
    with pytest.raises(ConfigError, match="quota: got 0, expected a whole number from 1"):
        make()

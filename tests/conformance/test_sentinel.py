"""Compares limits with Sentinel's controllers: its throttling is a queue, its parameter checks a window or a bucket."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from conformance.tables import SENTINEL
from ratelimit_mw import Charge, FixedWindow, LeakyBucket, Limit, SlidingWindowLog, Smooth, TokenBucket
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

pytestmark = [pytest.mark.promise(3), pytest.mark.one_redis]

THROTTLING, CHECKER, REQUESTS = (
    SENTINEL.data[name] for name in ("throttling", "param_default_checker", "request_limiter")
)
SEQUENTIAL, PARALLEL, NOTHING = THROTTLING["cases"]
REQUEST_STEPS = {  # by step: seconds to wait, costs, which of them pass, and how many units are used afterwards
    "add 3 x3 each can_pass true, sum 9": (0, [3, 3, 3], [True, True, True], 9),
    "can_pass(3) false (12>10)": (0, [3], [False], 9),
    "+1 s: old buckets expire": (1, [], [], 0),
    "add 3, try_pass -> sum 4": (0, [3, 1], [True, True], 4),
}


def test_every_case_has_a_test() -> None:
    assert set(SENTINEL.cases) == {
        "throttling",
        "param_default_checker",
        "overflow",
        "threads",
        "request_limiter",
        "concurrent_token",
    }
    assert [sorted(case) for case in THROTTLING["cases"]] == [
        ["all_pass", "count", "max_queue_ms", "sequential", "total_ms"],
        ["blocked", "count", "max_queue_ms", "parallel"],
        ["count", "max_queue_ms", "n0", "n1"],
    ]


def queue(case: dict[str, Any]) -> LeakyBucket:
    """Return the limit for `ThrottlingController(maxQueueing, count)`."""
    return LeakyBucket(case["count"], 1, max_delay=case["max_queue_ms"] / 1000, at_once=0)


def passes(store: Store, limit: Limit, cost: int = 1) -> bool:
    return store.take([Charge("k", limit, cost)])[0].allowed


def test_queue_delays_sequential_requests_as_throttling(stores: list[Store], clock: Clock) -> None:
    for store in stores:
        start, limit = clock.now, queue(SEQUENTIAL)
        for _ in range(SEQUENTIAL["sequential"]):
            (decision,) = store.take([Charge("k", limit)])
            assert decision.allowed is SEQUENTIAL["all_pass"]
            clock.advance(decision.delay)
        assert SEQUENTIAL["total_ms"] == ">400"
        assert round((clock.now - start) * 1000) == 500


def test_queue_refuses_parallel_requests_as_throttling(stores: list[Store]) -> None:
    assert PARALLEL["blocked"] == ">0 (exact model: 6 pass, 4 blocked)"
    limit = queue(PARALLEL)
    for store in stores:
        answers = at_once(PARALLEL["parallel"], partial(passes, store, limit))
        assert (answers.count(True), answers.count(False)) == (6, 4)


def test_queue_with_a_count_of_0_admits_only_0_units(stores: list[Store]) -> None:
    assert (NOTHING["count"], NOTHING["n1"], NOTHING["n0"]) == (0, False, True)
    for store in stores:
        answers = [store.take([Charge("k", queue(NOTHING), units)])[0].allowed for units in (1, 0)]
        assert answers == [False, True]


def of_a_parameter(count: int, burst: int, seconds: float) -> Limit:
    """Return the limit for ParamFlowDefaultChecker: with a burst a bucket, otherwise a fixed window."""
    return TokenBucket(count, seconds, burst=count + burst) if burst else FixedWindow(count, seconds)


@pytest.mark.parametrize("case", CHECKER["cases"], ids=lambda case: f"{case['count']} burst {case['burst']}")
def test_limits_admit_as_the_parameter_checker(case: dict[str, Any], stores: list[Store], clock: Clock) -> None:
    limit = of_a_parameter(case["count"], case["burst"], case["duration_ms"] / 1000)
    for store in stores:
        store.reset([Charge("k", limit)])
        got = []
        for advance_ms, _ in case["rows"]:
            clock.advance(advance_ms / 1000)
            count = 0
            while passes(store, limit):
                count += 1
            got.append([advance_ms, count])
        assert got == case["rows"]


def test_bucket_refills_within_a_duration_unlike_sentinel(stores: list[Store], clock: Clock) -> None:
    """Sentinel: "elapsed<=duration: no refill". Here units are refilled one by one: 2 of 5 per second after 0.4 s."""
    assert "elapsed<=duration: no refill" in CHECKER["formula"][0]
    limit = of_a_parameter(5, 3, 1)
    for store in stores:
        assert [passes(store, limit) for _ in range(9)] == [True] * 8 + [False]
        clock.advance(0.4)
        assert [passes(store, limit) for _ in range(3)] == [True, True, False]


def test_limits_do_not_overflow_after_days(stores: list[Store], clock: Clock) -> None:
    rows = re.findall(r"(?:\+(\d+) h )?(\d+) passes", CHECKER["overflow"]["rows"])
    assert len(rows) == SENTINEL.rows["overflow"]
    for limit in (FixedWindow(CHECKER["overflow"]["count"], 1), TokenBucket(CHECKER["overflow"]["count"], 1)):
        for store in stores:
            for hours, expected in rows:
                clock.advance(int(hours or 0) * 3600)
                assert [passes(store, limit) for _ in range(int(expected))] == [True] * int(expected)


def test_parallel_threads_are_admitted_as_in_sentinel(stores: list[Store]) -> None:
    case = CHECKER["threads"]
    limit = of_a_parameter(case["count"], 0, case["duration_s"])
    for store in stores:
        assert at_once(case["parallel"], partial(passes, store, limit)).count(True) == case["passes"]


def at_once(threads: int, call: Callable[[], bool]) -> list[bool]:
    with ThreadPoolExecutor(threads) as pool:
        return [answer.result() for answer in [pool.submit(call) for _ in range(threads)]]


def test_log_decides_as_the_request_limiter(stores: list[Store], clock: Clock) -> None:
    limit = SlidingWindowLog(REQUESTS["qps"], REQUESTS["window_s"])
    for store in stores:
        for step in REQUESTS["steps"]:
            seconds, costs, answers, used = REQUEST_STEPS[step]
            clock.advance(seconds)
            assert (step, [passes(store, limit, cost) for cost in costs]) == (step, answers)
            assert (step, store.peek([Charge("k", limit, 0)])[0].remaining) == (step, limit.quota - used)


def test_warm_up_has_the_curve_of_sentinel(stores: list[Store], clock: Clock) -> None:
    """Sentinel considers the requests of the last second, `smooth` all past requests.

    The test sends a request every 10 ms.
    """
    warm_up = SENTINEL.data["warm_up"]
    config, derived = warm_up["config"], warm_up["derived"]
    assert warm_up["steps"] == [
        ["pass_qps=8 prev=1", False],
        ["pass_qps=1 prev=1", True],
        ["prev=10; 100 x (+100 ms, call)", "ignored"],
        ["pass_qps=8", True],
        ["pass_qps=10", False],
    ]
    assert SENTINEL.left["warm_up"].ours == "cold: 4 pass in a second; warm: 10"
    limit = Smooth(config["count"], 1, warmup=config["warmup_s"], cold_factor=config["cold_factor"])
    _, _, fresh, own, full = limit.ticks
    assert limit.warm_up is not None
    assert (limit.warm_up.edge / own, full / own) == (derived["warning"], derived["max"])
    assert limit.warm_up.numerator / limit.warm_up.denominator * own * own * 2 / fresh * 0.1 == pytest.approx(
        derived["slope"]
    )
    for store in stores:
        passed = [0] * 14  # in each second
        for hundredth in range(1400):
            clock.advance(0.01)
            passed[hundredth // 100] += passes(store, limit)
        assert (passed[0], passed[-2:]) == (4, [10, 10])

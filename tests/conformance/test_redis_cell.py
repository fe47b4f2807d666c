"""Compares `gcra` with redis-cell, and with throttled (Go), its model: the same results, to the microsecond."""

import math
import re
from typing import Any

import pytest

from conformance.tables import REDIS_CELL
from ratelimit_mw import GCRA, Charge, ConfigError, Decision, FixedWindow
from ratelimit_mw.core.limit import microseconds
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.http import response
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(4), pytest.mark.one_redis]

DATA = REDIS_CELL.data
REPLIES = DATA["cl_throttle_replies"]
CASES = {
    "TestRateLimit",
    "rate_helpers_ms",
    "errors",
    "cl_throttle_replies",
    "docs_only_rows",
    "http",
    "memstore",
}
PERIODS = {"second": 1, "minute": 60, "hour": 3600, "day": 24 * 3600}  # seconds
WAITS = {"fresh": 0, "immediately after": 0, "after 2 s": 2}  # seconds


def test_every_case_has_a_test() -> None:
    assert set(REDIS_CELL.cases) == CASES


def take(store: Store, limit: GCRA, cost: int = 1) -> Decision:
    return store.take([Charge("k", limit, cost)])[0]


def milliseconds(seconds: float) -> float:
    """Return a time as the table writes it: -1 if it does not apply."""
    return -1 if seconds in {0.0, math.inf} else microseconds(seconds) / 1000


def reply(decision: Decision) -> list[int]:
    """Return a decision as a reply of CL.THROTTLE: in whole seconds, rounded up."""
    retry_after = -1 if decision.allowed else math.ceil(decision.retry_after)
    reset_after = math.ceil(decision.reset_after)
    return [int(not decision.allowed), decision.limit, decision.remaining, retry_after, reset_after]


def throttled_by(command: str) -> GCRA:
    """Return the limit of a CL.THROTTLE command: max_burst, count, period, and the cost, which is 1."""
    max_burst, count, period, *_ = map(int, re.findall(r"\b\d+\b", command))
    return GCRA(count, period, burst=max_burst + 1)


@pytest.mark.parametrize("case", DATA["cases"], ids=lambda case: case["name"])
def test_gcra_decides_as_throttled(case: dict[str, Any], stores: list[Store], clock: Clock) -> None:
    config, start = case["config"], clock.now
    limit = GCRA(1, config["emission_ms"] / 1000, burst=config["max_burst"] + 1)
    assert limit.most == config["limit"]
    for store in stores:
        got = []
        for t_ms, n, *_ in case["rows"]:
            clock.now = start + t_ms / 1000
            answer = take(store, limit, n)
            times = milliseconds(answer.reset_after) if answer.reset_after else 0, milliseconds(answer.retry_after)
            got.append([t_ms, n, answer.remaining, *times, not answer.allowed])
        assert got == case["rows"]


def test_cost_over_the_limit_is_refused_with_the_unchanged_state(stores: list[Store]) -> None:
    """throttled returns "remaining=limit, reset 0" even if units were taken; this package the unchanged state."""
    assert "remaining=limit, reset 0 (throttled" in DATA["semantics"][-1]
    limit = GCRA(1, 1, burst=5)
    for store in stores:
        take(store, limit, 2)
        refused = take(store, limit, 6)
        assert (refused.allowed, refused.remaining, refused.reset_after) == (False, 3, 2.0)  # throttled: 5 and 0


def test_gcra_replies_as_cl_throttle(stores: list[Store], clock: Clock) -> None:
    for store in stores:
        for row in REPLIES["rows"]:
            limit = throttled_by(row["cmd"])
            clock.advance(WAITS[row["state"]])
            if row["state"] == "fresh":
                store.reset([Charge("k", limit)])
            assert (row, reply(take(store, limit))) == (row, row["reply"])


def test_gcra_replies_as_dragonfly_documents_but_for_a_rounding_error(stores: list[Store]) -> None:
    """Dragonfly's first reset of 11 s for an interval of 10 s is a rounding error; the right value is 10 s."""
    (row,) = REPLIES["docs_only_rows"]
    assert row["fresh"] == [0, 1, 0, -1, 11]
    limit = throttled_by(row["cmd"])
    for store in stores:
        assert reply(take(store, limit)) == [0, 1, 0, -1, 10]
        assert reply(take(store, limit)) == row["next"] == [1, 1, 0, 10, 10]


def test_wait_below_a_millisecond_is_reported(stores: list[Store]) -> None:
    """redis-cell drops fractions of a millisecond: a client retries at once and is refused again."""
    assert "0.5 ms -> 0" in REPLIES["rounding"]
    limit = GCRA(1, 0.0005)
    for store in stores:
        take(store, limit)
        refused = take(store, limit)
        assert (refused.retry_after, reply(refused)) == (0.0005, [1, 1, 0, 1, 1])


@pytest.mark.parametrize(("helper", "interval"), [(k, v) for k, v in DATA["rate_helpers_ms"].items() if k != "comment"])
def test_rate_helpers_have_the_same_intervals(helper: str, interval: int, stores: list[Store]) -> None:
    if helper == "zero_count":
        assert interval == 0  # throttled: no interval; this package: nothing is admitted, whatever the window
        for store in stores:
            assert (refused := take(store, GCRA(0, 1))).allowed is False
            assert refused.retry_after == math.inf
        return
    per, *numbers = re.findall(r"(?<=per_)\w+|\d+", helper)
    count, period = map(int, numbers) if per == "period" else (int(numbers[0]), PERIODS[per])
    for store in stores:
        assert milliseconds(take(store, GCRA(count, period, burst=1)).next_after) == interval


@pytest.mark.parametrize("error", DATA["errors"])
def test_a_window_of_0_is_an_error_and_a_quota_of_0_admits_nothing(error: str, stores: list[Store]) -> None:
    assert error == "count 0 or period 0 -> 'Zero rates are not supported'"
    with pytest.raises(ConfigError, match="window: got 0 seconds"):
        GCRA(1, 0)
    assert [take(store, GCRA(0, 1)).allowed for store in stores] == [False] * len(stores)


def test_custom_period_admits_one_of_27_simultaneous_calls(stores: list[Store]) -> None:
    """throttled's test sleeps while its clock is stopped: all 27 calls are at one instant, and the first passes."""
    (described,) = DATA["memstore"].values()
    quota, window, burst, calls = map(int, re.findall(r"\d+", described)[:4])
    assert described.startswith(f"{quota} per {window} ms, burst {burst}: of {calls} calls at one instant")
    limit = GCRA(quota, window / 1000, burst=burst + 1)
    for store in stores:
        limited = [not take(store, limit).allowed for _ in range(calls)]
        assert limited == [False] + [True] * 26


def test_legacy_header_fields_match_throttleds_but_for_the_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    """In throttled, X-RateLimit-Reset is seconds from now; here a Unix time, as in most implementations."""
    example = DATA["http"]["example"]
    limit, remaining, reset, retry = (example[name] for name in ("limit", "remaining", "reset_s", "retry_s"))
    monkeypatch.setattr("ratelimit_mw.http.response.time.time", lambda: 1_000_000_000.0)
    decision = Decision(False, limit, remaining, retry, reset, reset, 0.0, 0)
    fields = dict(
        response.refusal_response(verdict_of([Charge("k", FixedWindow(1, 60))], [decision]), "legacy").headers
    )
    assert fields["Retry-After"] == example["Retry-After"] == "60"
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Remaining"]) == (str(limit), str(remaining))
    assert (fields["X-RateLimit-Reset"], example["X-RateLimit-Reset"]) == ("1000000060", "60")

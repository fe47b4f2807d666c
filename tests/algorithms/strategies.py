"""Hypothesis strategies for limits of each algorithm, and for walks, with which the public laws are tested."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ratelimit_mw import (
    GCRA,
    CalendarWindow,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.algorithms.calendar_periods import PERIODS, WEEKDAYS
from ratelimit_mw.testing.walks import FORWARD, MOST_STEPS, MOVES, TOO_LARGE, Step, Walk

_quotas = st.one_of(st.integers(1, 12), st.integers(1, 10**6), st.sampled_from([10**9, 999_999_937]))
_windows = st.one_of(  # seconds
    st.sampled_from([1, 10, 60, 3600, 24 * 3600]),
    st.integers(1, 10**11).map(lambda microseconds: microseconds / 1e6),
)


def _buckets(kind: type[BucketLimit]) -> st.SearchStrategy[Limit]:
    """Return a strategy for buckets that delay requests by at most a part of their window."""

    def bucket(quota: int, window: float, burst: int | None, part: float, at_once: int | None) -> Limit:
        queue: dict[str, Any] = {}
        if kind is LeakyBucket and at_once is not None:
            queue["at_once"] = min(at_once, burst or quota)
        return kind(quota, window, burst=burst, max_delay=window * part, **queue)

    bursts = st.one_of(st.none(), st.integers(1, 12))
    delays = st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0])
    return st.builds(bucket, _quotas, _windows, bursts, delays, st.sampled_from([None, None, 0, 1, 5]))


def _smooth(quota: int, window: float, part: float, idle: tuple[float, int] | float) -> Limit:
    """Return a limit with a warm-up and a cold factor if `idle` is a tuple, otherwise with seconds of burst."""
    if isinstance(idle, tuple):
        return Smooth(quota, window, warmup=idle[0], cold_factor=idle[1], max_delay=window * part)
    stored = min(idle, 50 * window)  # stored units are taken in charges of at most a quota
    return Smooth(quota, window, max_burst=stored if stored >= MICROSECOND else 0, max_delay=window * part)


ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",  # the clock goes forward at midnight, and back to it
    "America/Sao_Paulo",  # forward at midnight, until 2018
    "America/St_Johns",  # at one minute past midnight, until 2011
    "Asia/Kathmandu",  # 5:45 from UTC
    "Asia/Beirut",
    "Australia/Lord_Howe",  # 30 minutes at each change
    "Pacific/Chatham",
    "Pacific/Apia",  # 30 December 2011 was skipped
    "Asia/Tehran",  # 3:30 from UTC; until 2022 the clock changed at midnight
    "Africa/Casablanca",  # the clock goes back for Ramadan
    "Antarctica/Troll",  # 2 hours at each change
)


def _calendar_window(quota: int, period: Any, zone: str, start: int) -> Limit:
    starts: dict[str, Any] = {"month": start, "week": WEEKDAYS[start % 7]}
    return CalendarWindow(quota, period, zone=zone, start=starts.get(period))


MICROSECOND = 0.000001
_idle = st.one_of(
    st.tuples(
        st.one_of(st.sampled_from([0.000004, 4, 60, 3600]), _windows), st.sampled_from([1, 2, 3, 3, 4, 7, 10, 100])
    ),
    st.sampled_from([0, 1.0, 1.0, 2.5, 60]),
    _windows,
)

counters: st.SearchStrategy[Limit] = st.builds(
    SlidingWindowCounter,
    _quotas,
    st.sampled_from([1, 7, 10, 60, 24 * 3600]),
    buckets=st.integers(1, 5),
    strict=st.booleans(),
)
of_each_algorithm: dict[str, st.SearchStrategy[Limit]] = {
    "fixed_window": st.builds(FixedWindow, _quotas, _windows),
    "sliding_window_counter": counters,
    "sliding_window_log": st.builds(SlidingWindowLog, st.one_of(st.integers(1, 12), st.integers(1, 3000)), _windows),
    "token_bucket": _buckets(TokenBucket),
    "gcra": _buckets(GCRA),
    "leaky_bucket": _buckets(LeakyBucket),
    "calendar_window": st.builds(
        _calendar_window, _quotas, st.sampled_from(PERIODS), st.sampled_from(ZONES), st.integers(1, 31)
    ),
    "smooth": st.builds(_smooth, _quotas, _windows, st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]), _idle),
}


def _steps(moves: Sequence[str]) -> st.SearchStrategy[list[Step]]:
    steps = st.builds(Step, st.sampled_from(moves), st.integers(0, 100), st.integers(0, TOO_LARGE))
    return st.lists(steps, max_size=MOST_STEPS)


forward = _steps(FORWARD)
both_ways = _steps(MOVES)
sizes = st.integers(1, TOO_LARGE)
walks = st.builds(Walk, both_ways.map(tuple), sizes, st.integers(0, 99))

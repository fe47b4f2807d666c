"""Hypothesis strategies: limits of each algorithm, and walks of clients and clocks over them."""

import math
from dataclasses import dataclass

from hypothesis import strategies as st

from algorithms.models import SECOND, Model, Tokens, Windows
from ratelimit_mw import Decision, Limit, SlidingWindowCounter, TokenBucket
from ratelimit_mw.limit import BucketLimit, State

START = 1_000_000_000_000_000  # microseconds

_quotas = st.one_of(st.integers(1, 12), st.integers(1, 10**6), st.sampled_from([10**9, 999_999_937]))
_windows = st.one_of(  # seconds
    st.sampled_from([1, 10, 60, 3600, 24 * 3600]),
    st.integers(1, 10**11).map(lambda microseconds: microseconds / 1e6),
)


def _token_bucket(quota: int, window: float, burst: int | None, part: float) -> Limit:
    """A bucket that holds requests back for at most a part of its window."""
    return TokenBucket(quota, window, burst=burst, max_delay=window * part)


token_buckets: st.SearchStrategy[Limit] = st.builds(
    _token_bucket,
    _quotas,
    _windows,
    st.one_of(st.none(), st.integers(1, 12)),
    st.sampled_from([0.0, 0.0, 0.01, 0.3, 1.0]),
)
counters: st.SearchStrategy[Limit] = st.builds(
    SlidingWindowCounter,
    _quotas,
    st.sampled_from([1, 7, 10, 60, 24 * 3600]),
    buckets=st.integers(1, 5),
    strict=st.booleans(),
)
of_each_algorithm = {"token_bucket": token_buckets, "sliding_window_counter": counters}


def model_of(limit: Limit) -> Model:
    if isinstance(limit, TokenBucket):
        return Tokens(limit)
    assert isinstance(limit, SlidingWindowCounter)
    return Windows(limit)


@dataclass(frozen=True)
class Step:
    """One move of the clock and one charge, both relative to the limit: a step means something for every limit."""

    move: str
    amount: int  # of a hundred
    size: int

    def time(self, now: int, limit: Limit, last: Decision | None) -> int:
        part = limit.window_us * self.amount // 100
        moves = {"same": 0, "microsecond": 1, "fraction": part, "long": 3 * limit.window_us, "back": -2 * part}
        if last is not None:
            retry = last.retry_after if last.retry_after < math.inf else 0.0
            waits = {"retry": retry, "early": retry - 0.000001, "next": last.next_after, "reset": last.reset_after}
            moves |= {move: max(0, round(seconds * SECOND)) for move, seconds in waits.items()}
        return now + moves.get(self.move, 0)

    def cost(self, limit: Limit) -> int:
        """0 to 3 units, then twelfths of the most that can pass, then one more than that."""
        if self.size <= 3:
            return self.size
        return max(1, limit.most * self.size // 12) if self.size <= 12 else limit.most + 1


_forward = ["same", "same", "microsecond", "fraction", "fraction", "retry", "early", "next", "reset", "long"]


def _steps(moves: list[str]) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.builds(Step, st.sampled_from(moves), st.integers(0, 100), st.integers(0, 13)), max_size=30)


forward = _steps(_forward)
both_ways = _steps([*_forward, "back"])


def walked(limit: Limit, steps: list[Step]) -> tuple[State, int]:
    """The state after these steps, and the time then."""
    state, now, last = None, START, None
    for step in steps:
        now = step.time(now, limit, last)
        last, state = limit.decide(state, now, step.cost(limit), None)
    return state, now


def delay_us(limit: Limit) -> int:
    """The limit's own max_delay, microseconds."""
    return round(limit.max_delay * SECOND) if isinstance(limit, BucketLimit) else 0

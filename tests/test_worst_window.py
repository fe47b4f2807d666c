"""The `max_per_window` of a limit: a search finds no window with more units, and the docs state the same number."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from algorithms.adversary import Adversary, bound
from ratelimit_mw import (
    GCRA,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
    parse,
)
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.bucket import BucketLimit

pytestmark = pytest.mark.promise(3)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "algorithms.md"
RATES = [(quota, window / 1e6) for quota, window in ((1, 4), (2, 5), (3, 4), (3, 7))]
SMALL: Sequence[Limit] = [
    *(kind(*rate) for kind in (FixedWindow, SlidingWindowLog, SlidingWindowCounter) for rate in RATES),
    *(SlidingWindowCounter(*rate, strict=True) for rate in RATES),
    *(kind(*rate, burst=burst) for kind in (TokenBucket, GCRA, LeakyBucket) for rate in RATES for burst in (1, 2, 3)),
    *(Smooth(*rate, max_burst=stored / 1e6) for rate in RATES for stored in (0, 1, 4)),
    *(Smooth(*rate, warmup=warmup / 1e6) for rate in RATES for warmup in (1, 5)),
]


@pytest.mark.parametrize("limit", SMALL, ids=lambda limit: limit.notation.replace(" ", "_"))
def test_no_window_admits_more_than_max_per_window(limit: Limit) -> None:
    assert limit.max_per_window is not None
    assert Adversary(limit).worst().units <= limit.max_per_window == bound(limit)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_documented_worst_window_matches_max_per_window(algorithm: str) -> None:
    page = PAGE.read_text("utf-8")
    (row,) = re.findall(rf"^\| \[`{algorithm}`\]\(#{algorithm}\).*", page, re.MULTILINE)
    stated = row.split(" | ")[3].partition(",")[0].replace("\N{MINUS SIGN}", "-")
    known = {"2q - 1": 199, "2q": 200, "q": 100, "b + q - 1": 119, "2q + s - 1": 201}
    burst = "burst 20 " if stated.startswith("b") else ""
    (limit,) = parse(f"100/minute {burst}using {algorithm}")
    assert limit.max_per_window == known[stated] == bound(limit)


def test_max_per_window_of_custom_limits_is_unknown() -> None:
    class Own(Limit, frozen=True, kw_only=True):
        """A user's limit."""

    class OwnBucket(BucketLimit, frozen=True, kw_only=True):
        """A user's bucket, whose `decide` may do anything."""

    assert Own(5, 60).max_per_window is None
    assert OwnBucket(5, 60).max_per_window is None

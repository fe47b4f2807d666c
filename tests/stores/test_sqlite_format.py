"""Each version reads the states that the previous version wrote: the order of fields is part of the format."""

import pytest

from ratelimit_mw import (
    GCRA,
    Concurrency,
    FixedWindow,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
    TokenBucket,
)
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.stores.sqlite.codec import Codecs

NOW = 10**15  # microseconds
WRITTEN: list[tuple[Limit, int, str]] = [  # a limit, the cost of each of two charges, and the state that follows
    (FixedWindow(10, 60), 2, "9204cf00038d7ea4c68000"),
    (
        SlidingWindowCounter(10, 60, buckets=3),
        2,
        "94cf00038d7ea4c680000400920000",
    ),
    (
        SlidingWindowLog(10, 60),
        2,
        "0080c6a47e8d03000080c6a47e8d03000180c6a47e8d03000180c6a47e8d0300",
    ),
    (TokenBucket(10, 60), 2, "92ce016e35ffcf00038d7ea4c68001"),
    (LeakyBucket(10, 60), 2, "92ce016e35ffcf00038d7ea4c68001"),
    (GCRA(10, 60), 2, "cf00038d7ea634b600"),
    (GCRA(10, 60, max_delay=60), 8, "92cf00038d7eaa7f5800cf00038d7ea4c68001"),
    (
        Smooth(10, 60),
        2,
        "96ce00a7d8c0d2ff58274000cf00038d7ea4c680000101",
    ),
    (
        Concurrency(10),
        2,
        (
            "0080c6a47e8d0300c061aba57e8d03000180c6a47e8d0300c061aba57e8d03000280c6a47e8d0300c161aba57e8d0300"
            "0380c6a47e8d0300c161aba57e8d0300"
        ),
    ),
    (Ban(4, 60, ban=900), 2, "9304cf00038d7ea4c68000cf00038d7eda6b6901"),
]


@pytest.mark.parametrize(("limit", "cost", "written"), WRITTEN, ids=lambda value: str(value)[:40])
def test_bytes_of_a_state_match_the_format(limit: Limit, cost: int, written: str) -> None:
    codec, state = Codecs().of(limit), None
    for now in (NOW, NOW + 1):
        _, state = limit.decide(state, now, cost, None)
    assert codec.encode(state).hex() == written
    read = codec.decode(bytes.fromhex(written))
    assert codec.encode(read).hex() == written
    assert limit.decide(read, NOW + 2, 1, None)[0] == limit.decide(state, NOW + 2, 1, None)[0]


def test_each_algorithm_has_a_row() -> None:
    assert {type(limit) for limit, *_ in WRITTEN} == {*ALGORITHMS.values(), Concurrency, Ban}

"""The memory store is bounded, exact across threads, and lets nobody out by flooding it."""

import threading
from collections.abc import Sequence
from typing import ClassVar

import pytest

from ratelimit_mw import Charge, ConfigError, Decision, MemoryStore, SlidingWindowCounter, TokenBucket
from ratelimit_mw.bucket import Level
from ratelimit_mw.testing import Clock

pytestmark = pytest.mark.promise(7)

ONE = SlidingWindowCounter(1, 3600)
TEN = SlidingWindowCounter(10, 3600)


class Watched(TokenBucket, frozen=True, kw_only=True):
    """Counts how many states are looked at for expiry."""

    looked_at: ClassVar[list[int]] = []

    def expires(self, state: Level) -> int:
        self.looked_at.append(state.updated)
        return super().expires(state)


def hit(store: MemoryStore, key: str, limit: "SlidingWindowCounter | TokenBucket" = TEN, cost: int = 1) -> Decision:
    return store.take([Charge(key, limit, cost)])[0]


def flood(store: MemoryStore, keys: Sequence[int], limit: "SlidingWindowCounter | TokenBucket" = TEN) -> int:
    """How many of that many new keys are admitted."""
    return sum(hit(store, f"new {number}", limit).allowed for number in keys)


@pytest.mark.parametrize("limit", [ONE, TEN, TokenBucket(1, 3600), TokenBucket(10, 1)])
@pytest.mark.parametrize("most", [1, 2, 100])
def test_holds_at_most_max_keys_and_one_overflow_bucket(limit: "SlidingWindowCounter | TokenBucket", most: int) -> None:
    clock = Clock()
    store = MemoryStore(max_keys=most, clock=clock)
    for number in range(10 * most):
        clock.advance(0.001)
        hit(store, f"k{number}", limit)
        assert len(store) <= most + 1
    assert len(store) >= most


@pytest.mark.parametrize("size", [2, 3, 5])
def test_groups_of_new_keys_keep_within_the_bound(size: int) -> None:
    store = MemoryStore(max_keys=10, clock=Clock())
    for number in range(100):
        store.take([Charge(f"{number} {part}", TEN) for part in range(size)])
        assert len(store) <= 10
    store.take([Charge("several", SlidingWindowCounter(10, 60 + part)) for part in range(size)])
    assert len(store) <= 10


def test_a_group_does_not_free_its_own_keys() -> None:
    store = MemoryStore(max_keys=4, clock=Clock())
    for key in "abcd":
        hit(store, key)
    for number in range(20):
        shown = store.take([Charge(key, TEN, 0 if number else 2) for key in "abc"] + [Charge(f"new {number}", TEN)])
        assert [decision.remaining for decision in shown] == [7, 7, 7, 9]
        assert len(store) == 4


def test_a_flood_of_one_limit_frees_no_counting_key_of_a_smaller_one() -> None:
    store = MemoryStore(max_keys=100, clock=Clock())
    for number in range(30):
        hit(store, f"k{number}", TEN, 4)
    flood(store, range(500), ONE)
    assert [store.peek([Charge(f"k{number}", TEN, 0)])[0].remaining for number in range(30)] == [6] * 30


def test_each_limit_has_at_most_one_overflow_bucket() -> None:
    store = MemoryStore(max_keys=10, clock=Clock())
    limits = [SlidingWindowCounter(1, 3600 + part) for part in range(5)]
    for number in range(50):
        for limit in limits:
            hit(store, f"k{number}", limit)
    assert len(store) == 10 + len(limits)


@pytest.mark.parametrize("limit", [ONE, SlidingWindowCounter(5, 3600), TokenBucket(5, 3600)])
def test_a_flood_of_new_keys_never_frees_one_that_is_refused(limit: "SlidingWindowCounter | TokenBucket") -> None:
    store = MemoryStore(max_keys=100, clock=Clock())
    victims = [f"refused {number}" for number in range(40)]
    for key in victims:
        hit(store, key, limit, limit.quota)
    for start in range(0, 1000, 50):
        flood(store, range(start, start + 50), limit)
        assert [hit(store, key, limit).allowed for key in victims] == [False] * len(victims)


def test_when_all_are_refused_new_keys_share_one_bucket_and_old_ones_keep_theirs() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    assert flood(store, range(10), ONE) == 10
    assert flood(store, range(10, 1000), ONE) == 1
    assert flood(store, range(10), ONE) == 0
    clock.advance(2 * 3600)
    assert flood(store, range(1000, 1009), ONE) == 9  # the old ones expired and make room


def test_a_full_store_lets_known_keys_count_on() -> None:
    store = MemoryStore(max_keys=3, clock=Clock())
    for key in "abc":
        hit(store, key)
    assert [hit(store, key).remaining for key in "abc" * 3] == [8, 8, 8, 7, 7, 7, 6, 6, 6]


@pytest.mark.parametrize("fresh", range(8))
def test_what_expired_goes_before_what_still_counts(fresh: int) -> None:
    clock = Clock()
    store = MemoryStore(max_keys=8, clock=clock)
    for number in range(8):
        hit(store, f"k{number}")
    clock.advance(7200)
    hit(store, f"k{fresh}", cost=3)
    for number in range(7):
        assert hit(store, f"new {number}").allowed
    assert hit(store, f"k{fresh}").remaining == 6


def test_expired_keys_of_a_limit_that_nobody_asks_for_any_more_make_room() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    short = SlidingWindowCounter(1, 1)
    for number in range(4):
        hit(store, f"k{number}", short)
    assert flood(store, range(6), ONE) == 6
    clock.advance(10)
    assert flood(store, range(6, 10), ONE) == 4


def test_a_peek_frees_nothing() -> None:
    store = MemoryStore(max_keys=3, clock=Clock())
    for key in "abc":
        hit(store, key, cost=4)
    for number in range(20):
        (shown,) = store.peek([Charge(f"new {number}", TEN, 3)])
        assert (shown.allowed, shown.remaining) == (True, 7)
    store.settle([Charge("never seen", TEN, -3, at=1_000_000_000_000_000)])
    assert [store.peek([Charge(key, TEN, 0)])[0].remaining for key in "abc"] == [6, 6, 6]
    assert len(store) == 3


def test_cost_0_peeks_and_what_never_passes_are_not_kept() -> None:
    store = MemoryStore(clock=Clock())
    store.take([Charge("k", TEN, 0)])
    store.peek([Charge("k", TEN, 5)])
    store.take([Charge("k", TEN, 11)])
    store.take([Charge("k", TEN, 1), Charge("k", ONE, 2)])
    assert len(store) == 0


def test_giving_back_and_reset_free_keys() -> None:
    store = MemoryStore(clock=Clock())
    at = hit(store, "a", cost=4).at
    hit(store, "b")
    store.settle([Charge("a", TEN, -4, at=at)])
    assert len(store) == 1
    store.reset([Charge("a", TEN), Charge("b", TEN), Charge("b", ONE)])
    assert len(store) == 0
    hit(store, "a")
    store.close()
    assert (len(store), hit(store, "a").remaining) == (0, 9)


def test_expiry_moves_a_few_states_a_call_and_catches_up() -> None:
    clock = Clock()
    store, limit = MemoryStore(clock=clock), Watched(10, 1)
    for number in range(1000):
        hit(store, f"k{number}", limit)
    most, sizes = 0, []
    for number in range(1000, 4000):
        clock.advance(0.01)
        Watched.looked_at.clear()
        hit(store, f"k{number}", limit)
        most = max(most, len(Watched.looked_at))
        sizes.append(len(store))
    assert most == 2
    assert max(sizes) <= 2000
    assert sizes[-1] < 400  # a window's worth of traffic, and what waits for its turn


def test_making_room_looks_at_a_few_states() -> None:
    store, limit = MemoryStore(max_keys=1000, clock=Clock()), Watched(1, 3600)
    most = 0
    for number in range(3000):
        Watched.looked_at.clear()
        hit(store, f"k{number}", limit)
        most = max(most, len(Watched.looked_at))
    assert most <= 34


def test_no_thread_is_started() -> None:
    before = threading.enumerate()
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    for number in range(1000):
        clock.advance(10)
        hit(store, f"k{number}")
    assert threading.enumerate() == before


@pytest.mark.promise(3)
def test_eight_threads_get_exactly_the_quota() -> None:
    store = MemoryStore()
    group = [Charge("k", SlidingWindowCounter(3000, 3600)), Charge("k", TokenBucket(10**6, 10**9, burst=2000), 2)]
    start, admitted = threading.Barrier(8), []

    def work() -> None:
        start.wait()
        admitted.extend([all(decision.allowed for decision in store.take(group)) for _ in range(500)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(admitted), sum(admitted)) == (4000, 1000)
    assert [store.peek([Charge("k", charge.limit, 0)])[0].remaining for charge in group] == [2000, 0]


def test_the_real_clock_runs() -> None:
    store = MemoryStore()
    first, second = hit(store, "k"), hit(store, "k")
    assert 0 < first.at <= second.at
    assert (first.remaining, second.remaining) == (9, 8)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "10", None, 2**53])
def test_a_wrong_max_keys_is_an_error(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"max_keys: found .*allowed is a whole number from 1"):
        MemoryStore(max_keys=wrong)  # type: ignore[arg-type]


def test_a_clock_that_cannot_be_called_is_an_error() -> None:
    with pytest.raises(ConfigError, match="clock: found 5"):
        MemoryStore(clock=5)  # type: ignore[arg-type]

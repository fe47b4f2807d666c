"""The memory store is bounded and exact across threads, and a flood of new keys evicts no refused key."""

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from algorithms.at_once import TAKEN, at_once
from ratelimit_mw import (
    Charge,
    ConfigError,
    Decision,
    FixedWindow,
    Limit,
    MemoryStore,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
)
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.bucket import LevelState
from ratelimit_mw.core.limit import PlainGroup
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.testing import Clock

pytestmark = pytest.mark.promise(7)

ONE = SlidingWindowCounter(1, 3600)
TEN = SlidingWindowCounter(10, 3600)


class Watched(TokenBucket, frozen=True, kw_only=True):
    """Records the states that the store checks for expiry."""

    looked_at: ClassVar[list[int]] = []

    def expires(self, state: LevelState) -> int:
        self.looked_at.append(state[1])
        return super().expires(state)


def hit(store: MemoryStore, key: str, limit: Limit = TEN, cost: int = 1) -> Decision:
    return store.take([Charge(key, limit, cost)])[0]


def flood(store: MemoryStore, keys: Sequence[int], limit: "SlidingWindowCounter | TokenBucket" = TEN) -> int:
    """Take one unit of each of these new keys, and return how many are admitted."""
    return sum(hit(store, f"new {number}", limit).allowed for number in keys)


@pytest.mark.parametrize("limit", [ONE, TEN, TokenBucket(1, 3600), TokenBucket(10, 1)])
@pytest.mark.parametrize("most", [1, 2, 100])
def test_store_holds_at_most_max_keys_and_one_overflow_bucket(
    limit: "SlidingWindowCounter | TokenBucket", most: int
) -> None:
    clock = Clock()
    store = MemoryStore(max_keys=most, clock=clock)
    for number in range(10 * most):
        clock.advance(0.001)
        hit(store, f"k{number}", limit)
        assert len(store) <= most + 1
    assert len(store) >= most


@pytest.mark.parametrize("size", [2, 3, 5])
def test_groups_of_new_keys_do_not_exceed_max_keys(size: int) -> None:
    store = MemoryStore(max_keys=10, clock=Clock())
    for number in range(100):
        store.take([Charge(f"{number} {part}", TEN) for part in range(size)])
        assert len(store) <= 10
    store.take([Charge("several", SlidingWindowCounter(10, 60 + part)) for part in range(size)])
    assert len(store) <= 10


def test_group_does_not_evict_its_own_keys() -> None:
    store = MemoryStore(max_keys=4, clock=Clock())
    for key in "abcd":
        hit(store, key)
    for number in range(20):
        shown = store.take([Charge(key, TEN, 0 if number else 2) for key in "abc"] + [Charge(f"new {number}", TEN)])
        assert [decision.remaining for decision in shown] == [7, 7, 7, 9]
        assert len(store) == 4


def test_flood_evicts_no_used_key_of_a_limit_with_fewer_keys() -> None:
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


@pytest.mark.promise(2)
@pytest.mark.parametrize(
    "limit",
    [FixedWindow(4, 3600), TokenBucket(4, 3600), SlidingWindowLog(4, 3600), TEN],
    ids=lambda limit: limit.algorithm,
)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_refused_group_charges_nothing_to_the_overflow_bucket(kind: str, limit: Limit, tmp_path: Path) -> None:
    clock, most = Clock(), limit.quota
    store: Any = MemoryStore(max_keys=1, clock=clock)
    if kind == "sqlite":
        store = SQLiteStore(tmp_path / "limits.db", max_keys=1, clock=clock)
    full = [hit(store, "first", limit, most).allowed, hit(store, "first", limit, most).allowed]
    assert full == [True, False]  # a refused key is not evicted, so new keys share a bucket
    for _ in range(3):
        group = store.take([Charge("a", limit, 1), Charge("b", limit, most)])
        assert [decision.allowed for decision in group] == [True, False]
    assert [hit(store, f"new {number}", limit).allowed for number in range(most + 1)] == [True] * most + [False]
    store.close()


@pytest.mark.parametrize("limit", [ONE, SlidingWindowCounter(5, 3600), TokenBucket(5, 3600)])
def test_flood_of_new_keys_evicts_no_refused_key(limit: "SlidingWindowCounter | TokenBucket") -> None:
    store = MemoryStore(max_keys=100, clock=Clock())
    victims = [f"refused {number}" for number in range(40)]
    for key in victims:
        hit(store, key, limit, limit.quota)
    for start in range(0, 1000, 50):
        flood(store, range(start, start + 50), limit)
        assert [hit(store, key, limit).allowed for key in victims] == [False] * len(victims)


@pytest.mark.parametrize("kind", TAKEN.values(), ids=list(TAKEN))
@pytest.mark.parametrize("cost", [8, 10, 11])
def test_flood_evicts_no_key_that_was_refused_for_a_high_cost(kind: type[Limit], cost: int) -> None:
    """The key has units left for smaller requests. It keeps its count, even after used units have drained."""
    clock = Clock()
    store, limit = MemoryStore(max_keys=100, clock=clock), at_once(kind, 10, 36_000)
    cost = 11 if limit.borrows else cost  # the only cost that such a limit refuses while units are left
    victims = [f"refused {number}" for number in range(40)]
    for key in victims:
        assert hit(store, key, limit, 3).allowed
        assert not hit(store, key, limit, cost).allowed
    for start in range(0, 1000, 50):
        for number in range(start, start + 50):
            hit(store, f"new {number}", limit)
        assert [store.peek([Charge(key, limit, 0)])[0].remaining for key in victims] == [7] * len(victims)
    assert [hit(store, key, limit, cost).allowed for key in victims] == [False] * len(victims)
    clock.advance(7200)  # two units of a bucket have drained, and a request for one would be admitted
    left = [store.peek([Charge(key, limit, 0)])[0].remaining for key in victims]
    for number in range(1000, 1300):
        hit(store, f"new {number}", limit)
    assert [store.peek([Charge(key, limit, 0)])[0].remaining for key in victims] == left


@pytest.mark.parametrize("corrected", [False, True])
def test_flood_evicts_no_bucket_of_a_request_that_another_limit_refused(corrected: bool) -> None:
    """A flood evicts no bucket with room, no penalty that counts the refusal, and no bucket that was settled since."""
    store = MemoryStore(max_keys=100, clock=Clock())
    hour, ban = TokenBucket(100, 3600, name="hour"), Ban(3, 3600, ban=3600)
    group = [Charge("me", ONE), Charge("me", hour, 5), Charge("me", ban, role="penalty")]
    for _ in range(3):
        store.take(group)
    if corrected:
        store.settle([Charge("me", hour, 2, at=0)])
    left = 93 if corrected else 95
    assert flood(store, range(500), hour) == 500
    assert [one.remaining for one in store.peek([Charge("me", limit, 0) for limit in (ONE, hour)])] == [0, left]
    for number in range(500):
        store.take([Charge(f"new {number}", hour, 101), Charge(f"new {number}", ban, role="penalty")])
    assert store.peek([Charge("me", hour, 0)])[0].remaining == left
    assert [one.allowed for one in store.take(group)] == [False, True, True]  # the third refusal: the ban begins
    assert [one.allowed for one in store.take(group)] == [False, True, False]


def refused_keys(store: MemoryStore) -> int:
    """Return how many keys of `TEN` are marked as refused, including stale marks."""
    states = store._maps[TEN.bucket]
    return len(states.current_refusals) + sum(len(generation.refusals) for generation in states._older)


def test_refused_key_of_an_older_generation_is_not_evicted() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=100, clock=clock)
    hit(store, "me")
    flood(store, range(64))  # closes the generation of "me"
    hit(store, "me", cost=10)
    assert [len(generation.refusals) for generation in store._maps[TEN.bucket]._older] == [1]
    flood(store, range(64, 500))
    assert store.peek([Charge("me", TEN, 0)])[0].remaining == 9


def test_reset_removes_refusal_marks() -> None:
    store = MemoryStore(max_keys=100, clock=Clock())
    hit(store, "older")
    flood(store, range(64))  # closes the generation of "older"
    hit(store, "older", cost=10)
    hit(store, "newer")
    hit(store, "newer", cost=10)
    assert refused_keys(store) == 2
    store.reset([Charge("older", TEN), Charge("newer", TEN)])
    assert refused_keys(store) == 0


def test_key_can_be_evicted_after_it_is_admitted_again() -> None:
    store = MemoryStore(max_keys=100, clock=Clock())
    for key in ("me", "other"):
        hit(store, key)
        hit(store, key, cost=10)
    hit(store, "me")
    flood(store, range(500))
    assert [store.peek([Charge(key, TEN, 0)])[0].remaining for key in ("me", "other")] == [10, 9]
    assert refused_keys(store) == 1


def test_new_keys_share_a_bucket_when_all_keys_were_refused_for_a_high_cost() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    for number in range(10):
        hit(store, f"new {number}")
        hit(store, f"new {number}", cost=10)
    assert flood(store, range(10, 1000)) == 10
    assert len(store) == 11
    clock.advance(3 * 3600)
    assert flood(store, range(1000, 1009)) == 9  # the old keys have expired and make room
    hit(store, "new 1000", cost=10)
    clock.advance(3 * 3600)
    for number in range(100):
        hit(store, f"later {number}")
    assert refused_keys(store) == 0


def test_each_new_key_of_a_group_charges_the_overflow_bucket() -> None:
    store = MemoryStore(max_keys=1, clock=Clock())
    hit(store, "k")
    hit(store, "k", cost=10)
    group = [Charge("one", TEN, 2), Charge("other", TEN, 3)]
    assert [decision.remaining for decision in store.take(group)] == [8, 5]
    assert [decision.remaining for decision in store.take(group)] == [3, 0]
    assert not any(decision.allowed for decision in [hit(store, "one"), hit(store, "other")])


def test_new_keys_share_a_bucket_while_all_old_keys_stay_refused() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    assert flood(store, range(10), ONE) == 10
    assert flood(store, range(10, 1000), ONE) == 1
    assert flood(store, range(10), ONE) == 0
    clock.advance(2 * 3600)
    assert flood(store, range(1000, 1009), ONE) == 9  # the old keys have expired and make room


def test_expired_overflow_buckets_are_dropped() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    for turn in range(8):
        own = flood(store, range(1000 * turn, 1000 * turn + 300), ONE)
        assert (own, len(store)) == (11, 11)  # ten keys have their own bucket, and all others share one
        clock.advance(10_000)


def test_full_store_still_counts_known_keys() -> None:
    store = MemoryStore(max_keys=3, clock=Clock())
    for key in "abc":
        hit(store, key)
    assert [hit(store, key).remaining for key in "abc" * 3] == [8, 8, 8, 7, 7, 7, 6, 6, 6]


@pytest.mark.parametrize("fresh", range(8))
def test_expired_keys_are_evicted_before_live_keys(fresh: int) -> None:
    clock = Clock()
    store = MemoryStore(max_keys=8, clock=clock)
    for number in range(8):
        hit(store, f"k{number}")
    clock.advance(7200)
    hit(store, f"k{fresh}", cost=3)
    for number in range(7):
        assert hit(store, f"new {number}").allowed
    assert hit(store, f"k{fresh}").remaining == 6


def test_expired_keys_of_an_unused_limit_make_room() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10, clock=clock)
    short = SlidingWindowCounter(1, 1)
    for number in range(4):
        hit(store, f"k{number}", short)
    assert flood(store, range(6), ONE) == 6
    clock.advance(10)
    assert flood(store, range(6, 10), ONE) == 4


def test_peek_and_settlement_evict_nothing() -> None:
    store = MemoryStore(max_keys=3, clock=Clock())
    for key in "abc":
        hit(store, key, cost=4)
    for number in range(20):
        (shown,) = store.peek([Charge(f"new {number}", TEN, 3)])
        assert (shown.allowed, shown.remaining) == (True, 7)
    store.settle([Charge("never seen", TEN, -3, at=1_000_000_000_000_000)])
    assert [store.peek([Charge(key, TEN, 0)])[0].remaining for key in "abc"] == [6, 6, 6]
    assert len(store) == 3


def test_zero_costs_peeks_and_impossible_costs_store_nothing() -> None:
    store = MemoryStore(clock=Clock())
    store.take([Charge("k", TEN, 0)])
    store.peek([Charge("k", TEN, 5)])
    store.take([Charge("k", TEN, 11)])
    store.take([Charge("k", TEN, 1), Charge("k", ONE, 2)])
    assert len(store) == 0


def test_refund_reset_and_close_remove_keys() -> None:
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


def test_each_call_checks_at_most_two_states_and_expiry_keeps_up() -> None:
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
    assert sizes[-1] < 400  # the keys of one window, and expired keys that the store has not dropped yet


def test_eviction_checks_at_most_34_states() -> None:
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


def test_store_uses_a_real_clock_by_default() -> None:
    store = MemoryStore()
    first, second = hit(store, "k"), hit(store, "k")
    assert 0 < first.at <= second.at
    assert (first.remaining, second.remaining) == (9, 8)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "10", None, 2**53])
def test_invalid_max_keys_is_a_config_error(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"max_keys: got .*expected a whole number from 1"):
        MemoryStore(max_keys=wrong)  # type: ignore[arg-type]


def test_clock_that_is_not_callable_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="clock: got 5"):
        MemoryStore(clock=5)  # type: ignore[arg-type]


def test_expired_keys_are_evicted_before_any_of_many_live_keys() -> None:
    """The store checks the oldest keys of a limit first. It searches all limits before it evicts an unexpired key."""
    clock = Clock()
    store = MemoryStore(max_keys=2000, clock=clock)
    brief = TokenBucket(1, 10)
    for number in range(50):
        hit(store, f"old {number}")
        hit(store, f"brief {number}", brief)
    clock.advance(7200)
    for number in range(1900):
        hit(store, f"live {number}", cost=3)
    assert len(store) == 2000
    assert flood(store, range(100)) == 100
    assert len(store) == 2000
    left = [store.peek([Charge(f"live {number}", TEN, 0)])[0].remaining for number in range(1900)]
    assert left == [7] * 1900


@pytest.mark.promise(3)
@pytest.mark.parametrize("kind", TAKEN.values(), ids=list(TAKEN))
def test_evicted_key_regains_at_most_its_used_units(kind: type[Limit]) -> None:
    """A client that can create keys at will evicts its own key by a flood, repeatedly."""
    store, limit = MemoryStore(max_keys=100, clock=Clock()), at_once(kind, 10, 36_000)
    for used in range(1, 11):
        store.reset([Charge("own", limit)])
        taken = sum(store.take([Charge("own", limit)])[0].allowed for _ in range(used))
        for number in range(300):
            store.take([Charge(f"{used} {number}", limit)])
        (seen,) = store.peek([Charge("own", limit, 0)])
        assert taken == used
        assert seen.remaining in ({10 - used, 10} if used < 10 else {0})  # a key without a unit left is not evicted


def test_flood_evicts_keys_of_the_limit_that_now_has_most_keys() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=300, clock=clock)
    public, login = SlidingWindowCounter(5, 3600), SlidingWindowCounter(5, 3600, name="login")
    for number in range(200):
        hit(store, f"old {number}", public)
    clock.advance(8000)
    for number in range(90):
        hit(store, f"login {number}", login, 3)
    flood(store, range(2000), public)
    assert len(store) == 300
    assert [store.peek([Charge(f"login {number}", login, 0)])[0].remaining for number in range(90)] == [2] * 90


def test_limit_that_once_had_most_keys_does_not_block_eviction() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=100, clock=clock)
    brief = TokenBucket(10, 1, name="brief")
    for number in range(90):
        hit(store, f"k{number}", brief)
    clock.advance(60)
    flood(store, range(100))
    assert flood(store, range(100, 200), TokenBucket(2, 3600)) == 100  # each replaces an evictable key
    assert len(store) == 100


def test_limits_used_once_are_dropped_after_expiry() -> None:
    clock = Clock()
    store = MemoryStore(clock=clock)
    for number in range(5000):
        clock.advance(1)
        hit(store, "k", SlidingWindowCounter(10, 1 + number / 10_000))
    assert len(store) < 10
    assert len(store._maps) < 10


def test_constantly_used_keys_are_stored_once() -> None:
    clock = Clock()
    store = MemoryStore(max_keys=10_000, clock=clock)
    limit = SlidingWindowCounter(10**6, 10)
    for turn in range(40_000):
        clock.advance(0.01)
        hit(store, f"k{turn * 7919 % 500}", limit)
    (shelf,) = store._maps.values()
    assert len(store) == shelf.count == 500
    assert sum(state is not None for page in shelf._older for state in page.states.values()) + len(shelf.current) == 500
    assert sum(len(page.states) for page in shelf._older) <= 1500


def test_generation_holds_at_most_a_24th_of_max_keys() -> None:
    store = MemoryStore(max_keys=4800, clock=Clock())
    for number in range(5000):
        hit(store, f"k{number}")
    (shelf,) = store._maps.values()
    assert max(len(page.states) for page in shelf._older) == 200
    assert len(shelf.current) <= 200
    assert len(shelf._older) <= 33


def test_key_stays_in_a_full_generation_for_half_a_window() -> None:
    clock = Clock()
    store, limit = MemoryStore(max_keys=24 * 64, clock=clock), FixedWindow(3, 60)
    for number in range(65):  # one full generation, and one more key
        hit(store, f"k{number}", limit)
    (shelf,) = store._maps.values()
    (generation,) = shelf._older
    page = generation.states
    clock.advance(29.999_999)
    assert [hit(store, "k0", limit).remaining for _ in range(2)] == [1, 0]
    assert (page["k0"].count, list(shelf.current)) == (3, ["k64"])
    clock.advance(0.000_001)
    assert not hit(store, "k0", limit).allowed
    newest = shelf._older[-1].states  # that call closed the generation, because of its age
    assert (len(page), shelf.count, newest["k0"].count) == (63, 65, 3)


def test_full_store_evicts_keys_without_requests_first() -> None:
    store, limit = MemoryStore(max_keys=24 * 64, clock=Clock()), FixedWindow(3, 60)
    for number in range(24 * 64):
        hit(store, f"k{number}", limit)
    hit(store, "k0", limit)
    for number in range(64):
        hit(store, f"new{number}", limit)
    assert hit(store, "k0", limit).remaining == 0  # its third unit: its state was kept
    assert hit(store, "k1", limit).remaining == 2  # its state was evicted


def test_keys_of_many_generations_get_exactly_their_quota() -> None:
    store, limit = MemoryStore(max_keys=24 * 64, clock=Clock()), FixedWindow(3, 60)
    keys = [f"k{number}" for number in range(500)]
    admitted = Counter(key for _ in range(4) for key in keys if hit(store, key, limit).allowed)
    assert set(admitted.values()) == {3}
    assert (len(store), len(admitted)) == (500, 500)


def test_a_group_of_the_middleware_is_charged_completely_or_not_at_all() -> None:
    first, last = Charge("a", FixedWindow(5, 60)), Charge("b", FixedWindow(2, 60))
    store = MemoryStore(clock=Clock())
    allowed = [[decision.allowed for decision in store.take(PlainGroup([first, last]))] for _ in range(4)]
    assert allowed == [[True, True]] * 2 + [[True, False]] * 2
    assert store.peek([Charge("a", first.limit, 0)])[0].remaining == 3


def test_a_group_keeps_all_charges_if_a_state_moves_to_another_generation() -> None:
    clock, limit = Clock(), TokenBucket(10, 10, burst=100)
    store = MemoryStore(clock=clock)
    hit(store, "old", limit)
    clock.advance(6)
    hit(store, "as old", limit)  # closes their generation
    clock.advance(1)
    hit(store, "a", limit, 100)
    clock.advance(10)  # 10 of the 100 are back, and the old generation is due
    assert [one.remaining for one in store.take([Charge("old", limit), Charge("a", limit, 5)])] == [99, 5]
    assert store.peek([Charge("a", limit, 0)])[0].remaining == 5

"""What every store must do: subclass `StoreSuite`, with a fixture `store` that goes by `clock`."""

from collections.abc import Sequence

import pytest

from ratelimit_mw import Charge, ConfigError, Decision, SlidingWindowCounter, TokenBucket
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

BUCKET = TokenBucket(10, 10, burst=5)
WINDOW = SlidingWindowCounter(10, 10)
ONE = SlidingWindowCounter(1, 10)
UNTOUCHED = Decision(True, 10, 10, 0.0, 10.0, 0.0, 0.0, 1_000_000_000_000_000)


def left(store: Store, *charges: Charge) -> list[int]:
    """What each of these buckets has left, with nothing taken."""
    return [store.peek([Charge(charge.key, charge.limit, 0)])[0].remaining for charge in charges]


def shown(decisions: Sequence[Decision]) -> list[tuple[bool, int]]:
    return [(decision.allowed, decision.remaining) for decision in decisions]


class StoreSuite:
    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    def test_take_until_refused_and_again_when_the_wait_is_over(self, store: Store, clock: Clock) -> None:
        at = 1_000_000_000_000_000
        for taken in range(1, 6):
            expected = Decision(True, 5, 5 - taken, 0.0, 1.0, float(taken), 0.0, at + taken * 1_000_000)
            assert list(store.take([Charge("k", BUCKET)])) == [expected]
        refused = Decision(False, 5, 0, 1.0, 1.0, 5.0, 0.0, at + 5_000_000)
        assert list(store.take([Charge("k", BUCKET)])) == [refused]
        clock.advance(0.999999)
        assert shown(store.take([Charge("k", BUCKET)])) == [(False, 0)]
        clock.advance(0.000001)
        assert shown(store.take([Charge("k", BUCKET)])) == [(True, 0)]

    def test_peek_answers_as_take_would_and_changes_nothing(self, store: Store) -> None:
        charges = [Charge("k", WINDOW, 4), Charge("k", BUCKET, 4)]
        for _ in range(3):
            assert shown(store.peek(charges)) == [(True, 6), (True, 1)]
        assert shown(store.take(charges)) == [(True, 6), (True, 1)]
        assert shown(store.peek(charges)) == [(True, 6), (False, 1)]

    def test_settle_gives_back_and_takes_more(self, store: Store) -> None:
        (decision,) = store.take([Charge("k", WINDOW, 8)])
        store.settle([Charge("k", WINDOW, -5, at=decision.at)])
        assert left(store, Charge("k", WINDOW)) == [7]
        store.settle([Charge("k", WINDOW, 2, at=decision.at), Charge("k", WINDOW, 1)])
        assert left(store, Charge("k", WINDOW)) == [4]
        store.settle([Charge("k", WINDOW, -6, at=decision.at)])
        assert list(store.peek([Charge("k", WINDOW, 0)])) == [UNTOUCHED]

    def test_settle_without_an_instant_takes_now(self, store: Store, clock: Clock) -> None:
        store.settle([Charge("k", WINDOW, 30)])  # no more debt than one quota
        assert shown(store.take([Charge("k", WINDOW)])) == [(False, 0)]
        clock.advance(15)
        assert shown(store.take([Charge("k", WINDOW)])) == [(True, 0)]

    def test_reset_forgets_these_buckets_and_no_others(self, store: Store) -> None:
        a, b, c = Charge("a", WINDOW, 3), Charge("b", WINDOW, 3), Charge("a", BUCKET, 3)
        store.take([a, b, c])
        store.reset([a, c])
        assert left(store, a, b, c) == [10, 7, 5]

    def test_no_charges_at_all_is_no_question(self, store: Store) -> None:
        assert list(store.take([])) == []
        assert list(store.peek([])) == []
        store.settle([])
        store.reset([])

    def test_can_be_used_again_after_close(self, store: Store) -> None:
        store.take([Charge("k", WINDOW)])
        store.close()
        assert store.take([Charge("other", WINDOW)])[0].allowed

    def test_all_or_nothing_over_three_keys(self, store: Store) -> None:
        a, b, c = Charge("a", WINDOW, 3), Charge("b", BUCKET, 2), Charge("c", ONE)
        store.take([a, c])
        assert shown(store.take([a, b, c])) == [(True, 7), (True, 5), (False, 0)]  # room, not charged, as it stands
        assert left(store, a, b, c) == [7, 5, 0]

    def test_the_same_bucket_twice_is_asked_for_the_sum(self, store: Store) -> None:
        assert shown(store.take([Charge("k", WINDOW, 3), Charge("o", BUCKET), Charge("k", WINDOW, 4)])) == [
            (True, 3),
            (True, 4),
            (True, 3),
        ]
        assert shown(store.take([Charge("k", WINDOW, 2), Charge("k", WINDOW, 2)])) == [(False, 3), (False, 3)]
        assert left(store, Charge("k", WINDOW), Charge("o", BUCKET)) == [3, 4]

    @pytest.mark.parametrize("other", [Charge("k", BUCKET, role="shadow"), Charge("k", BUCKET, max_delay=1.0)])
    def test_the_same_bucket_twice_in_different_ways_is_an_error(self, store: Store, other: Charge) -> None:
        with pytest.raises(ConfigError, match=r"charges\[1\].*same bucket"):
            store.take([Charge("k", BUCKET), other])
        assert left(store, other) == [5]

    def test_limits_that_differ_only_in_max_delay_are_the_same_bucket_in_different_ways(self, store: Store) -> None:
        patient = TokenBucket(10, 10, burst=5, max_delay=1.0)
        with pytest.raises(ConfigError, match="same bucket"):
            store.take([Charge("k", BUCKET), Charge("k", patient)])
        assert shown(store.take([Charge("k", patient, 2), Charge("k", BUCKET, 1, max_delay=1.0)])) == [(True, 2)] * 2

    def test_a_shadow_never_refuses(self, store: Store) -> None:
        limit, shadow = Charge("k", WINDOW), Charge("k", ONE, role="shadow")
        assert shown(store.take([limit, shadow])) == [(True, 9), (True, 0)]
        assert shown(store.take([shadow, limit])) == [(False, 0), (True, 8)]

    def test_shadows_are_charged_only_if_the_request_passes_and_all_of_them_would(self, store: Store) -> None:
        limit, one, many = Charge("k", ONE), Charge("s", ONE, role="shadow"), Charge("s", WINDOW, role="shadow")
        assert shown(store.take([one])) == [(True, 0)]
        assert shown(store.take([limit, one, many])) == [(True, 0), (False, 0), (True, 10)]
        assert shown(store.take([limit, many])) == [(False, 0), (True, 10)]
        assert shown(store.take([many])) == [(True, 9)]

    def test_a_penalty_counts_refusals_and_then_refuses(self, store: Store, clock: Clock) -> None:
        limit, penalty = Charge("k", ONE), Charge("p", SlidingWindowCounter(2, 600), role="penalty")
        group = [limit, penalty]
        assert shown(store.take(group)) == [(True, 0), (True, 2)]  # admitted: not counted
        assert shown(store.peek(group)) == [(False, 0), (True, 1)]
        assert shown(store.take(group)) == [(False, 0), (True, 1)]
        assert shown(store.take(group)) == [(False, 0), (True, 0)]
        assert shown(store.take(group)) == [(False, 0), (False, 0)]
        clock.advance(20)
        assert shown(store.take(group)) == [(True, 1), (False, 0)]  # room, and refused all the same
        assert left(store, limit, penalty) == [1, 0]

    def test_a_shadow_that_refuses_does_not_count_as_a_refusal(self, store: Store) -> None:
        group = [Charge("k", ONE, role="shadow"), Charge("p", ONE, role="penalty")]
        assert shown(store.take(group)) == [(True, 0), (True, 1)]
        assert shown(store.take(group)) == [(False, 0), (True, 1)]

    def test_a_limit_that_changed_or_has_a_name_starts_fresh(self, store: Store) -> None:
        store.take([Charge("k", WINDOW, 10), Charge("k", BUCKET, 5)])
        others = [SlidingWindowCounter(10, 10, buckets=2), SlidingWindowCounter(10, 10, name="x"), TokenBucket(10, 10)]
        assert left(store, *[Charge("k", limit) for limit in others]) == [10, 10, 10]
        patient = TokenBucket(10, 10, burst=5, max_delay=3.0)  # shapes no state: the same bucket
        assert left(store, Charge("k", patient)) == [0]

    def test_a_negative_cost_is_an_error_and_takes_nothing(self, store: Store) -> None:
        for verb in (store.take, store.peek):
            with pytest.raises(ConfigError, match=r"charges\[1\]: cost -3"):
                verb([Charge("a", WINDOW), Charge("b", WINDOW, -3, at=1)])
        assert left(store, Charge("a", WINDOW), Charge("b", WINDOW)) == [10, 10]

    def test_keys_of_any_characters_are_told_apart(self, store: Store) -> None:
        keys = ["a", "A", "a ", "a:b", "ü", "\x00", "\n", "\udcff", "*", "{x}:y", "x" * 5000]
        charges = [Charge(key, SlidingWindowCounter(100, 10), number) for number, key in enumerate(keys)]
        store.take(charges)
        assert left(store, *charges) == [100 - number for number in range(len(keys))]

    def test_a_clock_that_steps_back_refills_nothing(self, store: Store, clock: Clock) -> None:
        store.take([Charge("k", BUCKET, 5), Charge("k", WINDOW, 10)])
        clock.now -= 1000
        assert shown(store.take([Charge("k", BUCKET)])) == [(False, 0)]
        assert shown(store.take([Charge("k", WINDOW)])) == [(False, 0)]
        clock.advance(10)
        assert shown(store.take([Charge("k", BUCKET, 5), Charge("k", WINDOW)])) == [(True, 0), (True, 0)]

"""Tests that every store must pass, for pytest: subclass `StoreSuite` and provide a fixture for your store."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.algorithms.token_bucket import TokenBucket
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision, State
from ratelimit_mw.engine.limiter import Limiter
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock

BUCKET = TokenBucket(10, 10, burst=5)
WINDOW = SlidingWindowCounter(10, 10)
ONE = SlidingWindowCounter(1, 10)
UNTOUCHED = Decision(True, 10, 10, 0.0, 10.0, 0.0, 0.0, 1_000_000_000_000_000)


def _same(actual: object, expected: object) -> None:
    """Assert that two values are equal and show both. pytest shows them only for asserts in the user's own modules."""
    if actual != expected:
        raise AssertionError(f"got {actual!r}, expected {expected!r}")


def _left(store: Store, *charges: Charge) -> list[int]:
    """Return the units left in the bucket of each charge, without taking any."""
    return [store.peek([Charge(charge.key, charge.limit, 0)])[0].remaining for charge in charges]


def _outcomes(decisions: Sequence[Decision]) -> list[tuple[bool, int]]:
    """Return for each decision whether it admits, and how many units are left."""
    return [(decision.allowed, decision.remaining) for decision in decisions]


_decide = TokenBucket.decide


def _slow_decide(
    limit: TokenBucket, state: State, now: int, cost: int, max_delay: int | None
) -> tuple[Decision, State]:
    """Decide slowly. If the store decides in Python, other threads then run between reading and writing a state."""
    decided = _decide(limit, state, now, cost, max_delay)
    time.sleep(0.0001)  # seconds
    return decided


class StoreSuite:
    """Tests that every store must pass.

    Subclass it as `TestMyStore`, with a fixture `store` that takes the fixture `clock` and yields an empty store. The
    store must read the time from this clock: `clock()` returns seconds. The tests move it forward and back. Wrap an
    `AsyncStore` in `ratelimit_mw.testing.blocking.blocking`.

    The tests use only `take`, `peek`, `settle` and `reset`, also from several threads at once.
    """

    @pytest.fixture
    def clock(self) -> Clock:
        """The clock of the store under test."""
        return Clock()

    def test_take_admits_the_quota_and_again_after_retry_after(self, store: Store, clock: Clock) -> None:
        at = 1_000_000_000_000_000
        for taken in range(1, 6):
            expected = Decision(True, 5, 5 - taken, 0.0, 1.0, float(taken), 0.0, at + taken * 1_000_000)
            _same(list(store.take([Charge("k", BUCKET)])), [expected])
        refused = Decision(False, 5, 0, 1.0, 1.0, 5.0, 0.0, at + 5_000_000)
        _same(list(store.take([Charge("k", BUCKET)])), [refused])
        clock.advance(0.999999)
        _same(_outcomes(store.take([Charge("k", BUCKET)])), [(False, 0)])
        clock.advance(0.000001)
        _same(_outcomes(store.take([Charge("k", BUCKET)])), [(True, 0)])

    def test_peek_returns_the_decision_of_take_and_charges_nothing(self, store: Store) -> None:
        charges = [Charge("k", WINDOW, 4), Charge("k", BUCKET, 4)]
        for _ in range(3):
            _same(_outcomes(store.peek(charges)), [(True, 6), (True, 1)])
        _same(_outcomes(store.take(charges)), [(True, 6), (True, 1)])
        _same(_outcomes(store.peek(charges)), [(True, 6), (False, 1)])

    def test_settle_refunds_and_charges_units(self, store: Store) -> None:
        (decision,) = store.take([Charge("k", WINDOW, 8)])
        store.settle([Charge("k", WINDOW, -5, at=decision.at)])
        _same(_left(store, Charge("k", WINDOW)), [7])
        store.settle([Charge("k", WINDOW, 2, at=decision.at), Charge("k", WINDOW, 1)])
        _same(_left(store, Charge("k", WINDOW)), [4])
        store.settle([Charge("k", WINDOW, -6, at=decision.at)])
        _same(list(store.peek([Charge("k", WINDOW, 0)])), [UNTOUCHED])

    def test_a_refund_is_dated_by_its_charge(self, store: Store, clock: Clock) -> None:
        """A late refund frees what is left of its own charge. Units that were taken later stay taken."""
        window, bucket = Charge("k", WINDOW, 8), Charge("k", BUCKET, 5)
        decisions = store.take([window, bucket])
        clock.advance(15)
        store.take([Charge("k", WINDOW, 2), Charge("k", BUCKET, 2)])
        _same(_left(store, window, bucket), [5, 3])
        store.settle([Charge("k", WINDOW, -8, at=decisions[0].at), Charge("k", BUCKET, -5, at=decisions[1].at)])
        _same(_left(store, window, bucket), [8, 3])

    def test_settle_without_an_instant_charges_now(self, store: Store, clock: Clock) -> None:
        store.settle([Charge("k", WINDOW, 30)])  # the debt is at most one quota
        _same(_outcomes(store.take([Charge("k", WINDOW)])), [(False, 0)])
        clock.advance(15)
        _same(_outcomes(store.take([Charge("k", WINDOW)])), [(True, 0)])

    def test_reset_deletes_only_the_given_buckets(self, store: Store) -> None:
        a, b, c = Charge("a", WINDOW, 3), Charge("b", WINDOW, 3), Charge("a", BUCKET, 3)
        store.take([a, b, c])
        store.reset([a, c])
        _same(_left(store, a, b, c), [10, 7, 5])

    def test_an_empty_group_is_valid(self, store: Store) -> None:
        _same(list(store.take([])), [])
        _same(list(store.peek([])), [])
        store.settle([])
        store.reset([])

    def test_a_quota_of_0_admits_nothing(self, store: Store) -> None:
        closed = Charge("k", SlidingWindowCounter(0, 10))
        _same(_outcomes(store.take([closed])), [(False, 0)])
        _same(store.take([closed])[0].retry_after, math.inf)
        _same(_outcomes(store.take([closed, Charge("k", WINDOW)])), [(False, 0), (True, 10)])  # room, but not charged
        _same(_left(store, closed, Charge("k", WINDOW)), [0, 10])

    def test_take_charges_three_keys_all_or_nothing(self, store: Store) -> None:
        a, b, c = Charge("a", WINDOW, 3), Charge("b", BUCKET, 2), Charge("c", ONE)
        store.take([a, c])
        _same(_outcomes(store.take([a, b, c])), [(True, 7), (True, 5), (False, 0)])  # room, but not charged
        _same(_left(store, a, b, c), [7, 5, 0])

    def test_charges_of_one_bucket_are_summed(self, store: Store) -> None:
        decisions = store.take([Charge("k", WINDOW, 3), Charge("o", BUCKET), Charge("k", WINDOW, 4)])
        _same(_outcomes(decisions), [(True, 3), (True, 4), (True, 3)])
        _same(_outcomes(store.take([Charge("k", WINDOW, 2), Charge("k", WINDOW, 2)])), [(False, 3), (False, 3)])
        _same(_left(store, Charge("k", WINDOW), Charge("o", BUCKET)), [3, 4])

    @pytest.mark.parametrize("other", [Charge("k", BUCKET, role="shadow"), Charge("k", BUCKET, max_delay=1.0)])
    def test_charges_of_one_bucket_with_different_roles_or_delays_are_an_error(
        self, store: Store, other: Charge
    ) -> None:
        with pytest.raises(ConfigError):
            store.take([Charge("k", BUCKET), other])
        _same(_left(store, other), [5])

    def test_limits_that_differ_only_in_max_delay_share_a_bucket(self, store: Store) -> None:
        patient = TokenBucket(10, 10, burst=5, max_delay=1.0)
        with pytest.raises(ConfigError):
            store.take([Charge("k", BUCKET), Charge("k", patient)])
        _same(_outcomes(store.take([Charge("k", patient, 2), Charge("k", BUCKET, 1, max_delay=1.0)])), [(True, 2)] * 2)

    def test_a_shadow_never_refuses(self, store: Store) -> None:
        limit, shadow = Charge("k", WINDOW), Charge("k", ONE, role="shadow")
        _same(_outcomes(store.take([limit, shadow])), [(True, 9), (True, 0)])
        _same(_outcomes(store.take([shadow, limit])), [(False, 0), (True, 8)])

    def test_shadows_are_charged_only_if_all_charges_are_admitted(self, store: Store) -> None:
        limit, one, many = Charge("k", ONE), Charge("s", ONE, role="shadow"), Charge("s", WINDOW, role="shadow")
        _same(_outcomes(store.take([one])), [(True, 0)])
        _same(_outcomes(store.take([limit, one, many])), [(True, 0), (False, 0), (True, 10)])
        _same(_outcomes(store.take([limit, many])), [(False, 0), (True, 10)])
        _same(_outcomes(store.take([many])), [(True, 9)])

    def test_a_penalty_counts_refusals_until_it_refuses(self, store: Store, clock: Clock) -> None:
        limit, penalty = Charge("k", ONE), Charge("p", SlidingWindowCounter(2, 600), role="penalty")
        group = [limit, penalty]
        _same(_outcomes(store.take(group)), [(True, 0), (True, 2)])  # admitted: not counted
        _same(_outcomes(store.peek(group)), [(False, 0), (True, 1)])
        _same(_outcomes(store.take(group)), [(False, 0), (True, 1)])
        _same(_outcomes(store.take(group)), [(False, 0), (True, 0)])
        _same(_outcomes(store.take(group)), [(False, 0), (False, 0)])
        clock.advance(20)
        _same(_outcomes(store.take(group)), [(True, 1), (False, 0)])  # room, but the penalty refuses
        _same(_left(store, limit, penalty), [1, 0])

    def test_a_penalty_of_cost_0_refuses_but_counts_nothing(self, store: Store) -> None:
        limit, penalty = Charge("k", ONE), Charge("p", SlidingWindowCounter(1, 600), role="penalty")
        look = [limit, Charge("p", SlidingWindowCounter(1, 600), 0, role="penalty")]
        _same(_outcomes(store.take(look)), [(True, 0), (True, 1)])
        for _ in range(2):
            _same(_outcomes(store.take(look)), [(False, 0), (True, 1)])
        _same(_outcomes(store.take([limit, penalty])), [(False, 0), (True, 0)])
        _same(_outcomes(store.take(look)), [(False, 0), (False, 0)])
        store.reset([limit])
        _same(_outcomes(store.peek(look)), [(True, 1), (False, 0)])
        _same(_outcomes(store.take(look)), [(True, 1), (False, 0)])  # room, but the penalty refuses

    def test_a_penalty_counts_refusals_by_limits_of_its_client_only(self, store: Store) -> None:
        everybody, own = Charge("{all}:r", ONE), Charge("{ann}:r", ONE)
        penalty = Charge("{ann}:p", SlidingWindowCounter(2, 600), role="penalty")
        _same(_outcomes(store.take([everybody])), [(True, 0)])
        _same(_outcomes(store.take([everybody, own, penalty])), [(False, 0), (True, 1), (True, 2)])
        _same(_outcomes(store.take([own, penalty])), [(True, 0), (True, 2)])
        _same(_outcomes(store.take([everybody, own, penalty])), [(False, 0), (False, 0), (True, 1)])

    def test_the_last_braces_of_a_key_contain_its_client(self, store: Store) -> None:
        own = ["{ann}:other", "{x}{ann}:r"]
        for limited in [*own, "{ann}{x}:r", "{ann", "ann}", "{ann}}", "ann"]:
            penalty = Charge("{ann}:p", SlidingWindowCounter(2, 600), role="penalty")
            group = [Charge(limited, ONE), penalty]
            store.take(group)
            store.reset([penalty])
            _same(_outcomes(store.take(group)), [(False, 0), (True, 1 if limited in own else 2)])

    def test_a_penalty_does_not_count_refusals_by_shadows(self, store: Store) -> None:
        group = [Charge("k", ONE, role="shadow"), Charge("p", ONE, role="penalty")]
        _same(_outcomes(store.take(group)), [(True, 0), (True, 1)])
        _same(_outcomes(store.take(group)), [(False, 0), (True, 1)])

    def test_a_changed_or_named_limit_has_its_own_bucket(self, store: Store) -> None:
        store.take([Charge("k", WINDOW, 10), Charge("k", BUCKET, 5)])
        others = [SlidingWindowCounter(10, 10, buckets=2), SlidingWindowCounter(10, 10, name="x"), TokenBucket(10, 10)]
        _same(_left(store, *[Charge("k", limit) for limit in others]), [10, 10, 10])
        patient = TokenBucket(10, 10, burst=5, max_delay=3.0)  # max_delay is not part of the state: the same bucket
        _same(_left(store, Charge("k", patient)), [0])

    def test_a_negative_cost_is_an_error_and_charges_nothing(self, store: Store) -> None:
        for verb in (store.take, store.peek):
            with pytest.raises(ConfigError):
                verb([Charge("a", WINDOW), Charge("b", WINDOW, -3, at=1)])
        _same(_left(store, Charge("a", WINDOW), Charge("b", WINDOW)), [10, 10])

    def test_keys_with_any_characters_are_distinct(self, store: Store) -> None:
        keys = ["a", "A", "a ", "a:b", "ü", "\x00", "\n", "\udcff", "*", "{x}:y", "x" * 5000]
        charges = [Charge(key, SlidingWindowCounter(100, 10), number) for number, key in enumerate(keys)]
        store.take(charges)
        _same(_left(store, *charges), [100 - number for number in range(len(keys))])

    def test_a_clock_that_steps_back_refunds_no_units(self, store: Store, clock: Clock) -> None:
        store.take([Charge("k", BUCKET, 5), Charge("k", WINDOW, 10)])
        clock.now -= 1000
        _same(_outcomes(store.take([Charge("k", BUCKET)])), [(False, 0)])
        _same(_outcomes(store.take([Charge("k", WINDOW)])), [(False, 0)])
        clock.advance(10)
        _same(_outcomes(store.take([Charge("k", BUCKET, 5), Charge("k", WINDOW)])), [(True, 0), (True, 0)])

    def test_concurrent_threads_are_admitted_exactly_the_quota(self, store: Store) -> None:
        many, few = Charge("k", SlidingWindowCounter(100, 600)), Charge("k", TokenBucket(60, 600))
        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(8) as threads:
            patch.setattr(TokenBucket, "decide", _slow_decide)
            answers = list(threads.map(lambda _: all(one.allowed for one in store.take([many, few])), range(160)))
        _same(sum(answers), 60)
        _same(_left(store, many, few), [40, 0])

    def test_the_store_works_with_a_limiter(self, store: Store, clock: Clock) -> None:
        limiter = Limiter(store)
        limits = ["3/minute", "2 per 10 seconds using token_bucket"]
        verdicts = [limiter.hit(limits, ("user", "7")) for _ in range(3)]
        _same([(verdict.allowed, verdict.remaining) for verdict in verdicts], [(True, 1), (True, 0), (False, 0)])
        clock.advance(verdicts[-1].retry_after)
        _same(limiter.hit(limits, ("user", "7")).allowed, expected=True)
        limiter.reset(limits, ("user", "7"))
        _same(_outcomes(limiter.peek(limits, ("user", "7")).decisions), [(True, 3), (True, 2)])

"""The public laws and the public store suite find typical mistakes in an algorithm or a store."""

import contextlib
import inspect
import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from own_store import DictStore
from ratelimit_mw import Charge, Decision, Limit, TokenBucket
from ratelimit_mw.algorithms.bucket import LevelState
from ratelimit_mw.core.limit import MOST_RECENT, State
from ratelimit_mw.testing import Clock, laws
from ratelimit_mw.testing.laws import LAWS, Law, check_laws
from ratelimit_mw.testing.store_suite import StoreSuite


class Mutant(TokenBucket, frozen=True, kw_only=True):
    """A correct algorithm. Each subclass makes one mistake."""

    algorithm: ClassVar[str] = "mutant"


class TooSoon(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, state = super().decide(state, now, cost, max_delay)
        return later(decision, "retry_after", -1), state


class TooLate(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, state = super().decide(state, now, cost, max_delay)
        return later(decision, "retry_after", 1), state


class NextTooSoon(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, state = super().decide(state, now, cost, max_delay)
        return later(decision, "next_after", -1), state


class ResetTooLate(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, state = super().decide(state, now, cost, max_delay)
        return later(decision, "reset_after", 1), state


class ChargesRefusals(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, after = super().decide(state, now, cost, max_delay)
        return decision, after if decision.allowed else self.settle(after, now, 1, now)


class ForgetsHits(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        return super().decide(state, now, cost, max_delay)[0], state


class CreatesForNothing(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, after = super().decide(state, now, cost, max_delay)
        return decision, (0, now) if after is None else after


class ExpiresTooSoon(Mutant, frozen=True, kw_only=True):
    def expires(self, state: LevelState) -> int:
        return super().expires(state) - 1


class RefillsBackInTime(Mutant, frozen=True, kw_only=True):
    """Refills for the time between two instants even if the clock stepped back."""

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        seen = (state[0], 2 * now - state[1]) if state and state[1] > now else state
        decision, after = super().decide(seen, now, cost, max_delay)
        return decision, state if after is seen else after


class LocksOut(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, after = super().decide(state, now, cost, max_delay)
        return decision, after if decision.allowed else state


class AdmitsTooMuch(Mutant, frozen=True, kw_only=True):
    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        return super().decide(state, now, min(cost, self.most), max_delay)


class GivesBackTooMuch(Mutant, frozen=True, kw_only=True):
    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        return super().settle(state, now, min(delta, 2 * delta), at + self.window_us)


class GivesBackWhatCameBack(Mutant, frozen=True, kw_only=True):
    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        return super().settle(state, now, delta, max(at, now + self.window_us // 2))


class RefusesDebt(Mutant, frozen=True, kw_only=True):
    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        return state if delta > self.decide(state, now, 0, None)[0].remaining else super().settle(state, now, delta, at)


class Raises(Mutant, frozen=True, kw_only=True):
    def expires(self, state: LevelState) -> int:
        return 1 // 0


class Rounded(Mutant, frozen=True, kw_only=True):
    """Rounds its times up to milliseconds. Only `Says` declares it."""

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        decision, state = super().decide(state, now, cost, max_delay)
        for name in ("retry_after", "next_after", "reset_after"):
            decision = later(decision, name, -microseconds(getattr(decision, name)) % 1000)
        return decision, state


class Says(Rounded, frozen=True, kw_only=True):
    tick_us: ClassVar[int] = 1000


class Impure(Limit, frozen=True):
    """Stores the instant of each unit in a list, and changes that list in place."""

    algorithm: ClassVar[str] = "impure"

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        if cost and state is None:
            state = []
        allowed = not cost or len(state) + cost <= self.quota
        if cost and allowed:
            state += [now] * cost
        left = self.quota - len(state or ())
        return Decision(allowed, self.quota, left, 0.0 if allowed else math.inf, math.inf, 0.0, 0.0, now), state

    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        return state


def later(decision: Decision, name: str, by: int) -> Decision:
    """Return the decision with the time `name` moved by `by` microseconds.

    A time of 0 or infinity, or one that would become 0, does not change.
    """
    seconds = (microseconds(getattr(decision, name)) + by) / 1e6
    return replace(decision, **{name: seconds}) if 0.0 < getattr(decision, name) < math.inf and seconds else decision


def microseconds(seconds: float) -> int:
    return round(seconds * 1e6) if seconds < math.inf else 0


MISTAKES: list[tuple[Limit, Law]] = [
    (TooSoon(5, 10), laws.refuses_until_retry_after_and_admits_at_it),
    (TooLate(5, 10), laws.refuses_until_retry_after_and_admits_at_it),
    (NextTooSoon(5, 10), laws.admits_one_unit_more_at_next_after_and_not_before),
    (ResetTooLate(5, 10), laws.is_whole_at_reset_after_and_not_before),
    (ChargesRefusals(5, 10), laws.counts_what_it_admits_and_nothing_else),
    (ForgetsHits(5, 10), laws.counts_what_it_admits_and_nothing_else),
    (CreatesForNothing(5, 10), laws.changes_nothing_for_cost_0),
    (ExpiresTooSoon(5, 10), laws.decides_like_none_once_expired),
    (RefillsBackInTime(5, 10), laws.refills_nothing_when_the_clock_steps_back),
    (LocksOut(5, 10), laws.refills_nothing_when_the_clock_steps_back),
    (AdmitsTooMuch(5, 10), laws.never_admits_more_than_the_most),
    (GivesBackTooMuch(5, 10), laws.restores_what_is_given_back_at_once),
    (GivesBackWhatCameBack(5, 10), laws.restores_what_is_given_back_at_once),
    (RefusesDebt(5, 10), laws.takes_in_settling_what_does_not_fit),
    (Raises(5, 10), laws.peeks_what_the_next_hit_answers),
    (Impure(5, 10), laws.is_pure),
]


@pytest.mark.parametrize(("limit", "law"), MISTAKES, ids=lambda value: type(value).__name__)
def test_check_laws_names_the_law_that_an_algorithm_breaks(limit: Limit, law: Law) -> None:
    with pytest.raises(AssertionError) as found:
        check_laws(limit, seed=3)
    text = str(found.value)
    assert text.startswith(f"{law.__name__}: ")
    assert repr(limit) in text
    assert "of seed 3, shortened: Walk(steps=(" in text
    with pytest.raises(AssertionError) as again:
        check_laws(limit, seed=3)
    assert str(again.value) == text


def test_each_law_finds_a_mistake() -> None:
    assert {law for _, law in MISTAKES} == set(LAWS)


def test_a_walk_that_breaks_a_law_is_shortened() -> None:
    with pytest.raises(AssertionError) as found:
        check_laws(ForgetsHits(5, 10))
    assert str(found.value).count("Step(") == 1


def test_error_of_an_algorithm_is_reported_with_its_cause() -> None:
    with pytest.raises(AssertionError, match=r"peeks_what_the_next_hit_answers: ZeroDivisionError\(") as found:
        check_laws(Raises(5, 10))
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_times_may_be_rounded_to_the_tick_of_the_limit() -> None:
    check_laws(Says(7, 0.1))
    with pytest.raises(AssertionError, match=laws.refuses_until_retry_after_and_admits_at_it.__name__):
        check_laws(Rounded(7, 0.1))


class Nameless(TokenBucket, frozen=True, kw_only=True):
    algorithm: ClassVar[str] = ""


class Namesake(TokenBucket, frozen=True, kw_only=True):
    pass


@pytest.mark.parametrize("limit", [Nameless(5, 10), Namesake(5, 10)], ids=lambda limit: type(limit).__name__)
def test_algorithm_without_a_name_of_its_own_is_rejected(limit: Limit) -> None:
    with pytest.raises(AssertionError, match="expected a name of its own"):
        check_laws(limit)


class Each(DictStore):
    """Takes each charge alone, even if the store refuses another charge of the group."""

    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        return [super(Each, self).take([charge], commit=commit)[0] for charge in charges]


class CountsRefusals(DictStore):
    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        decisions = super().take(charges, commit=commit)
        if commit and not all(decision.allowed for decision in decisions):
            self.settle([replace(one, cost=1) for one in charges])
        return decisions


class Peeks(DictStore):
    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self.take(charges)


class Unlocked(DictStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._lock: Any = contextlib.nullcontext()


class OtherClock(DictStore):
    def __init__(self, _: Clock) -> None:
        super().__init__(time.monotonic)


class Caseless(DictStore):
    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        return super().take([replace(one, key=one.key.lower()) for one in charges], commit=commit)


class Roleless(DictStore):
    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        return super().take([replace(one, role="limit") for one in charges], commit=commit)


class SettlesAtZero(DictStore):
    def settle(self, charges: Sequence[Charge]) -> None:
        super().settle([replace(one, at=0) for one in charges])


class SettlesNow(DictStore):
    """Ignores the instant of the charge."""

    def settle(self, charges: Sequence[Charge]) -> None:
        super().settle([replace(one, at=round(self._clock() * 1e6)) for one in charges])


class SettlesTheNewest(DictStore):
    def settle(self, charges: Sequence[Charge]) -> None:
        super().settle([replace(one, at=MOST_RECENT if one.cost < 0 else one.at) for one in charges])


class ForgetsAll(DictStore):
    def reset(self, charges: Sequence[Charge]) -> None:
        self._states.clear()


class Overdue(DictStore):
    """Drops states half a window before they expire."""

    def take(self, charges: Sequence[Charge], *, commit: bool = True) -> Sequence[Decision]:
        now = self._clock() * 1e6
        for one in charges:
            state = self._read(one)
            if state is not None and one.limit.expires(state) <= now + one.limit.window_us / 2:
                self.reset([one])
        return super().take(charges, commit=commit)


WRONG: list[tuple[type[DictStore], str]] = [
    (Each, "test_take_charges_three_keys_all_or_nothing"),
    (CountsRefusals, "test_take_admits_the_quota_and_again_after_retry_after"),
    (Peeks, "test_peek_returns_the_decision_of_take_and_charges_nothing"),
    (Unlocked, "test_concurrent_threads_are_admitted_exactly_the_quota"),
    (OtherClock, "test_take_admits_the_quota_and_again_after_retry_after"),
    (Caseless, "test_keys_with_any_characters_are_distinct"),
    (Roleless, "test_a_shadow_never_refuses"),
    (SettlesAtZero, "test_settle_refunds_and_charges_units"),
    (SettlesNow, "test_a_refund_is_dated_by_its_charge"),
    (SettlesTheNewest, "test_a_refund_is_dated_by_its_charge"),
    (ForgetsAll, "test_reset_deletes_only_the_given_buckets"),
    (Overdue, "test_take_admits_the_quota_and_again_after_retry_after"),
]


def failing(make: type[DictStore]) -> set[str]:
    """Return the names of the suite's tests that fail, among those that need only a store and its clock."""
    failed = set()
    for name, test in vars(StoreSuite).items():
        if name.startswith("test_") and "other" not in (asked := inspect.signature(test).parameters):
            clock = Clock()
            given = {"store": make(clock), "clock": clock}
            try:
                test(StoreSuite(), **{one: given[one] for one in asked if one != "self"})
            except (AssertionError, pytest.fail.Exception):
                failed.add(name)
    return failed


def test_example_store_passes_the_store_suite() -> None:
    assert failing(DictStore) == set()


@pytest.mark.parametrize(("wrong", "name"), WRONG, ids=lambda value: getattr(value, "__name__", ""))
def test_store_suite_finds_each_mistake(wrong: type[DictStore], name: str) -> None:
    assert name in failing(wrong)

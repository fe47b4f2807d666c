"""The limit that binds a request, and the attributes of the verdict."""

import math

import pytest

from ratelimit_mw import Charge, Decision, RateLimited, RateLimitError, SlidingWindowCounter, StoreError, Verdict
from ratelimit_mw.core.limit import Role
from ratelimit_mw.core.verdict import Source, verdict_of

LIMIT = SlidingWindowCounter(10, 60)
NOTHING = (0, 0, 0.0, 0.0, 0.0, 0.0)

Row = tuple[Role, Decision]


def admits(remaining: int, limit: int = 10, next_after: float = 6.0, delay: float = 0.0) -> Decision:
    return Decision(True, limit, remaining, 0.0, next_after, 30.0, delay, 7)


def refuses(retry_after: float, limit: int = 10, remaining: int = 0, reset_after: float = 30.0) -> Decision:
    return Decision(False, limit, remaining, retry_after, 6.0, reset_after, 0.0, 7)


def verdict_on(rows: list[Row], source: Source = "store") -> Verdict:
    charges = [Charge(f"k{index}", LIMIT, role=role) for index, (role, _) in enumerate(rows)]
    return verdict_of(charges, [decision for _, decision in rows], rule="login", source=source)


def numbers(verdict: Verdict) -> tuple[int, int, float, float, float, float]:
    times = verdict.retry_after, verdict.next_after, verdict.reset_after, verdict.delay
    return verdict.limit, verdict.remaining, *times


ADMITTED: dict[str, tuple[list[Row], int]] = {
    "the only one": ([("limit", admits(5))], 0),
    "the smallest part left": ([("limit", admits(5)), ("limit", admits(3))], 1),
    "a part, not a number": ([("limit", admits(6, limit=100)), ("limit", admits(5, limit=10))], 0),
    "then the longest next_after": ([("limit", admits(5)), ("limit", admits(50, limit=100, next_after=7.0))], 1),
    "next_after only breaks ties": ([("limit", admits(4)), ("limit", admits(5, next_after=99.0))], 0),
    "then the first": ([("limit", admits(5)), ("limit", admits(5)), ("limit", admits(5))], 0),
    "never a shadow": ([("shadow", admits(0)), ("limit", admits(5))], 1),
    "never a shadow that refuses": ([("limit", admits(5)), ("shadow", refuses(99.0))], 0),
    "a penalty too": ([("limit", admits(5)), ("penalty", admits(1))], 1),
    "one with nothing left": ([("limit", admits(1, limit=1000)), ("limit", admits(0, limit=1))], 1),
}

REFUSED: dict[str, tuple[list[Row], int]] = {
    "the only one": ([("limit", refuses(5.0))], 0),
    "the longest retry_after": ([("limit", refuses(5.0)), ("limit", refuses(7.0)), ("limit", refuses(6.0))], 1),
    "never is the longest": ([("limit", refuses(5.0)), ("limit", refuses(math.inf)), ("limit", refuses(1e9))], 1),
    "only of those that refuse": ([("limit", admits(0, next_after=1e9)), ("limit", refuses(5.0))], 1),
    "however much is left": ([("limit", refuses(5.0, remaining=9)), ("limit", refuses(4.0))], 0),
    "then the first": ([("limit", admits(0)), ("limit", refuses(5.0)), ("limit", refuses(5.0, limit=3))], 1),
    "never a shadow": ([("shadow", refuses(99.0)), ("limit", refuses(5.0)), ("shadow", refuses(math.inf))], 1),
    "a ban": ([("limit", admits(5)), ("penalty", refuses(900.0))], 1),
    "a ban longer than the limit": ([("limit", refuses(5.0)), ("penalty", refuses(900.0))], 1),
    "a limit, while a penalty only counts": ([("penalty", admits(1)), ("limit", refuses(5.0))], 1),
    "a ban that begins with it": ([("limit", refuses(5.0)), ("penalty", admits(0, next_after=900.0))], 1),
    "a limit longer than that": ([("penalty", admits(0, next_after=4.0)), ("limit", refuses(5.0))], 1),
}


@pytest.mark.parametrize("what", ADMITTED)
def test_admitted_request_is_bound_by_the_expected_limit(what: str) -> None:
    rows, binding = ADMITTED[what]
    verdict, bound = verdict_on(rows), rows[binding][1]
    assert (verdict.allowed, verdict.binding) == (True, binding)
    assert numbers(verdict) == (bound.limit, bound.remaining, 0.0, bound.next_after, bound.reset_after, 0.0)


@pytest.mark.promise(4)
@pytest.mark.parametrize("what", REFUSED)
def test_refused_request_is_bound_by_the_expected_limit(what: str) -> None:
    rows, binding = REFUSED[what]
    verdict, bound = verdict_on(rows), rows[binding][1]
    assert (verdict.allowed, verdict.binding) == (False, binding)
    wait = bound.retry_after or bound.next_after  # a ban that begins now has admitted this request
    expected = (bound.limit, bound.remaining, wait, bound.next_after, bound.reset_after, 0.0)
    assert numbers(verdict) == expected


def test_verdict_has_the_longest_delay_of_all_limits() -> None:
    rows: list[Row] = [
        ("limit", admits(1)),
        ("limit", admits(5, delay=0.5)),
        ("limit", admits(6, delay=0.25)),
        ("shadow", admits(0, delay=9.0)),
    ]
    verdict = verdict_on(rows)
    assert (verdict.remaining, verdict.delay) == (1, 0.5)


def test_refused_request_has_no_delay() -> None:
    assert verdict_on([("limit", admits(5, delay=0.5)), ("limit", refuses(5.0))]).delay == 0.0


@pytest.mark.parametrize(
    "rows",
    [[], [("shadow", refuses(5.0))], [("shadow", admits(5)), ("shadow", refuses(5.0))]],
    ids=["none", "one", "two"],
)
def test_no_limit_binds_without_limits_or_with_shadows_only(rows: list[Row]) -> None:
    verdict = verdict_on(rows)
    assert (verdict.allowed, verdict.binding, numbers(verdict)) == (True, None, NOTHING)


@pytest.mark.parametrize(("allowed", "source"), [(True, "allowed_on_error"), (False, "denied_on_error")])
def test_verdict_on_a_store_error_has_charges_but_no_decisions(source: Source, *, allowed: bool) -> None:
    verdict = Verdict(allowed, [Charge("k", LIMIT), Charge("l", LIMIT)], [], "login", source)
    assert (verdict.allowed, verdict.source, verdict.binding, numbers(verdict)) == (allowed, source, None, NOTHING)


def test_verdict_is_immutable_and_keeps_charges_and_decisions() -> None:
    verdict = verdict_on([("limit", admits(5)), ("shadow", refuses(5.0))], "remembered")
    assert (verdict.rule, verdict.source) == ("login", "remembered")
    assert [charge.key for charge in verdict.charges] == ["k0", "k1"]
    assert [decision.allowed for decision in verdict.decisions] == [True, False]
    with pytest.raises(AttributeError):
        verdict.allowed = False  # type: ignore[misc]


@pytest.mark.promise(8)
@pytest.mark.parametrize("decisions", [[], [admits(5)], [admits(5)] * 3])
def test_wrong_number_of_decisions_raises_a_store_error(decisions: list[Decision]) -> None:
    with pytest.raises(StoreError, match=f"{len(decisions)} decisions on 2 charges"):
        verdict_of([Charge("k", LIMIT), Charge("l", LIMIT)], decisions)


@pytest.mark.parametrize(("wait", "advice"), [(5.5, "retry after 5.5 seconds"), (math.inf, "waiting does not help")])
def test_rate_limited_carries_its_verdict(wait: float, advice: str) -> None:
    verdict = verdict_on([("limit", refuses(wait))])
    error = RateLimited(verdict)
    assert isinstance(error, RateLimitError)
    assert (error.verdict, str(error)) == (verdict, f"rate limited: {advice}")

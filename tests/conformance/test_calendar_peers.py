"""Replays what bucket4j publishes as tests of aligned refills, and django-smart-ratelimit of quotas by the calendar.

bucket4j: `IntervallyAlignedRefillTest`, where capacity and refill are equal, or where only one refill counts. Left out
are the cases of adaptive initial tokens, which are not a whole quota, and of a capacity of several refills.
django-smart-ratelimit: `tests/integration/test_quota.py`. Its `30d` is a `fixed_window` here. Left out is
the registration of its table in the admin.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.http import HttpResponse
from django.urls import path

from ratelimit_mw import CalendarWindow, Charge, ConfigError, Limiter, MemoryStore, parse
from ratelimit_mw.django import limit as limit_on_view
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock
from web.django_ask import Ask, under_asgi, under_wsgi

pytestmark = [pytest.mark.promise(3), pytest.mark.one_redis]


@pytest.fixture
def limiters(stores: list[Store]) -> list[Limiter]:
    return [Limiter(store) for store in stores]


@pytest.mark.parametrize("second", [60, 60.001, 20, 180])
def test_bucket4j_new_bucket_has_all_tokens(limiters: list[Limiter], clock: Clock, second: float) -> None:
    clock.now = second
    for limiter in limiters:
        assert limiter.peek("400/minute using calendar_window", f"{second}").remaining == 400


def test_bucket4j_tokens_come_back_at_the_edge_of_the_interval(limiters: list[Limiter], clock: Clock) -> None:
    limit = CalendarWindow(200, "minute")
    for limiter in limiters:
        clock.now = 80
        assert limiter.hit(limit, "k", 200).remaining == 0
        clock.advance(10)
        refused = limiter.hit(limit, "k")
        assert (refused.allowed, refused.remaining, refused.retry_after) == (False, 0, 30)
        clock.advance(30)
        assert limiter.peek(limit, "k").remaining == 200
        clock.advance(45)
        assert limiter.peek(limit, "k").remaining == 200


def test_bucket4j_edge_is_not_missed_after_a_long_time_without_requests(limiters: list[Limiter], clock: Clock) -> None:
    limit = CalendarWindow(400, "minute")  # the published interval of 0.1 s, 600 times as long
    for limiter in limiters:
        clock.now = 61.8
        limiter.hit(limit, "k", 400)
        clock.now = 19_709.4
        assert limiter.peek(limit, "k").remaining == 400
        assert limiter.hit(limit, "k", 400).remaining == 0
        clock.advance(30.6)
        assert limiter.peek(limit, "k").remaining == 400


@pytest.mark.parametrize(("period", "days"), [("day", 1), ("week", 7), ("year", 365)])
def test_smart_ratelimit_periods_have_these_lengths(period: str, days: int) -> None:
    (limit,) = parse(f"1/{period} using calendar_window")
    now = round(datetime(2026, 6, 1, tzinfo=UTC).timestamp()) * 1_000_000
    assert limit.window_at(now) == days * 86_400


def test_smart_ratelimit_month_begins_and_ends_with_its_first_day() -> None:
    begin, end = CalendarWindow(1, "month").period_at(round(datetime(2026, 6, 17, tzinfo=UTC).timestamp()) * 1_000_000)
    assert begin == datetime(2026, 6, 1, tzinfo=UTC).timestamp() * 1e6
    assert end == datetime(2026, 7, 1, tzinfo=UTC).timestamp() * 1e6


def test_smart_ratelimit_invalid_period_is_an_error() -> None:
    with pytest.raises(ConfigError, match="expected one calendar period"):
        parse("1/0 days using calendar_window")


def test_smart_ratelimit_quota_blocks_and_refusals_take_nothing(limiters: list[Limiter]) -> None:
    limit = "3/month using calendar_window"
    for limiter in limiters:
        assert [limiter.hit(limit, "user:1").allowed for _ in range(5)] == [True, True, True, False, False]
        assert limiter.peek(limit, "user:1").remaining == 0


@pytest.mark.parametrize(("cost", "left"), [(4, 1), (5, 0)])
def test_smart_ratelimit_cost_reduces_what_is_left(limiters: list[Limiter], cost: int, left: int) -> None:
    for limiter in limiters:
        assert limiter.hit("5/month using calendar_window", f"user:{cost}", cost).remaining == left


def test_smart_ratelimit_scopes_are_independent(limiters: list[Limiter]) -> None:
    limit = "1/month using calendar_window"
    for limiter in limiters:
        took = [limiter.hit(limit, ("user:3", scope)).allowed for scope in ("export", "upload", "export")]
        assert took == [True, True, False]


def test_smart_ratelimit_quota_rolls_over_with_the_period(limiters: list[Limiter], clock: Clock) -> None:
    limit = "2/month using calendar_window"
    for number, limiter in enumerate(limiters):
        key = f"user:{number}"
        assert [limiter.hit(limit, key).allowed for _ in range(3)] == [True, True, False]
        clock.advance(limiter.peek(limit, key).reset_after)
        assert limiter.peek(limit, key).remaining == 2
        assert limiter.hit(limit, key).remaining == 1


def test_smart_ratelimit_reset_clears_usage(stores: list[Store], limiters: list[Limiter]) -> None:
    limit = "5/month using calendar_window"
    for store, limiter in zip(stores, limiters, strict=True):
        limiter.hit(limit, "user:7")
        limiter.reset(limit, "user:7")
        assert limiter.peek(limit, "user:7").remaining == 5
        assert store.peek([Charge("never:seen", parse(limit)[0], 0)])[0].remaining == 5


def test_smart_ratelimit_usage_is_reported(limiters: list[Limiter]) -> None:
    for limiter in limiters:
        verdict = limiter.hit("10/month using calendar_window", "user:2", 4)
        used = verdict.limit - verdict.remaining
        assert (used, verdict.limit, verdict.remaining) == (4, 10, 6)
        (charge,) = verdict.charges
        assert isinstance(charge.limit, CalendarWindow)
        assert charge.limit.period == "month"


def answer(_request: Any) -> HttpResponse:
    return HttpResponse("ok")


async def answer_later(_request: Any) -> HttpResponse:
    return HttpResponse("ok")


def site(under: Any, view: Any, limits: str, *, key: Any = "ip", **options: Any) -> Ask:
    """Return a function that sends requests to a view with these limits."""
    urls = [path("", limit_on_view(limits, key=key, **options)(view))]
    asking: Ask = under(urls, {"limits": [], "store": MemoryStore(clock=Clock())})
    return asking


@pytest.mark.parametrize(
    ("under", "view", "quota", "shadow", "expected"),
    [
        (under_wsgi, answer, 3, False, [200, 200, 200, 429, 429]),
        (under_asgi, answer_later, 2, False, [200, 200, 429]),
        (under_wsgi, answer, 1, True, [200, 200, 200]),
    ],
    ids=["blocks", "asyncio", "only counts"],
)
def test_smart_ratelimit_decorator_counts_the_requests_of_a_view(
    under: Any, view: Any, quota: int, shadow: bool, expected: list[int]
) -> None:
    ask = site(under, view, f"{quota}/month using calendar_window", shadow=shadow)
    assert [ask("/").status for _ in expected] == expected


def test_smart_ratelimit_decorator_takes_callables_for_key_and_cost() -> None:
    def team(request: Any) -> str:
        return f"team:{request.headers.get('X-Team', 'none')}"

    ask = site(under_wsgi, answer, "10/month using calendar_window", key=team, cost=lambda _request: 5)
    assert [ask("/", headers={"X-Team": name}).status for name in "aaab"] == [200, 200, 429, 200]

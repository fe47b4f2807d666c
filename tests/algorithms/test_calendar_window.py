"""Calendar windows decide as an independent model on each store, also in zones with odd offsets."""

import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from itertools import product
from math import ceil
from pathlib import Path
from random import Random
from time import time_ns
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from msgspec.structs import replace
from redis import Redis

from algorithms.calendar_model import DAY, bounds, local
from algorithms.strategies import ZONES
from profiles import PROOF
from ratelimit_mw import CalendarWindow, Charge, ConfigError, FixedWindow, Limit, Limiter, MemoryStore, Verdict, parse
from ratelimit_mw.algorithms import calendar_periods
from ratelimit_mw.algorithms.calendar_periods import PERIODS, WEEKDAYS, Period
from ratelimit_mw.algorithms.notation import limit_of_bucket
from ratelimit_mw.http.response import headers as headers_of
from ratelimit_mw.http.response import refusal_response
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock, freeze
from redis_cluster import RedisCluster
from stores.opener import KINDS, Opener

INSTANTS = 10_000 if PROOF else 300  # with each store, and in each zone
STEPS = 10  # with the same limit
SECOND = 1_000_000  # microseconds
FIRST_YEAR, LAST_YEAR = 1990, 2045
BERLIN = ZoneInfo("Europe/Berlin")

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(4), pytest.mark.one_redis]


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest, redis_url: str, tmp_path: Path) -> Opener:
    return Opener(request.param, redis_url, tmp_path)


class Zone(NamedTuple):
    """A time zone. `changes`: days on which its clock changes, as instants."""

    name: str
    changes: list[int]


def zone(name: str) -> Zone:
    info, changes = ZoneInfo(name), []
    moment = datetime(FIRST_YEAR, 1, 1, tzinfo=UTC)
    while moment.year < LAST_YEAR:
        if moment.astimezone(info).utcoffset() != (moment + DAY).astimezone(info).utcoffset():
            changes.append(round(moment.timestamp()) * SECOND)
        moment += DAY
    return Zone(name, changes)


def start_near(random: Random, place: Zone) -> int:
    """Return an instant near a change of the clock, or any instant."""
    if place.changes and random.random() < 0.6:
        return random.choice(place.changes) + random.randrange(-DAY.days * 86_400, 2 * 86_400) * SECOND
    return round(datetime(random.randint(FIRST_YEAR, LAST_YEAR), random.randint(1, 12), 27, tzinfo=UTC).timestamp()) * (
        SECOND
    ) + random.randrange(8 * 86_400 * SECOND)


def some_limit(random: Random, place: Zone, period: Period) -> CalendarWindow:
    starts: dict[str, Any] = {
        "month": random.choice((random.randint(1, 28), 29, 30, 31)),
        "week": random.choice(WEEKDAYS),
    }
    return CalendarWindow(random.randint(1, 5), period, zone=place.name, start=starts.get(period))


def fields(verdict: Verdict) -> dict[str, str]:
    shown = headers_of(verdict) if verdict.allowed else refusal_response(verdict).headers
    return {name: value for name, value in shown if name in {"RateLimit", "RateLimit-Policy", "Retry-After"}}


def test_decisions_and_headers_are_those_of_the_model(opened: Opener) -> None:
    random = Random(opened.kind)  # noqa: S311  # tests need no secrets
    pairs = list(product([zone(name) for name in ZONES], PERIODS))
    random.shuffle(pairs)
    refused = 0
    clock = Clock()
    with closing(opened(clock, "calendar")) as store:
        limiter = Limiter(store, name="k")
        for number in range(INSTANTS // STEPS):
            place, period = pairs[number % len(pairs)]
            limit, now, counts = some_limit(random, place, period), start_near(random, place), dict[int, int]()
            for _ in range(STEPS):
                begin, end = bounds(limit.period, limit.zone, limit.start, now)
                clock.now, cost = now / SECOND, random.choice((0, 1, 1, 2, limit.quota, limit.quota + 1))
                verdict = limiter.hit(limit, f"client-{number}", cost)
                used = counts.get(begin, 0)
                allowed = used + cost <= limit.quota
                counts[begin] = used = used + cost if allowed else used
                left, rest = limit.quota - used, (end - now) / SECOND
                retry = 0.0 if allowed else rest if cost <= limit.quota else float("inf")
                place_and_time = (limit.notation, local(now, ZoneInfo(limit.zone)))
                got = (verdict.allowed, verdict.remaining, verdict.retry_after, verdict.next_after, verdict.reset_after)
                assert got == (allowed, left, retry, rest, rest if used else 0.0), place_and_time
                expected = {
                    "RateLimit-Policy": f'"k";q={limit.quota};w={(end - begin) // SECOND}',
                    "RateLimit": f'"k";r={left};t={ceil(rest)}',
                }
                if 0 < retry < float("inf"):
                    expected["Retry-After"] = str(ceil(rest))
                assert fields(verdict) == expected, place_and_time
                refused += not allowed
                choices = (now, now + 1, now + random.randrange(3600 * SECOND), end - 1, end, end + (end - begin) // 2)
                now = random.choice(choices)
    assert refused > INSTANTS // 10


@pytest.mark.parametrize("name", ZONES)
def test_periods_are_those_of_the_model_near_both_changes_of_the_clock(name: str) -> None:
    random, place = Random(name), zone(name)  # noqa: S311  # tests need no secrets
    for number in range(INSTANTS):
        limit, now = some_limit(random, place, PERIODS[number % len(PERIODS)]), start_near(random, place)
        begin, end = bounds(limit.period, limit.zone, limit.start, now)
        found = [limit.period_at(instant) for instant in (now, begin, end - 1)]
        assert found == [(begin, end)] * 3, (limit.notation, local(now, ZoneInfo(name)))
        assert end - begin <= limit.max_wait * SECOND


@pytest.mark.parametrize(
    ("notation", "local_time", "length", "rest"),
    [  # seconds
        ("1/day in Europe/Berlin", datetime(2026, 3, 29, 12, tzinfo=BERLIN), 23 * 3600, 12 * 3600),
        ("1/day in Europe/Berlin", datetime(2026, 10, 25, 12, tzinfo=BERLIN), 25 * 3600, 12 * 3600),
        ("1/hour in Europe/Berlin", datetime(2026, 10, 25, 2, 59, tzinfo=BERLIN, fold=0), 3600, 60),
        ("1/hour in Europe/Berlin", datetime(2026, 10, 25, 2, 59, tzinfo=BERLIN, fold=1), 3600, 60),
        ("1/hour in America/New_York", datetime(2026, 7, 1, 12, 30, tzinfo=UTC), 3600, 1800),
        # 2:00 becomes 1:30
        ("1/hour in Australia/Lord_Howe", datetime(2026, 4, 4, 14, 59, tzinfo=UTC), 3600, 60),
        ("1/hour in Australia/Lord_Howe", datetime(2026, 4, 4, 15, 1, tzinfo=UTC), 1800, 1740),
        # 2:00 becomes 2:30
        ("1/hour in Australia/Lord_Howe", datetime(2026, 10, 3, 15, 31, tzinfo=UTC), 1800, 1740),
        # midnight does not exist
        ("1/day in America/Havana", datetime(2026, 3, 8, 12, tzinfo=ZoneInfo("America/Havana")), 23 * 3600, 12 * 3600),
        # midnight comes twice
        ("1/day in America/Havana", datetime(2026, 11, 1, 12, tzinfo=ZoneInfo("America/Havana")), 25 * 3600, 12 * 3600),
        # the day after the 29th is the 31st
        ("1/day in Pacific/Apia", datetime(2011, 12, 29, 23, tzinfo=ZoneInfo("Pacific/Apia")), 86_400, 3600),
        ("1/day in Pacific/Apia", datetime(2011, 12, 31, 1, tzinfo=ZoneInfo("Pacific/Apia")), 86_400, 23 * 3600),
        ("1/month in Pacific/Apia from 30", datetime(2011, 12, 31, tzinfo=ZoneInfo("Pacific/Apia")), 30 * 86_400, None),
        # at 0:01 the clock went back to 23:01; the day had begun by then
        ("1/day in America/St_Johns", datetime(2010, 11, 7, 2, 45, tzinfo=UTC), 25 * 3600, 25 * 3600 - 900),
        # at 3:00 the clock goes back to 1:00
        ("1/day in Antarctica/Troll", datetime(2026, 10, 24, 22, tzinfo=UTC), 26 * 3600, 26 * 3600),
        ("1/month from 31", datetime(2028, 2, 29, tzinfo=UTC), 31 * 86_400, 31 * 86_400),
        ("1/month from 30", datetime(2027, 2, 28, tzinfo=UTC), 30 * 86_400, 30 * 86_400),
        ("1/year", datetime(2028, 12, 31, tzinfo=UTC), 366 * 86_400, 86_400),
        ("1/quarter in Asia/Kathmandu", datetime(2026, 3, 31, 18, 15, tzinfo=UTC), 91 * 86_400, 91 * 86_400),
    ],
)
def test_length_and_rest_of_known_periods(notation: str, local_time: datetime, length: int, rest: int | None) -> None:
    (limit,) = parse(f"{notation} using calendar_window")
    now = round(local_time.timestamp()) * SECOND
    assert limit.window_at(now) == length <= limit.max_wait
    assert rest is None or limit.decide(None, now, 1, None)[0].next_after == rest


def test_limit_in_a_cluster_has_one_bucket_for_a_period(redis_cluster: RedisCluster) -> None:
    clock = Clock(datetime(2026, 10, 25, 0, 30, tzinfo=BERLIN).timestamp())
    limit = CalendarWindow(3, "day", zone="Europe/Berlin")
    with closing(RedisStore(redis_cluster.url, clock=clock, timeout=5, deny_cache=0)) as store:
        charges = [Charge(f"{{{client}}}:rule", limit, 2) for client in range(6)]
        assert [one.next_after for one in store.take(charges)] == [24.5 * 3600] * 6
        assert [one.allowed for one in store.take(charges)] == [False] * 6
        clock.advance(24.5 * 3600)
        assert [one.allowed for one in store.take(charges)] == [True] * 6


@pytest.mark.parametrize("periods", [-400, -3, -2, -1, 0, 1, 2, 3, 400])
def test_server_counts_in_its_own_period_however_wrong_the_clock_of_the_client_is(
    monkeypatch: pytest.MonkeyPatch, redis_url: str, periods: int
) -> None:
    limit = CalendarWindow(5, "hour")
    with closing(RedisStore(redis_url, timeout=5, deny_cache=0)) as store:
        store.take([Charge("k", limit, 2)])
        monkeypatch.setattr("ratelimit_mw.stores.redis.scripts.time_ns", lambda: time_ns() + periods * 3600 * 10**9)
        (decision,) = store.take([Charge("k", limit, 2)])
        ends = decision.at + round(decision.next_after * SECOND)
        assert (decision.remaining, ends % (3600 * SECOND), decision.next_after <= 3600) == (1, 0, True)


def test_keys_of_a_period_expire_after_its_end_but_not_all_at_once(redis_url: str) -> None:
    limit = CalendarWindow(5, "day")
    with closing(RedisStore(redis_url, timeout=5)) as store, Redis.from_url(redis_url) as client:
        lives = []
        for number in range(20):
            (decision,) = store.take([Charge(f"k{number}", limit)])
            ends = (decision.at / SECOND + decision.next_after) * 1000
            with client.pipeline() as pipe:  # PEXPIRETIME is not in Redis 6.2
                (seconds, part), left = pipe.time().pttl(f"rl:1:k{number}:{limit.bucket}").execute()
            lives.append(seconds * 1000 + part / 1000 + left - ends)
        assert all(-1 <= life <= 86_400_000 / 32 + 1 for life in lives)  # `left` is in whole milliseconds
        assert len({round(life) for life in lives}) > 1


def test_store_in_memory_counts_by_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other limits use a clock that does not step."""
    store, now = MemoryStore(), round(datetime(2026, 10, 14, 23, 59, tzinfo=BERLIN).timestamp() * 10**9)
    limit, other = CalendarWindow(2, "month", zone="Europe/Berlin", start=15), FixedWindow(2, 60)
    charges = [Charge("k", limit), Charge("k", other)]
    monkeypatch.setattr("ratelimit_mw.stores.memory.time_ns", lambda: now)
    first, _ = store.take(charges)
    assert (round(first.next_after, 1), first.at) == (60.0, now // 1000)
    assert [one.remaining for one in store.take(charges)] == [0, 0]
    assert [one.allowed for one in store.take(charges)] == [False, False]
    now += 60 * 10**9
    assert [one.allowed for one in store.take(charges)] == [True, False]
    store.settle([Charge("k", limit, 2, at=now // 1000)])
    assert store.peek([Charge("k", limit, 0)])[0].remaining == 0


def test_full_store_in_memory_drops_the_keys_of_past_periods_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = MemoryStore(max_keys=3), 1_800_000_000 * 10**9
    limit = CalendarWindow(1, "minute")
    monkeypatch.setattr("ratelimit_mw.stores.memory.time_ns", lambda: now)
    for key in "abc":
        store.take([Charge(key, limit)])
    now += 60 * 10**9
    for key in "def":
        assert store.take([Charge(key, limit)])[0].allowed
    assert len(store) == 3
    assert not any(store.take([Charge(key, limit)])[0].allowed for key in "def")


def test_frozen_time_moves_calendar_periods(store: MemoryStore) -> None:
    limit = CalendarWindow(1, "month")
    with freeze() as time:
        (first,) = store.take([Charge("k", limit)])
        assert not store.take([Charge("k", limit)])[0].allowed
        time.advance(first.next_after)
        assert store.take([Charge("k", limit)])[0].allowed


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_equal_limits_have_one_bucket_however_they_are_written() -> None:
    limit = CalendarWindow(10_000, "month", zone="Europe/Berlin", start=15)
    assert limit.notation == "10000/month in Europe/Berlin from 15 using calendar_window"
    assert [
        parse(text)[0]
        for text in (
            limit.notation,
            "10000/month using calendar_window in Europe/Berlin from 15",
            "10000 per 1 MONTH USING calendar_window FROM 15 IN europe/berlin",
        )
    ] == [limit] * 3
    assert CalendarWindow(10_000, limit.window, zone="Europe/Berlin", start=15) == limit
    assert replace(limit, quota=5, name="n").period == "month"


@pytest.mark.parametrize("name", [*ZONES, "America/Argentina/Buenos_Aires", "America/Port-au-Prince", "Etc/GMT+5"])
@pytest.mark.parametrize("period", PERIODS)
def test_bucket_id_has_all_of_the_limit(name: str, period: Any) -> None:
    limit = CalendarWindow(7, period, zone=name)
    assert limit_of_bucket(limit.bucket) == limit == parse(limit.notation)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1/month in Europe/Berln using calendar_window", "zone: unknown time zone 'Europe/Berln', did you mean"),
        ("1/month in using calendar_window", "zone: unknown time zone ''"),
        ("1/month in ../etc/passwd using calendar_window", "zone: unknown time zone '../etc/passwd'"),
        ("1/month in Europe using calendar_window", "zone: unknown time zone 'Europe'"),
        ("1/month from 32 using calendar_window", "start: got 32, expected a day of the month, from 1 to 31"),
        ("1/month from monday using calendar_window", "start: got 'monday', expected a day of the month"),
        ("1/week from 3 using calendar_window", "start: got 3, expected a weekday"),
        ("1/day from 3 using calendar_window", "start: got 3; only a month and a week can start on another day"),
        ("1/2 months using calendar_window", "got 2 months, expected one calendar period"),
        ("1/90 using calendar_window", "got 90 seconds, expected one calendar period"),
        ("1/fortnight using calendar_window", "window: got 'fortnight', expected a period (minute, hour,"),
        ("1/month burst 5 using calendar_window", "'burst' does not go with calendar_window; it goes with"),
        ("1/month in UTC in UTC using calendar_window", "'in' appears twice"),
        ("1/month in UTC", "'in' does not go with sliding_window_counter; it goes with 'using calendar_window'"),
        ("1/quarter", "the period 'quarter' goes with 'using calendar_window'"),
    ],
)
def test_mistake_in_a_calendar_limit_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize("field", ["zone", "start"])
@pytest.mark.parametrize("value", [5.5, ["x"], b"UTC", object(), True])
def test_value_of_another_type_is_a_config_error(field: str, value: Any) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises((ConfigError, TypeError), match=f"{field}|unhashable"):
        CalendarWindow(1, "month", **options)


@pytest.fixture
def without_zones(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def no_zone(name: str) -> ZoneInfo:
        raise ZoneInfoNotFoundError(name)

    def clear() -> None:
        calendar_periods.zone_of.cache_clear()
        calendar_periods._known_zones.cache_clear()

    clear()
    monkeypatch.setattr(calendar_periods, "ZoneInfo", no_zone)
    monkeypatch.setattr(calendar_periods, "available_timezones", set)
    return clear


def test_system_without_time_zones_is_told_to_install_them(without_zones: Callable[[], None]) -> None:
    with pytest.raises(ConfigError, match=r"this system has no time zones except UTC; pip install tzdata"):
        CalendarWindow(1, "month", zone="Europe/Paris")
    without_zones()


@pytest.mark.parametrize(
    ("limit", "most"),
    [(CalendarWindow(7, "minute"), 14), (CalendarWindow(7, "day", zone="Europe/Berlin"), 21)],
)
def test_max_per_window_counts_the_periods_that_a_window_can_touch(limit: Limit, most: int) -> None:
    assert limit.max_per_window == most
    if most == 21:  # the end of a day, a day of 23 hours, and the begin of the next one, within 25 hours
        day = round(datetime(2026, 3, 29, tzinfo=BERLIN).timestamp()) * SECOND
        state, admitted = None, 0
        for now in (day - 1, day, day + 23 * 3600 * SECOND):
            decision, state = limit.decide(state, now, 7, None)
            admitted += 7 * decision.allowed
        assert admitted == most

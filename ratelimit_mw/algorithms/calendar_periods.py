"""Calendar periods: begin and end of the minute, hour, day, week, month, quarter or year of an instant, in a time zone.

Instants are whole microseconds since 1970. Periods have no gaps and do not overlap.

A day begins with the first instant whose local time is midnight or later. So a day of a change of the clock has 23 or
25 hours, and a day that a zone skipped is no period. A minute or an hour has one offset from UTC: a repeated hour is an
hour of its own, and a change of the clock within an hour ends it.
"""

from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache, lru_cache
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS
from ratelimit_mw.core.validation import did_you_mean

Period = Literal["minute", "hour", "day", "week", "month", "quarter", "year"]
Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
Bounds = tuple[int, int]
"""The first instant of a period, and that of the next one."""

PERIODS: Final[tuple[Period, ...]] = get_args(Period)
WEEKDAYS: Final[tuple[Weekday, ...]] = get_args(Weekday)
MAX_DAY: Final = 31
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
# The longest length in seconds. In a zone whose clock changes, days are up to an hour longer.
_LENGTHS: Final[dict[Period, int]] = {
    "minute": 60,
    "hour": _HOUR,
    "day": _DAY,
    "week": 7 * _DAY,
    "month": 31 * _DAY,
    "quarter": 92 * _DAY,
    "year": 366 * _DAY,
}
_PERIOD_OF: Final[dict[object, Period]] = {
    **{period: period for period in PERIODS},
    **{length: period for period, length in _LENGTHS.items()},
    **{length + _HOUR: period for period, length in _LENGTHS.items() if length >= _DAY},
}
_MONTHS: Final[dict[Period, int]] = {"month": 1, "quarter": 3, "year": 12}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MAX_ZONES: Final = 1024  # that are kept


def period_of(window: object) -> Period:
    """Return the period with this name, or with this longest length in seconds. Raises `ConfigError` without one."""
    period = _PERIOD_OF.get(window) if isinstance(window, (str, int, float)) else None
    if period is None:
        raise ConfigError(f"window: got {window!r}, expected a period ({', '.join(PERIODS)})", code="RL-011")
    return period


def longest(period: Period, zone: tzinfo) -> int:
    """Return the longest length of a period in seconds."""
    length = _LENGTHS[period]
    return length + _HOUR if zone is not UTC and length >= _DAY else length


def checked_start(period: Period, start: object) -> int | str | None:
    """Return the first day of a month or week, by default 1 or monday. Raises `ConfigError` for another value."""
    if period == "month":
        if start is None:
            return 1
        if type(start) is int and 1 <= start <= MAX_DAY:
            return start
        raise ConfigError(f"start: got {start!r}, expected a day of the month, from 1 to {MAX_DAY}", code="RL-076")
    if period == "week":
        if start is None:
            return WEEKDAYS[0]
        if start in WEEKDAYS:
            return str(start)
        raise ConfigError(f"start: got {start!r}, expected a weekday ({', '.join(WEEKDAYS)})", code="RL-076")
    if start is not None:
        raise ConfigError(f"start: got {start!r}; only a month and a week can start on another day", code="RL-076")
    return None


@lru_cache(_MAX_ZONES)
def zone_of(name: object) -> tzinfo:
    """Return the time zone with this name of the IANA database. `UTC` needs no database.

    Raises `ConfigError` for an unknown name, and for any name on a system without the database.
    """
    if isinstance(name, str) and name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]  # a name of another type is an error, too
    except (LookupError, OSError, TypeError, ValueError, AttributeError):
        pass
    known = _known_zones()
    if not known:
        raise ConfigError(
            f"zone: got {name!r}, but this system has no time zones except UTC; pip install tzdata", code="RL-075"
        )
    exact = known.get(str(name).lower().replace(" ", "_"))
    if exact is None:
        raise ConfigError(
            f"zone: unknown time zone {name!r}{did_you_mean(str(name), known.values())} (a name such as Europe/Berlin, "
            "or UTC)",
            code="RL-075",
        )
    return ZoneInfo(exact)


@cache
def _known_zones() -> dict[str, str]:
    """Return the names of all zones, by name in lower case. Reads the database, which takes a tenth of a second."""
    return {name.lower(): name for name in available_timezones()}


def name_of(zone: tzinfo) -> str:
    """Return the name of a zone from `zone_of`."""
    return zone.key if isinstance(zone, ZoneInfo) else "UTC"


def bounds_of(period: Period, zone: tzinfo, start: int | str | None, instant: int) -> Bounds:
    """Return begin and end of the period with this instant. `start`: from `checked_start`."""
    if period in ("minute", "hour"):
        return _within_offset(instant, _LENGTHS[period] * MICROSECONDS, zone)
    if period in _MONTHS:
        return _between_days(instant, zone, *_by_months(_MONTHS[period], start if period == "month" else 1))
    return _between_days(instant, zone, *_by_days(7 if period == "week" else 1, start))


NumberOf = Callable[[date], int]
DayOf = Callable[[int], date]


def _by_days(days: int, start: int | str | None) -> tuple[NumberOf, DayOf]:
    """Return functions that number days, or weeks that begin on the weekday `start`."""
    first = 1 + (WEEKDAYS.index(start) if start in WEEKDAYS else 0)  # the first day of the calendar is a Monday

    def number_of(day: date) -> int:
        return (day.toordinal() - first) // days

    def day_of(number: int) -> date:
        return date.fromordinal(first + number * days)

    return number_of, day_of


def _by_months(months: int, start: int | str | None) -> tuple[NumberOf, DayOf]:
    """Return functions that number periods of months. Each begins on the day `start`, or else on the month's last."""

    def day_of(number: int) -> date:
        year, month = divmod(number * months, 12)
        return date(year, month + 1, min(int(start or 1), monthrange(year, month + 1)[1]))

    def number_of(day: date) -> int:
        number = (day.year * 12 + day.month - 1) // months
        return number if day_of(number) <= day else number - 1

    return number_of, day_of


def _between_days(instant: int, zone: tzinfo, number_of: NumberOf, day_of: DayOf) -> Bounds:
    number = number_of(_local(instant, zone).date())
    begin, end = (_first_instant(day_of(n), zone) for n in (number, number + 1))
    while end <= instant:  # local time went back to the day before
        number += 1
        begin, end = end, _first_instant(day_of(number + 1), zone)
    return begin, end


def _first_instant(day: date, zone: tzinfo) -> int:
    midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
    instant = _instant(midnight)
    if _local(instant, zone).replace(tzinfo=None) == midnight.replace(tzinfo=None):
        return instant
    return _change(_instant(midnight.replace(fold=1)), instant, zone)  # the clock was put forward over midnight


def _within_offset(instant: int, length: int, zone: tzinfo) -> Bounds:
    """Return the bounds of the whole `length` of local time around an instant, cut where the offset changes."""
    offset = _offset(instant, zone)
    begin = (instant + offset) // length * length - offset
    end = begin + length
    if _offset(begin, zone) != offset:
        begin = _change(begin, instant, zone)
    if _offset(end - 1, zone) != offset:
        end = _change(instant, end - 1, zone)
    return begin, end


def _change(before: int, after: int, zone: tzinfo) -> int:
    """Return the instant at which the offset changes, between two instants with different ones."""
    low, high = before // MICROSECONDS, after // MICROSECONDS  # offsets change at whole seconds
    offset = _offset(after, zone)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(middle * MICROSECONDS, zone) == offset:
            high = middle
        else:
            low = middle
    return high * MICROSECONDS


def _local(instant: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=instant)).astimezone(zone)


def _offset(instant: int, zone: tzinfo) -> int:
    """Return the offset from UTC in microseconds."""
    return (_local(instant, zone).utcoffset() or timedelta()) // _MICROSECOND


def _instant(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MICROSECOND

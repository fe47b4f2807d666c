"""Parses the times that servers write into their logs, and the period to replay."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, microseconds

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_CLF: Final = re.compile(
    r"(\d{2})/([A-Z][a-z]{2})/(\d{4}):(\d{2}):(\d{2}):(\d{2})(\.\d{1,9})?(?: ([-+])(\d{2})(\d{2}))?", re.ASCII
)
_NUMBER: Final = re.compile(r"\d{1,20}(?:\.\d{1,9})?", re.ASCII)
_LATEST: Final = 7_258_118_400  # seconds: the year 2200
_MILLISECONDS_FROM: Final = 100_000_000_000  # larger numbers are milliseconds: as seconds, after the year 5000
_MICROSECONDS_FROM: Final = 100_000_000_000_000
_NANOSECONDS_FROM: Final = 100_000_000_000_000_000
_DAY: Final = 24 * 60 * 60  # seconds; the offset of a time zone is shorter
_LONGEST: Final = 64  # characters of a time


class LoggedTime(NamedTuple):
    """A time. `us`: microseconds since 1970. `is_whole`: the log has whole seconds. `offset`: seconds east of UTC."""

    us: int
    is_whole: bool
    offset: int = 0

    def __str__(self) -> str:
        """Return the time in its zone, to the second."""
        return datetime.fromtimestamp(self.us // 1_000_000, timezone(timedelta(seconds=self.offset))).isoformat()


TimeParser = Callable[[object], LoggedTime | None]


class Period(NamedTuple):
    """The period to replay, in microseconds since 1970.

    `is_local`: for `since` and for `until`, whether it is since 1970 in the time zone of the log.
    """

    since: int
    until: int
    is_local: tuple[bool, bool]

    def contains(self, time: LoggedTime) -> bool:
        """Return whether a time is in the period, which excludes its end."""
        local = time.us + time.offset * MICROSECONDS
        time_for_since, time_for_until = (local if is_local else time.us for is_local in self.is_local)
        return self.since <= time_for_since and time_for_until < self.until


def period_of(since: str | datetime | None, until: str | datetime | None) -> Period:
    """Return the period between two times. Without a time zone, they are in that of the log. Raises `ConfigError`."""
    start, start_local = _moment("--since", since, 0)
    end, end_local = _moment("--until", until, 1 << 62)
    return Period(start, end, (start_local, end_local))


def _moment(place: str, value: str | datetime | None, default: int) -> tuple[int, bool]:
    if value is None:
        return default, False
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise ConfigError(
            f"{place}: got {value!r:.100}, expected a time such as 2026-11-23T10:00 or 2026-11-23", code="RL-051"
        ) from None
    is_local = moment.tzinfo is None
    utc = moment.replace(tzinfo=UTC) if is_local else moment
    return microseconds(utc.timestamp()), is_local


def clf_time(value: object) -> LoggedTime | None:
    """Parse `10/Oct/2000:13:55:36 -0700`, the time of the common log format; None if it is not such a time."""
    found = _CLF.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    day, month, year, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    offset = (int(hours) * 3600 + int(minutes) * 60) * (-1 if sign == "-" else 1) if sign else 0
    if abs(offset) >= _DAY:
        return None
    try:
        local = datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), min(int(second), 59), tzinfo=UTC)
    except (KeyError, ValueError):
        return None
    us = 0 if fraction is None else int(fraction[1:7].ljust(6, "0"))
    return _checked(int(local.timestamp()) - offset, us, fraction is None, offset)


def iso_time(value: object) -> LoggedTime | None:
    """Parse an ISO 8601 time such as `2018-07-02T22:23:00.186641Z`, in UTC without a zone; None if it is not one."""
    if not isinstance(value, str) or len(value) > _LONGEST:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        return None
    return _of_datetime(moment, "." not in value and "," not in value)


def epoch_time(value: object) -> LoggedTime | None:
    """Parse seconds since 1970, as a number or text; None for others. Large numbers are in smaller units."""
    if isinstance(value, str):
        if not _NUMBER.fullmatch(value):
            return None
        value = float(value) if "." in value else int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LATEST * 1e9:
        return None
    is_whole = isinstance(value, int)
    if value >= _MILLISECONDS_FROM:
        unit = 1000 if value < _MICROSECONDS_FROM else 1_000_000 if value < _NANOSECONDS_FROM else 1_000_000_000
        value, is_whole = value / unit, False
    us = round(value * 1_000_000) if value < _LATEST else -1
    return _checked(*divmod(us, 1_000_000), is_whole, 0)


def any_time(value: object) -> LoggedTime | None:
    """Parse a time in any of the forms of this module; None if it has another form."""
    return epoch_time(value) or iso_time(value) or clf_time(value)


def strftime_time(form: str) -> TimeParser:
    """Return a parser of times in a form of `strftime`. Times without a zone are in UTC."""

    def parse(value: object) -> LoggedTime | None:
        if not isinstance(value, str) or len(value) > _LONGEST:
            return None
        try:
            moment = datetime.strptime(value, form)  # noqa: DTZ007  # the zone follows
        except (ValueError, OverflowError, re.error):
            return None
        return _of_datetime(moment, "%f" not in form)

    return parse


def duration_us(value: object, unit: float) -> int | None:
    """Return a logged duration in microseconds; None if it is missing. `unit`: the log's unit, in microseconds."""
    try:
        units = float(value)  # type: ignore[arg-type]  # the log may contain anything
    except (TypeError, ValueError, OverflowError):
        return None
    us = units * unit
    return round(us) if 0 <= us < _LATEST * 1e6 else None


def _of_datetime(moment: datetime, is_whole: bool) -> LoggedTime | None:  # noqa: FBT001  # private
    zone = moment.utcoffset()
    utc = moment.replace(tzinfo=UTC) if zone is None else moment
    seconds = int(utc.replace(microsecond=0).timestamp())
    return _checked(seconds, moment.microsecond, is_whole, 0 if zone is None else int(zone.total_seconds()))


def _checked(seconds: int, fraction: int, is_whole: bool, offset: int) -> LoggedTime | None:  # noqa: FBT001  # private
    if not 0 <= seconds < _LATEST:
        return None
    return LoggedTime(seconds * 1_000_000 + fraction, is_whole, offset)

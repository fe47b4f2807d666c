"""Calendar periods as the documentation describes them, found day by day and minute by minute."""

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

MINUTE = 60_000_000  # microseconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1)


def local(instant: int, zone: ZoneInfo) -> datetime:
    return (EPOCH + timedelta(microseconds=instant)).astimezone(zone)


def is_first(day: date, period: str, start: object) -> bool:
    """Return whether a period begins with this day."""
    match period:
        case "week":
            return day.strftime("%A").lower() == start
        case "month":
            is_last = (day + DAY).day == 1
            return day.day == start or (is_last and isinstance(start, int) and day.day < start)
        case "quarter":
            return day.day == 1 and day.month in (1, 4, 7, 10)
        case "year":
            return day.day == day.month == 1
    return True


def first_instant(day: date, zone: ZoneInfo) -> int:
    """Return the first whole minute at which the local time is midnight of this day or later."""
    midnight = datetime.combine(day, time())
    in_utc = (midnight.replace(tzinfo=UTC) - EPOCH) // MICROSECOND
    around = [local(in_utc + hours * 60 * MINUTE, zone).utcoffset() for hours in (-36, 36)]
    instant = in_utc - max(offset // MICROSECOND for offset in around if offset is not None)
    while local(instant, zone).replace(tzinfo=None) < midnight:
        instant += MINUTE
    return instant


def bounds(period: str, zone_name: str, start: object, instant: int) -> tuple[int, int]:
    """Return begin and end of the period with this instant, from 1972 on, when all offsets are whole minutes."""
    zone = ZoneInfo(zone_name)
    if period in ("minute", "hour"):
        begin = instant // MINUTE * MINUTE
        end = begin + MINUTE
        while period == "hour" and _hour(begin - MINUTE, zone) == _hour(instant, zone):
            begin -= MINUTE
        while period == "hour" and _hour(end, zone) == _hour(instant, zone):
            end += MINUTE
        return begin, end
    today = local(instant, zone).date()
    last, following = today + 2 * DAY, today - 2 * DAY
    while not is_first(last, period, start) or first_instant(last, zone) > instant:
        last -= DAY
    while not is_first(following, period, start) or first_instant(following, zone) <= instant:
        following += DAY
    return first_instant(last, zone), first_instant(following, zone)


def _hour(instant: int, zone: ZoneInfo) -> object:
    moment = local(instant, zone)
    return moment.date(), moment.hour, moment.utcoffset()

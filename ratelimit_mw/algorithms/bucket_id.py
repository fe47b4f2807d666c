"""Reads bucket ids back into limits."""

import re
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, Limit

_MAX_LENGTH: Final = 300  # characters; the ids of this package are shorter
_BAN: Final = re.compile(r"([0-9]{1,16})/([0-9]{1,16})(u?s)_ban_([0-9]{1,16})(u?s)_using_ban")
_UNITS: Final = {"s": MICROSECONDS, "us": 1}


def limit_of_bucket(bucket: str) -> Limit | None:
    """Return a limit with this bucket id (`Limit.bucket`); None if it lacks the rate, or is invalid.

    The id of a concurrency limit does not contain its quota, and the id of `smooth` does not contain its rate. Options
    that are not in the id, such as `max_delay`, have their defaults.
    """
    return _limit_of_bucket(bucket) if len(bucket) <= _MAX_LENGTH else None


@lru_cache(maxsize=1024)  # a store has few limits; there may be any number of invalid ids
def _limit_of_bucket(bucket: str) -> Limit | None:
    name, _, notation = bucket.rpartition(":")
    try:
        limit = _ban(notation) or _rate(notation)
        if limit is not None and name:
            limit = replace(limit, name=name)
    except ConfigError:
        return None
    return limit if limit is not None and limit.bucket == bucket else None


def _rate(notation: str) -> Limit | None:
    rate, using, algorithm = notation.partition("_using_")
    if not using:
        return None
    limits = parse(f"{rate.replace('_', ' ')} using {algorithm}")
    return limits[0] if len(limits) == 1 else None


def _ban(notation: str) -> Ban | None:
    found = _BAN.fullmatch(notation)
    if found is None:
        return None
    quota, window, unit, ban, ban_unit = found.groups()
    return Ban(int(quota), _seconds(window, unit), ban=_seconds(ban, ban_unit))


def _seconds(number: str, unit: str) -> float:
    return int(number) * _UNITS[unit] / MICROSECONDS

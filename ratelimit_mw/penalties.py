"""The setting `penalty`: after so many refusals in a window, refuse for a while."""

import re
from typing import Final

from ratelimit_mw.algorithms import DEFAULT
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.errors import ConfigError, error_location
from ratelimit_mw.limit import Limit
from ratelimit_mw.notation import parse

PenaltySpec = str | Ban
_FIGURE = r"\s*([0-9]+(?:\.[0-9]+)?)\s*"
_NUMBER: Final = re.compile(_FIGURE)
_NO_UNIT: Final = re.compile(rf"\b(?:per|for){_FIGURE}$")
_ALLOWED: Final = "allowed is text such as '10 refusals per minute: 15 minutes', or a Ban"


def check_penalty(value: object) -> Ban | None:
    """The ban that `10 refusals per minute: 15 minutes` stands for; None for None.

    The word `refusals` may be left out; rate and duration are written as in the notation of limits. Raises
    `ConfigError` naming `penalty`.
    """
    if value is None or isinstance(value, Ban):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"penalty: found {value!r:.100}, {_ALLOWED}")
    rate, colon, duration = value.lower().partition(":")
    if found := _NO_UNIT.search(rate) or _NUMBER.fullmatch(duration):
        raise ConfigError(
            f"penalty: found {value!r:.100}, where {found[1]} has no unit: write '{found[1]} seconds', or another "
            f"unit; {_ALLOWED}"
        )
    if not colon:
        meant = ": write a colon in place of 'for'" if " for " in rate else ""
        raise ConfigError(f"penalty: found {value!r:.100}, which does not say how long to refuse{meant}; {_ALLOWED}")
    with error_location("penalty"):
        counted = _rate(rate.replace("refusals", " ").replace("refusal", " "), value)
        length = _rate(f"1 per {duration.strip()}", value)
        return Ban(counted.quota, counted.window, ban=length.window)


def _rate(text: str, value: str) -> Limit:
    """A plain rate. Raises `ConfigError` for anything besides."""
    try:
        limits = parse(text)
    except ConfigError as error:
        raise ConfigError(f"found {value!r:.100}, {_ALLOWED}: {error}") from None
    plain = DEFAULT(limits[0].quota, limits[0].window)
    if limits != (plain,):
        raise ConfigError(f"found {value!r:.100}, {_ALLOWED}")
    return plain

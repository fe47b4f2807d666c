"""Parts of the messages about wrong settings."""

from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.settings import Settings

KEYS = "ip, ip/24/56, user, route, all, header:NAME, cookie:NAME, call:PACKAGE.MODULE:FUNCTION, joined by | and +"
PERIODS = "(us, ms, second, minute, hour, day, week, month, year)"
LIMIT = "text such as '100/minute', a Limit or a table"
LIMITS = "text such as '100/minute', a Limit, a table or a list of these"
TEMPLATE = "a path that starts with /, such as '/users/{id}'"
USAGE = "one path without parameters, such as '/rate-limits'"
TEMPLATES = "a path such as '/users/{id}' or a list of these"
COUNT = "a whole number from 0 to 9007199254740991"
BOOL = "true or false"
NAME = "1 to 64 of A-Z a-z 0-9 _ . -"
SECONDS = "a finite number of seconds, 0 or more"
FOLDER = "the path of a folder, such as '/run/myapp'"
SPANS = "one of none, refused, all"
MODES = "one of allow, deny, local"
CLOSE_OR_DROP = "one of close, drop"
IMPORTABLE = "call:PACKAGE.MODULE:FUNCTION of a function that can be imported"
PREFIX = "a whole number from 32 to 128"
NO_RATE = "got no rate, expected text such as '100/minute' or '5 per 10 seconds'"
FIVE = "5/60s using sliding_window_counter"


def found(value: object, allowed: str) -> str:
    """Return a message in the usual form."""
    return f"got {value!r}, expected {allowed}"


def message_of(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Settings.of(settings, {})
    return str(caught.value)

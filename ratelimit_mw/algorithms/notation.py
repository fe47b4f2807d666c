"""The notation of limits, `100/minute burst 20 using token_bucket; 1000/hour`, and bucket ids, which contain it."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, get_type_hints

from msgspec.structs import replace

from ratelimit_mw.algorithms import ALGORITHMS, DEFAULT
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.calendar_periods import PERIODS as CALENDAR_PERIODS
from ratelimit_mw.algorithms.calendar_window import CalendarWindow
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, Limit
from ratelimit_mw.core.validation import did_you_mean

PERIODS: Final = {  # seconds
    "us": 0.000001,
    "ms": 0.001,
    "second": 1,
    "minute": 60,
    "hour": 60 * 60,
    "day": 24 * 60 * 60,
    "week": 7 * 24 * 60 * 60,
    "month": 30 * 24 * 60 * 60,
    "year": 365 * 24 * 60 * 60,
}
_SHORT: Final = {"s": "second", "sec": "second", "m": "minute", "min": "minute", "h": "hour", "hr": "hour", "d": "day"}

_SEPARATORS = re.compile(r"[;,|]")
_RATE = re.compile(r"\s*([0-9]+)\s*(?:/|per)\s*([0-9]+(?:\.[0-9]+)?)?\s*([a-z]+)\b(.*)", re.DOTALL)
_CALENDAR_WORDS: Final = {"in": "zone", "from": "start"}  # by word: the field of `CalendarWindow`
_WORD_OF: Final = {field: word for word, field in _CALENDAR_WORDS.items()}
_WORDS: Final = {"using", *(_WORD_OF.get(word, word) for algorithm in ALGORITHMS.values() for word in algorithm.words)}
# `100/60`: a number alone means seconds. The empty group is in the place of the missing period. Only the word of an
# option may follow, so `100/60 minutes` does not match here.
_IN_SECONDS = re.compile(rf"\s*([0-9]+)\s*/\s*([0-9]+)()((?:\s+(?:{'|'.join(sorted(_WORDS))})\b.*)?)", re.DOTALL)
_SECONDS = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_THOUSANDS = re.compile(r"\b[0-9]{1,3}(?:,[0-9]{3})+\b")
_PER_LETTER = re.compile(r"(?:rate\s*=\s*)?([0-9]+)\s*r\s*/\s*([sm])(.*)", re.DOTALL)  # nginx: 10r/s
_ALIASES: Final = {"moving_window": "sliding_window_log"}  # the name in the `limits` library
_MIN_PREFIX: Final = 3  # characters of an algorithm's name that identify it
_MAX_LENGTH = 1000  # characters; a longer text is a mistake or an attack

_MAX_BUCKET_LENGTH: Final = 300  # characters; the ids of this package are shorter
_MAX_NOTATIONS: Final = 4096  # parsed canonical notations that are kept
_BAN: Final = re.compile(r"([0-9]{1,16})/([0-9]{1,16})(u?s)_ban_([0-9]{1,16})(u?s)_using_ban")
_BAN_UNITS: Final = {"s": MICROSECONDS, "us": 1}


def parse(text: str) -> tuple[Limit, ...]:
    """Parse one or more limits, separated by `;`, `,` or `|`.

    `100/minute`, `5 per 10 seconds`, `100/minute burst 20 using token_bucket`, `60/hour using sliding_window_counter
    buckets 10 strict`. A period is us, ms, second, minute, hour, day, week, month (30 days) or year (365 days),
    abbreviated (s, min, h, d) or plural, with or without a number before it. After `/`, a number alone means seconds.
    The default algorithm is `sliding_window_counter`. A `calendar_window` has one calendar period: `10000/month using
    calendar_window in Europe/Berlin from 15`. Also accepts the notations of the `limits` library and of
    django-ratelimit. Raises `ConfigError` that quotes the invalid part and names the valid values.
    """
    if not isinstance(text, str):
        raise ConfigError(f"got {text!r}, expected text such as '100/minute'", code="RL-009")
    if len(text) > _MAX_LENGTH:
        raise ConfigError(f"got {len(text)} characters, expected at most {_MAX_LENGTH}", code="RL-009")
    return _parse(text)


def reject_limits(option: str, text: str, expected: str) -> None:
    """Raise `ConfigError` if `text` is a notation of limits, because `option` expects something else."""
    try:
        parse(text)
    except ConfigError:
        return
    raise ConfigError(f"{option}: got {text!r}, expected {expected}", code="RL-038")


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Limit, ...]:
    parts = [part for part in _SEPARATORS.split(text) if part.strip()]
    if not parts:
        raise ConfigError(f"got {text!r}, expected text such as '100/minute'", code="RL-009")
    return tuple(_limit(part.strip(), text) for part in parts)


def _limit(text: str, whole: str) -> Limit:
    rate = _IN_SECONDS.fullmatch(text.lower()) or _RATE.fullmatch(text.lower())
    if rate is None:
        raise ConfigError(
            f"{text!r}: got no rate, expected text such as '100/minute' or '5 per 10 seconds'{_rate_hint(text, whole)}",
            code="RL-009",
        )
    quota, count, period, rest = rate.groups()
    try:
        algorithm, tokens = _algorithm(rest.split(), text.split())
        if algorithm is CalendarWindow:
            return CalendarWindow(int(quota), _calendar_period(count, period), **_calendar_options(tokens))
        window = round(float(count or 1) * _period(period or "second"), 6)
        options = _options(algorithm, [token.lower() for token in tokens])
        return algorithm(int(quota), int(window) if window.is_integer() else window, **options)
    except ConfigError as error:
        raise ConfigError(f"{text!r}: {error}") from None


def _rate_hint(text: str, whole: str) -> str:
    """Return the fix of a part that has no rate, if its mistake is known. `whole`: all limits."""
    if nginx := _PER_LETTER.fullmatch(text.lower()):
        return f"; write '{nginx[1]}/{nginx[2]}{nginx[3]}'"
    if text.isdecimal() and (number := _THOUSANDS.search(whole)):
        return f"; a comma separates limits: write {number[0].replace(',', '')} for {number[0]}"
    return ""


def _singular(word: str) -> str:
    """Return the period that a word means, if it is one."""
    known = (*PERIODS, *CALENDAR_PERIODS)
    singular = word if word in known else word.removesuffix("s") if len(word) > 1 else word
    return _SHORT.get(singular, singular)


def _period(word: str) -> float:
    singular = _singular(word)
    if singular in PERIODS:
        return PERIODS[singular]
    if singular in CALENDAR_PERIODS:
        raise ConfigError(f"the period {word!r} goes with 'using calendar_window'", code="RL-011")
    raise ConfigError(f"unknown period {word!r}{did_you_mean(word, PERIODS)} ({', '.join(PERIODS)})", code="RL-011")


def _calendar_period(count: str | None, word: str) -> Any:
    if count is not None and float(count) != 1:
        raise ConfigError(
            f"got {count} {word or 'seconds'}, expected one calendar period ({', '.join(CALENDAR_PERIODS)})",
            code="RL-011",
        )
    return _singular(word)


def _algorithm(words: Sequence[str], tokens: Sequence[str]) -> tuple[type[Limit], Sequence[str]]:
    """Return the algorithm after `using`, and the other words, which are options in any order.

    `words`: in lower case, what follows the rate. `tokens`: the whole limit in its own case, as names of zones need it.
    """
    tokens = [*words[:1], *tokens[len(tokens) - len(words) + 1 :]]  # the first word may follow the rate without a space
    if "using" not in words:
        return DEFAULT, tokens
    where = words.index("using")
    name = words[where + 1] if where + 1 < len(words) else ""
    if name not in ALGORITHMS:
        raise ConfigError(
            f"unknown algorithm {name!r}{_did_you_mean_algorithm(name)} ({', '.join(ALGORITHMS)})", code="RL-012"
        )
    if "using" in words[where + 1 :]:
        raise ConfigError("'using' appears twice", code="RL-012")
    return ALGORITHMS[name], [*tokens[:where], *tokens[where + 2 :]]


def _options(algorithm: type[Limit], tokens: Sequence[str]) -> dict[str, Any]:
    """Return the values of an algorithm's options."""
    options: dict[str, Any] = {}
    types = get_type_hints(algorithm)
    pending = iter(tokens)
    for word in pending:
        if word not in algorithm.words:
            raise ConfigError(_unknown_word(word, algorithm), code="RL-012")
        if word in options:
            raise ConfigError(f"{word!r} appears twice", code="RL-012")
        options[word] = True if types[word] is bool else _value(word, next(pending, ""), seconds=types[word] is float)
    return options


def _calendar_options(tokens: Sequence[str]) -> dict[str, Any]:
    """Return zone and start. A bucket id has spaces in place of the underscores of a zone."""
    values: dict[str, list[str]] = {}
    value: list[str] = []
    for token in tokens:
        word = token.lower()
        if word in values:
            raise ConfigError(f"{word!r} appears twice", code="RL-012")
        if word in _CALENDAR_WORDS:
            value = values[word] = []
        elif values:
            value.append(token)
        else:
            raise ConfigError(_unknown_word(word, CalendarWindow), code="RL-012")
    options: dict[str, Any] = {_CALENDAR_WORDS[word]: "_".join(value) for word, value in values.items()}
    if "start" in options:
        start = options["start"].lower()
        options["start"] = int(start) if start.isascii() and start.isdigit() else start
    return options


def _value(word: str, text: str, *, seconds: bool) -> float:
    if seconds:
        if not _SECONDS.fullmatch(text):
            raise ConfigError(
                f"{word}: got {text!r}, expected seconds after {word!r}, such as '{word} 1.5'", code="RL-012"
            )
        return round(float(text), 6)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            f"{word}: got {text!r}, expected a whole number after {word!r}, such as '{word} 20'", code="RL-012"
        )
    return int(text)


def _unknown_word(word: str, algorithm: type[Limit]) -> str:
    others = [name for name, other in ALGORITHMS.items() if _CALENDAR_WORDS.get(word, word) in other.words]
    if others and algorithm.algorithm not in others:
        return f"{word!r} does not go with {algorithm.algorithm}; it goes with 'using {' or '.join(others)}'"
    return f"unknown word {word!r}{_did_you_mean_word(word, algorithm)} (using, {', '.join(_words_of(algorithm))})"


def _words_of(algorithm: type[Limit]) -> list[str]:
    return [_WORD_OF.get(word, word) for word in algorithm.words]


def _did_you_mean_word(word: str, algorithm: type[Limit]) -> str:
    """Return `, did you mean ...?` for `burst=20`, for an algorithm without `using`, or for a misspelled word."""
    option, equals, value = word.partition("=")
    if equals and option in _WORDS:
        others = [name for name, other in ALGORITHMS.items() if option in other.words]
        using = "" if option == "using" or option in algorithm.words else f" using {others[-1]}"
        return f", did you mean '{option} {value}{using}'?"
    if (name := _algorithm_of(word)) is not None:
        return f", did you mean 'using {name}'?"
    return did_you_mean(word, _words_of(algorithm))


def _did_you_mean_algorithm(name: str) -> str:
    meant = _algorithm_of(name)
    return did_you_mean(name, ALGORITHMS) if meant is None else f", did you mean {meant!r}?"


def _algorithm_of(word: str) -> str | None:
    """Return the algorithm that has this name in another library, or else the first whose name begins with `word`.

    None if there is neither.
    """
    name = word.replace("-", "_")
    if len(name) < _MIN_PREFIX:
        return None
    return _ALIASES.get(name) or next((one for one in ALGORITHMS if one.startswith(name)), None)


def limit_of_bucket(bucket: str) -> Limit | None:
    """Return a limit with this bucket id (`Limit.bucket`); None if it lacks the rate, or is invalid.

    The id of a concurrency limit does not contain its quota, and the id of `smooth` does not contain its rate. Options
    that are not in the id, such as `max_delay`, have their defaults.
    """
    if len(bucket) > _MAX_BUCKET_LENGTH:
        return None
    name, _, notation = bucket.rpartition(":")
    rate, _, algorithm = notation.partition("_using_")
    try:
        limit = _ban_of_bucket(notation) or parse(f"{rate.replace('_', ' ')} using {algorithm}")[0]
        if name:
            limit = replace(limit, name=name)
    except ConfigError:
        return None
    return limit if limit.bucket == bucket else None


@lru_cache(_MAX_NOTATIONS)
def limit_of_notation(notation: str) -> Limit:
    """Return the limit with this canonical notation (`Limit.notation`). Raises `ValueError` for any other text."""
    limit = _ban_of_bucket(notation.replace(" ", "_")) or parse(notation)[0]
    if limit.notation != notation:
        raise ValueError(f"{notation!r:.100} is not the notation of a limit")
    return limit


def _ban_of_bucket(notation: str) -> Ban | None:
    found = _BAN.fullmatch(notation)
    if found is None:
        return None
    quota, window, unit, ban, ban_unit = found.groups()
    return Ban(int(quota), _seconds(window, unit), ban=_seconds(ban, ban_unit))


def _seconds(number: str, unit: str) -> float:
    return int(number) * _BAN_UNITS[unit] / MICROSECONDS

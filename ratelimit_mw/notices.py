"""What this package logs: warnings at start, each once, and warnings that a client can cause, rarely."""

import logging
import time
from collections.abc import Iterable
from typing import NamedTuple

from ratelimit_mw.errors import ConfigError, RateLimitError

logger = logging.getLogger("ratelimit_mw")

_QUIET: float = 60.0  # seconds
_MOST_PLACES = 1000
_LONGEST = 500  # characters of what is not ours in a line: a place, a number, an error's text
_SHORT = 400  # characters of an error of ours
_said: dict[str, float] = {}


class Finding(NamedTuple):
    """A likely mistake that is found at start. `limits_less`: it limits less than the code or the settings suggest."""

    text: str
    limits_less: bool = True


def warn_or_fail(findings: Iterable[Finding], *, strict: bool) -> None:
    """Log each finding as a warning. With `strict`, those that limit less than they seem to raise one `ConfigError`.

    Every warning of the start goes through here. `strict`: the setting of that name.
    """
    problems: list[str] = []
    for finding in findings:
        if strict and finding.limits_less:
            problems.append(finding.text)
        else:
            logger.warning("ratelimit_mw: %s", finding.text)
    if problems:
        raise ConfigError(*problems)


def warn_rarely(place: str, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log a warning, unless this `place` had one within the last minute.

    What `args` say may be somebody else's: a server's words, or what a callable of the app raises. It stands in one
    line, with control characters as escapes, and is cut when it is long.
    """
    now = time.monotonic()
    if now < _said.get(place, 0.0):
        return
    if len(_said) >= _MOST_PLACES:
        _said.clear()
    _said[place] = now + _QUIET
    shown = [_in_one_line(arg) for arg in (place, *args)]
    logger.warning("ratelimit_mw: %s: " + message, *shown, exc_info=_without_text(error))  # noqa: G003  # it is ours


def _in_one_line(value: object) -> object:
    if isinstance(value, int):
        return value
    text = str(value)
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def one_line(error: BaseException) -> str:
    """The text of an error of ours, short and on one line; of any other, in which there may be a secret, its name."""
    if not isinstance(error, RateLimitError):
        return type(error).__name__
    return "".join(one if one.isprintable() else " " for one in str(error)[:_SHORT])


def _without_text(error: BaseException | None) -> BaseException | None:
    """An error with the same traceback, but without its text, in which there may be what a client sent: a key."""
    if error is None:
        return None
    return RuntimeError(f"{type(error).__name__}; its text is left out").with_traceback(error.__traceback__)

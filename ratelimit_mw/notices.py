"""Log lines that a client can cause: at most one a minute for each place, so that nobody fills a disk with them."""

import logging
import time

from ratelimit_mw.errors import RateLimitError

logger = logging.getLogger("ratelimit_mw")

_QUIET: float = 60.0  # seconds
_MOST_PLACES = 1000
_LONGEST = 200  # characters of an error
_said: dict[str, float] = {}


def warn_rarely(place: str, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log a warning, unless this `place` had one within the last minute."""
    now = time.monotonic()
    if now < _said.get(place, 0.0):
        return
    if len(_said) >= _MOST_PLACES:
        _said.clear()
    _said[place] = now + _QUIET
    logger.warning("ratelimit_mw: %s: " + message, place, *args, exc_info=_without_text(error))  # noqa: G003  # it is ours


def one_line(error: BaseException) -> str:
    """The text of an error of ours, short and on one line; of any other, in which there may be a secret, its name."""
    if not isinstance(error, RateLimitError):
        return type(error).__name__
    return "".join(one if one.isprintable() else " " for one in str(error)[:_LONGEST])


def _without_text(error: BaseException | None) -> BaseException | None:
    """An error with the same traceback, but without its text, in which there may be what a client sent: a key."""
    if error is None:
        return None
    return RuntimeError(f"{type(error).__name__}; its text is left out").with_traceback(error.__traceback__)

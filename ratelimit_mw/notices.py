"""Log lines that a client can cause: at most one a minute for each place, so that nobody fills a disk with them."""

import logging
import time

logger = logging.getLogger("ratelimit_mw")

_QUIET: float = 60.0  # seconds
_MOST_PLACES = 1000
_said: dict[str, float] = {}


def warn_rarely(place: str, message: str, *args: object, error: BaseException | None = None) -> None:
    """Log a warning, unless this `place` had one within the last minute."""
    now = time.monotonic()
    if now < _said.get(place, 0.0):
        return
    if len(_said) >= _MOST_PLACES:
        _said.clear()
    _said[place] = now + _QUIET
    logger.warning("ratelimit_mw: %s: " + message, place, *args, exc_info=error)  # noqa: G003  # message is ours

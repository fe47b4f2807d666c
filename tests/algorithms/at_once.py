"""Makes limits of each algorithm whose whole quota passes at once, however it is split into charges."""

import math
from typing import Any, Final

from ratelimit_mw import CalendarWindow, Concurrency, Limit, Smooth
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.limit import MICROSECONDS

HOUR: Final = 3600  # seconds
YEAR: Final = 366 * 24 * HOUR

TAKEN: Final[dict[str, type[Limit]]] = {
    **ALGORITHMS,
    "concurrency": Concurrency,
}  # all kinds of limits that are charged


def stored(quota: int, window: float) -> float:
    """Return the `max_burst` of `smooth`, in seconds, for all units but one, which passes without being stored."""
    return math.ceil((quota - 1) * window * MICROSECONDS / quota) / MICROSECONDS


def at_once(kind: type[Limit], quota: int, window: float) -> Limit:
    """Return a limit that admits `quota` single units at once."""
    options: dict[str, Any] = {"max_burst": stored(quota, window)} if kind is Smooth else {}
    if kind is CalendarWindow:
        window = HOUR if window <= HOUR else YEAR
    return kind(quota, window, **options)


def written_at_once(algorithm: str, quota: int, days: int) -> str:
    """Return the notation of a limit that admits `quota` single units at once, with a window of `days`."""
    return at_once(ALGORITHMS[algorithm], quota, days * 24 * 3600).notation

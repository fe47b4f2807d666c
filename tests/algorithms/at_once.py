"""Limits of each algorithm of which a quota passes at once, in whatever charges."""

import math
from typing import Any, Final

from ratelimit_mw import Concurrency, Limit, Smooth
from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.limit import MICROSECONDS

TAKEN: Final[dict[str, type[Limit]]] = {**ALGORITHMS, "concurrency": Concurrency}  # all that requests take from


def stored(quota: int, window: float) -> float:
    """`max_burst` seconds of `smooth`: all but the unit that passes when the next ticket is due."""
    return math.ceil((quota - 1) * window * MICROSECONDS / quota) / MICROSECONDS


def at_once(kind: type[Limit], quota: int, window: float) -> Limit:
    """A limit of which `quota` single units pass at once."""
    options: dict[str, Any] = {"max_burst": stored(quota, window)} if kind is Smooth else {}
    return kind(quota, window, **options)


def written_at_once(algorithm: str, quota: int, days: int) -> str:
    """The same in notation."""
    return at_once(ALGORITHMS[algorithm], quota, days * 24 * 3600).notation

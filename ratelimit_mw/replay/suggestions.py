"""Finds a quota between honest clients and others, in the widest gap among the largest peaks.

The suggestion is confirmed by a replay.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, Limit
from ratelimit_mw.replay.results import Peaks, Suggestion
from ratelimit_mw.replay.tallies import Population, PopulationName

WINDOWS: Final = {1: "second", 10: "10 seconds", 60: "minute", 600: "10 minutes", 3600: "hour"}
_LARGEST: Final = 0.01  # the share of the clients whose peaks are searched for a gap
_MIN_GAP: Final = 1.3  # a narrower gap may be chance
_MIN_STEP: Final = 5  # units; a gap of fewer may be chance, too, e.g. from 2 requests to 3
_ROOM: Final = 1.2  # honest clients may use this much more than they did


def suggest(populations: Mapping[PopulationName, Population]) -> list[Suggestion]:
    """Return one suggestion for each rule, key and window."""
    suggestions: list[Suggestion] = []
    for name, population in populations.items():
        (limit, *_), requests = parse(name.limits[0]), sum(map(len, population.values()))
        for window in WINDOWS:
            peaks = sorted(peak(times, window * MICROSECONDS) for times in population.values())
            suggestions.append(_suggestion(name, limit, population, window, peaks, requests))
    return suggestions


def distributions(populations: Mapping[PopulationName, Population]) -> list[Peaks]:
    """Return the distribution of the clients' peaks for the first limit of each rule and key."""
    found: list[Peaks] = []
    for name, population in populations.items():
        limit = parse(name.limits[0])[0]
        counts = Counter(peak(times, limit.window_us) * name.cost for times in population.values())
        found.append(Peaks(name.rule, name.key, limit.notation, limit.most, limit.window, dict(sorted(counts.items()))))
    return found


def peak(times: Sequence[int], window: int) -> int:
    """Return the most of these times, which are in order, in any window, which is half open: (x, x + window]."""
    first = 0
    for time in times:
        if times[first] <= time - window:
            first += 1  # so the part from `first` to here never has fewer times than the most so far
    return len(times) - first


def _suggestion(
    name: PopulationName, limit: Limit, population: Population, window: int, peaks: Sequence[int], requests: int
) -> Suggestion:
    count = len(peaks)
    gap, honest, next_peak = widest_gap(peaks)
    plain = Suggestion(
        name.rule,
        name.key,
        float(window),
        peaks[(count - 1) // 2],
        peaks[math.ceil(count * 0.99) - 1],
        peaks[-1],
        round(gap, 2),
        honest,
        count,
        requests,
    )
    if gap <= _MIN_GAP or next_peak - honest < _MIN_STEP:
        return plain
    quota = min(math.ceil(honest * _ROOM), next_peak - 1) * name.cost
    suggested = limit_like(limit, quota, window)
    if suggested is None:
        return plain
    refused = [units for times in population.values() if (units := refusals(suggested, times, name.cost))]
    if len(refused) > count - bisect_right(peaks, honest):
        return plain  # with this quota, the algorithm would refuse honest clients
    return replace(plain, quota=quota, limit=suggested.notation, touched=len(refused), refused=sum(refused))


def widest_gap(peaks: Sequence[int]) -> tuple[float, int, int]:
    """Return the widest relative gap among the largest hundredth of the sorted peaks, and the peaks around it."""
    first = max(0, len(peaks) - math.ceil(len(peaks) * _LARGEST) - 1)
    gaps = [(above / below, below, above) for below, above in zip(peaks[first:], peaks[first + 1 :], strict=False)]
    return max(gaps, key=lambda gap: gap[0], default=(1.0, peaks[-1], peaks[-1]))


def limit_like(limit: Limit, quota: int, window: int) -> Limit | None:
    """Return a limit of the same algorithm with another quota and window; None if its algorithm cannot have them."""
    changes: dict[str, Any] = {"quota": quota, "window": float(window)}
    changes |= {word: None for word in ("burst", "at_once") if hasattr(limit, word)}
    try:
        return replace(limit, **changes, name=None)
    except ConfigError:
        return None


def refusals(limit: Limit, times: Sequence[int], cost: int) -> int:
    """Return how many requests at these times the limit refuses."""
    if not limit.borrows and peak(times, limit.window_us) * cost * 2 <= limit.quota:
        return 0  # no algorithm counts more than two windows
    state: Any = None
    refused = 0
    for now in times:
        decision, state = limit.decide(state, now, cost, None)
        refused += not decision.allowed
    return refused

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
from ratelimit_mw.replay.results import Described, Peaks, Suggestion
from ratelimit_mw.replay.tallies import Member, Population, PopulationName

WINDOWS: Final = {1: "second", 10: "10 seconds", 60: "minute", 600: "10 minutes", 3600: "hour"}
_LARGEST: Final = 0.01  # the share of the clients whose peaks are searched for a gap
_MIN_GAP: Final = 1.3  # a narrower gap may be chance
_MANY: Final = 0.25  # the share that is searched if the largest hundredth has no clear gap
_MIN_WIDE_GAP: Final = 2.0  # there, a narrower gap may be one between two kinds of honest clients
_MIN_STEP: Final = 5  # units; a gap of fewer may be chance, too, e.g. from 2 requests to 3
_NAMED: Final = 10  # clients of a suggestion
_ROOM: Final = 1.2  # honest clients may use this much more than they did


def suggest(populations: Mapping[PopulationName, Population]) -> list[Suggestion]:
    """Return one suggestion for each rule, key and window."""
    suggestions: list[Suggestion] = []
    for name, population in populations.items():
        (limit, *_), requests = parse(name.limits[0]), sum(len(member.times) for member in population.values())
        suggestions += [_suggestion(name, limit, population, window, requests) for window in WINDOWS]
    return _with_recommended(suggestions)


def _with_recommended(suggestions: Sequence[Suggestion]) -> list[Suggestion]:
    """Mark the suggestion with the widest gap of each rule and key."""
    best: dict[tuple[str, str], Suggestion] = {}
    for one in suggestions:
        known = best.get((one.rule, one.key))
        if one.quota is not None and (known is None or one.gap > known.gap):
            best[one.rule, one.key] = one
    return [replace(one, recommended=best.get((one.rule, one.key)) is one) for one in suggestions]


def distributions(populations: Mapping[PopulationName, Population]) -> list[Peaks]:
    """Return the distribution of the clients' peaks for each limit of each rule and key."""
    found: list[Peaks] = []
    for name, population in populations.items():
        for limit in parse("; ".join(name.limits)):
            counts = Counter(peak(one.times, limit.window_us) * name.cost for one in population.values())
            ordered = dict(sorted(counts.items()))
            found.append(Peaks(name.rule, name.key, limit.notation, limit.most, limit.window, ordered, name.cost))
    return found


def peak(times: Sequence[int], window: int) -> int:
    """Return the most of these times, which are in order, in any window, which is half open: (x, x + window]."""
    first = 0
    for time in times:
        if times[first] <= time - window:
            first += 1  # so the part from `first` to here never has fewer times than the most so far
    return len(times) - first


def _suggestion(name: PopulationName, limit: Limit, population: Population, window: int, requests: int) -> Suggestion:
    peaks_of = {client: peak(member.times, window * MICROSECONDS) for client, member in population.items()}
    peaks, count = sorted(peaks_of.values()), len(peaks_of)
    gap, honest, next_peak = clear_gap(peaks)
    offices: dict[str, int] = {}
    if _is_clear(gap, honest, next_peak, _MIN_GAP):
        offices = {one: most for one, most in peaks_of.items() if most > honest and _may_be_office(one, population)}
    if offices:  # these are honest, too
        least = max(offices.values())
        gap, honest, next_peak = clear_gap([max(one, least) for one in peaks])
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
        offices=_described(offices, population),
    )
    if not _is_clear(gap, honest, next_peak, _MIN_GAP):
        return plain
    quota = min(math.ceil(honest * _ROOM), next_peak - 1) * name.cost
    suggested = limit_like(limit, quota, window)
    if suggested is None:
        return plain
    refused = {one: refusals(suggested, member.times, name.cost) for one, member in population.items()}
    touched = Counter({one: units for one, units in refused.items() if units})
    if len(touched) > count - bisect_right(peaks, honest) or any(_may_be_office(one, population) for one in touched):
        return plain  # with this quota, the algorithm would refuse honest clients
    return replace(
        plain,
        quota=quota,
        limit=suggested.notation,
        touched=len(touched),
        refused=touched.total(),
        victims=_described(touched, population),
    )


def _may_be_office(client: str, population: Population) -> bool:
    return "ip=" in client and population[client].may_be_office


def _described(numbers: Mapping[str, int], population: Population) -> list[Described]:
    """Return what is known of the clients with the largest numbers."""
    largest = sorted(numbers, key=lambda client: (-numbers[client], client))[:_NAMED]
    return [_description(client, numbers[client], population[client]) for client in largest]


def _description(client: str, number: int, member: Member) -> Described:
    path = min(member.paths, key=lambda path: (-member.paths[path], path), default="")
    first, last = (member.times[place] / MICROSECONDS for place in (0, -1))
    return Described(client.removeprefix("ip="), number, len(member.agents), len(member.paths), path, first, last)


def clear_gap(peaks: Sequence[int]) -> tuple[float, int, int]:
    """Return the widest gap among the largest hundredth of the sorted peaks, or a wide one among the largest quarter.

    The latter if the former is not clear: a group of attackers may be more than a hundredth of the clients.
    """
    gap = widest_gap(peaks)
    if _is_clear(*gap, _MIN_GAP):
        return gap
    wide = widest_gap(peaks, _MANY)
    return wide if _is_clear(*wide, _MIN_WIDE_GAP) else gap


def _is_clear(gap: float, below: int, above: int, least: float) -> bool:
    return gap > least and above - below >= _MIN_STEP


def widest_gap(peaks: Sequence[int], share: float = _LARGEST) -> tuple[float, int, int]:
    """Return the widest relative gap among the largest of the sorted peaks, and the peaks around it."""
    first = max(0, len(peaks) - math.ceil(len(peaks) * share) - 1)
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

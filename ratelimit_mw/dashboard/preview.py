"""Shows what another limit would have refused, from a sample of recent decisions. Pure.

The sample has each second's decisions of some clients, all of their requests. What they show is scaled to the requests
that the rule had.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.admin.buckets import split_key
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.identity import rule_spellings
from ratelimit_mw.core.limit import Limit
from ratelimit_mw.dashboard.reader import Snapshot, total
from ratelimit_mw.metrics.sample import checksum
from ratelimit_mw.stores.live import BY_SECOND, CLIENTS, KEPT_SECONDS

_MICROSECONDS: Final = 1_000_000
_MOST_PEAKS: Final = 40


def preview(snapshot: Snapshot, rule: str, state: str, limits: str) -> dict[str, Any]:
    """Return what a rule refused, and what it would have refused with these limits. Raises `ConfigError` for a mistake.

    `state`: on, shadow or off. The limits start with full quotas, so the first minutes are too friendly.
    """
    began = time.perf_counter()
    parsed = parse(limits) if state == "on" else ()
    clients = sampled(snapshot, rule)
    requests = sum(admitted + refused for some in clients.values() for _, admitted, refused in some)
    last = snapshot.last_second
    counts = total(snapshot.rows[BY_SECOND.name], range(last - KEPT_SECONDS + 1, last + 1)).get(rule, (0, 0, 0))
    scale = (counts[0] + counts[1]) / requests if requests else 0.0
    now = {key: sum(refused for _, _, refused in some) for key, some in clients.items()}
    then = {key: _refused(parsed, some) for key, some in clients.items()}
    longest = max(parsed, key=lambda limit: limit.window, default=None)
    newly = [key for key, refused in then.items() if refused and not now[key]]
    return {
        "seconds": KEPT_SECONDS,
        "requests": counts[0] + counts[1] if requests else 0,
        "sampled": requests,
        "clients": round(len(clients) * max(1.0, scale)),
        "took": round(time.perf_counter() - began, 3),
        "now": _summary(now, scale),
        "then": _summary(then, scale),
        "period": None if longest is None else longest.window,
        "quota": None if longest is None else longest.quota,
        "peaks": [] if longest is None else _peaks(clients, longest.window),
        "warning": f"{len(newly)} clients of the sample that were not refused would be" if newly else "",
    }


def sampled(snapshot: Snapshot, rule: str) -> dict[str, list[tuple[int, int, int]]]:
    """Return the second, admitted and refused requests of each client of a rule in the sample."""
    below = snapshot.below
    clients: dict[str, list[tuple[int, int, int]]] = {}
    for at, counts in sorted(snapshot.rows[CLIENTS.name].items()):
        for key, (admitted, refused, _) in counts.items():
            identity, name = split_key(key)
            if rule in rule_spellings(name) and checksum(key) < below:
                clients.setdefault(identity, []).append((at, admitted, refused))
    return clients


def _refused(limits: Sequence[Limit], seconds: Sequence[tuple[int, int, int]]) -> int:
    """Return how many requests of a client the limits refuse. The requests of a second are spread over it."""
    states: list[Any] = [None] * len(limits)
    refused = 0
    for at, admitted, declined in seconds:
        number = admitted + declined
        for index in range(number if limits else 0):
            now = at * _MICROSECONDS + index * _MICROSECONDS // number
            decided = [limit.decide(state, now, 1, 0) for limit, state in zip(limits, states, strict=True)]
            if all(decision.allowed for decision, _ in decided):
                states = [state for _, state in decided]
            else:
                refused += 1
    return refused


def _summary(refused: dict[str, int], scale: float) -> dict[str, int]:
    clients = sum(number > 0 for number in refused.values())
    return {
        "refused": round(sum(refused.values()) * scale),
        "clients": round(clients * max(1.0, scale)),
    }


def _peaks(clients: dict[str, list[tuple[int, int, int]]], period: float) -> list[list[int]]:
    """Return how many clients had which number of requests in one period at most."""
    peaks = Counter[int]()
    for some in clients.values():
        most, start, held = 0, 0, 0
        for at, admitted, refused in some:
            held += admitted + refused
            while some[start][0] <= at - period:
                held -= some[start][1] + some[start][2]
                start += 1
            most = max(most, held)
        peaks[most] += 1
    return [[most, number] for most, number in sorted(peaks.items())][-_MOST_PEAKS:]

"""Refuses requests that a latency goal leaves no room for, before any charge. See `engine.overload`."""

from functools import lru_cache
from typing import Any, Final

from ratelimit_mw.engine.overload import OverloadGuard, Ticket
from ratelimit_mw.http.request import Request
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.rules.plan import Match
from ratelimit_mw.rules.way import Way
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.features import SHARES

_CACHE_SIZE: Final = 1024  # names of rules


def guard_of(settings: Settings, before: OverloadGuard | None) -> OverloadGuard | None:
    """Return the guard of a process; None without a latency goal. `before`: that of the settings before a reload."""
    if not settings.latency_goal or settings.enabled is False:
        return None
    least, most = settings.at_work_least, settings.at_work_most
    guard = OverloadGuard(settings.latency_goal, least, most, refuses=not settings.shadow, before=before)
    if settings.metrics:
        COUNTS.count_at_work_of(guard)
    return guard


def entered(guard: OverloadGuard, match: Match, request: Request) -> Match:
    """Return the match of a request that is at work from now on, or one that refuses it if there is no room.

    A request that may be delayed, or wait in a queue, is at work only once its response is tracked.
    """
    if match.denied:
        return match
    ticket = Ticket(guard)
    if not guard.enter(SHARES[match.priority], ticket):
        return shed_way(match.rule, match.route).match
    request.on_end = [*(request.on_end or ()), ticket]
    if match.may_delay or match.has_queue:
        guard.leave(ticket)
    return match


def leave(guard: OverloadGuard, raw: Any) -> None:
    """Count a request that was not admitted as at work no longer. `raw`: a scope or a `Request`."""
    for key in raw.on_end or () if isinstance(raw, Request) else (id(raw),):
        if isinstance(key, Ticket | int):
            guard.leave(key)


@lru_cache(maxsize=_CACHE_SIZE)
def shed_way(rule: str, route: str) -> Way:
    """Return a way that refuses requests of this rule."""
    return Way(Match((), rule, route, denied=True, source="latency_goal"))

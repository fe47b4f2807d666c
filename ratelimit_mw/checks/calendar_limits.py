"""Looks for stores that may lose the units of a long calendar period, and for servers that are in another period."""

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ratelimit_mw.core.limit import MICROSECONDS, Limit
from ratelimit_mw.core.log import Finding, warn_or_fail
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.url import inspect_store

_LONG: Final = 24 * 3600  # seconds
_IN_MEMORY: Final = "memory:// forgets it at a restart; use Redis, or a file on one host"


def inspect_for_calendar(declared: BaseStore, settings: Settings, *, asks: bool) -> tuple[list[str], Any]:
    """Return how a store may lose units, and the inspection of its servers, if any. `asks`: whether to query them."""
    if declared.count_states() is not None:
        return [_IN_MEMORY], None
    url = settings.store
    inspection = inspect_store(url, (), settings.store_timeout) if asks and isinstance(url, str) else None
    return ([], None) if inspection is None else (list(inspection.losses), inspection)


def calendar_findings(limits: Sequence[Limit], losses: Iterable[str], inspection: Any) -> Iterator[Finding]:
    """Yield what is wrong with a store for calendar limits, as `inspect_for_calendar` found it."""
    yield from _losses(limits, losses) if inspection is None else findings_of_servers(limits, inspection)


def warn_of_chosen(losses: list[str], limits: Sequence[Limit]) -> None:
    """Warn if a callable returned a calendar limit that the store may lose. Clears `losses` then, to warn once."""
    if found := list(_losses(limits, losses)):
        losses.clear()
        warn_or_fail(found, strict=False)


def findings_of_servers(limits: Sequence[Limit], inspection: Any) -> Iterator[Finding]:
    """Yield what is wrong with inspected servers for calendar limits.

    The app computes the periods around its own time, and a server picks the one that it is in by its clock. A server
    whose clock is a period away may be in none of them.
    """
    yield from _losses(limits, inspection.losses)
    on_calendar = [limit for limit in limits if limit.uses_wall_time]
    if not on_calendar:
        return
    now = round(time.time() * MICROSECONDS)
    shortest = min(on_calendar, key=lambda limit: limit.window_at(now))
    for node in inspection.nodes:
        if node.clock_offset is not None and abs(node.clock_offset) >= shortest.window_at(now):
            yield Finding(
                f"store: {shortest.notation} counts in a wrong period: the clock of {node.label} differs by "
                f"{node.clock_offset:+.0f} s from that of this machine; synchronize the clocks",
                code="RL-148",
            )


def _losses(limits: Iterable[Limit], losses: Iterable[str]) -> Iterator[Finding]:
    quota = next((limit.notation for limit in limits if limit.uses_wall_time and limit.window >= _LONG), None)
    for loss in () if quota is None else losses:
        yield Finding(f"store: {quota} needs a store that keeps it: {loss}", code="RL-147", weakens_limits=False)

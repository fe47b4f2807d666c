"""Looks for stores that may lose the units of a long calendar period, and for servers that are in another period."""

import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ratelimit_mw.core.limit import MICROSECONDS, Limit
from ratelimit_mw.core.log import Finding
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.url import inspect_store

_LONG: Final = 24 * 3600  # seconds
_IN_MEMORY: Final = "memory:// forgets it at a restart; use Redis, or a file on one host"


def calendar_findings(
    limits: Iterable[Limit], declared: BaseStore, settings: Settings, *, asks: bool
) -> Iterator[Finding]:
    """Yield what is wrong with the store for calendar limits. `asks`: whether to query its servers."""
    on_calendar = [limit for limit in limits if limit.uses_wall_time]
    url = settings.store
    if not on_calendar:
        return
    if declared.count_states() is not None:
        yield from _losses(on_calendar, [_IN_MEMORY])
    elif asks and isinstance(url, str):
        inspection = inspect_store(url, (), settings.store_timeout)
        yield from () if inspection is None else findings_of_servers(on_calendar, inspection)


def findings_of_servers(limits: Iterable[Limit], inspection: Any) -> Iterator[Finding]:
    """Yield what is wrong with inspected servers for calendar limits.

    The app computes the periods around its own time, and a server picks the one that it is in by its clock. A server
    whose clock is a period away may be in none of them.
    """
    on_calendar = [limit for limit in limits if limit.uses_wall_time]
    if not on_calendar:
        return
    yield from _losses(on_calendar, inspection.losses)
    now = round(time.time() * MICROSECONDS)
    shortest = min(on_calendar, key=lambda limit: limit.window_at(now))
    for node in inspection.nodes:
        if node.clock_offset is not None and abs(node.clock_offset) >= shortest.window_at(now):
            yield Finding(
                f"store: {shortest.notation} counts in a wrong period: the clock of {node.label} differs by "
                f"{node.clock_offset:+.0f} s from that of this machine; synchronize the clocks",
                code="RL-148",
            )


def _losses(on_calendar: Iterable[Limit], losses: Iterable[str]) -> Iterator[Finding]:
    quota = next((limit.notation for limit in on_calendar if limit.window >= _LONG), None)
    for loss in () if quota is None else losses:
        yield Finding(f"store: {quota} needs a store that keeps it: {loss}", code="RL-147", weakens_limits=False)

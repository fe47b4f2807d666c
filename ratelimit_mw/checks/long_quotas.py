"""Looks for stores that may lose the units of a calendar period of a day or longer before it ends."""

from collections.abc import Iterable, Iterator

from ratelimit_mw.core.limit import Limit
from ratelimit_mw.core.log import Finding
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.url import inspect_store

_LONG = 24 * 3600  # seconds
_IN_MEMORY = "memory:// forgets it at a restart; use Redis, or a file on one host"


def long_quota_of(limits: Iterable[Limit]) -> str | None:
    """Return the notation of a limit with calendar periods of a day or longer; None without one."""
    return next((limit.notation for limit in limits if limit.uses_wall_time and limit.window >= _LONG), None)


def lost_quota_findings(
    limits: Iterable[Limit], declared: BaseStore, settings: Settings, *, asks: bool
) -> Iterator[Finding]:
    """Yield a finding for each way in which the store may lose a long quota. `asks`: whether to query the servers."""
    quota = long_quota_of(limits)
    if quota is None:
        return
    if declared.count_states() is not None:
        losses = [_IN_MEMORY]
    else:
        url = settings.store
        inspection = inspect_store(url, (), settings.store_timeout) if asks and isinstance(url, str) else None
        losses = [] if inspection is None else inspection.losses
    for loss in losses:
        yield Finding(f"store: {quota} needs a store that keeps it: {loss}", code="RL-147", weakens_limits=False)

"""Reports of processes, without the processes."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import json

from ratelimit_mw.engine.live import ProcessInfo
from ratelimit_mw.stores.live import BY_MINUTE, BY_SECOND, CLIENTS, Counts, Report, Row

NOW = 1_800_000_000  # a whole minute


def info(process: str = "one", at: float = NOW, **fields: Any) -> ProcessInfo:
    given = {"host": "web-1", "pid": 1, "since": NOW - 100.0, "digest": "c45ec6ea", "below": 1 << 32, **fields}
    return ProcessInfo(process, at=at, **given)


def report(
    counts: Mapping[str, Counts],
    at: int = NOW,
    process: str = "one",
    number: int = 1,
    *,
    clients: Mapping[str, Counts] | None = None,
    ends: bool = False,
    **fields: Any,
) -> Report:
    """Return a report on one second. `fields`: of the process."""
    rows: dict[str, Sequence[Row]] = {BY_SECOND.name: [Row(at, counts)], BY_MINUTE.name: [Row(at // 60, counts)]}
    if clients:
        rows[CLIENTS.name] = [Row(at, clients)]
    return Report(process, number, at, None if ends else json.encode(info(process, at, **fields)), rows)

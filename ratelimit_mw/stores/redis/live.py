"""Keeps in Redis what the dashboard shows: a hash for the processes, `rl:1:{live}:processes`, and one for each ring.

The tag of a client is a hash or has the form `kind=value`, so it is never `live`. All keys are in one slot.
"""

from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.live import KEPT_PROCESS, KEPT_TIME, MAX_PROCESSES, RINGS, Live, Report, Wanted, rows_of
from ratelimit_mw.stores.redis.protocol import Sender
from ratelimit_mw.stores.redis.scripts import read_lua

_ADD: Final = read_lua("stores/redis/live_add")
_READ: Final = read_lua("stores/redis/live_read")
_PROCESSES: Final = "processes"


async def add_live(sender: Sender, prefix: str, reports: Sequence[Report]) -> None:
    """See `LiveKeeper.add_live`."""
    latest = reports[-1]
    rows = [
        (report.number, number, row.at % ring.size, row.at, ring.most, len(row.counts), *_flat(row.counts))
        for report in reports
        for number, ring in enumerate(RINGS, 1)
        for row in report.rows.get(ring.name, ())
    ]
    values = [value for row in rows for value in row]
    kept = KEPT_PROCESS, MAX_PROCESSES, KEPT_TIME * 1000
    keys = _keys(prefix)
    start = latest.process, latest.text or b"", latest.seen
    await sender.send(("EVAL", _ADD, len(keys), *keys, *start, *kept, len(rows), *values))


async def read_live(sender: Sender, prefix: str, wanted: Wanted) -> Live:
    """See `LiveKeeper.read_live`."""
    instants = [wanted.slots.get(ring.name, range(0)) for ring in RINGS]
    slots = [[at % ring.size for at in some] for ring, some in zip(RINGS, instants, strict=True)]
    keys = _keys(prefix)
    values = [value for some in slots for value in (len(some), *some)]
    reply: Any = await sender.send(("EVAL", _READ, len(keys), *keys, *values))
    try:
        processes, *texts = reply
        found = [text.split(b" ", 2) for text in processes[1::2]]
        rows = {ring.name: rows_of(*pair) for ring, *pair in zip(RINGS, texts, instants, strict=True)}
        return Live(rows, [(int(seen), text) for _, seen, text in found])
    except (TypeError, ValueError) as error:
        raise StoreError(f"the counts of the dashboard were written by another program: {reply!r:.200}") from error


def _flat(counts: Any) -> list[Any]:
    return [value for name, some in counts.items() for value in (name.encode("utf-8", "surrogatepass"), *some)]


def _keys(prefix: str) -> list[bytes]:
    names = (_PROCESSES, *(ring.name for ring in RINGS))
    return [f"{prefix}{{live}}:{name}".encode("utf-8", "surrogatepass") for name in names]

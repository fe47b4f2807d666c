"""Rows of the calls that layers over the Redis stores save, as the server counts them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.lab import Lab, Missing, package
from benchmarks.line import Line
from benchmarks.rows.redis import sync_store
from benchmarks.runner import Row
from ratelimit_mw import Charge, FixedWindow

_REQUESTS: Final = 10_000
_TASKS: Final = 64
_DAY: Final = 24 * 3600.0  # seconds
_PATIENT: Final = 5.0  # seconds; long, so that a hiccup of the machine does not count as a failure of the store
_LEASE: Final = 100  # units

Use = Callable[[Lab, Charge, int], int]
"""Takes a charge `requests` times through a store that it opens and closes. Returns how often it was admitted."""


def by_thread(lab: Lab, charge: Charge, requests: int) -> int:
    """Take sequentially in one thread. See `Use`."""
    store = sync_store(lab)
    admitted = sum(store.take([charge])[0].allowed for _ in range(requests))
    store.close()
    return admitted


def by_tasks(lab: Lab, charge: Charge, requests: int) -> int:
    """Take in 64 concurrent tasks. See `Use`."""
    store = package("ratelimit_mw.stores.redis").AsyncRedisStore(lab.redis_url(), timeout=_PATIENT)

    async def task(number: int) -> int:
        own = range(number, requests, _TASKS)
        return sum([(await store.atake([charge]))[0].allowed for _ in own])

    async def all_tasks() -> int:
        admitted = sum(await asyncio.gather(*(task(number) for number in range(_TASKS))))
        await store.aclose()
        return admitted

    return lab.wait(all_tasks())


def calls(lab: Lab) -> int:
    """Return how often clients sent EVALSHA and EVAL. Commands that scripts call are not counted."""
    with package("redis").Redis.from_url(lab.redis_url()) as client:
        counts: dict[str, dict[str, int]] = client.info("commandstats")
    return sum(counts.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@dataclass(frozen=True, kw_only=True)
class Flood:
    """A row of the calls for refused requests of one key."""

    name: str
    what: str
    use: Use
    target: float

    def run(self, lab: Lab) -> Sequence[Line]:
        """One line."""
        requests = lab.calls or _REQUESTS
        charge = Charge(f"{{flood}}:{self.what}", FixedWindow(1, _DAY))
        try:
            by_thread(lab, charge, 1)
            before = calls(lab)
            admitted = self.use(lab, charge, requests)
            counted = calls(lab) - before
        except Missing as missing:
            return [_skipped(self, missing)]
        problems = [f"{admitted} of {requests} admitted, not 0"] if admitted else []
        return [
            Line(
                row=self.name,
                what=self.what,
                unit="calls",
                values=(counted,),
                target=self.target,
                refused=requests - admitted,
                problems=tuple(problems),
            )
        ]


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A row of the calls per request of a limit with a lease. Without a lease, only batched requests share a call.

    After the stores are closed, the server must have counted exactly the admitted requests.
    """

    name: str
    what: str
    use: Use
    target: float

    def run(self, lab: Lab) -> Sequence[Line]:
        """One line."""
        requests = lab.calls or _REQUESTS
        limit = FixedWindow(2 * requests, _DAY)
        try:
            found = [self._used(lab, limit, requests, lease) for lease in (min(_LEASE, requests), 0)]
        except Missing as missing:
            return [_skipped(self, missing)]
        (leased, *_), (single, *_) = found
        problems = [
            f"{admitted} of {requests} admitted, and {left} left of {limit.quota}"
            for _, admitted, left in found
            if (admitted, left) != (requests, limit.quota - requests)
        ]
        return [
            Line(
                row=self.name,
                what=self.what,
                unit="calls",
                values=(leased / requests,),
                target=self.target,
                admitted=found[0][1],
                refused=requests - found[0][1],
                notes=(f"{leased} calls of the server with a lease of {min(_LEASE, requests)}, {single} without",),
                problems=tuple(problems),
            )
        ]

    def _used(self, lab: Lab, limit: FixedWindow, requests: int, lease: int) -> tuple[int, int, int]:
        """Return the calls, the admitted requests, and what is left on the server after unused units are refunded."""
        charge = Charge(f"{{lease}}:{self.what}:{lease}", limit, lease=lease)
        before = calls(lab)
        admitted = self.use(lab, charge, requests)
        counted = calls(lab) - before
        return counted, admitted, sync_store(lab).peek([Charge(charge.key, limit, 0)])[0].remaining


def _skipped(row: Flood | Lease, missing: Missing) -> Line:
    return Line(row=row.name, what=row.what, target=row.target, notes=(f"skipped, {missing}",))


ROWS: Final[Sequence[Row]] = [
    *[
        Flood(
            name="flood", what=f"calls of the server for 10,000 refused requests of one key, {by}", use=use, target=20
        )
        for by, use in (("one thread", by_thread), ("64 tasks", by_tasks))
    ],
    *[
        Lease(
            name="lease", what=f"calls of the server per request with a lease of {_LEASE}, {by}", use=use, target=0.05
        )
        for by, use in (("one thread", by_thread), ("64 tasks", by_tasks))
    ],
]

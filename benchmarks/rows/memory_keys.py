"""Rows of a full memory store: the bytes per key, and the slowest takes.

Each runs in a separate process, where nothing else grows, and where a million keys slow no other row.
"""

import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Final, NamedTuple, ParamSpec, TypeVar

from benchmarks.lab import Lab, Missing, package
from benchmarks.line import Line
from benchmarks.runner import Count, Counted, Row
from ratelimit_mw import Charge, Limit, MemoryStore
from ratelimit_mw.algorithms import ALGORITHMS, DEFAULT
from ratelimit_mw.core.identity import bucket_key, encode

_KEYS: Final = 1_000_000  # the default `max_keys` of a MemoryStore
_TAKES: Final = 200_000
_PER_NEW: Final = 4  # takes per new key; the other three are of keys that were held at the start
_PLENTY: Final = (1000, 24 * 3600.0)  # units and seconds; nothing is refused or expires during the run

P = ParamSpec("P")
T = TypeVar("T")


class Tail(NamedTuple):
    """Durations of single takes, in nanoseconds."""

    median: float
    late: int  # one take in a thousand is slower
    worst: int
    admitted: int
    preempted: int  # times; each lasts milliseconds, so on a busy machine they make up the tail


@dataclass(frozen=True, kw_only=True)
class Tails:
    """Rows of the 99.9th percentile of single takes over their median, and of the slowest take."""

    name: str
    what: str
    algorithm: str
    target: float

    def run(self, lab: Lab) -> Sequence[Line]:
        """Two lines."""
        keys, takes = lab.calls or _KEYS, lab.calls or _TAKES
        try:
            tail = alone(_tail, self.algorithm, keys, takes)
        except Missing as missing:
            return [Line(row=self.name, what=self.what, target=self.target, notes=(f"skipped, {missing}",))]
        late = Line(
            row=self.name,
            what=f"{self.what}: 99.9th percentile / median",
            values=(tail.late / tail.median,),
            ours=tail.late / 1000,
            peer=tail.median / 1000,
            target=self.target,
            admitted=tail.admitted,
            refused=takes - tail.admitted,
            notes=(_held(keys), f"{tail.preempted:,} times preempted"),
            problems=() if tail.admitted == takes else (f"{tail.admitted} admitted, not {takes}",),
        )
        worst = replace(
            late,
            row=f"{self.name}-worst",
            what=f"{self.what}: the slowest",
            unit="us",
            values=(tail.worst / 1000,),
            ours=None,
            peer=None,
            target=None,
        )
        return [late, worst]


def alone(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run `work` in a separate process and return its result."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:  # a fork would copy this process's memory
        return process.submit(work, *arguments, **named).result()


def _weighed(algorithm: str) -> Callable[[Lab, int], Counted]:
    def count(_: Lab, calls: int) -> Counted:
        grown, admitted = alone(_growth, algorithm, calls)
        return Counted(grown, admitted, calls - admitted, notes=(_held(calls),))

    return count


def _growth(algorithm: str, keys: int) -> tuple[int, int]:
    """Return by how many bytes the process grows while a store fills, and how many keys were admitted."""
    limit = ALGORITHMS[algorithm](*_PLENTY)
    before = _resident()
    store = MemoryStore(max_keys=keys)
    admitted = _fill(store, limit, keys)
    return _resident() - before, admitted


def _tail(algorithm: str, keys: int, takes: int) -> Tail:
    limit = ALGORITHMS[algorithm](*_PLENTY)
    store = MemoryStore(max_keys=keys)
    _fill(store, limit, keys)
    take = store.take
    any_of = random.Random(1).randrange  # noqa: S311  # not a secret; the same keys in every run
    times: list[int] = []
    admitted = 0
    before = preempted()
    for n in range(takes):
        charges = (charge(limit, any_of(keys) if n % _PER_NEW else keys + n),)
        started = perf_counter_ns()
        decisions = take(charges)
        times.append(perf_counter_ns() - started)
        admitted += decisions[0].allowed
    made_way = preempted() - before
    assert len(store) == keys
    times.sort()
    return Tail(median(times), times[takes * 999 // 1000], times[-1], admitted, made_way)


def _fill(store: MemoryStore, limit: Limit, keys: int) -> int:
    """Fill the store with keys, and return how many were admitted."""
    admitted = sum(store.take((charge(limit, n),))[0].allowed for n in range(keys))
    assert len(store) == keys
    return admitted


def charge(limit: Limit, n: int) -> Charge:
    """Return a charge with the key that the middleware makes for the nth address under the global limits."""
    return Charge(bucket_key(encode([("ip", str(IPv4Address(n)))]), "default"), limit)


def _resident() -> int:
    """Return the resident memory of this process, in bytes."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    except FileNotFoundError:
        raise Missing("/proc/self/statm: not on this system") from None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def preempted() -> int:
    """Return how often this process was preempted. Raises `Missing`."""
    resource = package("resource")
    count: int = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    return count


def _held(keys: int) -> str:
    return f"{keys:,} keys held"


ROWS: Final[Sequence[Row]] = [
    *[
        Count(
            name=f"bytes-{name}",
            what="growth of a process per key of its memory store",
            count=_weighed(name),
            unit="bytes",
            target=target,
            calls=_KEYS,
        )
        for name, target in (("gcra", 190.0), (DEFAULT.algorithm, 240.0), ("token_bucket", 285.0))
    ],
    Tails(
        name="memory-tail-gcra",
        what="takes at a full store, 1 in 4 of a new key",
        algorithm="gcra",
        target=50.0,
    ),
]

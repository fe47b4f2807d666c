"""Rows of the slowest take from a memory store that only gets new keys, beside the longest pause of the machine."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter_ns, thread_time_ns
from typing import Final, NamedTuple

from benchmarks.lab import Lab, Missing
from benchmarks.line import Line
from benchmarks.rows.memory_keys import alone, preempted
from benchmarks.runner import Row
from ratelimit_mw import Charge, MemoryStore
from ratelimit_mw.algorithms import DEFAULT

_CHURNED: Final = 10_000_000  # distinct keys
_PER_HELD: Final = 10  # distinct keys per key that the store has room for
_STRETCHES: Final = 100  # of takes; after each the process is idle for some time
_IDLE: Final = 4  # a stretch of takes lasts this many times as long as the idle time after it
_DAY: Final = 24 * 3600.0  # seconds; long, so that no key expires


class Churned(NamedTuple):
    """Durations of single takes, in nanoseconds."""

    worst: int
    busy: int  # the most processor time of a take, which excludes other processes
    late: int  # one take in a thousand is slower
    idle: int  # the longest time between two consecutive readings of the clock
    admitted: int
    preempted: int  # times, during takes and idle time


@dataclass(frozen=True, kw_only=True)
class Churn:
    """Rows of the slowest take if all keys are new, and ten times as many as the store has room for."""

    name: str
    what: str
    target: float  # microseconds

    def run(self, lab: Lab) -> Sequence[Line]:
        """Four lines."""
        keys = lab.calls or _CHURNED
        slowest = Line(row=self.name, what=f"{self.what}: the slowest", unit="us", target=self.target)
        try:
            found = alone(_churned, keys)
        except Missing as missing:
            return [replace(slowest, notes=(f"skipped, {missing}",))]
        slowest = replace(
            slowest,
            values=(found.worst / 1000,),
            admitted=found.admitted,
            refused=keys - found.admitted,
            notes=(f"{_held(keys):,} keys held", f"{found.preempted:,} times preempted"),
            problems=() if found.admitted == keys else (f"{found.admitted} admitted, not {keys}",),
        )
        other = replace(slowest, target=None, notes=(), problems=())
        busy = f"{self.what}: the most of the processor's time"
        late = f"{self.what}: 99.9th percentile"
        idle = f"the longest that this machine took for nothing, in 1/{_IDLE} of that time"
        return [
            slowest,
            replace(other, row=f"{self.name}-busy", what=busy, values=(found.busy / 1000,)),
            replace(other, row=f"{self.name}-late", what=late, values=(found.late / 1000,)),
            replace(other, row=f"{self.name}-idle", what=idle, values=(found.idle / 1000,), admitted=0, refused=0),
        ]


def _held(keys: int) -> int:
    return max(1, keys // _PER_HELD)


def _churned(keys: int) -> Churned:
    store, limit = MemoryStore(max_keys=_held(keys)), DEFAULT(1000, _DAY)
    times = array("q", bytes(8 * keys))  # allocated beforehand, so that only the store grows
    before = preempted()
    admitted = idle = busy = 0
    for stretch in _stretches(keys):
        for n in stretch:
            charges = (Charge(f"{{{n:032x}}}:default", limit),)  # as long as the keys of clients
            worked, started = thread_time_ns(), perf_counter_ns()
            decisions = store.take(charges)
            times[n] = perf_counter_ns() - started
            busy = max(busy, thread_time_ns() - worked)
            admitted += decisions[0].allowed
        idle = max(idle, _nothing(sum(times[stretch.start : stretch.stop]) // _IDLE))
    assert len(store) == _held(keys)
    often = preempted() - before
    in_order = sorted(times)
    return Churned(in_order[-1], busy, in_order[keys * 999 // 1000], idle, admitted, often)


def _stretches(keys: int) -> Iterator[range]:
    size = -(-keys // _STRETCHES)
    return (range(start, min(start + size, keys)) for start in range(0, keys, size))


def _nothing(nanoseconds: int) -> int:
    """Return the longest time between two consecutive readings of the clock, in so many nanoseconds of idling."""
    longest = 0
    last = perf_counter_ns()
    end = last + nanoseconds
    while last < end:
        now = perf_counter_ns()
        longest = max(longest, now - last)
        last = now
    return longest


ROWS: Final[Sequence[Row]] = [
    Churn(
        name="memory-churn",
        what="takes of 10,000,000 keys, all new, through a store of 1,000,000",
        target=5000.0,
    ),
]

"""Contenders that take or hit sequentially, for all stores."""

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from time import perf_counter_ns

from benchmarks.runner import Batch, Contender
from ratelimit_mw import Charge
from ratelimit_mw.stores import Store


def takes(store: Store, *charges: Charge) -> Contender:
    """Return a contender that takes these charges, round-robin. Each turn continues where the last one ended."""
    take, groups = store.take, cycle([(charge,) for charge in charges])

    def batch(calls: int) -> Batch:
        admitted = 0
        started = perf_counter_ns()
        for group in islice(groups, calls):
            if take(group)[0].allowed:
                admitted += 1
        return Batch(perf_counter_ns() - started, admitted, calls - admitted)

    return batch


def hits(hit: Callable[..., object], arguments_of: Sequence[tuple[object, ...]]) -> Contender:
    """Return a contender that calls a peer's `hit` with these arguments, round-robin. It returns whether it admits."""
    turns = cycle(arguments_of)

    def batch(calls: int) -> Batch:
        admitted = 0
        started = perf_counter_ns()
        for arguments in islice(turns, calls):
            if hit(*arguments):
                admitted += 1
        return Batch(perf_counter_ns() - started, admitted, calls - admitted)

    return batch

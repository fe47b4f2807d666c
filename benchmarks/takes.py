"""The contender that all stores share: one take after the other."""

from itertools import repeat
from time import perf_counter_ns

from benchmarks.runner import Batch, Contender
from ratelimit_mw import Charge
from ratelimit_mw.stores import Store


def takes(store: Store, charge: Charge) -> Contender:
    """Takes this one charge in every call."""
    take, charges = store.take, (charge,)

    def batch(calls: int) -> Batch:
        admitted = 0
        started = perf_counter_ns()
        for _ in repeat(None, calls):
            if take(charges)[0].allowed:
                admitted += 1
        return Batch(perf_counter_ns() - started, admitted, calls - admitted)

    return batch

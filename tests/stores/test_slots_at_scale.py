"""Renewals, takes and releases cost the same with few and many slots of a bucket, in executed lines."""

import gc
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from ratelimit_mw import Charge, Concurrency, MemoryStore
from ratelimit_mw.engine.slots import HeldSlots, SlotRegistry
from ratelimit_mw.testing import Clock

FEW, MANY = 100, 8_000


def steps(work: Callable[[], object]) -> int:
    """Return how many lines Python executes for this work. Each iteration of a loop counts."""
    found = 0

    def trace(_: FrameType, event: str, __: Any) -> Any:
        nonlocal found
        found += event == "line"
        return trace

    before = sys.gettrace()
    gc.collect()
    gc.disable()  # the count would include the finalizer of another object
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return found


@pytest.mark.promise(7)
@pytest.mark.parametrize("what", ["renews", "takes", "gives back", "looks", "is refused"])
def test_executed_lines_do_not_grow_with_the_held_slots(what: str) -> None:
    few, many = _steps(what, FEW), _steps(what, MANY)
    assert few > 20
    assert many == few


def _steps(what: str, slots: int) -> int:
    """Return the steps of one call on a bucket with this number of slots in use."""
    clock, limit = Clock(), Concurrency(slots + (what == "takes"), 15)
    store = MemoryStore(clock=clock)
    names = []
    for _ in range(slots):
        names.append(store.take([Charge("k", limit)])[0].at)
        clock.advance(0.0001)
    store.settle([Charge("k", limit, at=names[0])])
    clock.advance(0.0001)
    work: dict[str, Callable[[], object]] = {
        "renews": lambda: store.settle([Charge("k", limit, at=names[slots // 2])]),
        "takes": lambda: store.take([Charge("k", limit)]),
        "gives back": lambda: store.settle([Charge("k", limit, -1, at=names[slots // 3])]),
        "looks": lambda: store.peek([Charge("k", limit, 0)]),
        "is refused": lambda: store.take([Charge("k", limit)]),
    }
    found = steps(work[what])
    assert store.peek([Charge("k", limit, 0)])[0].remaining == (what == "gives back")
    return found


@pytest.mark.promise(7)
def test_search_for_due_renewals_does_not_grow_with_the_held_slots() -> None:
    counted = []
    for others in (FEW, MANY):
        holds, store = SlotRegistry(), MemoryStore()
        kept = [HeldSlots(store, [Charge("k", Concurrency(9), at=7)]) for _ in range(others)]
        for number, one in enumerate(kept):
            one.last_attempt_at = 100.0 + number
            holds.add(one)
        counted.append(steps(partial(holds.due, 105.0)))
        assert holds.next_renewal(105.0) == 1.0
        counted[-1] += steps(partial(holds.next_renewal, 105.0))
    assert counted[0] == counted[1]

"""Checks that a forked child does not wait for a lock of the package that another thread held during the fork."""

import ast
import functools
import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import ratelimit_mw
from ratelimit_mw import Charge, Limiter, MemoryStore, TokenBucket
from ratelimit_mw.core import memo as kept
from ratelimit_mw.core.limit import Decision
from ratelimit_mw.core.memo import cached_property
from ratelimit_mw.django import throttle
from ratelimit_mw.engine import state as outcome
from ratelimit_mw.engine.delays import DelayCapacity
from ratelimit_mw.engine.slot_queue import Queues, SlotDemand
from ratelimit_mw.engine.slots import HeldSlots, SlotRegistry
from ratelimit_mw.stores import lifecycle as forks
from ratelimit_mw.stores.circuit_breaker import CircuitBreaker
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.stores.guarded import Guard, GuardedStore
from ratelimit_mw.stores.redis.deadline import Deadline
from ratelimit_mw.stores.redis.sync_transport import Pool, SyncConnection
from ratelimit_mw.stores.redis.thread_store import WorkerPool
from ratelimit_mw.testing import Clock

# Python 3.12 and later warn of a fork while threads run.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")

PACKAGE = Path(ratelimit_mw.__file__).parent
LONG = 20  # seconds: a child that still runs by then hangs
FIVE = TokenBucket(5, 3600)
GROUP = [Charge("k", FIVE)]
REFUSED = [
    Decision(allowed=False, limit=5, remaining=0, retry_after=9.0, next_after=9.0, reset_after=9.0, delay=0, at=1)
]


def in_child(work: Callable[[], bool]) -> int:
    """Run `work` in a forked child. Returns its exit code: 0 if `work` returned True, negative if it hung."""
    child = os.fork()
    if not child:  # pragma: no cover  # another process
        code = 2
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(LONG)
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def while_held(lock: Any, work: Callable[[], bool]) -> int:
    """Do the same as `in_child`, while another thread of the parent holds the lock."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait(LONG)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(LONG)
    try:
        return in_child(work)
    finally:
        over.set()
        thread.join()


def memory() -> tuple[Any, Callable[[], bool]]:
    store = MemoryStore()
    return store._lock, lambda: store.take(GROUP)[0].remaining == 4 and store.take(GROUP * 2)[0].remaining == 2


def local() -> tuple[Any, Callable[[], bool]]:
    store = FallbackStore(0.5)

    def work() -> bool:
        store.observe(GROUP, REFUSED)
        return not store.take(GROUP)[0].allowed

    return store._refusals_lock, work


def local_memory() -> tuple[Any, Callable[[], bool]]:
    store = FallbackStore(0.5)
    return store._lock, lambda: store.take(GROUP)[0].remaining == 1


def deny_cache() -> tuple[Any, Callable[[], bool]]:
    cache = DenyCache(1.0)
    store = GuardedStore(MemoryStore(), Guard(cache), 1.0)

    def work() -> bool:
        for _ in range(6):
            store.take(GROUP)
        store.reset(GROUP)
        return store.take(GROUP)[0].remaining == 4

    return cache._lock, work


def breaker() -> tuple[Any, Callable[[], bool]]:
    layer = CircuitBreaker()
    store = GuardedStore(MemoryStore(), Guard(breaker=layer), 1.0)

    def work() -> bool:
        layer.clear()
        return store.take(GROUP)[0].remaining == 4

    return layer._lock, work


def leases() -> tuple[Any, Callable[[], bool]]:
    store = GuardedStore(MemoryStore(), Guard(), 1.0)
    return store.guard.leases._lock, lambda: store.take([Charge("k", FIVE, lease=2)])[0].allowed


def room() -> tuple[Any, Callable[[], bool]]:
    own = DelayCapacity(1)
    assert own.enter(["k"])
    return (
        own._delayed.lock,
        lambda: own.enter(["k"]) and not own.enter(["k"]),
    )  # in the child, the capacity is free again


def queues() -> tuple[Any, Callable[[], bool]]:
    bucket = ("k", "bucket")
    own, wish = Queues(), SlotDemand({bucket: 1}, 1.0)
    assert own.join(wish, [bucket], lambda: None) is not None
    assert own.join(wish, [bucket], lambda: None) is None

    def work() -> bool:
        place = own.join(wish, [bucket], lambda: None)  # the queue of the child is empty
        assert place is not None
        own.leave(place)
        return not own.must_wait([bucket])

    return own._lock, work


def holds() -> tuple[Any, Callable[[], bool]]:
    own = SlotRegistry()
    hold = HeldSlots(MemoryStore(), GROUP)

    def work() -> bool:
        own.add(hold)
        return own.end(hold)

    return own._lock, work


def corrections() -> tuple[Any, Callable[[], bool]]:
    return outcome._lock, settled


def settled() -> bool:
    outcome.RateLimitState(None).settle_each(lambda _: 1)
    return True


def django() -> tuple[Any, Callable[[], bool]]:
    def work() -> bool:
        with throttle._lock:
            return True

    return throttle._lock, work


def pool() -> tuple[Any, Callable[[], bool]]:
    connection = Mock(spec=SyncConnection)
    own = Pool(lambda _: connection)
    return own._changed, lambda: own.acquire(Deadline(LONG)) is connection


def crew() -> tuple[Any, Callable[[], bool]]:
    own = WorkerPool()
    assert own.run_all([lambda: 1], Deadline(LONG)) == [1]
    return own._pool._shutdown_lock, lambda: own.run_all([lambda: 2], Deadline(LONG)) == [2]


PARTS = [
    memory,
    local,
    local_memory,
    deny_cache,
    breaker,
    leases,
    room,
    queues,
    holds,
    corrections,
    django,
    pool,
    crew,
]


@pytest.mark.promise(8)
@pytest.mark.parametrize("part", PARTS)
def test_a_child_does_not_wait_for_a_lock_held_in_its_parent(
    part: Callable[[], tuple[Any, Callable[[], bool]]],
) -> None:
    lock, work = part()
    assert while_held(lock, work) == 0


def test_a_child_keeps_its_counts_unless_a_thread_held_the_lock() -> None:
    """The child drops counts that may be half written."""
    store = MemoryStore(max_keys=10, clock=Clock())
    store.take(GROUP)

    def left(expected: int) -> Callable[[], bool]:
        return lambda: store.take(GROUP)[0].remaining == expected and len(store) == 1

    assert in_child(left(3)) == 0
    assert while_held(store._lock, left(4)) == 0
    assert left(3)()  # the parent keeps its counts


def test_a_child_counts_exactly_if_threads_used_the_memory_store() -> None:
    store = MemoryStore(max_keys=50)
    limiter, over = Limiter(store), threading.Event()

    def work(first: int) -> None:
        number = 0
        while not over.is_set():
            number += 1
            limiter.hit("5/hour", f"{first} {number % 100}")

    def exact() -> bool:
        store.close()
        return [limiter.hit("5/hour", "own").allowed for _ in range(7)] == [True] * 5 + [False] * 2 and len(store) == 1

    threads = [threading.Thread(target=work, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    try:
        assert [in_child(exact) for _ in range(30)] == [0] * 30
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_fork_handlers_keep_no_deleted_objects() -> None:
    before = len(forks._locks), len(forks._methods)
    for _ in range(100):
        GuardedStore(MemoryStore(), Guard(DenyCache(1.0), CircuitBreaker()), 1.0)
        DelayCapacity(1), Queues(), SlotRegistry()
    assert (len(forks._locks), len(forks._methods)) == before


def test_only_known_modules_create_locks() -> None:
    """The search finds only calls, not classes passed to `get_or_create`. The owners replace those locks."""
    kinds = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in kinds:
                    found.add((str(path), name))
            elif isinstance(node, ast.ImportFrom) and node.module == "functools" and str(path) != kept.__file__:
                assert "cached_property" not in [alias.name for alias in node.names], path  # it has a lock in 3.11
    assert found == {
        (str(path), "Lock")
        for path in (
            forks.__file__,
            PACKAGE / "metrics" / "registry.py",  # replaced in `_start_child`, after a fork
            PACKAGE / "metrics" / "sample.py",  # replaced after a fork, as the next one
            PACKAGE / "engine" / "live.py",
            PACKAGE / "stores" / "sqlite" / "database.py",  # held during a fork, so that no call is under way
        )
    }


class Computed:
    """Counts how often `value` is computed."""

    def __init__(self) -> None:
        self.times = 0

    @cached_property
    def value(self) -> int:
        """What it is."""
        self.times += 1
        return 7


class ComputedMore(Computed):
    @cached_property
    def value(self) -> int:
        return super().value + 1


def test_a_cached_property_is_computed_once() -> None:
    own, more = Computed(), ComputedMore()
    assert (more.value, more.value, more.times) == (8, 8, 1)
    assert (own.value, own.value, own.times, Computed().value) == (7, 7, 1, 7)
    assert Computed.value.__doc__ == "What it is."
    assert not isinstance(Computed.value, functools.cached_property)


def test_a_child_replaces_locks_while_the_garbage_collector_runs() -> None:
    """The collector may run in the child's first steps and drop locks of objects that are part of a cycle."""
    kept, before = [DelayCapacity(1) for _ in range(3)], gc.get_threshold()
    assert all(each.enter(["k"]) for each in kept)
    gc.disable()
    try:
        for _ in range(2_000):
            room = DelayCapacity(1)
            room.__dict__["itself"] = room
        del room
        gc.set_threshold(gc.get_count()[0] + 200)  # so that it runs in the child
        gc.enable()
        assert in_child(lambda: all(each.enter(["k"]) for each in kept)) == 0
    finally:
        gc.enable()
        gc.set_threshold(*before)

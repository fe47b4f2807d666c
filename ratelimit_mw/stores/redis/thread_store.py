"""A Redis store for threads: runs commands and enforces deadlines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Condition
from time import monotonic
from typing import Any, Final, Protocol

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.core.runtime import run
from ratelimit_mw.stores.inventory import KeyPage, NumberedRefusal, Refusal
from ratelimit_mw.stores.kept_overrides import KeptOverrides
from ratelimit_mw.stores.lifecycle import after_fork_in_child
from ratelimit_mw.stores.live import Live, Report, Wanted
from ratelimit_mw.stores.redis.commands import RedisCommands, settling_calls
from ratelimit_mw.stores.redis.deadline import LATE_WORK_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.inventory import (
    FoundLimits,
    LimitOf,
    Scan,
    add_refused,
    latest_refusals,
    list_pages,
    most_refused,
)
from ratelimit_mw.stores.redis.kept_overrides import read_changes, read_overrides, write_overrides
from ratelimit_mw.stores.redis.live import add_live, read_live
from ratelimit_mw.stores.redis.protocol import Command, Part, T

_MAX_THREADS: Final = 64


class Transport(Protocol):
    """Sends commands to a server or a cluster, for threads."""

    is_cluster: bool  # whether a call reaches the keys of one hash slot only

    def send(self, command: Command, deadline: Deadline) -> Any:
        """Return the reply. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    def primaries(self, deadline: Deadline) -> "Sequence[Transport]":
        """Return a transport for each server that is not a replica of another one."""
        ...

    def close(self) -> None:
        """Close the connections. The transport can be used again."""
        ...


class WorkerPool:
    """At most 64 threads that call a store, so that a request can wait for several calls at once.

    Threads start on demand. A child process starts its own.
    """

    def __init__(self) -> None:
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        for name in ("pool", "submitting"):
            self.__dict__.pop(name, None)

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """The executor. Created on first use, as gevent patches `threading` after an app was loaded and forked."""
        return get_or_create(
            self, "pool", partial(ThreadPoolExecutor, _MAX_THREADS, thread_name_prefix="ratelimit_mw store")
        )

    @property
    def _submitting(self) -> Condition:
        """A lock around `submit`, because the executor starts threads under a lock that gevent does not patch."""
        return get_or_create(self, "submitting", Condition)

    def run_all(self, tasks: Sequence[Callable[[], T]], deadline: Deadline) -> list[T | Exception]:
        """Run tasks. Return the outcome of each: its result, its error, or a `StoreError` if it did not end in time.

        A task that has started continues after the deadline. If the deadline has passed before the call, all tasks run,
        but this method does not wait for them. This is the case for refunds of a request that no longer waits.
        """
        had_time = deadline.left > 0
        futures: list[Future[T]] = [self._submit(task) for task in tasks]
        while not all(task.done() for task in futures) and deadline.left > 0:
            since = monotonic()
            wait(futures, timeout=deadline.next_wait())
            deadline.record_wait(since)
        return [_result_of(task, cancel=had_time) for task in futures]

    def close(self) -> None:
        """Let the threads end after the tasks that were submitted. The pool can be used again."""
        self._pool.shutdown(wait=False)
        self._reset()

    def _submit(self, task: Callable[[], T]) -> "Future[T]":
        try:
            with self._submitting:
                return self._pool.submit(task)
        except RuntimeError as error:  # no thread can start; the task may still run in another one
            failed: Future[T] = Future()
            failed.set_exception(StoreError(f"cannot call the store: {error}"))
            return failed


def _result_of(task: "Future[Any]", *, cancel: bool) -> Any:
    if not task.done():
        if cancel:  # the request has stopped waiting, so a task that has not started is not needed
            task.cancel()
        return StoreError("no answer in time")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error or task.result()


class ThreadStore(RedisCommands):
    """A Redis store for threads, without a guard."""

    def __init__(self, transport: Transport, prefix: str, timeout: float, clock: Callable[[], float] | None) -> None:
        super().__init__(prefix, timeout, clock, is_cluster=transport.is_cluster)
        self._transport = transport
        self._workers = WorkerPool()

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.take`."""
        return run(self._take_unbatched(charges, self._sender(), commit=True))

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `Store.peek`."""
        return run(self._take_unbatched(charges, self._sender(), commit=False))

    def settle(self, charges: Sequence[Charge]) -> None:
        """Correct charges: `cost` is signed, `at` comes from the decision.

        A correction that needs several calls may take `timeout` for each of them.
        """
        run(self._settle(charges, self._sender(each=len(settling_calls(charges)) > 1)))

    def reset(self, charges: Sequence[Charge]) -> None:
        """Delete the states of these buckets."""
        run(self._reset(charges, self._sender()))

    def list_keys(self) -> Iterator[KeyPage]:
        """See `Inventory.list_keys`."""
        return self._pages(self._scan)

    def list_refusing(self, limit_of: LimitOf) -> Iterator[KeyPage]:
        """See `RefusalFinder.list_refusing`."""
        found_limits = FoundLimits(limit_of)
        return self._pages(lambda cursor, server: self._scan_refusing(cursor, found_limits, server))

    def add_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        run(add_refused(self._sender(each=True), self._prefix, counts, latest))

    def most_refused(self, since: float) -> Mapping[str, int]:
        """See `Inventory.most_refused`."""
        return run(most_refused(self._sender(each=True), self._prefix, since))

    def latest_refusals(self, after: str | None, most: int) -> Sequence[NumberedRefusal]:
        """See `Inventory.latest_refusals`."""
        return run(latest_refusals(self._sender(each=True), self._prefix, after, most))

    def read_overrides(self, known: str) -> KeptOverrides | None:
        """See `OverrideKeeper.read_overrides`."""
        return run(read_overrides(self._sender(each=True), self._prefix, known))

    def write_overrides(self, known: str, kept: KeptOverrides, change: bytes) -> bool:
        """See `OverrideKeeper.write_overrides`."""
        return run(write_overrides(self._sender(each=True), self._prefix, known, kept, change))

    def read_changes(self) -> Sequence[bytes]:
        """See `OverrideKeeper.read_changes`."""
        return run(read_changes(self._sender(each=True), self._prefix))

    def add_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        run(add_live(self._sender(each=True), self._prefix, reports))

    def read_live(self, wanted: Wanted) -> Live:
        """See `LiveKeeper.read_live`."""
        return run(read_live(self._sender(each=True), self._prefix, wanted))

    def close(self) -> None:
        """Close the connections that this store opened. The store can be used again."""
        self._transport.close()
        self._workers.close()

    def _pages(self, scan: Scan) -> Iterator[KeyPage]:
        servers = self._transport.primaries(Deadline(self._timeout))
        senders = [_ThreadSender(server, self._workers, self._timeout, each=True) for server in servers]
        return list_pages(senders, scan, self._prefix)

    def _sender(self, *, each: bool = False) -> "_ThreadSender":
        return _ThreadSender(self._transport, self._workers, self._timeout, each=each)


class _ThreadSender:
    """The `Sender` of one request in a thread. `each`: `timeout` is for each call, not for all calls together."""

    __slots__ = ("_each", "_shared_deadline", "_timeout", "_transport", "_workers")

    def __init__(self, transport: Transport, workers: WorkerPool, timeout: float, *, each: bool) -> None:
        self._transport, self._workers, self._timeout, self._each = transport, workers, timeout, each
        self._shared_deadline = Deadline(timeout)

    async def send(self, command: Command) -> Any:
        """See `Sender.send`."""
        return self._transport.send(command, self._deadline())

    async def run_all(self, parts: Sequence[Part[T]]) -> list[T | Exception]:
        """See `Sender.run_all`. A part runs to its end even after the deadline, so that it can refund its units."""
        alone = _ThreadSender(self._transport, self._workers, LATE_WORK_TIMEOUT, each=True)
        return self._workers.run_all([partial(_run_part, part, alone) for part in parts], self._deadline())

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout) if self._each else self._shared_deadline


def _run_part(part: Part[T], sender: _ThreadSender) -> T:
    return run(part(sender))

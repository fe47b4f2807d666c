"""Threads that wait for a store in a request's place, so that the request can stop waiting, or wait for several."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Condition
from time import monotonic
from typing import Any, Final, TypeVar

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.stores.lifecycle import after_fork_in_child
from ratelimit_mw.stores.redis.deadline import Deadline

T = TypeVar("T")

_MAX_THREADS: Final = 64


class WorkerPool:
    """At most 64 threads, started when there is something to do. A child process starts its own."""

    def __init__(self) -> None:
        after_fork_in_child(self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        for name in ("pool", "submitting"):
            self.__dict__.pop(name, None)

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """Made when it is first needed: gevent's workers patch `threading` after an app was loaded and forked."""
        return get_or_create(
            self, "pool", partial(ThreadPoolExecutor, _MAX_THREADS, thread_name_prefix="ratelimit_mw store")
        )

    @property
    def _submitting(self) -> Condition:
        """Held while a job is handed over: the executor starts threads under a lock that gevent does not patch."""
        return get_or_create(self, "submitting", Condition)

    def run_all(self, tasks: Sequence[Callable[[], T]], deadline: Deadline) -> list[T | Exception]:
        """The outcome of each job: its result, its error, or a `StoreError` when it was not heard in time.

        A job that is given up on goes on by itself, also when there is no patience left to wait for it at all.
        """
        waited = deadline.left > 0
        futures: list[Future[T]] = [self._submit(task) for task in tasks]
        while not all(task.done() for task in futures) and deadline.left > 0:
            since = monotonic()
            wait(futures, timeout=deadline.next_wait())
            deadline.record_wait(since)
        return [_outcome(task, cancel=waited) for task in futures]

    def close(self) -> None:
        """Let the threads end when they have nothing more to do. It can be used again."""
        self._pool.shutdown(wait=False)
        self._start_over()

    def _submit(self, task: Callable[[], T]) -> "Future[T]":
        try:
            with self._submitting:
                return self._pool.submit(task)
        except RuntimeError as error:  # no thread can be started now; one that is there may still do the job
            failed: Future[T] = Future()
            failed.set_exception(StoreError(f"no thread: {error}"))
            return failed


def _outcome(task: "Future[Any]", *, cancel: bool) -> Any:
    if not task.done():
        if cancel:  # nobody waits for it any more: if no thread has begun it yet, it need not
            task.cancel()
        return StoreError("no answer in time")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error or task.result()

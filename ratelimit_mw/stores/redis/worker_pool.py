"""Threads that call a store for a request, so that the request can stop waiting, or wait for several calls at once."""

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
    """At most 64 threads, started on demand. A child process starts its own."""

    def __init__(self) -> None:
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        for name in ("pool", "submitting"):
            self.__dict__.pop(name, None)

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """The executor, created on first use: gevent patches `threading` after an app was loaded and forked."""
        return get_or_create(
            self, "pool", partial(ThreadPoolExecutor, _MAX_THREADS, thread_name_prefix="ratelimit_mw store")
        )

    @property
    def _submitting(self) -> Condition:
        """A lock around `submit`: the executor starts threads under a lock that gevent does not patch."""
        return get_or_create(self, "submitting", Condition)

    def run_all(self, tasks: Sequence[Callable[[], T]], deadline: Deadline) -> list[T | Exception]:
        """Return the outcome of each task: its result, its error, or a `StoreError` if it did not end in time.

        A task that started goes on after the deadline. If no time is left from the start, all tasks still run.
        """
        waited = deadline.left > 0
        futures: list[Future[T]] = [self._submit(task) for task in tasks]
        while not all(task.done() for task in futures) and deadline.left > 0:
            since = monotonic()
            wait(futures, timeout=deadline.next_wait())
            deadline.record_wait(since)
        return [_outcome(task, cancel=waited) for task in futures]

    def close(self) -> None:
        """Let the threads end after the submitted tasks. The pool can be used again."""
        self._pool.shutdown(wait=False)
        self._reset()

    def _submit(self, task: Callable[[], T]) -> "Future[T]":
        try:
            with self._submitting:
                return self._pool.submit(task)
        except RuntimeError as error:  # no thread can start; a running one may still take the task
            failed: Future[T] = Future()
            failed.set_exception(StoreError(f"cannot call the store: {error}"))
            return failed


def _outcome(task: "Future[Any]", *, cancel: bool) -> Any:
    if not task.done():
        if cancel:  # the request stopped waiting, so a task that has not started need not run
            task.cancel()
        return StoreError("no answer in time")
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error or task.result()

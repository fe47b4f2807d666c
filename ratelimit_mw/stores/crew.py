"""Threads that wait for a store in a request's place, so that the request can stop waiting, or wait for several."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from threading import Condition
from time import monotonic
from typing import Any, Final, TypeVar

from ratelimit_mw.errors import StoreError
from ratelimit_mw.kept import made_once
from ratelimit_mw.stores.forks import start_over_in_child
from ratelimit_mw.stores.patience import Patience

T = TypeVar("T")

_THREADS: Final = 64


class Crew:
    """At most 64 threads, started when there is something to do. A child process starts its own."""

    def __init__(self) -> None:
        start_over_in_child(self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        for name in ("pool", "submitting"):
            self.__dict__.pop(name, None)

    @property
    def _pool(self) -> ThreadPoolExecutor:
        """Made when it is first needed: gevent's workers patch `threading` after an app was loaded and forked."""
        return made_once(self, "pool", partial(ThreadPoolExecutor, _THREADS, thread_name_prefix="ratelimit_mw store"))

    @property
    def _submitting(self) -> Condition:
        """Held while a job is handed over: the executor starts threads under a lock that gevent does not patch."""
        return made_once(self, "submitting", Condition)

    def side_by_side(self, jobs: Sequence[Callable[[], T]], patience: Patience) -> list[T | Exception]:
        """The outcome of each job: its result, its error, or a `StoreError` when it was not heard in time.

        A job that is given up on goes on by itself, also when there is no patience left to wait for it at all.
        """
        waited = patience.left > 0
        going: list[Future[T]] = [self._submit(job) for job in jobs]
        while not all(job.done() for job in going) and patience.left > 0:
            since = monotonic()
            wait(going, timeout=patience.slice())
            patience.spend(since)
        return [_outcome(job, cancel=waited) for job in going]

    def close(self) -> None:
        """Let the threads end when they have nothing more to do. It can be used again."""
        self._pool.shutdown(wait=False)
        self._start_over()

    def _submit(self, job: Callable[[], T]) -> "Future[T]":
        try:
            with self._submitting:
                return self._pool.submit(job)
        except RuntimeError as error:  # no thread can be started now; one that is there may still do the job
            failed: Future[T] = Future()
            failed.set_exception(StoreError(f"no thread: {error}"))
            return failed


def _outcome(job: "Future[Any]", *, cancel: bool) -> Any:
    if not job.done():
        if cancel:  # nobody waits for it any more: if no thread has begun it yet, it need not
            job.cancel()
        return StoreError("no answer in time")
    error = job.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error or job.result()

"""Tests the connection pool and the worker pool without a server."""

import itertools
import threading

import pytest

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.deadline import Deadline
from ratelimit_mw.stores.redis.sync_transport import Pool
from ratelimit_mw.stores.redis.thread_store import WorkerPool


@pytest.mark.promise(8)
def test_a_connection_that_a_thread_opens_while_the_pool_closes_is_ended() -> None:
    opening, opens = threading.Event(), threading.Event()
    ended: list[str] = []
    numbers = itertools.count()

    def make(_: object) -> str:
        opening.set()
        opens.wait(30)
        return f"connection {next(numbers)}"

    def end(connection: str) -> None:
        ended.append(connection)
        over.set()

    over = threading.Event()
    pool = Pool(make, end, lambda _: True, 1)
    with pytest.raises(StoreError):
        pool.acquire(Deadline(0.01))
    assert opening.wait(30)
    pool.close()
    opens.set()
    assert over.wait(30)
    assert ended == ["connection 0"]
    assert pool.acquire(Deadline(30)) == "connection 1"  # the pool can be used again
    pool.release("connection 1")
    pool.close()
    assert ended == ["connection 0", "connection 1"]


SILENT = pytest.mark.parametrize(
    ("error", "said"),
    [(TimeoutError(), "cannot connect: TimeoutError"), (OSError("no route"), "cannot connect: no route")],
)


@SILENT
def test_why_it_cannot_connect_is_said_where_the_error_says_nothing(error: Exception, said: str) -> None:
    def make(_: object) -> str:
        raise error

    pool = Pool(make, lambda _: None, lambda _: True, 1)
    with pytest.raises(StoreError) as raised:
        pool.acquire(Deadline(5))
    assert str(raised.value) == said


@pytest.mark.promise(8)
def test_in_threads_what_leads_to_where_the_server_was_is_ended_when_it_has_moved() -> None:
    places, ended, gone = [1], list[str](), threading.Event()

    def end(connection: str) -> None:
        ended.append(connection)
        if len(ended) == 2:
            gone.set()

    numbers = itertools.count(1)
    pool = Pool(lambda place: f"{next(numbers)} at {place}", end, lambda _: True, 2, lambda: places[-1])
    first, second = pool.acquire(Deadline(5)), pool.acquire(Deadline(5))
    pool.release(first)
    places.append(2)
    pool.release(second, broken=True)
    assert gone.wait(5)
    assert sorted(ended) == ["1 at 1", "2 at 1"]
    assert pool.acquire(Deadline(5)) == "3 at 2"


@pytest.mark.promise(8)
def test_a_full_pool_opens_no_further_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = NoThreads(monkeypatch)
    threads.over = True  # it only counts them
    numbers = itertools.count(1)
    pool = Pool(lambda _: next(numbers), lambda _: None, lambda _: True, 2)
    lent = [pool.acquire(Deadline(30)) for _ in range(2)]
    assert (sorted(lent), threads.tried) == ([1, 2], 2)
    with pytest.raises(StoreError, match=r"^no connection was free in time$"):
        pool.acquire(Deadline(0.01))
    pool.release(1)
    assert pool.acquire(Deadline(30)) == 1
    assert threads.tried == 2


class NoThreads:
    """Replaces `threading.Thread.start`: no thread can be started until `over` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.over, self.tried = False, 0
        start = threading.Thread.start

        def start_one(thread: threading.Thread) -> None:
            self.tried += 1
            if not self.over:
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_one)


@pytest.mark.promise(8)
def test_an_attempt_to_connect_for_which_no_thread_can_be_started_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request fails, and the next one connects as soon as there are threads again."""
    threads = NoThreads(monkeypatch)
    pool = Pool(lambda _: "connection", lambda _: None, lambda _: True, 1)
    for _ in range(3):
        with pytest.raises(StoreError) as raised:
            pool.acquire(Deadline(5))
        assert str(raised.value) == "cannot connect: can't start new thread"
    threads.over = True
    assert pool.acquire(Deadline(5)) == "connection"


@pytest.mark.promise(8)
def test_giving_back_does_not_fail_where_no_thread_can_look_for_a_server_that_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(lambda _: "connection", lambda _: None, lambda _: True, 2, lambda: 1)
    lent = pool.acquire(Deadline(5))
    threads = NoThreads(monkeypatch)
    pool.release(lent, broken=True)
    assert threads.tried == 1
    threads.over = True
    assert pool.acquire(Deadline(5)) == "connection"


@pytest.mark.promise(8)
def test_jobs_for_which_no_thread_can_be_started_are_errors_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, crew = NoThreads(monkeypatch), WorkerPool()
    outcomes = crew.run_all([lambda: 1, lambda: 2], Deadline(5))
    assert [str(outcome) for outcome in outcomes] == ["cannot call the store: can't start new thread"] * 2
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    threads.over = True
    assert crew.run_all([lambda: 3, lambda: 4], Deadline(5)) == [3, 4]
    crew.close()

"""Tests the connection pool and the worker pool without a server."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis import sync_transport
from ratelimit_mw.stores.redis.deadline import FIND_INTERVAL, Deadline
from ratelimit_mw.stores.redis.sync_transport import Pool
from ratelimit_mw.stores.redis.thread_store import WorkerPool


class Named:
    """Replaces a `SyncConnection`. `close` calls `on_close` with the name."""

    def __init__(self, name: str, on_close: Callable[[str], object] = lambda _: None) -> None:
        self.name, self.on_close = name, on_close

    def usable(self) -> bool:
        return True

    def close(self) -> None:
        self.on_close(self.name)


def one_more(_: object) -> Any:
    return Named("connection")


@pytest.mark.promise(8)
def test_connection_opened_while_the_pool_closes_is_closed() -> None:
    opening, opens = threading.Event(), threading.Event()
    ended: list[str] = []
    numbers = itertools.count()

    def make(_: object) -> Any:
        opening.set()
        opens.wait(30)
        return Named(f"connection {next(numbers)}", end)

    def end(connection: str) -> None:
        ended.append(connection)
        over.set()

    over = threading.Event()
    pool = Pool(make)
    with pytest.raises(StoreError):
        pool.acquire(Deadline(0.01))
    assert opening.wait(30)
    pool.close()
    opens.set()
    assert over.wait(30)
    assert ended == ["connection 0"]
    connection: Any = pool.acquire(Deadline(30))  # the pool can be used again
    assert connection.name == "connection 1"
    pool.release(connection)
    pool.close()
    assert ended == ["connection 0", "connection 1"]


SILENT = pytest.mark.parametrize(
    ("error", "said"),
    [(TimeoutError(), "cannot connect: TimeoutError"), (OSError("no route"), "cannot connect: no route")],
)


@SILENT
def test_store_error_contains_the_reason_of_a_failed_connect(error: Exception, said: str) -> None:
    def make(_: object) -> Any:
        raise error

    pool = Pool(make)
    with pytest.raises(StoreError) as raised:
        pool.acquire(Deadline(5))
    assert str(raised.value) == said


@pytest.mark.promise(8)
def test_connections_to_the_old_address_are_closed_after_the_server_moves() -> None:
    places, ended, gone = [("host", 1)], list[str](), threading.Event()

    def end(connection: str) -> None:
        ended.append(connection)
        if len(ended) == 2:
            gone.set()

    def make(place: Any) -> Any:
        return Named(f"{next(numbers)} at {place[1]}", end)

    numbers = itertools.count(1)
    pool = Pool(make, lambda: places[-1])
    first, second = pool.acquire(Deadline(5)), pool.acquire(Deadline(5))
    pool.release(first)
    places.append(("host", 2))
    pool.release(second, broken=True)
    assert gone.wait(5)
    assert sorted(ended) == ["1 at 1", "2 at 1"]
    third: Any = pool.acquire(Deadline(5))
    assert third.name == "3 at 2"


@pytest.mark.promise(8)
def test_a_moved_server_is_found_without_a_broken_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    now, places, moved = [1000.0], [("host", 1)], threading.Event()

    def make(place: Any) -> Any:
        return Named(f"at {place[1]}", lambda _: moved.set())

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pool = Pool(make, lambda: places[-1])
    connection = pool.acquire(Deadline(5))
    places.append(("host", 2))
    pool.release(connection)  # too soon after the last search
    assert pool.acquire(Deadline(5)) is connection
    now[0] += FIND_INTERVAL + 0.1
    pool.release(connection)
    assert moved.wait(5)
    following: Any = pool.acquire(Deadline(5))
    assert following.name == "at 2"


@pytest.mark.promise(8)
def test_a_full_pool_opens_no_further_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_transport, "_MAX_CONNECTIONS", 2)
    threads = NoThreads(monkeypatch)
    threads.over = True  # `threads` only counts the starts
    pool = Pool(one_more)
    first, second = (pool.acquire(Deadline(30)) for _ in range(2))
    assert (first is second, threads.tried) == (False, 2)
    with pytest.raises(StoreError, match=r"^no connection was free in time$"):
        pool.acquire(Deadline(0.01))
    pool.release(first)
    assert pool.acquire(Deadline(30)) is first
    assert threads.tried == 2


class NoThreads:
    """Replaces `threading.Thread.start`: no thread can start until `over` is set."""

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
def test_connect_fails_while_no_thread_can_start_and_succeeds_after(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = NoThreads(monkeypatch)
    pool = Pool(one_more)
    for _ in range(3):
        with pytest.raises(StoreError) as raised:
            pool.acquire(Deadline(5))
        assert str(raised.value) == "cannot connect: can't start new thread"
    threads.over = True
    assert pool.acquire(Deadline(5)).usable()


@pytest.mark.promise(8)
def test_release_of_a_broken_connection_works_without_a_new_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool(one_more, lambda: ("host", 1))
    lent = pool.acquire(Deadline(5))
    threads = NoThreads(monkeypatch)
    pool.release(lent, broken=True)
    assert threads.tried == 1
    threads.over = True
    assert pool.acquire(Deadline(5)).usable()


@pytest.mark.promise(8)
def test_jobs_without_a_thread_return_store_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, crew = NoThreads(monkeypatch), WorkerPool()
    outcomes = crew.run_all([lambda: 1, lambda: 2], Deadline(5))
    assert [str(outcome) for outcome in outcomes] == ["cannot call the store: can't start new thread"] * 2
    assert all(isinstance(outcome, StoreError) for outcome in outcomes)
    threads.over = True
    assert crew.run_all([lambda: 3, lambda: 4], Deadline(5)) == [3, 4]
    crew.close()

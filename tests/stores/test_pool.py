"""The pool of connections by itself."""

import asyncio
import contextlib
import itertools
import threading

import pytest

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.stores.redis.async_pool import AsyncPool
from ratelimit_mw.stores.redis.deadline import Deadline
from ratelimit_mw.stores.redis.sync_pool import Pool
from ratelimit_mw.stores.redis.worker_pool import WorkerPool


@pytest.mark.promise(8)
def test_a_connection_that_opens_though_the_pool_was_closed_is_ended() -> None:
    """As `asyncio.wait_for` may, what opens it loses the cancellation."""
    ended: list[str] = []

    async def main() -> None:
        opens = asyncio.Event()

        async def make(_: object) -> str:
            with contextlib.suppress(asyncio.CancelledError):
                await opens.wait()
            return f"connection {len(ended)}"

        async def end(connection: str) -> None:
            ended.append(connection)

        async def usable(_: str) -> bool:
            return True

        pool = AsyncPool(make, end, usable, 1)
        waiting = asyncio.create_task(pool.acquire())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await pool.close()
        opens.set()
        assert await asyncio.wait_for(waiting, 5) == "connection 1"  # another one: the pool can be used again
        assert ended == ["connection 0"]
        await pool.release("connection 1")
        await pool.close()

    asyncio.run(main())
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


@SILENT
def test_the_same_under_asyncio(error: Exception, said: str) -> None:
    async def make(_: object) -> str:
        raise error

    async def end(_: str) -> None:
        raise AssertionError

    async def usable(_: str) -> bool:
        raise AssertionError

    async def main() -> str:
        with pytest.raises(StoreError) as raised:
            await AsyncPool(make, end, usable, 1).acquire()
        return str(raised.value)

    assert asyncio.run(main()) == said


class Lending:
    """A pool of one connection at a time that notes what was ended. `fit`: whether they are known to be usable."""

    def __init__(self) -> None:
        self.fit, self.made, self.ended = True, 0, list[str]()
        self.pool: AsyncPool[str] = AsyncPool(self._make, self._end, self._usable, 2, self._find, lambda _: self.fit)
        self.place = 1

    async def _find(self) -> object:
        return self.place

    async def _make(self, _: object) -> str:
        self.made += 1
        return f"connection {self.made}"

    async def _end(self, connection: str) -> None:
        self.ended.append(connection)

    async def _usable(self, _: str) -> bool:
        return True


def test_one_is_lent_at_once_where_it_is_idle_and_known_to_be_usable() -> None:
    async def main() -> None:
        own = Lending()
        assert own.pool.acquire_nowait() is None
        await own.pool.ready()
        own.fit = False
        assert own.pool.acquire_nowait() is None
        own.fit = True
        assert own.pool.acquire_nowait() == "connection 1"
        assert own.pool.acquire_nowait() is None
        assert await own.pool.acquire() == "connection 2"
        waiting = asyncio.create_task(own.pool.acquire())  # there are two at most
        await asyncio.sleep(0)
        own.pool.release_nowait("connection 1", broken=False)
        assert await waiting == "connection 1"
        assert own.ended == []

    asyncio.run(main())


@pytest.mark.promise(8)
def test_what_comes_back_broken_is_ended_and_makes_room() -> None:
    async def main() -> None:
        own = Lending()
        await own.pool.ready()
        lent = own.pool.acquire_nowait()
        assert lent is not None
        own.pool.release_nowait(lent, broken=True)
        assert own.pool.acquire_nowait() is None
        await asyncio.sleep(0)
        assert own.ended == ["connection 1"]
        assert [await own.pool.acquire(), await own.pool.acquire()] == ["connection 2", "connection 3"]

    asyncio.run(main())


@pytest.mark.promise(8)
def test_what_is_lent_at_once_is_ended_with_the_pool_and_once() -> None:
    async def main() -> None:
        own = Lending()
        await own.pool.ready()
        lent = own.pool.acquire_nowait()
        assert lent is not None
        await own.pool.close()
        assert own.ended == ["connection 1"]
        own.pool.release_nowait(lent, broken=False)  # what it was asked is heard later
        assert own.pool.acquire_nowait() is None
        own.pool.release_nowait(lent, broken=True)
        await asyncio.sleep(0)
        assert own.ended == ["connection 1"]

    asyncio.run(main())


@pytest.mark.promise(8)
def test_what_leads_to_where_the_server_was_is_ended_when_it_comes_back() -> None:
    async def main() -> None:
        own = Lending()
        await own.pool.ready()
        lent = own.pool.acquire_nowait()
        assert lent is not None
        own.place = 2
        await own.pool.acquire()  # which looks where it is
        own.pool.release_nowait(lent, broken=False)
        await asyncio.sleep(0)
        assert own.ended == ["connection 1"]

    asyncio.run(main())


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


class NoThreads:
    """`threading.Thread.start`, where no thread can be started until `over` is set."""

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

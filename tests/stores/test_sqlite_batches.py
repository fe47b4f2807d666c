"""Calls to a SQLite store in one turn of an event loop share a transaction, but do not affect each other."""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import Charge, ConfigError, Decision, FixedWindow, StoreError
from ratelimit_mw.stores.sqlite import SQLiteStore
from ratelimit_mw.stores.sqlite.room import STATES

pytestmark = pytest.mark.promise(3)

TEN = FixedWindow(10, 60)
MANY = FixedWindow(100_000, 60)


class Raising(FixedWindow, frozen=True):
    """Raises when it decides."""

    def decide(self, *arguments: Any) -> Any:
        raise RuntimeError("of this limit alone")


class Unwritable(FixedWindow, frozen=True):
    """Has states that a file cannot keep."""

    algorithm = "unwritable"

    def decide(self, *arguments: Any) -> Any:
        return super().decide(None, *arguments[1:])[0], (1, {2})

    def expires(self, state: Any) -> int:
        return 2**52


class Traced:
    """A store that records its transactions."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.store = SQLiteStore(path, **{"timeout": 20, "deny_cache": 0, **options})
        self.statements: list[str] = []

    @property
    def database(self) -> Any:
        below: Any = self.store._store
        return below._database

    async def together(self, *calls: Awaitable[Any]) -> list[Any]:
        """Await calls of one turn, and record the statements that begin and end their transactions."""
        self.database._connection.set_trace_callback(self.statements.append)
        self.statements.clear()
        results = await asyncio.gather(*calls, return_exceptions=True)
        self.statements = [one.split()[0] for one in self.statements if one.split()[0] in ("BEGIN", "COMMIT")]
        return results

    async def crowd(self) -> None:
        """Make several calls in one turn, so that the next calls wait for the end of their turn."""
        await asyncio.gather(*(self.store.atake([Charge("crowd", MANY)]) for _ in range(3)))


def traced(path: Path, work: Callable[[Traced], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):  # a call without a result fails the test
            one = Traced(path, **options)
            await work(one)
            await one.store.aclose()

    asyncio.run(main())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


def remaining(results: Sequence[Sequence[Decision]]) -> list[int]:
    return [decision.remaining for decisions in results for decision in decisions]


def left(path: Path, key: str = "k", limit: FixedWindow = TEN) -> int:
    with closing(SQLiteStore(path, timeout=20)) as store:
        return store.peek([Charge(key, limit, 0)])[0].remaining


def test_calls_of_one_turn_share_a_transaction(path: Path) -> None:
    async def work(one: Traced) -> None:
        take = one.store.atake
        await take([Charge("k", TEN)])
        assert remaining(await one.together(take([Charge("k", TEN)]))) == [8]
        assert one.statements == []  # a single statement
        assert remaining(await one.together(*(take([Charge("k", TEN)]) for _ in range(4)))) == [7, 6, 5, 4]
        assert one.statements == ["BEGIN", "COMMIT"]  # of all calls but the first
        assert remaining(await one.together(*(take([Charge("k", TEN)]) for _ in range(3)))) == [3, 2, 1]
        assert one.statements == ["BEGIN", "COMMIT"]  # of all calls, because the turn before had several
        assert remaining(await one.together(take([Charge("k", TEN)]))) == [0]
        assert one.statements == ["BEGIN", "COMMIT"]
        (refused,) = await one.together(take([Charge("k", TEN)]))
        assert one.statements == []
        assert not refused[0].allowed

    traced(path, work)


def test_a_transaction_has_at_most_32_calls(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        results = await one.together(*(one.store.atake([Charge("k", MANY)]) for _ in range(70)))
        assert remaining(results) == [*range(99_999, 99_929, -1)]
        assert one.statements == ["BEGIN", "COMMIT"] * 3

    traced(path, work)


@pytest.mark.promise(2)
def test_each_request_is_charged_for_all_of_its_limits_or_none(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        pair = [Charge("a", TEN), Charge("b", FixedWindow(3, 60))]
        results = await one.together(*(one.store.atake(pair) for _ in range(5)), one.store.atake([Charge("a", TEN)]))
        assert [[decision.allowed for decision in decisions] for decisions in results[:5]] == [
            *[[True, True]] * 3,
            *[[True, False]] * 2,
        ]
        assert results[5][0].remaining == 6
        assert one.statements == ["BEGIN", "COMMIT"]

    traced(path, work)
    assert (left(path, "a"), left(path, "b", FixedWindow(3, 60))) == (6, 0)


def test_failed_call_does_not_affect_other_calls_of_its_transaction(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        take = one.store.atake
        results = await one.together(
            take([Charge("k", TEN)]),
            take([Charge("k", Raising(5, 60))]),
            take([Charge("k", TEN), Charge("new", TEN)]),
            take([Charge("k", Unwritable(5, 60))]),
            take([Charge("k", TEN)]),
        )
        assert [type(result) for result in (results[1], results[3])] == [RuntimeError, ConfigError]
        # the calls of a failed transaction run alone, in any order, and each is charged once
        assert sorted(remaining([results[0], results[2][:1], results[4]])) == [7, 8, 9]
        (alone,) = await one.together(take([Charge("k", Raising(5, 60))]))
        assert str(alone) == "of this limit alone"

    traced(path, work)
    assert (left(path), left(path, "new")) == (7, 9)


def test_settlements_and_resets_share_the_transaction(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        store, charge = one.store, Charge("k", TEN)
        (first,) = await store.atake([charge])
        await one.crowd()
        results = await one.together(
            store.atake([charge]),
            store.asettle([Charge("k", TEN, -1, at=first.at)]),
            store.atake([charge]),
            store.areset([Charge("other", TEN)]),
            store.atake([Charge("other", TEN, 4)]),
        )
        assert (results[1], results[3]) == (None, None)
        assert remaining([results[0], results[2], results[4]]) == [8, 8, 6]
        assert one.statements == ["BEGIN", "COMMIT"]
        await one.crowd()
        await one.together(store.areset([charge]), store.areset([Charge("other", TEN)]))
        assert one.statements == ["BEGIN", "COMMIT"]

    traced(path, work)
    assert (left(path), left(path, "other")) == (10, 10)


@pytest.mark.promise(7)
def test_a_transaction_of_many_calls_deletes_expired_keys(path: Path) -> None:
    async def work(one: Traced) -> None:
        for number in range(64):
            await one.store.atake([Charge(f"key {number}", FixedWindow(5, 0.000_001))])
        await one.crowd()
        await one.together(*(one.store.atake([Charge("k", MANY)]) for _ in range(64)))

    traced(path, work)
    with closing(sqlite3.connect(path)) as other:
        keys = [key.rpartition(b"\0")[2] for (key,) in other.execute(f"SELECT key FROM {STATES}")]
    assert sorted(keys) == [b"crowd", b"k"]


@pytest.mark.promise(8)
def test_calls_on_a_locked_file_fail_and_later_calls_succeed(path: Path) -> None:
    async def work(one: Traced) -> None:
        take = one.store.atake
        await one.crowd()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            results = await asyncio.gather(*(take([Charge("k", TEN)]) for _ in range(40)), return_exceptions=True)
            assert {str(result) for result in results} == {"no write lock in time: another process writes to the file"}
            assert {type(result) for result in results} == {StoreError}
            assert len({id(result) for result in results}) == 40
            one.store.guard.clear()  # the breaker's pause is over
            waiting = asyncio.ensure_future(take([Charge("k", TEN)]))
            for _ in range(20):
                await asyncio.sleep(0)
            other.execute("ROLLBACK")
        assert remaining([await waiting]) == [9]

    traced(path, work, timeout=0.3)


def test_closing_waits_for_the_calls_of_the_turn(path: Path) -> None:
    async def main() -> None:
        one = Traced(path)
        await one.crowd()
        calls = [asyncio.ensure_future(one.store.atake([Charge("k", TEN)])) for _ in range(3)]
        await asyncio.sleep(0)
        await one.store.aclose()
        assert remaining(await asyncio.gather(*calls)) == [9, 8, 7]

    asyncio.run(main())


def open_files(path: Path) -> int:
    """Returns how many of this process's open files are the database at `path` or one of its side files."""
    return sum(os.path.realpath(link).startswith(str(path)) for link in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="counts the open files in /proc")
def test_closing_leaves_no_connection_open(path: Path) -> None:
    store = SQLiteStore(path)
    threads = [threading.Thread(target=store.take, args=([Charge("k", TEN)],)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remaining([asyncio.run(store.atake([Charge("k", TEN)]))]) == [6]
    assert open_files(path) > 0
    store.close()
    assert open_files(path) == 0


@pytest.mark.promise(8)
def test_calls_that_wait_for_the_lock_start_no_thread(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        before = threading.active_count()
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            calls = [asyncio.ensure_future(one.store.atake([Charge("k", TEN)])) for _ in range(3)]
            for _ in range(30):
                await asyncio.sleep(0)
            assert threading.active_count() == before
            other.execute("ROLLBACK")
        assert remaining(await asyncio.gather(*calls)) == [9, 8, 7]

    traced(path, work)


def test_event_loops_of_several_threads_share_a_store(path: Path) -> None:
    store = SQLiteStore(path, timeout=30, deny_cache=0)
    counts = [0] * 4

    def work(index: int) -> None:
        async def main() -> None:
            async def one() -> None:
                for _ in range(25):
                    (decision,) = await store.atake([Charge("k", FixedWindow(300, 3600))])
                    counts[index] += decision.allowed

            await asyncio.gather(*(one() for _ in range(4)))

        asyncio.run(main())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    assert sum(counts) == 300


def test_a_call_that_is_canceled_before_the_end_of_its_turn_is_not_charged(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        calls = [asyncio.ensure_future(one.store.atake([Charge("k", TEN)])) for _ in range(3)]
        await asyncio.sleep(0)  # the calls run until they wait
        calls[1].cancel()
        await asyncio.wait(calls)
        assert calls[1].cancelled()
        assert remaining([calls[0].result(), calls[2].result()]) == [9, 8]

    traced(path, work)


def test_calls_of_a_loop_wait_for_a_thread_that_uses_the_file(path: Path) -> None:
    async def work(one: Traced) -> None:
        await one.crowd()
        free = threading.Event()
        started = threading.Event()

        def hold(_: Any, __: Any) -> None:
            started.set()
            free.wait(20)

        thread = threading.Thread(target=one.database.run, args=(hold, None, 20.0))
        thread.start()
        started.wait(20)
        calls = [asyncio.ensure_future(one.store.atake([Charge("k", TEN)])) for _ in range(2)]
        peek = asyncio.ensure_future(one.store.apeek([Charge("k", TEN, 0)]))
        for _ in range(5):
            await asyncio.sleep(0)
        free.set()
        assert remaining(await asyncio.gather(*calls)) == [9, 8]
        assert (await peek)[0].remaining in {8, 9, 10}
        thread.join()

    traced(path, work)

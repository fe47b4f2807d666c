"""A Redis store survives canceled requests, short-lived event loops, forks, threads and closing."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

import tls
from ratelimit_mw import Charge, SlidingWindowCounter, StoreError
from ratelimit_mw.stores.lifecycle import PerLoop
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from redis_servers import RedisServer

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis]
PATIENT = 10.0  # seconds


def question(number: int) -> list[Charge]:
    """Return a charge whose decision shows its number."""
    return [Charge(f"k{number}", SlidingWindowCounter(100 + number, 3600))]


async def asked(store: AsyncRedisStore, number: int) -> int:
    """Take a unit, and return the number that the decision shows."""
    return (await store.atake(question(number)))[0].limit - 100


async def answered(store: AsyncRedisStore) -> None:
    """Take until a call succeeds, so that a connection is open."""
    until = time.monotonic() + PATIENT
    while True:
        try:
            assert await asked(store, 0) == 0
        except StoreError:
            if time.monotonic() > until:
                raise
            continue
        return


async def cancelled_at_random(store: AsyncRedisStore, random: Random, first: int) -> int:
    """Start 100 takes, cancel half of them at random, and return how many succeeded. Checks each decision."""
    tasks = {number: asyncio.create_task(asked(store, number)) for number in range(first, first + 100)}
    for number in random.sample(sorted(tasks), 50):
        for _ in range(random.randint(0, 3)):
            await asyncio.sleep(0)  # let the task run one more step
        tasks[number].cancel()
    answers = await asyncio.gather(*tasks.values(), return_exceptions=True)
    for number, answer in zip(tasks, answers, strict=True):
        assert isinstance(answer, asyncio.CancelledError) or answer == number
    return sum(isinstance(answer, int) for answer in answers)


def test_canceled_requests_do_not_mix_up_replies(redis_url: str) -> None:
    async def main() -> None:
        random = Random(7)  # noqa: S311  # tests need no secrets
        store = AsyncRedisStore(redis_url, timeout=5)
        for turn in range(5):
            assert await cancelled_at_random(store, random, turn * 100) >= 50
            numbers = list(range(1000, 1100))
            assert await asyncio.gather(*(asked(store, number) for number in numbers)) == numbers
        await store.aclose()

    asyncio.run(main())


def test_late_replies_are_not_used_for_other_calls(redis_server: RedisServer) -> None:
    async def main() -> None:
        store = AsyncRedisStore(redis_server.url)  # with the default timeout
        await answered(store)
        redis_server.pause()
        late = await asyncio.gather(*(asked(store, number) for number in range(1, 20)), return_exceptions=True)
        assert all(isinstance(answer, StoreError) for answer in late)
        redis_server.resume()
        until, replies = time.monotonic() + PATIENT, 0
        while replies < 100:
            assert time.monotonic() < until
            answers = await asyncio.gather(*(asked(store, number) for number in range(50, 150)), return_exceptions=True)
            for number, answer in zip(range(50, 150), answers, strict=True):
                assert isinstance(answer, StoreError) or answer == number
            replies += sum(isinstance(answer, int) for answer in answers)
        await store.aclose()

    asyncio.run(main())


def test_async_store_works_in_one_event_loop_after_another(redis_url: str) -> None:
    store = AsyncRedisStore(redis_url, timeout=5)

    async def main(number: int) -> int:
        answer = await asked(store, number)
        await store.aclose()
        return answer

    assert [asyncio.run(main(number)) for number in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_event_loop_that_ends_without_close_leaves_no_open_connection(
    redis_server: RedisServer, scheme: str, tmp_path: Path
) -> None:
    with tls.server_with_tls(redis_server.binary, files := tls.made_in(tmp_path)) as (server, port):
        url = server.url if scheme == "redis" else f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={files.authority}"
        store = AsyncRedisStore(url, timeout=5)
        for number in range(3):
            assert asyncio.run(asked(store, number)) == number
            assert connected(server) == 0
            gc.collect()  # an open connection would warn now, and a warning is an error


def connected(server: RedisServer) -> int:
    """Return how many other connections the server has. Waits up to 2 s for it to notice closed connections."""
    for _ in range(100):
        if not (count := server.ask("CLIENT LIST").count("id=") - 1):
            break
        time.sleep(0.02)
    return count


def test_next_event_loop_works_after_one_ends_without_close(redis_url: str) -> None:
    store = AsyncRedisStore(redis_url, timeout=5)
    assert [asyncio.run(asked(store, number)) for number in range(5)] == [0, 1, 2, 3, 4]
    inner: Any = store._store
    assert len(inner._batchers) == 1  # the batchers of the earlier loops are gone
    del inner
    del store
    gc.collect()


def test_event_loops_of_several_threads_share_a_store(redis_url: str) -> None:
    store = AsyncRedisStore(redis_url, timeout=5)
    answers: dict[int, list[int]] = {}

    async def main(first: int) -> list[int]:
        found = await asyncio.gather(*(asked(store, number) for number in range(first, first + 50)))
        await store.aclose()
        return found

    def work(first: int) -> None:
        answers[first] = asyncio.run(main(first))

    run_all([partial(work, first) for first in range(0, 400, 100)])
    assert answers == {first: list(range(first, first + 50)) for first in range(0, 400, 100)}


def test_last_loop_is_readable_while_another_thread_removes_it() -> None:
    loop = asyncio.new_event_loop()
    values = iter([(loop, 1), None])  # `pop` in another thread sets None after the first read

    class Popped(PerLoop[int]):
        _last = property(lambda _: next(values), lambda _, __: None)

    assert Popped(lambda: 1).loop is loop
    loop.close()


def test_close_tolerates_a_call_that_another_loop_starts(redis_url: str) -> None:
    store = AsyncRedisStore(redis_url, timeout=5)
    inner: Any = store._store

    class Call:
        def get_loop(self) -> None:
            inner._calls.add(Call())  # the thread of the other loop may do this meanwhile

    inner._calls.update([Call(), Call()])
    asyncio.run(store.aclose())
    assert len(inner._calls) == 4


def run_all(works: list[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_more_threads_than_connections_get_their_own_decisions(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)
    answers: list[bool] = []

    def work(number: int) -> None:
        answers.append(store.take(question(number))[0].limit == 100 + number)

    run_all([partial(work, number) for number in range(100)])
    assert answers == [True] * 100
    store.close()


def test_calls_of_threads_succeed_while_the_store_is_closed(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)
    answers: list[bool] = []

    def work(first: int) -> None:
        answers.extend([store.take(question(number))[0].limit == 100 + number for number in range(first, first + 50)])

    def close() -> None:
        for _ in range(50):
            store.close()

    run_all([close, *[partial(work, first) for first in range(0, 800, 100)]])
    assert answers == [True] * 400
    store.close()


def forked(work: Callable[[], bool]) -> int:
    """Run `work` in a forked child, and return its process id. Its exit code is 0 if `work` returned true."""
    child = os.fork()
    if not child:
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return child


def codes(children: list[int]) -> list[int]:
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def ports(store: RedisStore) -> set[int]:
    """Return the local ports of the idle connections."""
    inner: Any = store._store
    return {line._connection._sock.getsockname()[1] for line in inner._transport._pool._idle}


# Python 3.12 and later warn of a fork while threads run: those of other tests, or of an open connection.
@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_children_and_their_parent_do_not_share_connections(redis_url: str) -> None:
    store = RedisStore(redis_url, timeout=5)

    def ask(first: int) -> bool:
        numbers = list(range(first, first + 300))
        return [store.take(question(number))[0].limit - 100 for number in numbers] == numbers

    def ask_as_child(first: int) -> bool:
        return ask(first) and not ports(store) & parents

    assert ask(0)
    parents = ports(store)
    children = [forked(partial(ask_as_child, first)) for first in (1000, 2000, 3000)]
    assert ask(4000)  # while the children run
    assert ports(store) == parents
    assert codes(children) == [0, 0, 0]
    store.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_async_store_works_in_a_forked_child_with_its_own_event_loop(redis_url: str) -> None:
    store = AsyncRedisStore(redis_url, timeout=5)

    async def ask(first: int) -> bool:
        numbers = list(range(first, first + 300))
        return await asyncio.gather(*(asked(store, number) for number in numbers)) == numbers

    with asyncio.Runner() as runner:
        assert runner.run(ask(0))
        children = [forked(lambda: asyncio.run(ask(1000)))]
        assert runner.run(ask(2000))
        assert codes(children) == [0]
        runner.run(store.aclose())

"""Checks that requests succeed while scripts and data are flushed in a loop."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from algorithms.at_once import TAKEN, at_once
from ratelimit_mw import Charge, Decision
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from redis_cluster import RedisCluster
from redis_servers import RedisServer

PATIENT = 5.0  # seconds
TURNS = 40  # takes of each group, at least
GROUPS = [
    [Charge(f"{{{number}}}:r", at_once(kind, 1000, 3600)) for kind in TAKEN.values()]
    + [Charge(f"{{{number + 1}}}:r", at_once(kind, 1000, 3600), role="shadow") for kind in TAKEN.values()]
    for number in range(5)
]

pytestmark = pytest.mark.promise(8)


@contextmanager
def flushed_in_a_loop(servers: Sequence[RedisServer]) -> Iterator[Callable[[], int]]:
    """Flush everything in a loop. Yields a function that returns how often everything was flushed."""
    done, rounds = threading.Event(), [0]

    def work() -> None:
        while not done.is_set():
            for server in servers:
                for command in ("SCRIPT FLUSH", "FLUSHALL"):
                    assert server.ask(command, timeout=PATIENT) == "+OK"
            rounds[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: rounds[0]
    finally:
        done.set()
        thread.join()


def in_threads(url: str, rounds: Callable[[], int]) -> list[Decision]:
    store, answers = RedisStore(url, timeout=PATIENT), list[Decision]()

    def work(group: list[Charge]) -> None:
        before = rounds()
        for turn in itertools.count(1):
            decisions = store.take(group)
            answers.extend(decisions)
            store.settle([Charge(group[0].key, group[0].limit, -1, at=decisions[0].at)])
            if turn >= TURNS and rounds() > before + 20:
                break

    threads = [threading.Thread(target=work, args=(group,)) for group in GROUPS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    return answers


def in_tasks(url: str, rounds: Callable[[], int]) -> list[Decision]:
    async def main() -> list[Decision]:
        store, answers = AsyncRedisStore(url, timeout=PATIENT), list[Decision]()

        async def work(group: list[Charge]) -> None:
            before = rounds()
            for turn in itertools.count(1):
                answers.extend(await store.atake(group))
                await store.areset(group[:1])
                if turn >= TURNS and rounds() > before + 20:
                    break

        await asyncio.gather(*(work(group) for group in GROUPS))
        await store.aclose()
        return answers

    return asyncio.run(main())


@pytest.mark.parametrize("load", [in_threads, in_tasks])
def test_requests_succeed_while_a_server_is_flushed(
    load: Callable[[str, Callable[[], int]], list[Decision]], redis_server: RedisServer
) -> None:
    with flushed_in_a_loop([redis_server]) as rounds:
        answers = load(redis_server.url, rounds)
    assert rounds() > 20
    assert len(answers) >= TURNS * sum(map(len, GROUPS))
    assert {decision.allowed for decision in answers} == {True}


@pytest.mark.parametrize("load", [in_threads, in_tasks])
def test_requests_succeed_while_a_cluster_is_flushed(
    load: Callable[[str, Callable[[], int]], list[Decision]], redis_cluster: RedisCluster
) -> None:
    with flushed_in_a_loop(redis_cluster.nodes) as rounds:
        answers = load(redis_cluster.url, rounds)
    assert rounds() > 20
    assert len(answers) >= TURNS * sum(map(len, GROUPS))
    assert {decision.allowed for decision in answers} == {True}

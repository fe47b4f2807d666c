"""The examples of a custom store and a custom algorithm pass the tests that the package's own parts pass."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from own_algorithm import ByTheClock
from own_store import DictStore
from ratelimit_mw import Charge, FixedWindow, Limiter, MemoryStore, parse
from ratelimit_mw.stores import Store
from ratelimit_mw.testing import Clock
from ratelimit_mw.testing.laws import check_laws
from ratelimit_mw.testing.store_suite import StoreSuite

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DAY = 24 * 3600


@pytest.mark.promise(2)
class TestDictStore(StoreSuite):
    @pytest.fixture
    def store(self, clock: Clock) -> Store:
        return DictStore(clock)


def test_example_store_forgets_what_expired_and_nothing_else() -> None:
    clock = Clock()
    store = DictStore(clock)
    limit = FixedWindow(1, 10, name="ten")

    def hit(clients: range) -> set[bool]:
        return {store.take([Charge(f"{client}", limit)])[0].allowed for client in clients}

    hit(range(100))
    clock.advance(9)
    assert hit(range(100)) == {False}
    assert store.count_states() == 100
    clock.advance(1)  # the hundred states expire
    assert hit(range(100, 150)) == {True}
    assert store.count_states() == 50
    assert hit(range(100, 150)) == {False}


@pytest.mark.parametrize(("quota", "window"), [(1, 1), (7, 60), (1000, DAY), (10**9, 0.5)])
def test_example_algorithm_keeps_the_laws(quota: int, window: float) -> None:
    check_laws(ByTheClock(quota, window))


def test_example_algorithm_prints_its_decisions() -> None:
    command = [sys.executable, str(EXAMPLES / "own_algorithm.py")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[True, True, False]\n"


@pytest.mark.parametrize("make", [DictStore, lambda clock: MemoryStore(clock=clock)], ids=["own store", "memory"])
def test_example_algorithm_works_with_the_example_store_and_memory(make: Callable[[Clock], Store]) -> None:
    clock = Clock(10 * DAY - 90)
    limiter = Limiter(make(clock))
    limits = [ByTheClock(3, DAY), *parse("2/minute using token_bucket")]
    verdicts = [limiter.hit(limits, "alice") for _ in range(3)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, False]
    assert [decision.remaining for decision in verdicts[2].decisions] == [1, 0]
    clock.advance(30)
    assert limiter.hit(limits, "alice").allowed
    clock.advance(30)
    assert limiter.peek(limits, "alice", 1).retry_after == 30.0  # until midnight
    clock.advance(30)
    assert limiter.hit(limits, "alice").decisions[0].remaining == 2

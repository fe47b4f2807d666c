"""Provides the stores for replaying the tables, and reports the number of replayed rows at the end of a run."""

from collections.abc import Iterator

import pytest

from conformance.tables import TABLES
from ratelimit_mw import MemoryStore
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock


@pytest.fixture
def clock() -> Clock:
    """The clock of all stores of a test."""
    return Clock()


@pytest.fixture
def stores(clock: Clock, redis_url: str) -> Iterator[list[Store]]:
    """A store in memory and a store on a real Redis server. A test replays its rows with each."""
    with_server = RedisStore(redis_url, clock=clock, timeout=5)
    yield [MemoryStore(clock=clock), with_server]
    with_server.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each system."""
    for table in TABLES:
        counts = f"{table.replayed} rows replayed, {table.left_out} left out"
        terminalreporter.write_line(f"conformance: {table.system}: {counts}")

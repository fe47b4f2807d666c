"""The stores that the tables are replayed over, and at the end of a run how many rows that were."""

from collections.abc import Iterator

import pytest

from conformance.tables import TABLES
from ratelimit_mw import MemoryStore
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock


@pytest.fixture
def clock() -> Clock:
    """The time of all stores of a test."""
    return Clock()


@pytest.fixture
def stores(clock: Clock, redis_url: str) -> Iterator[list[Store]]:
    """One in memory and one on a real server: a test replays its rows over each."""
    with_server = RedisStore(redis_url, clock=clock, timeout=5)
    yield [MemoryStore(clock=clock), with_server]
    with_server.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per system."""
    for table in TABLES:
        counts = f"{table.replayed} rows replayed, {table.left_out} left out"
        terminalreporter.write_line(f"conformance: {table.system}: {counts}")

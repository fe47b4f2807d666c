"""A store on a real server; and at the end of a run, how many steps the parity tests compared."""

from collections.abc import Iterator

import pytest
from redis import Redis

from ratelimit_mw.stores.redis import RedisStore


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    """A client of the same server, to look at what a store did."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[RedisStore]:
    """A store that goes by the server's clock."""
    store = RedisStore(redis_url, timeout=5)
    yield store
    store.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per algorithm and server; in the report of each test, which also comes from another process."""
    for report in terminalreporter.stats.get("passed", []):
        for name, line in report.user_properties:
            if name == "parity":
                terminalreporter.write_line(f"parity: {line}")

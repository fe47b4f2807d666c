"""A store on a real server; and at the end of a run, how many steps the parity tests compared."""

from collections.abc import Iterator

import pytest
from redis import Redis

from ratelimit_mw.stores.redis import RedisStore

_COMPARED = pytest.StashKey[list[str]]()


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


@pytest.fixture
def compared(pytestconfig: pytest.Config) -> list[str]:
    """Lines for the end of the run."""
    return pytestconfig.stash.setdefault(_COMPARED, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line per algorithm and server."""
    for line in config.stash.get(_COMPARED, []):
        terminalreporter.write_line(f"parity: {line}")

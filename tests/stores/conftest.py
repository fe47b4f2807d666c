"""Fixtures of stores on real servers, and a summary of what the tests of parity and of listings measured."""

from collections.abc import Iterator

import pytest
from redis import Redis

from ratelimit_mw.stores.redis import RedisStore
from redis_servers import RedisServer


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    """A client of the same server, to check what a store did."""
    with Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def redis_store(redis_url: str) -> Iterator[RedisStore]:
    """A store that uses the server's clock."""
    store = RedisStore(redis_url, timeout=5)
    yield store
    store.close()


@pytest.fixture
def unthrottled_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the throttling of log lines and the record of TLS checks, so that each test sees its own."""
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    monkeypatch.setattr("ratelimit_mw.stores.redis.failures._tls_checks", {})


@pytest.fixture
def server(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A server for one test, which may set passwords and rights."""
    with RedisServer(redis_server.binary) as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line per algorithm and server, from the reports of tests, which also come from other processes."""
    for report in terminalreporter.stats.get("passed", []):
        for name, line in report.user_properties:
            if name in ("parity", "listing"):
                terminalreporter.write_line(f"{name}: {line}")

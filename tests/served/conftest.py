"""Fixtures of the tests with real servers."""

from collections.abc import Iterator, Mapping

import pytest

from profiles import PROOF
from redis_servers import RedisServer


@pytest.fixture(scope="module", params=["memory", "redis"] if PROOF else ["redis"])  # which the servers wait for
def store(request: pytest.FixtureRequest, redis_servers: Mapping[str, RedisServer]) -> Iterator[str]:
    """Yield the URL of a store. Each module has its own Redis server."""
    if request.param == "memory":
        yield "memory://"
        return
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running.url

"""Fixtures of the tests with real servers."""

from collections.abc import Iterator, Mapping

import pytest

from redis_servers import RedisServer


@pytest.fixture(scope="module", params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis_servers: Mapping[str, RedisServer]) -> Iterator[str]:
    """Yield the URL of a store. Each module has its own Redis server."""
    if request.param == "memory":
        yield "memory://"
        return
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running.url

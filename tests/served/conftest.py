"""What tests on real servers are given."""

from collections.abc import Iterator, Mapping

import pytest

from redis_servers import RedisServer


@pytest.fixture(scope="module", params=["memory", "redis"])
def store(request: pytest.FixtureRequest, redis_servers: Mapping[str, RedisServer]) -> Iterator[str]:
    """A store's URL; the Redis is one file's own."""
    if request.param == "memory":
        yield "memory://"
        return
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running.url

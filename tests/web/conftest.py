"""Fixtures of the tests of the web integrations."""

from collections.abc import Iterator, Mapping

import pytest

# must precede all imports of Django's other modules and of REST framework
import web.django_site  # noqa: F401  # configures Django
from ratelimit_mw.core import log as notices
from ratelimit_mw.rules import rule_set
from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer


@pytest.fixture
def store() -> RecordingStore:
    """Return a store that records its calls, and whose clock does not move."""
    return RecordingStore(clock=Clock())


@pytest.fixture
def speaks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the throttling of log lines."""
    monkeypatch.setattr(notices, "_quiet_until", {})


@pytest.fixture(params=["at first", "settled"])
def at_first_and_settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test during and after the first thousand requests, which are checked for proxy headers."""
    if request.param == "settled":
        monkeypatch.setattr(rule_set, "ProxyHeaderCheck", lambda _: None)


@pytest.fixture(scope="module")
def own_redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """Run a server for one test file. One version is enough, because the tests of the stores run with all versions."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running

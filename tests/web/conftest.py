"""What tests of the web's parts are given."""

from collections.abc import Iterator, Mapping

import pytest

# before Django's other modules, and REST framework, can be imported
import web.django_site  # noqa: F401  # configures it
from ratelimit_mw.core import log as notices
from ratelimit_mw.rules import rule_set
from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer


@pytest.fixture
def store() -> RecordingStore:
    """Keeps what it was asked, and stands still."""
    return RecordingStore(clock=Clock())


@pytest.fixture
def speaks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said rarely has not been said yet."""
    monkeypatch.setattr(notices, "_quiet_until", {})


@pytest.fixture(params=["at first", "settled"])
def at_first_and_settled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies are looked for in the first thousand requests; after them there is a short way."""
    if request.param == "settled":
        monkeypatch.setattr(rule_set, "ProxyHeaderCheck", lambda _: None)


@pytest.fixture(scope="module")
def own_redis(redis_servers: Mapping[str, RedisServer]) -> Iterator[RedisServer]:
    """Of one file alone; of one version: what they do differently is a matter of the stores' tests."""
    with RedisServer(next(iter(redis_servers.values())).binary) as running:
        yield running

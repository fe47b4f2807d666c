"""Runs every scenario without the check for untrusted proxies, which ends after the first thousand requests."""

import pytest

from ratelimit_mw.rules import rule_set
from ratelimit_mw.testing import Clock
from redis_servers import RedisServer
from web.scenario import Scenario
from web.table import ALL_ROWS, RecordingAsyncRedis, play, tell_time


@pytest.fixture(autouse=True)
def _no_proxy_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the check for proxies, so that only the client's address is read where no limit needs more."""
    monkeypatch.setattr(rule_set, "ProxyHeaderCheck", lambda _: None)


@pytest.mark.parametrize("face", ["asgi", "wsgi"])  # the others read the address by the same code
@pytest.mark.parametrize("scenario", ALL_ROWS)
def test_the_integration_passes_the_scenario(face: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    store = tell_time(clock, monkeypatch.setattr)()
    play(face, scenario, store, clock)


@pytest.mark.parametrize("scenario", ALL_ROWS)
def test_asgi_passes_the_scenario_with_an_awaited_store(
    scenario: Scenario, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    tell_time(clock, monkeypatch.setattr)
    own_redis.flush()
    play("asgi", scenario, RecordingAsyncRedis(own_redis.url, clock), clock)

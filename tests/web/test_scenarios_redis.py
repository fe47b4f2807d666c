"""Runs every scenario on a real Redis, in this process. All integrations call the store alike, so two are enough."""

from contextlib import closing

import pytest

from ratelimit_mw.testing import Clock
from redis_servers import RedisServer
from web.faces import ASGI
from web.scenario import Scenario
from web.table import ALL_ROWS, RecordingAsyncRedis, RecordingRedis, play, tell_time


@pytest.mark.parametrize("face", ["fastapi", "flask"])
@pytest.mark.parametrize("scenario", ALL_ROWS)
def test_the_integration_passes_the_scenario_on_redis(
    face: str, scenario: Scenario, own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    tell_time(clock, monkeypatch.setattr)
    own_redis.flush()
    if face in ASGI:  # each request has its own event loop; its connections are closed with the loop
        play(face, scenario, RecordingAsyncRedis(own_redis.url, clock), clock)
        return
    with closing(RecordingRedis(own_redis.url, clock)) as store:
        play(face, scenario, store, clock)

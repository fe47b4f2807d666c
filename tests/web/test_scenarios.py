"""Every scenario over every framework, in this process: over memory, and over a real Redis."""

from collections.abc import Callable, Iterator

import pytest

from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer
from web.faces import ASGI, FACES
from web.scenario import Scenario
from web.table import ALL_ROWS, RecordingAsyncRedis, RecordingRedis, TableStore, play, tell_time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[[], RecordingStore]:
    return tell_time(clock, monkeypatch.setattr)


@pytest.fixture(params=["memory", "redis"])
def store(
    face: str, clock: Clock, memory: Callable[[], RecordingStore], request: pytest.FixtureRequest
) -> Iterator[TableStore]:
    """An empty one, as the face needs it."""
    if request.param == "memory":
        yield memory()
        return
    server: RedisServer = request.getfixturevalue("own_redis")
    server.flush()
    if face in ASGI:
        yield RecordingAsyncRedis(server.url, clock)  # each request has a loop of its own, which closes what it opened
        return
    threads = RecordingRedis(server.url, clock)
    yield threads
    threads.close()


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scenario", ALL_ROWS)
def test_scenario(face: str, scenario: Scenario, store: TableStore, clock: Clock) -> None:
    play(face, scenario, store, clock)

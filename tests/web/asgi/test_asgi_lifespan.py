"""The ASGI lifespan: invalid settings stop the server, and shutdown closes the store that the middleware opened."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from redis import Redis
from starlette.applications import Starlette

from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import Scope
from ratelimit_mw.engine import gate
from ratelimit_mw.testing import RecordingStore
from web.asgi_talk import HTTP, LIFESPAN, SHUTDOWN, STARTUP, WEBSOCKET, App200, Talk, talk

pytestmark = pytest.mark.one_redis

COMPLETE = ["lifespan.startup.complete", "lifespan.shutdown.complete"]
WRONG: dict[str, Any] = {"limits": "10/mfoo"}
MESSAGE = "limits: '10/mfoo': unknown period 'mfoo' (us, ms, second, minute, hour, day, week, month, year)"


class Closing(RecordingStore):
    """A store that appends `closed` to `events` when it is closed."""

    def __init__(self, events: list[Any]) -> None:
        super().__init__()
        self.events = events

    async def aclose(self) -> None:
        self.events.append("closed")
        await super().aclose()


async def lives(scope: Scope, receive: Any, send: Any) -> None:
    """An app that handles the lifespan, and responds with 200 to other scopes."""
    if scope["type"] != "lifespan":
        return await App200()(scope, receive, send)
    assert await receive() == STARTUP
    await send({"type": COMPLETE[0]})
    assert await receive() == SHUTDOWN
    await send({"type": COMPLETE[1]})
    return None


def closing(monkeypatch: pytest.MonkeyPatch, events: list[Any]) -> None:
    """Make the middleware open a store that records its closing in `events`."""
    monkeypatch.setattr(gate, "open_async_store", lambda *_: Closing(events))


@pytest.mark.promise(11)
def test_a_lifespan_passes_through() -> None:
    assert talk(RateLimitMiddleware(lives, limits="1/minute"), LIFESPAN, STARTUP, SHUTDOWN).types == COMPLETE


@pytest.mark.parametrize("end", ["lifespan.shutdown.complete", "lifespan.shutdown.failed"])
def test_middleware_closes_its_store_before_the_shutdown_message(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = Talk(STARTUP, SHUTDOWN)
    closing(monkeypatch, spoken.sent)
    app = App200({"type": "lifespan.startup.complete"}, {"type": end})
    asyncio.run(spoken.with_app(RateLimitMiddleware(app, limits="1/minute"), LIFESPAN))
    assert spoken.sent == [{"type": "lifespan.startup.complete"}, "closed", {"type": end}]


def test_middleware_does_not_close_a_store_passed_to_it() -> None:
    events: list[Any] = []
    middleware = RateLimitMiddleware(lives, limits="1/minute", store=Closing(events))
    talk(middleware, LIFESPAN, STARTUP, SHUTDOWN)
    assert events == []


def test_middleware_opens_a_new_store_after_each_lifespan(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Any] = []
    closing(monkeypatch, events)
    middleware = RateLimitMiddleware(lives, limits="1/minute")
    for turn in (1, 2):
        assert talk(middleware, HTTP).sent[0]["status"] == 200
        assert talk(middleware, HTTP).sent[0]["status"] == 429
        assert talk(middleware, LIFESPAN, STARTUP, SHUTDOWN).types == COMPLETE
        assert events == ["closed"] * turn
    assert talk(middleware, HTTP).sent[0]["status"] == 200, "its store started afresh"


@pytest.mark.promise(11)
def test_error_of_an_app_without_lifespan_propagates() -> None:
    async def no_lifespan(scope: Scope, receive: Any, send: Any) -> None:
        raise NotImplementedError

    with pytest.raises(NotImplementedError):
        talk(RateLimitMiddleware(no_lifespan, limits="1/minute"), LIFESPAN, STARTUP)


@pytest.mark.promise(9)
def test_wrong_settings_raise_at_once_outside_an_event_loop() -> None:
    with pytest.raises(ConfigError) as caught:
        RateLimitMiddleware(App200(), **WRONG)
    assert str(caught.value) == MESSAGE


@pytest.mark.promise(9)
def test_wrong_settings_in_an_event_loop_fail_the_startup_and_each_request() -> None:
    app = App200()

    async def run() -> Talk:
        middleware = RateLimitMiddleware(app, **WRONG)
        for scope in (HTTP, WEBSOCKET, {"type": "mqtt"}):
            with pytest.raises(ConfigError) as caught:
                await Talk().with_app(middleware, scope)
            assert str(caught.value) == MESSAGE
        return await Talk(STARTUP).with_app(middleware, LIFESPAN)

    spoken = asyncio.run(run())
    assert spoken.sent == [{"type": "lifespan.startup.failed", "message": f"ratelimit_mw: {MESSAGE}"}]
    assert spoken.receives == 1
    assert app.scopes == []


@pytest.mark.promise(9)
def test_wrong_settings_stop_a_starlette_app() -> None:
    started: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        started.append("app")
        yield

    app = Starlette(lifespan=lifespan)
    app.add_middleware(RateLimitMiddleware, **WRONG)
    spoken = Talk(STARTUP)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(spoken.with_app(app, LIFESPAN, app=app))
    assert str(caught.value) == MESSAGE
    assert spoken.sent == [{"type": "lifespan.startup.failed", "message": f"ratelimit_mw: {MESSAGE}"}]
    assert started == []


def test_slots_are_released_before_the_store_is_closed(redis_url: str) -> None:
    """The slots of the last responses are released too."""
    app = RateLimitMiddleware(lives, limits=[], concurrent=40, store=redis_url, store_timeout=20)  # on a busy machine

    async def run() -> list[Any]:
        spoken = [Talk() for _ in range(40)]
        await asyncio.gather(*(one.with_app(app, HTTP) for one in spoken))
        await Talk(STARTUP, SHUTDOWN).with_app(app, LIFESPAN)
        return [one.sent[0]["status"] for one in spoken]

    assert asyncio.run(run()) == [200] * 40
    with Redis.from_url(redis_url) as redis:
        assert redis.keys() == []


@pytest.mark.promise(9)
def test_starlette_app_without_routes_is_limited() -> None:
    app = Starlette()
    app.add_middleware(RateLimitMiddleware, limits="1/hour")
    assert [talk(app, HTTP).sent[0]["status"] for _ in range(3)] == [404, 429, 429]


def test_redis_reconnects_in_another_event_loop_after_a_lifespan(redis_url: str) -> None:
    middleware = RateLimitMiddleware(lives, limits="3/hour", store=redis_url, store_timeout=2.0)

    async def a_life() -> list[int]:
        spoken = [await Talk().with_app(middleware, HTTP) for _ in range(2)]
        assert (await Talk(STARTUP, SHUTDOWN).with_app(middleware, LIFESPAN)).types == COMPLETE
        return [each.sent[0]["status"] for each in spoken]

    assert [asyncio.run(a_life()) for _ in range(2)] == [[200, 200], [200, 429]]

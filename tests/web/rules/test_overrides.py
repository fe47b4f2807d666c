"""Tests overrides and switches from the store to the response, in every framework."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import admin
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.identity import identity_hash
from ratelimit_mw.metrics.registry import Registry
from ratelimit_mw.service import service
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette import limit
from ratelimit_mw.testing import Control, freeze
from redis_servers import RedisServer
from web.asgi_talk import WEBSOCKET
from web.faces import FACES
from web.scenario import Send, Step
from web.websocket_talk import Echo, Wire, says

BOB = "192.0.2.7"
SETTINGS = {
    "limits": "2/hour",
    "app_limits": {"limit": "100/hour", "key": "all"},
    "store_timeout": 5.0,
    "rules": [{"path": "/strict", "name": "strict", "limits": "1/hour"}],
}


@pytest.fixture
def clock() -> Iterator[Control]:
    with freeze() as control:
        yield control


@pytest.fixture(params=[*FACES, "fastapi over Redis", "flask over Redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path, clock: Control) -> "Site":
    face, _, over_redis = request.param.partition(" over ")
    if not over_redis:
        return Site(face, clock, f"sqlite://{tmp_path}/limits.db")
    server: RedisServer = request.getfixturevalue("own_redis")
    return Site(face, clock, server.url)


class Site:
    """An app, and its clients. A look at the store is due a second after the last one."""

    def __init__(self, face: str, clock: Control, url: str, **settings: Any) -> None:
        self.settings = {**SETTINGS, "store": url, **settings}
        self._send: Send = FACES[face](self.settings)
        self._clock = clock

    def ask(self, client: str = BOB, times: int = 1, **step: Any) -> list[int]:
        return [self._send(Step(client=client, **step)).status for _ in range(times)]

    def look(self) -> None:
        """Look for changes: a second later, with the request of a client that no test is about."""
        self._clock.advance(1.0)
        assert self.ask("203.0.113.9", path="/another") in ([200], [429])


def test_an_exempt_client_passes_until_the_end(site: "Site", clock: Control) -> None:
    assert site.ask(times=3) == [200, 200, 429]
    override = admin.set_override(site.settings, ip=BOB, exempt=True, duration=60.0, note="ticket 4711", by="eve")
    assert admin.overrides(site.settings).overrides == [override]
    assert (override.who, override.action, override.rule) == (f"ip={BOB}", "exempt", None)
    assert site.ask() == [429]  # the app has not looked yet
    site.look()
    assert site.ask(times=4) == [200] * 4
    assert site.ask("192.0.2.8", times=3) == [200, 200, 429]
    clock.advance(55.0)
    assert site.ask() == [200]
    clock.advance(60.0)  # more than the rest, as the override began a moment after the time was stopped
    assert site.ask() == [429]


def test_a_blocked_network_is_refused_until_it_is_cleared(site: "Site", clock: Control) -> None:
    assert site.ask() == [200]
    admin.set_override(site.settings, ip="192.0.2.0/29", block=True)
    site.look()
    refused = Step(client=BOB, status=403, blocked=True)
    assert [site._send(refused).body for _ in range(2)] == [refused.body] * 2
    assert site.ask("192.0.2.8") == [200]
    assert len(admin.clear_override(site.settings, ip="192.0.2.0/29").overrides) == 1
    site.look()
    assert site.ask(times=2) == [200, 429]


def test_a_blocked_address_is_refused_whatever_else_is_set_for_its_client(site: "Site", clock: Control) -> None:
    assert site.ask() == [200]
    (client,) = [one.key for one in admin.keys(site.settings, rule="default").keys]
    admin.set_override(site.settings, key=client, exempt=True)
    admin.set_override(site.settings, ip="192.0.2.0/29", block=True)
    site.look()
    assert site.ask(times=2) == [403, 403]
    assert [one.action for one in admin.peek(site.settings, "/", ip=BOB).overrides] == ["block"]


def test_other_limits_show_in_the_headers(site: "Site", clock: Control) -> None:
    assert site.ask(times=3) == [200, 200, 429]
    admin.set_override(site.settings, ip=BOB, limits="4/minute")
    site.look()
    answers = [site._send(Step(client=BOB)) for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 429]
    policies = {dict(answer.headers)["ratelimit-policy"] for answer in answers}
    assert policies == {'"default";q=4;w=60'}
    assert site.ask("192.0.2.8", times=3) == [200, 200, 429]


def test_a_switch_acts_for_everyone(site: "Site") -> None:
    assert site.ask(times=3) == [200, 200, 429]
    assert site.ask(path="/strict", times=2) == [200, 429]
    admin.switch(site.settings, "off", rule="strict")
    site.look()
    assert site.ask(path="/strict", times=2) == [200, 200]
    assert site.ask() == [429]
    admin.switch(site.settings, "off")
    site.look()
    answer = site._send(Step(client=BOB))
    assert (answer.status, "ratelimit" in dict(answer.headers)) == (200, False)
    assert site.ask(times=3) == [200] * 3
    assert site.ask("192.0.2.8", times=3) == [200] * 3
    admin.switch(site.settings, "shadow")
    site.look()
    assert site.ask(times=4) == [200] * 4
    assert admin.switch(site.settings, "on").overrides == []
    site.look()
    assert site.ask() == [429]
    assert site.ask("192.0.2.8", times=3) == [200, 200, 429]  # requests without limits were not counted


def test_a_websocket_that_is_open_sees_changes(clock: Control, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "limits": [],
        "messages": "1/hour",
        "store": f"sqlite://{tmp_path}/limits.db",
        "store_timeout": 5.0,
    }
    app = Echo()

    def changed(change: Callable[[], object]) -> list[Any]:
        """Return messages: the first looks for the change, and is decided with what was known before."""

        def change_and_wait() -> None:
            change()
            clock.advance(1.0)

        return [change_and_wait, says("looks")]

    given = [
        says("one"),
        *changed(lambda: admin.switch(settings, "off", rule="messages")),
        *(says(text) for text in ("two", "three")),
        *changed(lambda: admin.switch(settings, "on")),
        says("four"),
    ]

    async def talk() -> list[str]:
        wire = Wire(*given)
        limited = RateLimitMiddleware(app, **settings, on_message_refused="drop")
        scope = {**WEBSOCKET, "client": (BOB, 1)}

        async def receive() -> Any:
            message = await wire.receive()
            while tasks := asyncio.all_tasks() - {asyncio.current_task(), talking}:  # looks
                await asyncio.wait(tasks)
            return message

        talking = asyncio.current_task()
        await limited(scope, receive, wire.send)
        return wire.answers

    assert asyncio.run(talk()) == ["one", "two", "three", "looks"]


async def answered(app: Any, *calls: tuple[str, Mapping[str, Any]]) -> list[Any]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        got = [(await client.post(path, json=call)).json() for path, call in calls]
    await looked()
    return got


async def looked() -> None:
    """Wait for the looks that requests have begun."""
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(tasks)


def test_the_service_follows_overrides(clock: Control, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"limits": "1/hour", "store": f"sqlite://{tmp_path}/limits.db", "store_timeout": 5.0}
    hit = "/v1/hit", {"limits": "1/hour", "key": "bob"}
    check = "/v1/check", {"path": "/", "ip": BOB}
    app = service(Settings(**settings))

    def allowed() -> list[bool]:
        clock.advance(1.0)
        asyncio.run(answered(app, hit, check))  # looks
        return [one["allowed"] for one in asyncio.run(answered(app, hit, check))]

    assert allowed() == [False, False]
    key = identity_hash("")("key=bob")
    assert key in {one.key for one in admin.keys(settings).keys}
    admin.set_override(settings, key=key, exempt=True)
    assert allowed() == [True, False]
    admin.set_override(settings, key=key, limits="3/hour")
    assert [allowed(), allowed(), allowed()] == [[True, False], [True, False], [False, False]]
    admin.set_override(settings, key=key, block=True)
    admin.switch(settings, "off")
    assert allowed() == [False, True]
    admin.clear_override(settings, key=key)
    assert allowed() == [True, True]
    admin.switch(settings, "shadow")
    assert allowed() == [True, True]


def test_reservations_follow_overrides(clock: Control, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"limits": [], "store": f"sqlite://{tmp_path}/limits.db", "store_timeout": 5.0}
    app = service(Settings(**settings))

    def reserved() -> dict[str, Any]:
        clock.advance(1.0)
        reserve = "/v1/reserve", {"limits": "1/hour", "key": "bob", "cost": 2}
        asyncio.run(answered(app, reserve))  # looks
        answer: dict[str, Any] = asyncio.run(answered(app, reserve))[0]
        return answer

    key = identity_hash("")("key=bob")
    assert (reserved()["id"], reserved()["allowed"]) == (None, False)
    admin.set_override(settings, key=key, exempt=True)
    assert (reserved()["id"], reserved()["allowed"]) == (None, True)
    admin.set_override(settings, key=key, block=True)
    assert (reserved()["id"], reserved()["allowed"]) == (None, False)
    admin.set_override(settings, key=key, limits="9/hour using fixed_window")
    found = reserved()
    assert (found["allowed"], found["remaining"]) == (True, 7)
    admin.clear_override(settings, key=key)  # the id keeps the limits under which it was reserved
    look = "/v1/peek", {"limits": "9/hour using fixed_window", "key": "bob"}
    cancel = "/v1/cancel", {"id": found["id"]}
    assert [one.get("remaining") for one in asyncio.run(answered(app, look, cancel, look))] == [7, None, 9]
    admin.switch(settings, "shadow")
    assert (reserved()["id"], reserved()["allowed"]) == (None, True)
    admin.switch(settings, "off")
    assert (reserved()["id"], reserved()["allowed"]) == (None, True)


def test_the_metric_counts_what_is_in_force(clock: Control, tmp_path: Path, counts: Registry) -> None:
    site = Site("wsgi", clock, f"sqlite://{tmp_path}/limits.db", metrics=True)
    admin.set_override(site.settings, ip=BOB, block=True, duration=60.0)
    admin.switch(site.settings, "off", rule="strict")

    def shown() -> dict[str, int]:
        return {labels[0]: count for (name, labels), count in counts.counts().items() if name == "ratelimit_overrides"}

    site.look()
    assert shown() == {"exempt": 0, "block": 1, "limits": 0, "off": 1, "shadow": 0}
    clock.advance(61.0)
    site.look()
    assert shown() == {"exempt": 0, "block": 0, "limits": 0, "off": 1, "shadow": 0}


def test_limits_on_endpoints_have_names(clock: Control, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"limits": [], "store": f"sqlite://{tmp_path}/limits.db", "store_timeout": 5.0}

    @limit("1/hour", name="search")
    async def search(_: Request) -> PlainTextResponse:
        return PlainTextResponse("found")

    app = Starlette(routes=[Route("/search", search)])
    app.add_middleware(RateLimitMiddleware, **settings)

    async def statuses(times: int) -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            got = [(await client.get("/search")).status_code for _ in range(times)]
        await looked()
        return got

    assert asyncio.run(statuses(2)) == [200, 429]
    for rule, expected in (("@search", [200, 200]), ("@other", [429, 429])):
        admin.clear_override(settings, everything=True)
        admin.set_override(settings, ip="127.0.0.1", rule=rule, exempt=True)
        clock.advance(1.0)
        asyncio.run(statuses(1))  # looks
        assert asyncio.run(statuses(2)) == expected

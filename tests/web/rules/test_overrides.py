"""Tests overrides and switches from the store to the response, in every framework."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import admin
from ratelimit_mw.testing import Control, freeze
from redis_servers import RedisServer
from web.faces import FACES
from web.scenario import Send, Step

pytestmark = pytest.mark.once

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

    def __init__(self, face: str, clock: Control, url: str) -> None:
        self.settings = {**SETTINGS, "store": url}
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
    assert site.ask(times=2) == [403, 403]
    assert site.ask("192.0.2.8") == [200]
    assert len(admin.clear_override(site.settings, ip="192.0.2.0/29").overrides) == 1
    site.look()
    assert site.ask(times=2) == [200, 429]


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

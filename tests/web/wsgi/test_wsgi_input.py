"""Input of the WSGI middleware from servers and users: addresses, paths, and settings that are invalid under WSGI."""

from functools import partial
from typing import Any

import pytest

from ratelimit_mw import ConfigError, MemoryStore
from ratelimit_mw.http.request import Request
from ratelimit_mw.testing import Clock
from web.wsgi_talk import Server, limited


@pytest.mark.promise(9)
@pytest.mark.parametrize("address", [None, "", "unix:", "192.0.2.1, 192.0.2.2"])
def test_clients_without_an_address_share_one_bucket(address: str | None) -> None:
    middleware = limited(limits="2/minute")
    statuses = []
    for _ in range(3):
        server = Server(REMOTE_ADDR=address)
        if address is None:
            del server.environ["REMOTE_ADDR"]
        server.ask(middleware)
        statuses.append(server.started[0][0][:3])
    assert statuses == ["200", "200", "429"]


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("path", "rule"),
    [
        (None, "root"),
        ("", "root"),
        ("/", "root"),
        ("/login", "login"),
        ("login", "login"),
        ("/caf\u00c3\u00a9", "coffee"),  # UTF-8 as latin-1, as PEP 3333 specifies
        ("/caf\u00e9", "default"),  # not UTF-8
        ("/\u00ff\u00fe/\u0080", "root"),  # not UTF-8, either: an app that ignores such bytes reads "//"
        ("*", "default"),
    ],
)
def test_paths_are_decoded_from_latin_1_to_utf_8(path: str | None, rule: str) -> None:
    rules = [
        {"path": "/", "limits": "9/minute"},
        {"path": "/login", "limits": "9/minute"},
        {"path": "/café", "limits": "9/minute", "name": "coffee"},
    ]
    server = Server()
    server.environ["PATH_INFO"] = path
    if path is None:
        del server.environ["PATH_INFO"]
    server.ask(limited(rules=rules))
    assert server.environ["ratelimit_mw"].verdict.rule == rule


async def later(request: Request) -> str:
    return request.path


class Later:
    async def __call__(self, request: Request) -> str:
        return request.path


class AsyncOnly:
    async def atake(self, charges: Any) -> Any: ...


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": later}, "key: got later, which is async; expected a plain function under WSGI"),
        ({"key": Later()}, "key: got Later, which is async; expected a plain function under WSGI"),
        ({"key": partial(later)}, "key: got partial, which is async; expected a plain function under WSGI"),
        (
            {"rules": [{"path": "/", "limits": [{"limit": "1/minute", "key": later}]}]},
            "key of rule root: got later, which is async; expected a plain function under WSGI",
        ),
        (
            {"store": AsyncOnly()},
            "store: got AsyncOnly, expected a URL or a Store with take(); WSGI cannot await",
        ),
        (
            {"limits": "1/0 minutes"},
            "limits: '1/0 minutes': window: got 0 seconds, expected one microsecond to a hundred years",
        ),
    ],
    ids=["async key", "async object", "async partial", "async key of an item", "async store", "wrong limit"],
)
def test_invalid_settings_raise_when_the_middleware_is_created(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        limited(**settings)
    assert str(caught.value) == message


def test_close_closes_only_a_store_that_the_middleware_created() -> None:
    given = MemoryStore(clock=Clock())
    own, lent = limited(store="memory://"), limited(store=given)
    for middleware in (own, lent):
        Server().ask(middleware)
        middleware.close()
    server = Server()
    server.ask(own)
    assert server.started[0][0] == "200 OK", "closing forgot what it had counted, and it can be used again"
    assert len(given) == 1

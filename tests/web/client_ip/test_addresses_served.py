"""Runs the table of addresses through the middleware, and checks which client the store charges."""

from typing import Any

import pytest

from ratelimit_mw import asgi, wsgi
from ratelimit_mw.testing import Clock, RecordingStore
from web.address_cases import ASGI_CASES, CASES, Case
from web.asgi_talk import HTTP, START, WEBSOCKET, App200, talk
from web.wsgi_talk import Server, hello, read

pytestmark = pytest.mark.promise(10)


def charged(store: RecordingStore) -> str:
    ((verb, (charge,)),) = store.calls
    assert verb == "take"
    return charge.key


def expected(case: Case) -> str:
    return f"{{ip={case.client}}}:default" if case.client else "{missing=ip}:default"


def settings_of(case: Case, store: RecordingStore) -> dict[str, Any]:
    return {"limits": "9/hour", "key": "ip", "plain_keys": True, "store": store, **case.settings}


@pytest.mark.parametrize("scope", [HTTP, WEBSOCKET], ids=["http", "websocket"])
@pytest.mark.parametrize("case", [*CASES, *ASGI_CASES], ids=lambda case: case.name)
def test_asgi_middleware_charges_the_expected_client(case: Case, scope: Any) -> None:
    store = RecordingStore(clock=Clock())
    app = App200() if scope is HTTP else App200({"type": "websocket.accept"})
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in case.headers]
    client = None if case.peer is None else (case.peer, 50000)
    spoken = talk(asgi.RateLimitMiddleware(app, **settings_of(case, store)), scope, headers=lines, client=client)
    assert spoken.types[0] in (START["type"], "websocket.accept")
    assert charged(store) == expected(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_wsgi_middleware_charges_the_expected_client(case: Case) -> None:
    store = RecordingStore(clock=Clock())
    environ: dict[str, Any] = {"REMOTE_ADDR": case.peer or ""}
    for name, value in case.headers:  # servers join repeated headers into one; PEP 3333 allows this
        variable = f"HTTP_{name.upper().replace('-', '_')}"
        environ[variable] = f"{environ[variable]},{value}" if variable in environ else value
    server = Server(**environ)
    assert read(server.ask(wsgi.RateLimitMiddleware(hello, **settings_of(case, store)))) == b"hello"
    assert charged(store) == expected(case)


def test_wsgi_request_without_remote_addr_is_charged_to_the_missing_key() -> None:
    store = RecordingStore(clock=Clock())
    server = Server()
    del server.environ["REMOTE_ADDR"]
    read(server.ask(wsgi.RateLimitMiddleware(hello, limits="9/hour", key="ip", plain_keys=True, store=store)))
    assert charged(store) == "{missing=ip}:default"

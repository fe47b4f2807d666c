"""Tests that a TCP client is refused, whatever its key, if it resets its connection before its address is read."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.wsgi import WsgiToAsgi
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import wsgi
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.http.views import is_wsgi_peer_lost
from ratelimit_mw.starlette import limit
from web.django_ask import hello as django_view
from web.django_site import OURS, wsgi_site
from web.wsgi_talk import hello

pytestmark = pytest.mark.promise(10)

LOST = ("127.0.0.1", 8000)  # what uvicorn reports as `server` of a TCP connection
UNIX = ("/run/app.sock", None)
GUNICORNS_UNIX = ("/", "r")  # what its ASGI worker reports for /run/app.sock
SETTINGS: list[dict[str, Any]] = [
    {},
    {"missing_key": "exempt"},
    {"key": "header:x-key", "blocklist": ["192.0.2.1"]},
    {"trusted_proxies": ["unix:"], "safelist": ["10.1.0.0/16"]},
    {"rules": [{"path": "/", "limits": "9/minute"}]},
]


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await PlainTextResponse("hello")(scope, receive, send)


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


def dependency() -> FastAPI:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("9/minute"))])
    async def view() -> str:
        return "hello"

    return app


def flask(settings: dict[str, Any]) -> Any:
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "hello")
    RateLimiter(app, limits="9/minute", **settings)
    return app


def django(settings: dict[str, Any]) -> Any:
    return wsgi_site([path("", django_view)], {"limits": "9/minute", **settings}, (OURS,))


UNDER_WSGI: dict[str, Callable[[dict[str, Any]], Any]] = {
    "wsgi": lambda settings: wsgi.RateLimitMiddleware(hello, limits="9/minute", **settings),
    "flask": flask,
    "django": django,
}


def status(app: Any, server: tuple[str, int | str | None] | None, client: tuple[str, int] | None = None) -> int:
    """Return the status of one request. Without `client`, the client is lost if the server is a TCP socket."""
    headers = [(b"host", b"h"), (b"x-key", b"k"), (b"x-forwarded-for", b"10.1.2.3")]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "GET",
        "path": "/", "raw_path": b"/", "query_string": b"", "root_path": "", "headers": headers, "client": client,
        "server": server,
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    found: int = sent[0]["status"]
    return found


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_asgi_middleware_refuses_lost_clients(settings: dict[str, Any]) -> None:
    app = RateLimitMiddleware(plain, limits="9/minute", **settings)
    assert status(app, LOST, ("192.0.2.7", 5)) == 200  # completes the checks of the first request
    assert status(app, LOST) == 403
    assert status(app, UNIX) == 200
    assert status(app, GUNICORNS_UNIX) == 200
    assert status(app, None) == 200


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("make", UNDER_WSGI.values(), ids=UNDER_WSGI)
def test_wsgi_apps_of_an_asgi_server_refuse_lost_clients(make: Callable[[Any], Any], settings: dict[str, Any]) -> None:
    app = WsgiToAsgi(make(settings))  # type: ignore[no-untyped-call]  # asgiref has no types
    assert status(app, LOST, ("192.0.2.7", 5)) == 200
    assert status(app, LOST) == 403
    assert status(app, ("::1", 8000)) == 403
    assert status(app, UNIX) == 200
    assert status(app, GUNICORNS_UNIX) == 200
    assert status(app, None) == 200


@pytest.mark.parametrize(
    ("changed", "is_lost"),
    [
        ({}, True),
        ({"REMOTE_ADDR": ""}, True),
        ({"REMOTE_ADDR": "192.0.2.7"}, False),
        ({"SERVER_NAME": "localhost"}, False),
        ({"SERVER_SOFTWARE": "gunicorn/27.0.1"}, False),  # gunicorn may read SERVER_NAME from the client
        ({"wsgi.multiprocess": False}, False),
        ({"wsgi.multithread": False}, False),
    ],
)
def test_is_wsgi_peer_lost_is_true_only_for_adapters_of_asgi_servers(changed: dict[str, Any], is_lost: bool) -> None:
    adapter = {"SERVER_NAME": "127.0.0.1", "wsgi.multithread": True, "wsgi.multiprocess": True}
    assert is_wsgi_peer_lost({**adapter, **changed}) is is_lost


def test_shadow_middleware_does_not_refuse_lost_clients() -> None:
    assert status(RateLimitMiddleware(plain, limits="9/minute", shadow=True), LOST) == 200


def test_disabled_middleware_does_not_refuse_lost_clients() -> None:
    assert status(RateLimitMiddleware(plain, limits="9/minute", enabled=False), LOST) == 200


@pytest.mark.parametrize(
    "app",
    [lambda: Starlette(routes=[Route("/", limit("9/minute")(home))]), dependency],
    ids=["starlette", "fastapi"],
)
def test_endpoint_limits_refuse_lost_clients(app: Any) -> None:
    made = app()
    assert status(made, UNIX) == 200
    assert status(made, GUNICORNS_UNIX) == 200
    assert status(made, LOST) == 403
    assert status(made, LOST, ("192.0.2.7", 5)) == 200

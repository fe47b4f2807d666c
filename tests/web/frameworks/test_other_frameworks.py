"""Tests the middleware with frameworks that have no integration: it wraps them like any ASGI or WSGI app."""

import asyncio
from collections.abc import Callable
from typing import Any

import bottle  # type: ignore[import-untyped]  # it has no types
import falcon
import falcon.asgi
import httpx
import litestar
import pytest
import quart
from werkzeug.test import Client

from ratelimit_mw import asgi, wsgi

SETTINGS: dict[str, Any] = {"limits": "2/minute", "rules": [{"path": "/free", "exempt": True}]}


def of_litestar() -> Any:
    @litestar.get(["/", "/free"], sync_to_thread=False)
    def home() -> str:
        return "hello"

    # Litestar's log configuration would set the level of the root logger
    return litestar.Litestar([home], openapi_config=None, logging_config=None)


def of_quart() -> Any:
    app = quart.Quart(__name__)

    @app.get("/")
    @app.get("/free")
    async def home() -> str:
        return "hello"

    return app


class Home:
    """A resource of Falcon."""

    def on_get(self, _: Any, response: Any) -> None:
        response.text = "hello"


class AsyncHome:
    """A resource of Falcon for ASGI."""

    async def on_get(self, _: Any, response: Any) -> None:
        response.text = "hello"


def routed(app: Any, home: Any) -> Any:
    for one in ("/", "/free"):
        app.add_route(one, home)
    return app


def of_bottle() -> Any:
    app = bottle.Bottle()
    app.route(["/", "/free"], callback=lambda: "hello")
    return app


PATHS = ["/", "/free", "/", "/", "/free", "/none"]
ASGI: dict[str, Callable[[], Any]] = {
    "litestar": of_litestar,
    "quart": of_quart,
    "falcon": lambda: routed(falcon.asgi.App(), AsyncHome()),
}
WSGI: dict[str, Callable[[], Any]] = {"bottle": of_bottle, "falcon": lambda: routed(falcon.App(), Home())}
EXPECTED = [(200, "1"), (200, None), (200, "0"), (429, "0"), (200, None), (429, "0")]


def left(header: str | None) -> str | None:
    """Return the `r` parameter of a RateLimit field."""
    return None if header is None else header.partition("r=")[2].partition(";")[0]


@pytest.mark.promise(9)
@pytest.mark.parametrize("make", ASGI.values(), ids=ASGI)
def test_requests_are_limited_in_asgi_frameworks_without_an_integration(make: Callable[[], Any]) -> None:
    app = asgi.RateLimitMiddleware(make(), SETTINGS)

    async def talk() -> list[tuple[int, str | None]]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            answers = [await client.get(one) for one in PATHS]
        return [(answer.status_code, left(answer.headers.get("ratelimit"))) for answer in answers]

    assert asyncio.run(talk()) == EXPECTED


@pytest.mark.promise(9)
@pytest.mark.parametrize("make", WSGI.values(), ids=WSGI)
def test_requests_are_limited_in_wsgi_frameworks_without_an_integration(make: Callable[[], Any]) -> None:
    client = Client(wsgi.RateLimitMiddleware(make(), SETTINGS))
    answers = [client.get(one) for one in PATHS]
    assert [(answer.status_code, left(answer.headers.get("RateLimit"))) for answer in answers] == EXPECTED


class _Echo:
    """A resource of Falcon that answers with the parameters of its path."""

    def on_get(self, _: Any, response: Any, **parameters: str) -> None:
        response.text = repr(parameters)


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("path", "found"), [("/t/ann//", "{'user': 'ann', 'code': ''}"), ("/t//1234/", "{'user': '', 'code': '1234'}")]
)
def test_falcon_that_drops_a_slash_at_the_end_has_no_unlimited_spelling(path: str, found: str) -> None:
    app = falcon.App()
    app.add_route("/t/{user}/{code}", _Echo())
    app.req_options.strip_url_path_trailing_slash = True
    rule = {"path": "/t/{user}/{code}", "limits": "2/minute"}
    limited = wsgi.RateLimitMiddleware(app, limits="99/minute", rules=[rule])
    answers = [Client(limited).get("/", environ_overrides={"PATH_INFO": path}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].text == found

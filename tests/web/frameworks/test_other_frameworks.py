"""Tests the middleware with frameworks that have no integration: it wraps them like any ASGI or WSGI app."""

import asyncio
import gc
import logging
import pickle
from collections.abc import Callable
from typing import Any

import bottle  # type: ignore[import-untyped]  # it has no types
import falcon
import falcon.asgi
import flask
import httpx
import litestar
import pytest
import quart
from django.http import HttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client

from ratelimit_mw import MemoryStore, RateLimited, Verdict, asgi, wsgi
from ratelimit_mw.testing import Clock
from web.asgi_talk import HTTP, talk
from web.django_site import asgi_site, wsgi_site

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


class Charge:
    """A resource of Falcon that charges units of the app's own."""

    def on_get(self, request: Any, response: Any) -> None:
        request.env["ratelimit_mw"].charge("2/hour", key="a")
        response.text = "hello"


class AsyncCharge:
    """The same for ASGI."""

    async def on_get(self, request: Any, response: Any) -> None:
        await request.scope["ratelimit_mw"].charge("2/hour", key="a")
        response.text = "hello"


def charging_litestar() -> Any:
    @litestar.get("/charge")
    async def charge(request: litestar.Request[Any, Any, Any]) -> str:
        scope: Any = request.scope
        await scope["ratelimit_mw"].charge("2/hour", key="a")
        return "hello"

    return litestar.Litestar([charge], openapi_config=None, logging_config=None)


def charging_quart() -> Any:
    app = quart.Quart(__name__)

    @app.get("/charge")
    async def charge() -> str:
        scope: Any = quart.request.scope
        await scope["ratelimit_mw"].charge("2/hour", key="a")
        return "hello"

    return app


async def charging_in_tasks(scope: Any, receive: Any, send: Any) -> None:
    async def charge() -> None:
        await scope["ratelimit_mw"].charge("2/hour", key="a")
        await PlainTextResponse("hello")(scope, receive, send)

    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        inner.create_task(charge())
        outer.create_task(asyncio.sleep(0))


async def charge_in_starlette(request: Any) -> Any:
    await request.scope["ratelimit_mw"].charge("2/hour", key="a")
    return PlainTextResponse("hello")


def charging_django() -> Any:
    async def charge(request: Any) -> Any:
        await request.scope["ratelimit_mw"].charge("2/hour", key="a")
        return HttpResponse("hello")

    return asgi_site([path("charge", charge)], None, middleware=[])


def charging_django_wsgi() -> Any:
    def charge(request: Any) -> Any:
        request.environ["ratelimit_mw"].charge("2/hour", key="a")
        return HttpResponse("hello")

    return wsgi_site([path("charge", charge)], None, middleware=[])


def charging_bottle() -> Any:
    app = bottle.Bottle()

    def charge() -> str:
        bottle.request.environ["ratelimit_mw"].charge("2/hour", key="a")
        return "hello"

    app.route("/charge", callback=charge)
    return app


def charging_falcon(app: Any, resource: Any) -> Any:
    app.add_route("/charge", resource)
    return app


CHARGING_ASGI: dict[str, Callable[[], Any]] = {
    "tasks": lambda: charging_in_tasks,
    "litestar": charging_litestar,
    "quart": charging_quart,
    "falcon": lambda: charging_falcon(falcon.asgi.App(), AsyncCharge()),
    "starlette": lambda: Starlette(routes=[Route("/charge", charge_in_starlette)]),
    "django": charging_django,
}
CHARGING_WSGI: dict[str, Callable[[], Any]] = {
    "bottle": charging_bottle,
    "falcon": lambda: charging_falcon(falcon.App(), Charge()),
    "django": charging_django_wsgi,
}
REFUSED_THIRD = [(200, None), (200, None), (429, "3600")]
styles = pytest.mark.parametrize("style", ["ietf", "legacy", "none"])
limited_or_not = pytest.mark.parametrize("limits", ["9/minute", []], ids=["limited", "unlimited"])


async def three_charges(app: Any) -> list[tuple[int, str | None]]:
    """Return status and Retry-After of three requests."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app") as client:
        answers = [await client.get("/charge") for _ in range(3)]
    return [(answer.status_code, answer.headers.get("retry-after")) for answer in answers]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Django leaves its body file to Python
@styles
@limited_or_not
@pytest.mark.parametrize("make", CHARGING_ASGI.values(), ids=CHARGING_ASGI)
def test_a_refused_charge_is_a_429_in_asgi_frameworks_that_make_a_500_of_errors(
    make: Callable[[], Any], limits: Any, style: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "django.request")  # its records would keep the request, and thus the file
    app = asgi.RateLimitMiddleware(make(), limits=limits, headers=style, store=MemoryStore(clock=Clock()))

    assert asyncio.run(three_charges(app)) == REFUSED_THIRD
    gc.collect()  # here, where a warning of the file is ignored


def test_a_group_with_another_error_than_a_refused_charge_is_raised() -> None:
    async def failing(scope: Any, receive: Any, send: Any) -> None:
        raise ExceptionGroup("of tasks", [RateLimited(Verdict(False, (), (), "charge")), OSError()])

    app = asgi.RateLimitMiddleware(failing, limits="9/minute")
    with pytest.raises(ExceptionGroup, match="of tasks"):
        talk(app, HTTP)


@styles
@limited_or_not
@pytest.mark.parametrize("make", CHARGING_WSGI.values(), ids=CHARGING_WSGI)
def test_a_refused_charge_is_a_429_in_wsgi_frameworks_that_make_a_500_of_errors(
    make: Callable[[], Any], limits: Any, style: Any
) -> None:
    client = Client(wsgi.RateLimitMiddleware(make(), limits=limits, headers=style, store=MemoryStore(clock=Clock())))
    answers = [client.get("/charge") for _ in range(3)]
    assert [(answer.status_code, answer.headers.get("Retry-After")) for answer in answers] == REFUSED_THIRD


def charging_flask() -> Any:
    app = flask.Flask(__name__)

    @app.get("/charge")
    def charge() -> str:
        flask.request.environ["ratelimit_mw"].charge("2/hour", key="a")
        return "hello"

    return app


def test_flask_and_quart_log_no_refused_charge(caplog: pytest.LogCaptureFixture) -> None:
    client = Client(wsgi.RateLimitMiddleware(charging_flask(), limits="9/minute"))
    refused = [client.get("/charge") for _ in range(3)][2]
    assert (refused.status_code, (refused.get_json() or {}).get("violated-policies")) == (429, ["charge"])
    app = asgi.RateLimitMiddleware(charging_quart(), limits="9/minute", store=MemoryStore(clock=Clock()))
    assert asyncio.run(three_charges(app)) == REFUSED_THIRD
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_an_error_handler_of_flask_may_answer_a_refused_charge() -> None:
    app = charging_flask()
    errors = []

    def busy(error: RateLimited) -> tuple[str, int]:
        errors.append(pickle.loads(pickle.dumps(error)))  # noqa: S301  # its own
        return "busy", 420

    app.register_error_handler(RateLimited, busy)
    client = Client(wsgi.RateLimitMiddleware(app, limits="9/minute"))
    assert [client.get("/charge").status_code for _ in range(3)] == [200, 200, 420]
    assert str(errors[0]).startswith("rate limited: retry after 3")


class _Echo:
    """A resource of Falcon that answers with the parameters of its path."""

    def on_get(self, _: Any, response: Any, **parameters: str) -> None:
        response.text = repr(parameters)


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("spelling", "found"), [("/t/ann//", "{'user': 'ann', 'code': ''}"), ("/t//1234/", "{'user': '', 'code': '1234'}")]
)
def test_falcon_that_drops_a_slash_at_the_end_has_no_unlimited_spelling(spelling: str, found: str) -> None:
    app = falcon.App()
    app.add_route("/t/{user}/{code}", _Echo())
    app.req_options.strip_url_path_trailing_slash = True
    rule = {"path": "/t/{user}/{code}", "limits": "2/minute"}
    limited = wsgi.RateLimitMiddleware(app, limits="99/minute", rules=[rule])
    answers = [Client(limited).get("/", environ_overrides={"PATH_INFO": spelling}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].text == found

"""Tests that `Limiter.limit`, which is for jobs, is reported on an endpoint, which needs another `limit`."""
# The decorators are parameters, so mypy does not know their types.
# mypy: disable-error-code="untyped-decorator"

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio.to_thread
import pytest
from django.http import HttpResponse
from django.urls import path
from django.views import View
from fastapi import APIRouter, FastAPI
from flask import Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter
from web.asgi_talk import HTTP, talk
from web.django_site import wsgi_site
from web.wsgi_talk import Server, read

USE = "for web endpoints use `limit` of ratelimit_mw.fastapi, starlette, flask or django"
WARNING = (
    "ratelimit_mw: limit of Limiter is on {}, a web endpoint: all clients share its bucket, and a refused one "
    f"gets 500; {USE}"
)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about a `Limiter`. The first request to Django also reports limits of other tests."""
    return [text for text in caplog.messages if "Limiter" in text]


def in_asgi(app: Any) -> Any:
    return talk(app, HTTP, path="/", query_string=b"").sent[0]["status"]


def in_flask(app: Flask) -> Any:
    return app.test_client().get("/").status_code


def in_django(view: Any) -> Any:
    server = Server()
    read(server.ask(wsgi_site([path("", view)], None, ())))
    return int(server.started[0][0][:3])


def fastapi_async(_: Any, **options: Any) -> Any:
    app = FastAPI()

    @app.get("/")
    @AsyncLimiter().limit("9/minute", **options)
    async def home() -> str:
        return "x"

    return partial(in_asgi, app), home


def starlette_plain(limited: Any) -> Any:
    @limited
    def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.method)

    return partial(in_asgi, Starlette(routes=[Route("/", home)])), home


def starlette_async(_: Any) -> Any:
    @AsyncLimiter().limit("9/minute")
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.method)

    return partial(in_asgi, Starlette(routes=[Route("/", home)])), home


def starlette_class(_: Any) -> Any:
    class Home(HTTPEndpoint):
        @AsyncLimiter().limit("9/minute")
        async def get(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse(request.method)

    return partial(in_asgi, Starlette(routes=[Route("/", Home)])), Home.get


def flask_view(limited: Any) -> Any:
    app = Flask(__name__)

    @app.get("/")
    @limited
    def home() -> str:
        return "x"

    return partial(in_flask, app), home


def flask_class(limited: Any) -> Any:
    class Home(MethodView):
        @limited
        def get(self) -> str:
            return "x"

    app = Flask(__name__)
    app.add_url_rule("/", view_func=Home.as_view("home"))
    return partial(in_flask, app), Home.get


def django_view(limited: Any) -> Any:
    @limited
    def home(request: Any) -> HttpResponse:
        return HttpResponse(request.method)

    return partial(in_django, home), home


def django_class(limited: Any) -> Any:
    class Home(View):
        @limited
        def get(self, request: Any) -> HttpResponse:
            return HttpResponse(request.method)

    return partial(in_django, Home.as_view()), Home.get


MISUSES = [
    fastapi_async,
    starlette_plain,
    starlette_async,
    starlette_class,
    flask_view,
    flask_class,
    django_view,
    django_class,
]


@pytest.mark.parametrize("make", MISUSES, ids=lambda make: make.__name__)
def test_a_limiter_without_a_key_on_an_endpoint_is_logged_once(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    ask, endpoint = make(Limiter().limit("9/minute"))
    assert warnings(caplog) == []
    assert [ask(), ask()] == [200, 200]
    assert warnings(caplog) == [WARNING.format(endpoint.__qualname__)]


@pytest.mark.parametrize("make", [starlette_plain, flask_view, django_view], ids=lambda one: one.__name__)
def test_a_limiter_with_a_key_on_an_endpoint_is_not_logged(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    ask, _ = make(Limiter().limit("9/minute", key="page"))
    assert ask() == 200
    assert warnings(caplog) == []


def test_a_limiter_on_a_function_that_an_endpoint_calls_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Functions that an endpoint calls directly, in a thread, or after the response are not reported."""
    done: list[int] = []

    @Limiter().limit("9/minute")
    def job(number: int) -> None:
        done.append(number)

    @AsyncLimiter().limit("9/minute")
    async def later(number: int) -> None:
        done.append(number)

    async def home(_: Request) -> PlainTextResponse:
        job(1)
        await anyio.to_thread.run_sync(job, 2)
        return PlainTextResponse("x", background=BackgroundTask(later, 3))

    assert in_asgi(Starlette(routes=[Route("/", home)])) == 200
    assert done == [1, 2, 3]
    assert warnings(caplog) == []


def above_fastapi() -> Any:
    app = FastAPI()

    @app.get("/home")
    def home() -> str:
        return "x"

    return Limiter().limit("9/minute")(home)


def above_a_router() -> Any:
    router = APIRouter()

    @router.get("/home")
    async def home() -> str:
        return "x"

    return Limiter().limit("9/minute")(home)


def above_flask() -> Any:
    app = Flask(__name__)

    @app.get("/home")
    def home() -> str:
        return "x"

    return Limiter().limit("9/minute", key="page")(home)


@pytest.mark.promise(9)
@pytest.mark.parametrize("make", [above_fastapi, above_a_router, above_flask], ids=lambda make: make.__name__)
def test_a_limiter_above_the_route_decorator_raises_a_config_error(make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == (
        f"limit: got {make.__name__}.<locals>.home, which is registered for /home already, without this limit; {USE}, "
        "below what registers the route"
    )


def test_a_limiter_on_a_function_that_is_no_endpoint_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()
    app.get("/home")(lambda: "x")
    with caplog.at_level(logging.WARNING):
        assert Limiter().limit("9/minute")(lambda: len(app.routes) > 0)() is True
    assert warnings(caplog) == []

"""In headers, a limit on an endpoint is named after the route; its bucket is named after the endpoint."""

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpResponse
from django.urls import path
from django.views import View
from fastapi import Depends, FastAPI
from flask import Blueprint, Flask
from flask.views import MethodView
from msgspec import json
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratelimit_mw import asgi, django, fastapi, starlette
from ratelimit_mw import flask as ours
from ratelimit_mw.testing import Clock, RecordingStore
from web.django_ask import settings, under_asgi, under_wsgi
from web.faces import _over_httpx, _over_werkzeug
from web.scenario import Answer, Step

RULES = [{"path": "/login", "methods": ["POST"], "limits": "7/minute; 70/hour"}]
Ask = Callable[[str, str], Answer]


def django_app(under: Any, options: Any) -> Ask:
    @django.limit("5/minute")
    def item(request: Any, **_: Any) -> HttpResponse:
        return HttpResponse("hello")

    @django.limit("4/minute")
    class Login(View):
        @django.limit("3/minute")
        def post(self, request: Any) -> HttpResponse:
            return HttpResponse("hello")

    # as if defined at the top level of a views module
    item.__module__, item.__qualname__ = "shop.views", "item"
    Login.__module__, Login.__qualname__ = "shop.views", "Login"
    urls = [path("items/<int:id>", item), path("old/items/<int:id>", item), path("login", Login.as_view())]
    ask = under(urls, options)
    return lambda method, where: ask(where, method)


def flask_app(options: Any) -> Ask:
    app, shop = Flask("shop"), Blueprint("shop", "shop")

    @shop.get("/old/items/<int:id>")
    @shop.get("/items/<int:id>")
    @ours.limit("5/minute")
    def item(id: int) -> str:  # noqa: A002  # as the route calls it
        return "hello"

    class Login(MethodView):
        decorators = [ours.limit("4/minute")]  # noqa: RUF012  # as Flask types it

        @ours.limit("3/minute", final=False)
        def post(self) -> str:
            return "hello"

    shop.add_url_rule("/login", view_func=Login.as_view("login"))
    app.register_blueprint(shop)
    ours.RateLimiter(app, options)
    ask = _over_werkzeug(app)
    return lambda method, where: ask(Step(path=where, method=method))


def starlette_app(options: Any) -> Ask:
    @starlette.limit("5/minute")
    async def item(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    @starlette.limit("4/minute")
    @starlette.limit("3/minute")
    class Login(HTTPEndpoint):
        async def post(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse("hello")

    routes = [
        Route("/items/{id:int}", item),
        Mount("/old", routes=[Route("/items/{id:int}", item)]),
        Route("/login", Login, methods=["POST"]),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(asgi.RateLimitMiddleware, **options)])
    ask = _over_httpx(app)
    return lambda method, where: ask(Step(path=where, method=method))


def fastapi_app(options: Any) -> Ask:
    app = FastAPI()

    @app.get("/items/{id}")
    @app.get("/old/items/{id}")
    @fastapi.limit("5/minute")
    async def item(request: Request, id: int) -> PlainTextResponse:  # noqa: A002
        return PlainTextResponse("hello")

    @app.post("/login", dependencies=[Depends(fastapi.RateLimit("4/minute")), Depends(fastapi.RateLimit("3/minute"))])
    async def login() -> PlainTextResponse:
        return PlainTextResponse("hello")

    app.add_middleware(asgi.RateLimitMiddleware, **options)
    ask = _over_httpx(app)
    return lambda method, where: ask(Step(path=where, method=method))


def named(answer: Answer) -> set[str]:
    """Return the names of all limits in the headers of a response."""
    (line,) = answer.field("ratelimit-policy")
    names = [item.split('"')[1] for item in line.split(", ")]
    assert len(set(names)) == len(names)
    return set(names)


APPS: dict[str, tuple[Callable[[Any], Ask], str, str]] = {
    "django under WSGI": (lambda own: django_app(under_wsgi, own), "items_int_id", "old_items_int_id"),
    "django under ASGI": (lambda own: django_app(under_asgi, own), "items_int_id", "old_items_int_id"),
    "flask": (flask_app, "GET_items_int_id", "GET_old_items_int_id"),
    "starlette": (starlette_app, "GET_items_id", "GET_old_items_id"),
    "fastapi": (fastapi_app, "GET_items_id", "GET_old_items_id"),
}


@pytest.mark.parametrize(("app", "name", "old"), APPS.values(), ids=APPS)
def test_each_route_has_its_name_and_all_share_the_endpoints_bucket(app: Any, name: str, old: str) -> None:
    ask = app({"limits": [], "store": RecordingStore(clock=Clock())})
    answers = [ask("GET", f"{start}/items/7") for start in ("/old", "", "/old", "", "/old", "")]
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    assert [named(answer) for answer in answers] == [{old}, {name}] * 3
    assert json.decode(answers[5].body)["violated-policies"] == [name]


@pytest.mark.parametrize("app", [row[0] for row in APPS.values()], ids=APPS)
def test_limits_in_one_response_have_distinct_names(app: Any) -> None:
    """Their names also differ from those of a rule's two limits on the same route."""
    ask = app({"limits": [], "rules": RULES, "store": RecordingStore(clock=Clock())})
    names = named(ask("POST", "/login"))
    assert names >= {"POST_login", "POST_login-2"}
    assert names - {"POST_login", "POST_login-2"} <= {"login", "POST_login-3", "POST_login-4"}
    assert len(names) == 4


def test_a_throttle_is_named_after_its_class_without_the_module() -> None:
    class Burst(django.Throttle):
        limits = "2/minute"

    class Throttled(APIView):
        throttle_classes: Any = (Burst,)
        authentication_classes: Any = ()

        def get(self, request: Any) -> HttpResponse:
            return HttpResponse("hello")

    ask = under_wsgi([path("x", Throttled.as_view())], settings(RecordingStore(clock=Clock()), limits=[]))
    assert named(ask("/x")) == {"Burst"}


def test_without_a_known_route_a_limit_is_named_after_its_function() -> None:
    @starlette.limit("5/minute", store=RecordingStore(clock=Clock()))
    async def home(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await (await home(Request(scope, receive)))(scope, receive, send)

    assert named(_over_httpx(app)(Step())) == {"home"}

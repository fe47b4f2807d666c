"""Tests that requests do not enter the package `checks`, and that it finds the statement that calls the package."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from django.http import HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import ratelimit_mw.checks
from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.checks.decorators import applied_at
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.starlette import limit
from web.asgi_talk import HTTP, talk
from web.django_site import wsgi_site
from web.wsgi_talk import Server, limited, read

CHECKS = str(Path(ratelimit_mw.checks.__file__).parent)
LIMITS: dict[str, Any] = {"limits": "9/hour", "rules": [{"path": "/", "limits": "2/hour", "final": False}]}
Ask = Callable[[], int]


def of_asgi(app: Any) -> Ask:
    inside = RateLimitMiddleware(app, **LIMITS)
    return lambda: int(talk(inside, HTTP, query_string=b"").sent[0]["status"])


def of_wsgi(app: Any) -> Ask:
    def ask() -> int:
        server = Server()
        read(server.ask(app))
        return int(server.started[0][0][:3])

    return ask


def starlette() -> Ask:
    @limit("9/hour")
    async def home(_: Request) -> PlainTextResponse:
        return PlainTextResponse("x")

    return of_asgi(Starlette(routes=[Route("/", home)]))


def fastapi() -> Ask:
    app = FastAPI(dependencies=[Depends(RateLimit("9/hour"))])

    @app.get("/")
    async def home() -> str:
        return "x"

    return of_asgi(app)


def flask() -> Ask:
    app = Flask(__name__)
    limiter = RateLimiter(app, **LIMITS)

    @app.get("/")
    @limiter.limit("9/hour")
    def home() -> str:
        return "x"

    return lambda: app.test_client().get("/").status_code


def django() -> Ask:
    @django_limit("9/hour")
    def home(_: Any) -> HttpResponse:
        return HttpResponse("x")

    return of_wsgi(wsgi_site([path("", home)], LIMITS))


@pytest.mark.parametrize("make", [starlette, fastapi, lambda: of_wsgi(limited(**LIMITS)), flask, django])
def test_no_request_but_the_first_enters_the_package(make: Callable[[], Ask]) -> None:
    """The first request finishes the start: it shows the routes of the app and the limits on its endpoints."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(CHECKS):
            entered.append(frame.f_code.co_qualname)

    ask = make()
    assert ask() == 200
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        assert [ask(), ask()] == [200, 429]
    finally:
        sys.setprofile(before)
    assert entered == []


def test_the_statement_outside_the_package_is_found() -> None:
    variable = object()
    place = applied_at()
    assert (place.file, place.line) == (__file__, sys._getframe().f_lineno - 1)
    assert place.variables["variable"] is variable
    assert place.variables["CHECKS"] is CHECKS


@pytest.mark.parametrize("wrong", [RateLimit, limit("5/minute")], ids=["class", "decorator"])
def test_a_limit_that_is_no_dependency_cannot_be_built_as_a_parameter(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"as a dependency: did you mean Depends\(RateLimit\("):
        FastAPI(dependencies=[Depends(wrong)]).get("/")(lambda: "x")

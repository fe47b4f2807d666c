"""A refused charge is a 429 on endpoints with limits of their own, with and without a middleware, and in Django."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest
from django.http import HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI
from rest_framework.response import Response as RestResponse
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import AsyncLimiter, Concurrency, MemoryStore, asgi
from ratelimit_mw.core.verdict import RateLimited
from ratelimit_mw.fastapi import RateLimit as Dependency
from ratelimit_mw.starlette import RateLimit, limit
from ratelimit_mw.testing import Clock, RecordingStore
from web.django_ask import Site, settings, under_asgi, under_wsgi
from web.django_site import LOGIN, OURS

Make = Callable[[MemoryStore], Any]


async def charge(request: Request) -> PlainTextResponse:
    await request.state.ratelimit.charge("2/hour", key="a")
    return PlainTextResponse("hello")


def charge_in_thread(request: Request) -> PlainTextResponse:
    request.state.ratelimit.charge("2/hour", key="a")
    return PlainTextResponse("hello")


def of_fastapi(store: MemoryStore) -> Any:
    app = FastAPI()
    app.add_api_route("/", charge, dependencies=[Depends(Dependency("9/minute", store=store))])
    return app


def of_function(store: MemoryStore) -> Any:
    return Starlette(routes=[Route("/", limit("9/minute", store=store)(charge))])


def of_thread(store: MemoryStore) -> Any:
    return Starlette(routes=[Route("/", limit("9/minute", store=store)(charge_in_thread))])


def of_route(store: MemoryStore) -> Any:
    return Starlette(routes=[Route("/", charge, middleware=[Middleware(RateLimit, "9/minute", store=store)])])


def of_class(store: MemoryStore) -> Any:
    @limit("9/minute", store=store)
    class Charge(HTTPEndpoint):
        async def get(self, request: Request) -> PlainTextResponse:
            return await charge(request)

    return Starlette(routes=[Route("/", Charge)])


def answers(app: Any) -> list[tuple[int, str | None, str | None]]:
    """Return status, Retry-After and RateLimit of three requests."""

    async def talk() -> list[tuple[int, str | None, str | None]]:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            found = [await client.get("/") for _ in range(3)]
        return [(one.status_code, one.headers.get("retry-after"), one.headers.get("ratelimit")) for one in found]

    return asyncio.run(talk())


@pytest.mark.parametrize("make", [of_fastapi, of_function, of_thread, of_route, of_class])
def test_a_refused_charge_is_a_429_where_only_the_endpoint_is_limited(make: Make) -> None:
    first, second, refused = answers(make(MemoryStore(clock=Clock())))
    assert (first[:2], second[:2], refused[:2]) == ((200, None), (200, None), (429, "3600"))
    assert (refused[2] or "").startswith('"charge";r=0;t=3600')


@pytest.mark.parametrize("make", [of_fastapi, of_function, of_thread, of_route, of_class])
def test_the_middleware_answers_a_refused_charge_of_a_limited_endpoint(make: Make) -> None:
    store = MemoryStore(clock=Clock())
    app = asgi.RateLimitMiddleware(make(store), limits="5/minute", store=store, on_refused=busy)
    assert [one[0] for one in answers(app)] == [200, 200, 420]


def test_the_refusal_of_a_limiter_has_its_own_name_beside_those_of_the_middleware() -> None:
    store = MemoryStore(clock=Clock())
    limiter = AsyncLimiter(store)

    async def second_slot(_: Request) -> PlainTextResponse:
        async with limiter.slot(Concurrency(1, name="model"), "m"), limiter.slot(Concurrency(1, name="model"), "m"):
            return PlainTextResponse("hello")

    limits: list[Any] = ["9/minute using fixed_window", {"limit": "20/hour using fixed_window", "name": "hourly"}]
    cases: list[tuple[dict[str, Any], int, tuple[int, int]]] = [
        ({}, 429, (8, 19)),
        ({"on_refused": named}, 420, (5, 16)),
    ]
    for options, status, left in cases:
        app = Starlette(routes=[Route("/", second_slot)])
        app.add_middleware(asgi.RateLimitMiddleware, limits=limits, store=store, **options)
        shown = '"model";r=0;t=1, "default";r={};t=60, "hourly";r={};t=3600'
        assert answers(app)[0] == (status, "1", shown.format(*left))


def named(request: Any, verdict: Any) -> tuple[int, dict[str, str], str]:
    return 420 if verdict.limit_name == "model" else 421, {}, ""


def busy(request: Any, verdict: Any) -> tuple[int, dict[str, str], str]:
    return 420, {}, f"{request.path} {verdict.rule}"


def test_an_app_of_fastapi_may_handle_a_refused_charge_itself() -> None:
    app = of_fastapi(MemoryStore(clock=Clock()))
    app.add_exception_handler(RateLimited, lambda *_: PlainTextResponse("busy", 420))
    assert [one[0] for one in answers(app)] == [200, 200, 420]


def charging(get_response: Any) -> Any:
    """A middleware of a Django project that charges."""

    def respond(request: Any) -> Any:
        request.ratelimit.charge("2/hour", key="a")
        return get_response(request)

    return respond


def going_on(get_response: Any) -> Any:
    """A middleware of a Django project that charges, and admits a request whose charge is refused."""

    def respond(request: Any) -> Any:
        with suppress(RateLimited):
            request.ratelimit.charge("2/hour", key="a")
        return get_response(request)

    return respond


@pytest.mark.parametrize("site", [under_wsgi, under_asgi], ids=["wsgi", "asgi"])
def test_a_refused_charge_that_the_app_handles_takes_no_request_from_the_limits(site: Site) -> None:
    found = settings(RecordingStore(clock=Clock()), limits="4/minute using fixed_window")
    ask = site([path("", lambda _: HttpResponse("hello"))], found, LOGIN, OURS, f"{__name__}.going_on")
    assert [ask().status for _ in range(6)] == [200, 200, 200, 200, 429, 429]


class OwnErrors(APIView):
    """A view whose handler of errors answers each one with 500."""

    def get_exception_handler(self) -> Any:
        return lambda *_: RestResponse("error", 500)

    def get(self, request: Any) -> RestResponse:
        request.ratelimit.charge("2/hour", key="a")
        return RestResponse("hello")


@pytest.mark.parametrize("site", [under_wsgi, under_asgi], ids=["wsgi", "asgi"])
@pytest.mark.parametrize("style", ["ietf", "none"])
@pytest.mark.parametrize("inner", [True, False], ids=["middleware", "handler"])
def test_django_refuses_a_charge_that_became_a_500(site: Site, style: str, inner: bool) -> None:  # a case
    middleware = [LOGIN, OURS, f"{__name__}.charging"] if inner else [LOGIN, OURS]
    view = (lambda _: HttpResponse("hello")) if inner else OwnErrors.as_view()
    found = settings(RecordingStore(clock=Clock()), limits="9/minute", headers=style)
    ask = site([path("", view)], found, *middleware)
    answered = [ask() for _ in range(3)]
    assert [one.status for one in answered] == [200, 200, 429]
    assert answered[2].field("retry-after") == ["3600"]

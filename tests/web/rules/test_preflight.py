"""Tests CORS preflights: which requests are preflights, and which limits apply to preflights."""

from typing import Any

import pytest
from django.http import HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI
from flask import Flask
from rest_framework.response import Response as RestResponse
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw import MemoryStore, asgi
from ratelimit_mw.django import Throttle
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.starlette import RateLimit as RouteLimit
from ratelimit_mw.starlette import limit as starlette_limit
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import WEBSOCKET, App200, talk
from web.django_site import asgi_site, wsgi_site
from web.faces import FACES, _hello, _over_httpx, _over_werkzeug
from web.messages import message_of
from web.scenario import Step

ORIGIN, METHOD = ("Origin", "https://example.com"), ("Access-Control-Request-Method", "PUT")
ALL = pytest.mark.parametrize("face", FACES)


def names_of(store: RecordingStore) -> list[str]:
    return [charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges]


@ALL
@pytest.mark.parametrize(
    ("method", "lines", "name"),
    [
        ("OPTIONS", (ORIGIN, METHOD), "preflight"),
        ("OPTIONS", (METHOD, ORIGIN, ("Access-Control-Request-Headers", "x-a")), "preflight"),
        ("OPTIONS", (("ORIGIN", "null"), ("ACCESS-CONTROL-REQUEST-METHOD", "")), "preflight"),
        ("OPTIONS", (ORIGIN, ORIGIN, METHOD, METHOD), "preflight"),
        ("OPTIONS", (), "default"),
        ("OPTIONS", (ORIGIN,), "default"),
        ("OPTIONS", (METHOD,), "default"),
        ("OPTIONS", (ORIGIN, ("Access-Control-Request-Headers", "x-a")), "default"),
        ("GET", (ORIGIN, METHOD), "default"),
        ("POST", (ORIGIN, METHOD), "default"),
        ("PUT", (ORIGIN, METHOD, ("X-HTTP-Method-Override", "OPTIONS")), "default"),
    ],
)
@pytest.mark.parametrize("rules", [[], [{"path": "/other", "limits": "5/hour"}]], ids=["no rules", "rules"])
def test_only_cors_preflights_are_charged_as_preflights(
    face: str, method: str, lines: tuple[tuple[str, str], ...], name: str, rules: list[Any]
) -> None:
    store = RecordingStore(clock=Clock())
    FACES[face]({"limits": "9/hour", "store": store, "rules": rules})(Step(method=method, lines=lines))
    assert names_of(store) == [name]


def test_a_websocket_handshake_is_not_a_preflight() -> None:
    store = RecordingStore(clock=Clock())
    app = asgi.RateLimitMiddleware(App200({"type": "websocket.accept"}), limits="9/hour", store=store)
    talk(app, WEBSOCKET, headers=[(b"origin", b"https://example.com"), (b"access-control-request-method", b"GET")])
    assert names_of(store) == ["default"]


@ALL
@pytest.mark.promise(9)
def test_the_limits_of_a_rule_apply_to_preflights_in_a_separate_bucket(face: str) -> None:
    """Preflights and other requests for the same page do not use up each other's quota."""
    store = RecordingStore(clock=Clock())
    rule = {"path": "/{rest:path}", "limits": "3/hour", "name": "page"}
    send = FACES[face]({"limits": "2/hour", "store": store, "rules": [rule]})
    statuses = [send(Step(method="OPTIONS", path="/a", lines=(ORIGIN, METHOD))).status for _ in range(4)]
    assert statuses == [200, 200, 200, 429]
    assert [send(Step(path="/a")).status for _ in range(4)] == [200, 200, 200, 429]
    assert names_of(store) == ["page/preflight"] * 4 + ["page"] * 4


@ALL
@pytest.mark.promise(9)
def test_preflights_take_slots_of_a_separate_bucket(face: str) -> None:
    store = RecordingStore(clock=Clock())
    rule = {"path": "/{rest:path}", "concurrent": 2, "queue": 0, "name": "page"}
    send = FACES[face]({"limits": [], "store": store, "rules": [rule]})
    assert [send(Step(method="OPTIONS", path="/a", lines=(ORIGIN, METHOD))).status for _ in range(3)] == [200] * 3
    assert {charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges} == {"page/preflight"}
    assert {charge.limit.quota for _, charges in store.calls for charge in charges} == {2}


@ALL
@pytest.mark.promise(9)
def test_a_long_or_invalid_announced_method_matches_no_rule(face: str) -> None:
    """The default limits of preflights still apply."""
    store = RecordingStore(clock=Clock())
    rules = [{"path": "/{rest:path}", "methods": [method], "limits": "9/hour"} for method in ("GET", "POST", "PUT")]
    send = FACES[face]({"limits": "8/hour", "store": store, "rules": rules})
    for number in range(20):
        line = ("Access-Control-Request-Method", ", ".join(["XYZ", "GET", "POST"] * number))
        assert send(Step(method="OPTIONS", path="/a", lines=(ORIGIN, line))).status == (200 if number < 8 else 429)
    assert names_of(store) == ["preflight"] * 20


@ALL
def test_a_preflight_gets_its_default_limits_if_the_callables_return_none(face: str) -> None:
    store = RecordingStore(clock=Clock())
    rule = {"path": "/", "preflight": True, "limits": lambda _: None, "when": lambda _: None}
    FACES[face]({"limits": "9/hour", "store": store, "rules": [rule]})(Step(method="OPTIONS", lines=(ORIGIN, METHOD)))
    assert names_of(store) == ["preflight"]


@ALL
def test_without_default_limits_a_preflight_is_charged_to_matching_rules_only(face: str) -> None:
    store = RecordingStore(clock=Clock())
    rules = [{"path": "/", "limits": "5/hour"}, {"path": "/a", "methods": ["GET"], "limits": "5/hour", "name": "a"}]
    send = FACES[face]({"limits": [], "store": store, "rules": rules})
    send(Step(method="OPTIONS", lines=(ORIGIN, METHOD)))
    assert names_of(store) == ["root/preflight"]
    send(Step(method="OPTIONS", path="/a", lines=(ORIGIN, METHOD)))
    send(Step(method="OPTIONS", path="/b", lines=(ORIGIN, METHOD)))
    assert names_of(store) == ["root/preflight"]


# limits on endpoints


async def alone(request: Any) -> PlainTextResponse:
    return PlainTextResponse("hello")


async def said() -> str:
    return "hello"


class Endpoints(HTTPEndpoint):
    async def post(self, request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    options = post


class Hour(Throttle):
    limits = "5/hour"


class ThrottledView(APIView):
    authentication_classes = ()
    throttle_classes: Any = (Hour,)

    def post(self, request: Any) -> Any:
        return RestResponse("hello")


def on_starlette(route: Any, settings: dict[str, Any]) -> Any:
    return _over_httpx(Starlette(routes=[route], middleware=[Middleware(asgi.RateLimitMiddleware, **settings)]))


def on_fastapi(settings: dict[str, Any]) -> Any:
    app = FastAPI()
    app.add_api_route("/", said, methods=WAYS, dependencies=[Depends(RateLimit("5/hour"))])
    if settings:
        app.add_middleware(asgi.RateLimitMiddleware, **settings)
    return _over_httpx(app)


def on_flask(settings: dict[str, Any], ways: list[str], **options: Any) -> Any:
    app = Flask(__name__)
    app.add_url_rule("/", "home", flask_limit("5/hour", **options)(lambda: "hello"), methods=ways)
    RateLimiter(app, settings)
    return _over_werkzeug(app)


def home(_: Any) -> HttpResponse:
    return HttpResponse("hello")


WAYS = ["POST", "OPTIONS"]
ENDPOINTS: dict[str, Any] = {
    "starlette": lambda own: on_starlette(Route("/", starlette_limit("5/hour")(alone), methods=WAYS), own),
    "starlette class": lambda own: on_starlette(
        Route("/", starlette_limit("5/hour")(type("E", (Endpoints,), {}))), own
    ),
    "starlette route": lambda own: on_starlette(
        Route("/", alone, methods=WAYS, middleware=[Middleware(RouteLimit, "5/hour")]), own
    ),
    "starlette, POST alone": lambda own: on_starlette(
        Route("/", starlette_limit("5/hour", methods=["POST", "OPTIONS"])(alone), methods=WAYS), own
    ),
    "starlette, no middleware": lambda _: _over_httpx(
        Starlette(routes=[Route("/", starlette_limit("5/hour")(alone), methods=WAYS)])
    ),
    "fastapi": on_fastapi,
    "fastapi, no middleware": lambda _: on_fastapi({}),
    "flask": lambda own: on_flask(own, WAYS),
    "flask, automatic": lambda own: on_flask(own, ["POST"]),
    "django": lambda own: _over_werkzeug(wsgi_site([path("", django_limit("5/hour")(home))], own)),
    "django async": lambda own: _over_httpx(asgi_site([path("", django_limit("5/hour")(home))], own)),
    "rest framework": lambda own: _over_werkzeug(wsgi_site([path("", ThrottledView.as_view())], own)),
    "rest framework async": lambda own: _over_httpx(asgi_site([path("", ThrottledView.as_view())], own)),
}


@pytest.mark.promise(9)
@pytest.mark.parametrize("where", ENDPOINTS)
def test_a_preflight_is_charged_to_the_limit_of_its_endpoint(where: str) -> None:
    send = ENDPOINTS[where]({"limits": [], "store": MemoryStore(clock=Clock())})
    announced = ["POST", "XYZ", "", "get, post"] * 3
    asked = [Step(method="OPTIONS", lines=(ORIGIN, ("Access-Control-Request-Method", each))) for each in announced]
    assert [send(step).status for step in asked] == [200] * 5 + [429] * 7
    assert [send(Step(method="POST")).status for _ in range(7)] == [200] * 5 + [429] * 2
    assert send(Step(method="OPTIONS")).status == 429  # not a preflight, but an ordinary request


@pytest.mark.promise(9)
def test_a_preflight_is_charged_to_the_view_limits_of_its_announced_method() -> None:
    store = RecordingStore(clock=Clock())
    send = on_flask({"limits": "9/hour", "store": store}, ["POST"], methods=["POST"], name="own")
    for method, buckets in (("POST", ["@own/preflight", "preflight"]), ("XYZ", ["preflight"])):
        store.calls.clear()
        send(Step(method="OPTIONS", lines=(ORIGIN, ("Access-Control-Request-Method", method))))
        assert sorted(names_of(store)) == buckets


@ALL
@pytest.mark.promise(8)
@pytest.mark.parametrize(("mode", "status"), [("allow", 200), ("deny", 503), ("local", 200)])
def test_on_store_error_applies_to_preflights(face: str, mode: str, status: int) -> None:
    store = RecordingStore(clock=Clock())
    store.error = ConnectionError("down")
    send = FACES[face]({"limits": "1/hour", "store": store, "on_store_error": mode})
    preflight = Step(method="OPTIONS", lines=(ORIGIN, METHOD))
    assert [send(preflight).status, send(preflight).status] == [status, 429 if mode == "local" else status]
    assert send(Step()).status == status


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"preflight": "yes"}, "rules[0].preflight: got 'yes', expected true or false"),
        ({"preflight": True, "methods": ["OPTIONS"]},
         "rules[0].methods: got ['OPTIONS']; a rule with preflight = true applies only to OPTIONS"),
        ({"name": "preflight"},
         "rules[0] (preflight).name: got 'preflight', which is reserved; choose another"),
    ],
)  # fmt: skip
def test_invalid_preflight_rules_are_config_errors(rule: dict[str, Any], message: str) -> None:
    assert message_of(limits=[], rules=[{"path": "/", "limits": "5/hour", **rule}]) == message


@pytest.mark.parametrize(("outside", "names"), [(True, ["default"]), (False, ["preflight", "default"])])
def test_preflights_are_charged_only_if_cors_middleware_is_inside(outside: bool, names: list[str]) -> None:
    """An outer `CORSMiddleware` responds to preflights before the rate limiter receives them."""
    store = RecordingStore(clock=Clock())
    ours = Middleware(asgi.RateLimitMiddleware, limits="9/hour", store=store)
    cors = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["PUT"], expose_headers=["*"])
    app = Starlette(
        routes=[Route("/{rest:path}", _hello, methods=["PUT"])], middleware=[cors, ours] if outside else [ours, cors]
    )
    send = _over_httpx(app)
    asked = send(Step(method="OPTIONS", lines=(ORIGIN, METHOD)))
    assert (asked.status, asked.field("access-control-allow-methods")) == (200, ["PUT"])
    assert send(Step(method="PUT", lines=(ORIGIN,))).field("access-control-allow-origin") == ["*"]
    assert names_of(store) == names


@pytest.mark.parametrize("outside", [True, False])
def test_refusals_have_cors_fields_only_if_cors_middleware_is_outside(outside: bool) -> None:
    store = RecordingStore(clock=Clock())
    ours = Middleware(asgi.RateLimitMiddleware, limits="1/hour", store=store)
    cors = Middleware(CORSMiddleware, allow_origins=["*"], expose_headers=["RateLimit"])
    middleware = [cors, ours] if outside else [ours, cors]
    send = _over_httpx(Starlette(routes=[Route("/{rest:path}", _hello)], middleware=middleware))
    answers = [send(Step(lines=(ORIGIN,))) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert [answer.field("access-control-allow-origin") for answer in answers] == [["*"], ["*"] if outside else []]

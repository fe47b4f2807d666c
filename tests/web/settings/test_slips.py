"""Mistakes that limit less than intended: each is an error that names the fix, or a warning at startup."""
# The decorators are parameters, so mypy does not know their types.
# mypy: disable-error-code="untyped-decorator"

import asyncio
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Annotated, Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Header
from fastapi import WebSocket as FastAPIWebSocket
from flask import Blueprint, Flask
from flask.views import MethodView
from litestar import Litestar
from litestar import get as litestar_get
from redis import Redis
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from ratelimit_mw import AsyncLimiter, ConfigError, Limiter, MemoryStore, asgi, wsgi
from ratelimit_mw.checks import routes as route_checks
from ratelimit_mw.checks.routes import RouteShape, route_findings
from ratelimit_mw.django import limit as django_limit
from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware, limit
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.flask import exempt as flask_exempt
from ratelimit_mw.flask import limit as flask_limit
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette import RateLimit as RouteLimit
from web.asgi_talk import HTTP, LIFESPAN, SHUTDOWN, STARTUP, App200, talk
from web.wsgi_talk import hello

LIMITS: dict[str, Any] = {"limits": "100/minute", "key": "all"}
ABOVE = (
    "has no limit: its route was registered before `limit` wrapped home; put `limit` below the decorator that "
    "registers the route"
)


async def home(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.method)


def new_home() -> Any:
    """Return a function that no other test has limited."""

    async def shop(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.method)

    shop.__qualname__ = "home"
    return shop


def heard(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings, except those that decorators log where they are written."""
    return [text for text in caplog.messages if "is registered already" not in text]


def status(app: Any, path: str = "/") -> int:
    """Return the status of a response under a server that runs no lifespan."""
    try:
        return int(talk(app, HTTP, path=path, query_string=b"").sent[0]["status"])
    except ConfigError:
        return 500


def start(app: Any) -> None:
    talk(app, LIFESPAN, STARTUP, SHUTDOWN)


def with_limit_above(app: FastAPI) -> FastAPI:
    limit("1/minute")(app.get("/")(new_home()))
    return app


def limited_app(*, strict: bool = False) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, strict=strict, **LIMITS)
    return app


def wrapped(*, strict: bool) -> Any:
    return RateLimitMiddleware(with_limit_above(FastAPI()), strict=strict, **LIMITS)


def inside(*, strict: bool) -> Any:
    return with_limit_above(limited_app(strict=strict))


def in_a_mounted_app(*, strict: bool) -> Any:
    outer = FastAPI()
    outer.mount("/", with_limit_above(limited_app(strict=strict)))
    return outer


def around_a_mounted_app(*, strict: bool) -> Any:
    outer = limited_app(strict=strict)
    outer.mount("/", with_limit_above(FastAPI()))
    return outer


APPS: dict[str, Callable[..., Any]] = {
    "wrapped": wrapped,
    "inside": inside,
    "in a mounted app": in_a_mounted_app,
    "around a mounted app": around_a_mounted_app,
}


@pytest.mark.promise(9)
@pytest.mark.parametrize("make", APPS.values(), ids=APPS)
def test_a_limit_above_the_route_decorator_is_reported_without_a_lifespan(
    make: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    app, strict_app = make(strict=False), make(strict=True)
    assert [status(app) for _ in range(3)] == [200, 200, 200]
    assert heard(caplog) == [f"ratelimit_mw: / {ABOVE}"]
    for _ in range(2):
        with pytest.raises(ConfigError, match=ABOVE):
            talk(strict_app, HTTP, query_string=b"")


@pytest.mark.promise(9)
def test_a_limit_above_the_route_decorator_is_reported_at_startup(caplog: pytest.LogCaptureFixture) -> None:
    app = wrapped(strict=False)
    start(app)
    assert heard(caplog) == [f"ratelimit_mw: / {ABOVE}"]
    assert status(app) == 200
    assert heard(caplog) == [f"ratelimit_mw: / {ABOVE}"]
    failed = talk(wrapped(strict=True), LIFESPAN, STARTUP).sent[0]
    assert failed == {"type": "lifespan.startup.failed", "message": f"ratelimit_mw: / {ABOVE}"}


@pytest.mark.promise(9)
@pytest.mark.parametrize("kind", [FastAPI, APIRouter], ids=["app", "router"])
def test_a_limit_above_the_route_decorator_is_reported_at_decoration(
    kind: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a middleware or another limit, no code of this package runs later."""
    target = kind()
    shop = target.get("/shop")(new_home())
    limit("1/minute")(shop)
    text = "@limit on home: /shop is registered already, without the limit; put @limit below what registers the route"
    assert caplog.messages == [f"ratelimit_mw: {text}"]
    monkeypatch.setenv("RATELIMIT_MW_STRICT", "true")
    with pytest.raises(ConfigError, match=r"^@limit on home: /shop is registered already"):
        limit("1/minute")(shop)
    caplog.clear()

    @target.get("/below")
    @limit("1/minute")
    async def below(request: Request) -> str:
        return request.method

    assert caplog.messages == []


@limit("5/minute", methods=["POST"])
async def posted(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.method)


def depending(*verbs: str, methods: Sequence[str] = ("POST",)) -> FastAPI:
    app = limited_app()
    router = APIRouter(dependencies=[Depends(RateLimit("5/minute", methods=list(methods)))])
    for verb in verbs:
        router.add_api_route(f"/{verb}", home, methods=[verb])
    app.include_router(router)
    return app


def routed(*routes: Any, middleware: Sequence[Middleware] = ()) -> Starlette:
    return Starlette(routes=list(routes), middleware=[*middleware, Middleware(RateLimitMiddleware, **LIMITS)])


ONLY_POST = Middleware(RouteLimit, "5/minute", methods=["POST"])
IDLE = "its limit has methods = ['POST'], and its routes have {}, so it limits nothing; name methods of the routes, or "
WITHOUT_THE_METHOD: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "on an endpoint": (lambda: routed(Route("/a", posted)), ["/a: " + IDLE.format("GET")]),
    "on an endpoint of two routes": (
        lambda: routed(Route("/a", posted), Route("/b", posted, methods=["PUT"])),
        ["/a: " + IDLE.format("GET, PUT")],
    ),
    "around a route": (lambda: routed(Route("/a", home, middleware=[ONLY_POST])), ["/a: " + IDLE.format("GET")]),
    "around a mount": (
        lambda: routed(Mount("/m", routes=[Route("/a", home)], middleware=[ONLY_POST])),
        ["/m/a: " + IDLE.format("GET")],
    ),
    "a dependency": (lambda: depending("GET", "PUT"), ["/GET: " + IDLE.format("GET, PUT")]),
    "around a mounted app": (lambda: routed(Mount("/m", App200(), middleware=[ONLY_POST])), []),
    "one route has it": (lambda: routed(Route("/a", posted), Route("/b", posted, methods=["POST"])), []),
    "one route of a router has it": (lambda: depending("GET", "POST"), []),
    "a GET limit for HEAD": (lambda: depending("HEAD", methods=["GET"]), []),
}


@pytest.mark.promise(9)
@pytest.mark.parametrize("case", WITHOUT_THE_METHOD)
def test_limits_with_methods_that_no_route_has_are_reported(case: str, caplog: pytest.LogCaptureFixture) -> None:
    make, expected = WITHOUT_THE_METHOD[case]
    start(make())
    assert [text.removeprefix("ratelimit_mw: ").partition("leave out")[0].partition("leave methods")[0]
            for text in heard(caplog)] == expected  # fmt: skip


def test_a_websocket_limit_may_have_the_handshakes_method_get(caplog: pytest.LogCaptureFixture) -> None:
    app = limited_app()

    @app.websocket("/ws")
    @limit("5/minute", methods=["GET"])
    async def socket(websocket: FastAPIWebSocket) -> None:
        await websocket.close()

    start(app)
    assert heard(caplog) == []


def ruled(*paths: str, routes: Sequence[Any] = (Route("/login", home),), **options: Any) -> Any:
    rules = [{"path": path, "limits": "5/minute", "key": "all"} for path in paths]
    return RateLimitMiddleware(Starlette(routes=list(routes)), **{"limits": "100/minute", "rules": rules, **options})


def of_litestar() -> Any:
    @litestar_get("/b", sync_to_thread=False)
    def home() -> str:
        return "hello"

    return Litestar([home], openapi_config=None, logging_config=None)


NO_ROUTE = "no route has the path {}, so the rule limits only requests that are answered with 404; correct the path"
MISSPELLED = "no route has the path {}; did you mean {}?"
BELOW = "no route has the path {}, so the rule limits only requests that are answered with 404; write {} for the paths"
EXEMPT = "{}: no route has the path {}, so it exempts nothing; write {}/{{rest:path}} for the paths below it"
FILES = StaticFiles(directory=".")
IDS = [Route("/ids/{key:uuid}", home)]
USERS = [Route("/users/{id:int}", home), Route("/files/{rest:path}", home), Route("/v1/{name}/edit", home)]
WITHOUT_A_ROUTE: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a slip": (lambda: ruled("/login", "/logni"), ["rules[1] (logni): " + MISSPELLED.format("/logni", "/login")]),
    "another word": (lambda: ruled("/lag"), ["rules[0] (lag): " + NO_ROUTE.format("/lag")]),
    "with a slash at the end": (lambda: ruled("/login/"), []),
    "a route with parameters": (lambda: ruled("/users/me", routes=[Route("/users/{name}", home)]), []),
    "a route with one segment more": (
        lambda: ruled("/users", routes=[Route("/users/{name}", home)]),
        ["rules[0] (users): " + BELOW.format("/users", "/users/{rest:path}")],
    ),
    "several slashes": (
        lambda: ruled("//login", "//users/{id}", "//files//{a}", routes=[*USERS, Route("/login", home)]),
        [],
    ),
    "another type of parameter": (
        lambda: ruled("/users/{id:uuid}", "/ids/{id:int}", "/ids/{id:float}", routes=[*USERS, *IDS]),
        [
            "rules[0] (users_id_uuid): " + MISSPELLED.format("/users/{id:uuid}", "/users/{id:int}"),
            "rules[1] (ids_id_int): " + MISSPELLED.format("/ids/{id:int}", "/ids/{key:uuid}"),
            "rules[2] (ids_id_float): " + MISSPELLED.format("/ids/{id:float}", "/ids/{key:uuid}"),
        ],
    ),
    "a type that no text of a route has": (
        lambda: ruled("/me/{id:int}", routes=[Route("/me/orders", home)]),
        ["rules[0] (me_id_int): " + NO_ROUTE.format("/me/{id:int}")],
    ),
    "a narrower or wider type": (
        lambda: ruled(
            *("/ids/{id}", "/users/{id:float}", "/v1/{id:int}/edit", "/{id:uuid}/x", "/pages/{id:int}"),
            routes=[*USERS, *IDS, Route("/{rest}/x", home), Route("/pages/12", home)],
        ),
        [],
    ),
    "a mount of files": (
        lambda: ruled("/m", "/n/", "/m/a.css", routes=[Mount("/m", FILES), Mount("/n", FILES)]),
        [
            "rules[0] (m): " + BELOW.format("/m", "/m/{rest:path}"),
            "rules[1] (n): " + BELOW.format("/n/", "/n/{rest:path}"),
        ],
    ),
    "mounts with a response at their root": (
        lambda: ruled("/m", "/n/", routes=[Mount("/m", App200()), Mount("/n", StaticFiles(directory=".", html=True))]),
        [],
    ),
    "an exempt mount of files, without what is below": (
        lambda: ruled(
            "/",
            exempt=["/m", "/none"],
            rules=[{"path": "/n/", "exempt": True, "name": "n"}],
            routes=[Mount("/m", FILES), Mount("/n", routes=[Route("/a", home)])],
        ),
        [
            "exempt: /m does not match /m/{rest:path}, which has a route and is limited; add /m/{rest:path}, or give",
            EXEMPT.format("rules[0] (n)", "/n/", "/n"),
        ],
    ),
    "an exempt mount of files, without what is below and without limits": (
        lambda: ruled("/m/{rest:path}", limits=[], exempt=["/m", "/m/"], routes=[Mount("/m", FILES)]),
        [EXEMPT.format("exempt", "/m", "/m")],
    ),
    "an exempt mount of files, with what is below": (
        lambda: ruled("/", exempt=["/m", "/m/{rest:path}"], routes=[Route("/", home), Mount("/m", FILES)]),
        [],
    ),
    "a path with parameters": (
        lambda: ruled("/nobody/{name}"),
        ["rules[0] (nobody_name): " + NO_ROUTE.format("/nobody/{name}")],
    ),
    "a slip before a parameter": (
        lambda: ruled("/user/{id}", routes=USERS),
        ["rules[0] (user_id): " + MISSPELLED.format("/user/{id}", "/users/{id:int}")],
    ),
    "a slip after a parameter": (
        lambda: ruled("/v1/{other}/edit_", routes=USERS),
        ["rules[0] (v1_other_edit): " + MISSPELLED.format("/v1/{other}/edit_", "/v1/{name}/edit")],
    ),
    "paths that a route may have": (
        lambda: ruled(
            *("/users/{name}", "/{any}/{other}", "/files/{a}/{b}", "/files/{a:path}", "/v1/x/{y}", "/{rest:path}"),
            routes=USERS,
        ),
        [],
    ),
    "an own converter": (lambda: ruled("/a/{b}/{c}", "/a/x/y/z", routes=[Route("/a/{b:slashes}", home)]), []),
    "without case": (lambda: ruled("/LOGIN", "/USER/{id}", ignore_case=True), []),
    "in a mount": (
        lambda: ruled("/m/a", "/m/b", "/m/{x}/{y}", routes=[Mount("/m", routes=[Route("/a", home)])]),
        ["/m/b", "/m/{x}/{y}"],
    ),
    "in a mounted app without routes": (lambda: ruled("/m/b", "/m/{x}/{y}", routes=[Mount("/m", App200())]), []),
    "in a mounted app of another framework": (lambda: ruled("/m/b", routes=[Mount("/m", of_litestar())]), []),
    "below an exempt mount": (
        lambda: ruled("/", exempt=["/m/{rest:path}"], routes=[Route("/", home), Mount("/m", App200())]),
        ["exempt: /m/{rest:path} does not match /m and /m/, which has a route and is limited; add /m and /m/, or"],
    ),
    "an exempt mount, only with a slash": (
        lambda: ruled("/", exempt=["/m/", "/m/{rest:path}"], routes=[Route("/", home), Mount("/m", App200())]),
        ["exempt: /m/{rest:path} does not match /m, which has a route and is limited; add /m, or give it a rule"],
    ),
    "an exempt mount": (
        lambda: ruled("/", exempt=["/m", "/m/", "/m/{rest:path}"], routes=[Route("/", home), Mount("/m", App200())]),
        [],
    ),
    "below an exempt mount of files": (
        lambda: ruled(
            "/", exempt=["/m/{rest:path}"], routes=[Route("/", home), Mount("/m", StaticFiles(directory="."))]
        ),
        [],
    ),
    "below an exempt path with a rule": (
        lambda: ruled("/m", exempt=["/m/{rest:path}"], routes=[Mount("/m", App200())]),
        [],
    ),
    "below the path of an exempt rule": (
        lambda: ruled(rules=[{"path": "/m/{rest:path}", "exempt": True, "name": "m"}], routes=[Route("/m/", home)]),
        ["rules[0] (m): /m/{rest:path} does not match /m/, which has a route and is limited; add /m/, or give it a"],
    ),
    "the root of a mount": (
        lambda: ruled("/", exempt=["/m"], routes=[Route("/", home), Mount("/m", App200())]),
        ["exempt: /m does not match /m/, which has a route and is limited; add /m/, or give it a rule of its own"],
    ),
    "the root of a mount of files": (
        lambda: ruled("/", exempt=["/m"], routes=[Route("/", home), Mount("/m", StaticFiles(directory="."))]),
        ["exempt: /m does not match /m/{rest:path}, which has a route and is limited; add /m/{rest:path}, or give"],
    ),
    "the root of a mount with a rule": (lambda: ruled("/m", exempt=["/m/"], routes=[Mount("/m", App200())]), []),
    "the prefix of a mount, repeated": (
        lambda: ruled(
            "/", exempt=["/m/up/", "/a/m/down"], routes=[Route(path, home) for path in ("/", "/down", "/up")]
        ),
        [
            "exempt: /m/up/ does not match /up, which has a route and is limited; add /up, or give it a rule",
            "exempt: /a/m/down does not match /down, which has a route and is limited; add /down, or give it a rule",
        ],
    ),
    "exempt paths that a route may have": (
        lambda: ruled("/up", exempt=["/m/up", "/ready"], routes=[Route("/up", home), Route("/m/{x}", home)]),
        [],
    ),
    "below an exempt path, without limits": (
        lambda: ruled("/", limits=[], exempt=["/m/{rest:path}"], routes=[Route("/", home), Mount("/m", App200())]),
        [],
    ),
    "under hosts": (lambda: ruled("/b", routes=[Host("a.example", app=Router([Route("/a", home)]))]), []),
}


class _Slashes(Convertor[str]):
    regex = "[a-z/]+"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("slashes", _Slashes())


@pytest.mark.promise(9)
@pytest.mark.parametrize("case", WITHOUT_A_ROUTE)
def test_paths_of_rules_that_differ_from_those_of_routes_are_reported(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, expected = WITHOUT_A_ROUTE[case]
    start(make())
    assert len(heard(caplog)) == len(expected)
    assert all(text in found for text, found in zip(expected, heard(caplog), strict=True))


def test_a_rule_path_without_a_route_is_a_warning_even_if_strict(caplog: pytest.LogCaptureFixture) -> None:
    """A limit on requests for a path that does not exist may be intended."""
    app = ruled("/wp-login.php", strict=True)
    assert [status(app, "/login") for _ in range(2)] == [200, 200]
    assert [text.partition(":")[2].partition(", so")[0] for text in heard(caplog)] == [
        " rules[0] (wp-login.php): no route has the path /wp-login.php"
    ]


@pytest.mark.promise(9)
@pytest.mark.parametrize("path", ["/logni", ["/login", "/logni"]])
def test_a_misspelled_path_is_an_error_with_strict(path: Any) -> None:
    rules = [{"path": path, "limits": "5/minute", "name": "r"}]
    app = RateLimitMiddleware(Starlette(routes=[Route("/login", home)]), limits=[], rules=rules, strict=True)
    with pytest.raises(ConfigError, match=r"^rules\[0\] \(r\): no route has the path /logni; did you mean /login\?"):
        talk(app, HTTP)


def test_each_rule_path_is_compared_with_at_most_200_routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise hundreds of rules without a route delay the start of an app with thousands of routes by minutes."""
    compared: list[str] = []

    class Counted(SequenceMatcher[str]):
        def set_seq1(self, a: Any) -> None:
            compared.append(a)
            super().set_seq1(a)

    monkeypatch.setattr(route_checks, "SequenceMatcher", Counted)
    routes = [RouteShape(f"/section/{{x}}/report-{number:04}") for number in range(1000)]
    rules = [
        {"path": f"/section/{{x}}/{number:02}-other", "limits": "1/minute", "name": f"r{number}"}
        for number in range(10)
    ]
    findings = list(route_findings(Settings(limits=[], rules=rules), routes, lambda _: False))
    assert [finding.weakens_limits for finding in findings] == [False] * 10
    assert len(compared) - compared.count("") == 10 * 200  # a matcher begins with an empty text


RULE_METHODS: dict[str, tuple[list[str], str, list[str]]] = {  # methods and path of a rule; methods of the routes
    "another one": (["PUT"], "/login", ["GET, POST"]),
    "several others": (["PUT", "PATCH"], "/login", ["GET, POST"]),
    "one of them": (["PUT", "POST"], "/login", []),
    "HEAD of a GET": (["HEAD"], "/login", []),
    "preflights": (["OPTIONS"], "/login", []),
    "with a parameter": (["PUT"], "/users/{name}", ["DELETE, GET"]),
    "of any route": (["DELETE"], "/{rest:path}", []),
    "of no route": (["PATCH"], "/{rest:path}", ["DELETE, GET, POST"]),
}


@pytest.mark.promise(9)
@pytest.mark.parametrize("case", RULE_METHODS)
@pytest.mark.parametrize("strict", [False, True])
def test_rule_methods_that_no_route_has_are_reported(case: str, strict: bool, caplog: pytest.LogCaptureFixture) -> None:
    methods, path, present = RULE_METHODS[case]
    routes = [
        *(Route("/login", home, methods=["GET"]), Route("/login", home, methods=["POST"])),
        *(Route("/users/{name}", home, methods=["GET"]), Route("/users/{id:int}", home, methods=["DELETE"])),
    ]
    rules = [{"path": path, "methods": methods, "limits": "5/minute", "name": "r"}]
    app = RateLimitMiddleware(Starlette(routes=routes), limits=[], rules=rules, strict=strict)
    expected = [
        f"rules[0] (r): it has methods = {methods}, and the routes with its path have {one}, so it limits nothing; "
        "name methods of the routes, or leave methods out"
        for one in present
    ]
    if strict and expected:
        with pytest.raises(ConfigError, match=f"^{re.escape(expected[0])}"):
            talk(app, HTTP)
        return
    start(app)
    assert [text.removeprefix("ratelimit_mw: ") for text in heard(caplog)] == expected


def test_rule_paths_are_not_checked_for_other_asgi_apps(caplog: pytest.LogCaptureFixture) -> None:
    app = RateLimitMiddleware(App200(), limits=[], rules=[{"path": "/logni", "limits": "5/minute"}])
    assert status(app, "/login") == 200
    assert heard(caplog) == []


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neither Flask nor Django report the limits of a test in other tests."""
    monkeypatch.setattr("ratelimit_mw.flask.endpoint_limits._unchecked", {})
    monkeypatch.setattr("ratelimit_mw.flask.endpoint_limits._limited_apps", set())
    monkeypatch.setattr("ratelimit_mw.django.endpoint_limits.LOCATIONS", {})


@pytest.mark.promise(9)
@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("foreign", [flask_limit, django_limit], ids=["flask", "django"])
@pytest.mark.parametrize("lifespan", [True, False])
def test_a_decorator_for_another_framework_is_an_error(foreign: Any, lifespan: bool) -> None:
    app = limited_app()

    @app.get("/shop")
    @foreign("1/minute")
    def shop() -> str:
        return "x"

    text = "^/shop: the limit on .*shop is by the decorator for another framework, so nothing enforces it here: use"
    for scope in ([LIFESPAN] if lifespan else []) + [{**HTTP, "path": "/shop"}] * 2:
        with pytest.raises(ConfigError, match=text):
            talk(app, scope, *([STARTUP] if scope is LIFESPAN else []))


@pytest.mark.parametrize("given", [("2/minute",), ()])
def test_the_dependency_as_middleware_is_an_error(given: tuple[str, ...]) -> None:
    app = FastAPI()
    app.add_middleware(RateLimit, *given, **({} if given else {"limits": "2/minute"}))  # type: ignore[arg-type]  # wrong
    with pytest.raises(ConfigError, match=r"^got an app by position: this RateLimit is a dependency, write Depends\("):
        talk(app, HTTP)


OF_CLIENTS = r"RedisStore\(client\) for threads, AsyncRedisStore\(client\) with a client of redis\.asyncio for asyncio"


NOT_STORES: list[tuple[Any, str]] = [
    (Limiter(), "got Limiter, expected a URL or a store; pass the store of that Limiter"),
    (AsyncLimiter(), "got AsyncLimiter, expected a URL or a store; pass the store of that AsyncLimiter"),
    (Redis(), r"got redis\.client\.Redis, a client, expected a URL or a store: " + OF_CLIENTS),
    (MemoryStore, r"got the class MemoryStore, expected a store: MemoryStore\(\.\.\.\)"),
]
TAKE_A_STORE: dict[str, Callable[[Any], object]] = {
    "wsgi": lambda store: wsgi.RateLimitMiddleware(hello, limits="1/minute", store=store),
    "asgi": lambda store: asgi.RateLimitMiddleware(App200(), limits="1/minute", store=store),
    "limit": lambda store: limit("1/minute", store=store),
    "dependency": lambda store: RateLimit("1/minute", store=store),
    "Limiter": Limiter,
    "AsyncLimiter": AsyncLimiter,
}


@pytest.mark.parametrize("take", ["wsgi", "asgi"])
def test_none_as_store_is_an_error_that_names_the_fix(take: str) -> None:
    with pytest.raises(ConfigError, match=r"^store: got None, expected a URL or a store; leave it out for memory://"):
        TAKE_A_STORE[take](None)


@pytest.mark.parametrize("take", TAKE_A_STORE.values(), ids=TAKE_A_STORE)
@pytest.mark.parametrize(("given", "text"), NOT_STORES, ids=["Limiter", "AsyncLimiter", "client", "class"])
def test_an_object_that_is_no_store_is_rejected_with_a_hint(
    take: Callable[[Any], object], given: Any, text: str
) -> None:
    with pytest.raises(ConfigError, match=f"^store: {text}$"):
        take(given)


def default(x: str = Depends(lambda: "a")) -> str:
    return x


def second(request: Any, x: str = Header()) -> str:
    return f"{request}{x}"


def annotated(request: Any, x: Annotated[str, Depends(lambda: "a")] = "a") -> str:
    return f"{request}{x}"


def as_text(request: Any, x: "Annotated[str, Header()]" = "a") -> str:
    return f"{request}{x}"


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("call", "word"),
    [(default, "Depends"), (second, "Header"), (annotated, "Depends"), (as_text, "Header")],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("setting", ["key", "cost", "limits", "enabled", "when"])
def test_a_fastapi_dependency_as_a_settings_callable_is_an_error(setting: str, call: Any, word: str) -> None:
    rule = {"path": "/", "limits": "5/minute"}
    given: Mapping[str, Any] = {"limits": "5/minute", setting: call}
    if setting in ("cost", "when"):
        given = {"limits": "5/minute", "rules": [{**rule, setting: call}]}
    text = rf"{setting}: {call.__name__} is not called by FastAPI, so its parameter x gets no {word}\(\.\.\.\); read"
    with pytest.raises(ConfigError, match=text):
        asgi.RateLimitMiddleware(App200(), Settings.of(None, given))


def test_an_untyped_request_parameter_with_another_name_is_an_error() -> None:
    with pytest.raises(
        TypeError, match=r"known to be the request, .* if req is the request, write `req: Request` "
    ) as told:

        @limit("5/minute")
        def shop(req) -> Any:  # type: ignore[no-untyped-def]  # noqa: ANN001  # on purpose
            return PlainTextResponse(req.method)

    assert isinstance(told.value, ConfigError)


@pytest.mark.usefixtures("with_codes")
def test_the_error_for_a_function_without_a_request_has_a_code() -> None:
    with pytest.raises(ConfigError, match=r"has no parameter for the request, .* \[RL-046\]$"):
        limit("5/minute")(lambda: 1)


@pytest.mark.parametrize("wrap", [flask_limit("1/minute"), flask_exempt], ids=["limit", "exempt"])
def test_limit_and_exempt_on_a_flask_app_are_errors(wrap: Any) -> None:
    with pytest.raises(ConfigError) as told:
        wrap(Flask(__name__))
    assert str(told.value) == (
        "got the app Flask, expected a view; limits of all requests go into the extension: "
        "RateLimiter(app, limits='100/minute')"
    )


@pytest.mark.promise(8)
def test_each_callable_is_logged_in_its_own_line(caplog: pytest.LogCaptureFixture) -> None:
    """All lambdas have the same name, so their position is added. Functions with one name differ by their code."""

    def raising() -> Callable[[Any], Any]:
        def key_of(_: Any) -> Any:
            raise KeyError

        return key_of

    def another() -> Callable[[Any], Any]:
        def key_of(_: Any) -> Any:
            raise ValueError

        key_of.__qualname__ = raising().__qualname__
        return key_of

    calls = [lambda _: 1 // 0, lambda _: int("a"), raising(), another()]
    with caplog.at_level(logging.WARNING):
        for call in calls:
            middleware = asgi.RateLimitMiddleware(App200(), limits="100/minute", key=call)
            for _ in range(2):
                status(middleware)
    here = "test_each_callable_is_logged_in_its_own_line.<locals>"
    line = calls[0].__code__.co_firstlineno
    names = [
        f"<lambda> at test_slips.py:{line}:24",
        f"<lambda> at test_slips.py:{line}:42",
        *["raising.<locals>.key_of"] * 2,
    ]
    told = [text.partition(": raised an error")[0] for text in caplog.messages if "raised an error" in text]
    assert told == [f"ratelimit_mw: {here}.{name}" for name in names]


@pytest.mark.promise(9)
@pytest.mark.parametrize("by", ["raises", "nonsense"])
def test_the_log_line_about_a_failing_limits_callable_names_the_503(by: str, caplog: pytest.LogCaptureFixture) -> None:
    def limits_of(_: Any) -> Any:
        if by == "raises":
            raise KeyError
        return 5

    def status_with(**settings: Any) -> int:
        return status(asgi.RateLimitMiddleware(App200(), **settings))

    rule = {"path": "/", "limits": limits_of}
    assert status_with(limits=limits_of) == 503
    assert status_with(limits=[], rules=[rule]) == 503
    assert status_with(limits="5/minute", rules=[rule]) == 200
    (line,) = [text for text in caplog.messages if "limits_of" in text]
    assert "the default limits apply, and if these come from the same callable or are [], the request gets 503" in line


def test_each_request_under_trio_raises_an_error_that_names_asyncio() -> None:
    """A server may run the app with trio and without a lifespan: no asyncio loop runs."""
    app = asgi.RateLimitMiddleware(App200(), limits="5/minute")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    for _ in range(2):
        with pytest.raises(
            ConfigError, match="the server runs the app with trio, and RateLimitMiddleware needs asyncio"
        ):
            app(dict(scope), nothing, nothing).send(None)
    with pytest.raises(ConfigError, match="with trio"):  # the middleware checks the event loop only once
        asyncio.run(app(dict(scope), nothing, nothing))


@pytest.mark.parametrize("place", ["limits", "messages", "rules[0] (shop).limits", "limits.free"])
def test_two_limits_of_a_list_with_the_same_name_are_an_error(place: str) -> None:
    limits: list[Any] = [{"limit": "5/minute", "name": "few"}, "9/hour", {"limit": "20/hour", "name": "few"}]
    settings: dict[str, dict[str, Any]] = {
        "limits": {"limits": limits},
        "messages": {"limits": [], "messages": limits},
        "rules[0] (shop).limits": {"limits": [], "rules": [{"path": "/", "name": "shop", "limits": limits}]},
        "limits.free": {"limits": {"free": limits}, "tier": "user"},
    }
    with pytest.raises(ConfigError) as caught:
        Settings.of(None, settings[place])
    first = place.rpartition("(shop).")[2]
    assert str(caught.value) == f"{place}[2].name: 'few' is also the name of {first}[0]; choose another name"
    with pytest.raises(
        ConfigError, match=r"^limits\[2\]\.name: 'few' is also the name of limits\[0\]; choose another name$"
    ):
        limit(limits)


FLASK_TARGETS: dict[str, Callable[[], Any]] = {
    "a view": lambda: lambda: "x",
    "a class": lambda: type("Shop", (MethodView,), {}),
    "a blueprint": lambda: Blueprint("shop", __name__),
}


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("target", FLASK_TARGETS.values(), ids=FLASK_TARGETS)
def test_limit_and_exempt_on_the_same_flask_target_are_an_error(target: Callable[[], Any]) -> None:
    text = (
        r": got @limit and @exempt, expected one of them; a limit on a view replaces the default limits, and @exempt "
    )
    with pytest.raises(ConfigError, match="^@exempt on .*" + text):
        flask_exempt(flask_limit("5/minute")(target()))
    with pytest.raises(ConfigError, match="^@limit on .*" + text):
        flask_limit("5/minute")(flask_exempt(target()))


@pytest.mark.usefixtures("forgotten")
def test_a_flask_view_class_can_be_limited_if_its_base_class_is_exempt() -> None:
    class Open(MethodView):
        pass

    class Closed(Open):
        pass

    flask_exempt(Open)
    assert flask_limit("5/minute")(Closed) is Closed


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("on", ["a view", "a blueprint"])
def test_flask_limits_with_methods_that_no_route_has_are_reported(on: str, caplog: pytest.LogCaptureFixture) -> None:
    def app_with(*methods: str, strict: bool = False) -> Flask:
        app = Flask(__name__)
        RateLimiter(app, limits="9/minute", strict=strict)
        shop = Blueprint("shop", __name__)
        marked = flask_limit("5/minute", methods=["POST"])

        def view() -> str:
            return "x"

        if on == "a blueprint":
            marked(shop)
        shop.add_url_rule("/", "view", marked(view) if on == "a view" else view, methods=list(methods))
        app.register_blueprint(shop)
        return app

    text = "has methods = ['POST'], and its routes have GET, PUT, so it limits nothing; name methods of the routes, or"
    assert app_with("GET", "PUT").test_client().get("/").status_code == 200
    (told,) = caplog.messages
    assert text in told
    caplog.clear()
    assert app_with("GET", "POST", strict=True).test_client().get("/").status_code == 200
    assert caplog.messages == []
    assert app_with("GET", strict=True).test_client().get("/").status_code == 500

"""`--app MODULE:APP`: `peek` finds the limits on endpoints of ASGI apps, and shows the buckets of a request."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
from flask import Flask
from httpx import ASGITransport, AsyncClient
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.cli import main
from ratelimit_mw.fastapi import RateLimit as Dependency
from ratelimit_mw.starlette import RateLimit, exempt, limit

pytestmark = pytest.mark.one_redis

HOUR = "9/hour using fixed_window"
CLIENT = "192.0.2.7"


def around(app: Any, store: str, **settings: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, limits=HOUR, key="ip", store=store, store_timeout=30.0, plain_keys=True, **settings)


def added(app: Any, store: str, **settings: Any) -> Any:
    app.add_middleware(
        RateLimitMiddleware, limits=HOUR, key="ip", store=store, store_timeout=30.0, plain_keys=True, **settings
    )
    return app


def tenant(request: Any) -> str | None:
    found: str | None = request.header("x-tenant")
    return found


async def find_user(request: Request) -> None:
    request.state.user = "ann"


async def hello(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@limit(HOUR, name="inner")
@limit("8/hour using fixed_window")
async def limited(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


@exempt
async def free(request: Request) -> PlainTextResponse:
    return PlainTextResponse("hello")


class Items(HTTPEndpoint):
    async def get(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("items")

    @limit("7/hour using fixed_window", name="posted")
    async def post(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("items")


limit("6/hour using fixed_window")(Items)


class Layer:
    """Middleware of somebody else."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def routes() -> list[Any]:
    per_route = [Middleware(RateLimit, "5/hour using fixed_window", name="per_route"), Middleware(Layer)]
    per_mount = [Middleware(Layer), Middleware(RateLimit, "4/hour using fixed_window")]
    return [
        Route("/limited", limited),
        Route("/items", Items),
        Route("/route", limited, middleware=per_route),
        Mount(
            "/mount", routes=[Route("/{name}", hello, methods=["PUT"]), Route("/x/free", free)], middleware=per_mount
        ),
        Host("api.test", Router([Route("/limited/{number:int}", limited)], middleware=per_mount)),
    ]


def of_fastapi() -> FastAPI:
    app = FastAPI(dependencies=[Depends(Dependency("6/hour using fixed_window"))])
    inner = APIRouter(dependencies=[Depends(Dependency("5/hour using fixed_window", name="inner"))])
    outer = APIRouter(prefix="/outer")

    @inner.get("/items/{item}", dependencies=[Depends(find_user), Depends(Dependency("4/hour using fixed_window"))])
    async def items(item: int) -> int:
        return item

    @inner.post("/items/{item}")
    @limit("3/hour using fixed_window", key=tenant)
    async def post(item: int, request: Request) -> int:
        return item

    @inner.websocket("/messages")
    async def messages(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.close()

    inner.add_api_route("/free", free)

    @app.get("/free")
    @exempt
    async def nothing() -> str:
        return "free"

    outer.include_router(inner, prefix="/inner")
    app.include_router(outer)
    return app


def mounting(app: Any) -> Starlette:
    return Starlette(routes=[Mount("/v1", Layer(app)), Route("/limited", limited)])


APPS: dict[str, Callable[[str], Any]] = {
    "starlette": lambda store: added(Starlette(routes=routes()), store),
    "starlette, wrapped": lambda store: around(Layer(Starlette(routes=routes())), store),
    "starlette, wrapped outside": lambda store: Layer(added(Starlette(routes=routes()), store)),
    "router": lambda store: around(Router(routes()), store),
    "fastapi": lambda store: added(of_fastapi(), store),
    "mounted": lambda store: mounting(added(of_fastapi(), store)),
    "mounting": lambda store: added(mounting(of_fastapi()), store),
    "both": lambda store: added(mounting(added(of_fastapi(), store, rules=[{"path": "/free", "limits": HOUR}])), store),
    "around all": lambda store: added(
        Starlette(routes=[Mount("/", of_fastapi())], middleware=[Middleware(RateLimit, HOUR, name="all")]), store
    ),
}
OF_STARLETTE = [
    "/limited",
    "/items",
    "POST /items",
    "HEAD /items",
    "/route",
    "PUT /mount/7",
    "/mount/x/free",
    "/none",
    "POST /limited",
    "/limited/",
    "/limited/7 api.test",
    "/limited/seven api.test",
]
OF_FASTAPI = [
    "/outer/inner/items/7",
    "POST /outer/inner/items/7",
    "DELETE /outer/inner/items/7",
    "/outer/inner/free",
    "/free",
    "/none",
]
CALLS = [
    *((app, line) for app in ("starlette", "starlette, wrapped", "router") for line in OF_STARLETTE),
    ("starlette, wrapped outside", "/items"),
    *((app, line) for app in ("fastapi", "around all") for line in OF_FASTAPI),
    *(
        (app, line.replace("/", "/v1/", 1))
        for app in ("mounted", "mounting", "both")
        for line in [*OF_FASTAPI, "/openapi.json"]
    ),
    *((app, "/limited") for app in ("mounting", "both")),
]


async def call(app: Any, method: str, path: str, host: str) -> None:
    async with AsyncClient(transport=ASGITransport(app, client=(CLIENT, 1)), base_url=f"http://{host}") as client:
        for _ in range(2):
            await client.request(method, path, headers={"x-tenant": "shop"})


def counted(text: str) -> list[tuple[str, ...]]:
    buckets = json.loads(text)["buckets"]
    return sorted((one["rule"], one["key"], one["limit"], one["remaining"]) for one in buckets)


@pytest.mark.parametrize(("name", "line"), CALLS)
def test_peek_shows_what_a_request_has_charged(
    name: str, line: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    method, path, host = (["GET"] * line.startswith("/") + line.split() + ["test"])[:3]
    asyncio.run(call(APPS[name](redis_url), method, path, host))
    monkeypatch.setitem(sys.modules, "shop_app", SimpleNamespace(create=lambda: APPS[name](redis_url)))
    words = ["--app", "shop_app:create()", "--json"]
    request = ["--request", f"{method} {path}", "--ip", CLIENT, "--host", host, "--header", "X-Tenant: shop"]

    assert main(["keys", *words]) == 0
    charged = counted(capsys.readouterr().out.replace('"keys"', '"buckets"', 1))
    assert main(["peek", *words, *request]) == 0
    assert counted(capsys.readouterr().out) == charged
    assert main(["reset", *words, *request, "--yes"]) == 0
    assert json.loads(capsys.readouterr().out).get("forgotten", 0) == len(charged)
    assert main(["keys", *words]) == 0
    assert json.loads(capsys.readouterr().out)["keys"] == []


MODULE = """
from fastapi import Depends, FastAPI, WebSocket

from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware

print("starting")


def tenant(request):
    return request.raw["app"].title + request.raw["path_params"].get("number", "") + (request.header("x-tenant") or "")


def create_app(title="shop"):
    app = FastAPI(title=title, root_path="/proxied")

    @app.post("/login/{number}", dependencies=[Depends(RateLimit("3/hour using fixed_window", key=tenant))])
    async def login(number):
        return number

    @app.websocket("/chat", dependencies=[Depends(RateLimit("4/hour using fixed_window", name="chat"))])
    async def chat(websocket: WebSocket):
        await websocket.accept()

    @app.get("/away", dependencies=[Depends(RateLimit("5/hour", store="memory://", name="away"))])
    async def away():
        return "away"

    app.add_middleware(
        RateLimitMiddleware, limits="9/hour using fixed_window", key="ip", store="STORE", store_timeout=30.0,
        plain_keys=True, rules=[{"path": "/login/{n}", "limits": "7/hour using fixed_window", "name": "login"}],
    )
    return app


class apps:
    main = create_app("main")
"""


def run(folder: Path, *words: str) -> tuple[int, list[str], list[str]]:
    """Run `peek` in another folder than that of the module."""
    command = [sys.executable, "-m", "ratelimit_mw", "peek", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_peek_imports_an_app_or_its_factory_and_shows_the_limits_of_an_endpoint(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "shop_module.py").write_text(MODULE.replace("STORE", redis_url))
    login = ["--request", "POST /login/7", "--ip", CLIENT, "--header", "X-Tenant: ann"]
    rows = [
        "login              7/3600s using fixed_window  7 of 7 left  ip=192.0.2.7",
        "POST_login_number  3/3600s using fixed_window  3 of 3 left  call:shop_module:tenant=shop7ann",
    ]
    absent = "no such bucket exists: nothing is counted for"
    for name in ("create_app", "create_app()"):
        code, out, err = run(tmp_path, "--app", f"shop_module:{name}", "--app-dir", "code", *login)
        assert (code, out) == (0, rows)
        assert (err[0], [line.startswith(absent) for line in err[-2:]]) == ("starting", [True, True])
    code, out, _ = run(tmp_path, "--app", "shop_module:apps.main", "--app-dir", "code", *login, "--json")
    assert (code, [one["key"] for one in json.loads(out[0])["buckets"]]) == (
        0,
        ["ip=192.0.2.7", "call:shop_module:tenant=main7ann"],
    )
    code, out, _ = run(tmp_path / "code", "--app", "shop_module:create_app", "--request", "/chat", "--ip", CLIENT)
    assert (code, [line.split()[0] for line in out]) == (0, ["default", "chat"])
    code, out, err = run(tmp_path / "code", "--app", "shop_module:create_app", "--request", "/away", "--ip", CLIENT)
    assert (code, [line.split()[0] for line in out], err[-1]) == (
        0,
        ["default"],
        "limits with a store of their own are not shown: away",
    )


def failing(name: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["peek", "--app", name, *words, "--request", "/"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    return err.removeprefix("ratelimit_mw: ").removesuffix("\n")


EXPECTED = "expected MODULE:APP, or MODULE:FUNCTION of a function that returns the app"


def test_a_wrong_name_of_an_app_is_an_error_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ValueError("no database")

    flask, django = Flask("shop"), get_asgi_application()
    monkeypatch.setitem(
        sys.modules, "shop_app", SimpleNamespace(create=fail, flask=flask, django=django, router=Router(routes()))
    )
    assert failing("shop_app", capsys) == f"--app: got 'shop_app', {EXPECTED}"
    assert failing("shop_app:create(1)", capsys) == f"--app: got 'shop_app:create(1)', {EXPECTED}"
    assert failing("shop_app:create", capsys) == f"--app: got 'shop_app:create', {EXPECTED}: ValueError: no database"
    assert failing("no_such.shop:app", capsys) == (
        f"--app: got 'no_such.shop:app', {EXPECTED}: ModuleNotFoundError: No module named 'no_such'; run the command "
        "in the folder of the module, or name the folder with --app-dir"
    )
    assert failing("shop_app:app", capsys, "--app-dir", "none") == "--app-dir: got 'none', expected a folder"
    nothing = "--app: 'shop_app:{}' has no RateLimitMiddleware of ratelimit_mw.asgi{}"
    assert failing("shop_app:router", capsys) == nothing.format("router", "")
    hint = "; it is a Flask app: run `flask --app MODULE ratelimit`"
    assert failing("shop_app:flask", capsys) == nothing.format("flask", hint)
    hint = "; it is a Django app: run `manage.py ratelimit`"
    assert failing("shop_app:django", capsys) == nothing.format("django", hint)
    assert main(["peek", "limits.toml", "--app-dir", "code", "--request", "/"]) == 1
    expected = "ratelimit_mw: --app-dir: present without --app, expected --app MODULE:APP beside it\n"
    assert capsys.readouterr().err == expected


def test_without_a_middleware_the_store_is_that_of_the_first_limit_on_an_endpoint(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Dependency(HOUR, key="all", store=redis_url, name="first")

    def create() -> FastAPI:
        app = FastAPI()
        app.add_api_route("/", free, dependencies=[Depends(Dependency(HOUR, store="memory://"))])
        app.add_api_route("/here", hello, dependencies=[Depends(first)], response_model=None)
        return app

    monkeypatch.setitem(sys.modules, "shop_app", SimpleNamespace(create=create))
    asyncio.run(call(create(), "GET", "/here", "test"))
    assert main(["peek", "--app", "shop_app:create", "--request", "/here", "--ip", CLIENT, "--json"]) == 0
    assert [row[::2] for row in counted(capsys.readouterr().out)] == [("@first", "9/3600s using fixed_window")]


def test_a_limit_around_an_app_skips_exempt_endpoints_of_included_routers() -> None:
    app = Starlette(routes=[Mount("/", of_fastapi())], middleware=[Middleware(RateLimit, "1/hour", name="all")])

    async def statuses(path: str) -> list[int]:
        async with AsyncClient(transport=ASGITransport(app, client=(CLIENT, 1)), base_url="http://test") as client:
            return [(await client.get(path)).status_code for _ in range(2)]

    assert asyncio.run(statuses("/outer/inner/free")) == [200, 200]
    assert asyncio.run(statuses("/outer/inner/items/7")) == [200, 429]

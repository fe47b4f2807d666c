"""`--app MODULE:APP` finds the limits on endpoints of ASGI apps: `peek` shows the buckets that a request has charged."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, Depends, FastAPI, Request, WebSocket
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

pytestmark = [pytest.mark.once, pytest.mark.one_redis]

HOUR = "9/hour using fixed_window"
CLIENT = "192.0.2.7"


def around(app: Any, store: str, **settings: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, limits=HOUR, key="ip", store=store, store_timeout=5.0, plain_keys=True, **settings)


def added(app: Any, store: str, **settings: Any) -> Any:
    app.add_middleware(
        RateLimitMiddleware, limits=HOUR, key="ip", store=store, store_timeout=5.0, plain_keys=True, **settings
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
        Mount("/mount", routes=[Route("/{name}", hello, methods=["PUT"]), Route("/x/free", free)], middleware=per_mount),
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

    @app.get("/free")
    @exempt
    async def free() -> str:
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
OF_STARLETTE = ["/limited", "/items", "POST /items", "HEAD /items", "/route", "PUT /mount/7", "/mount/x/free", "/none"]
OF_STARLETTE += ["POST /limited", "/limited/7 api.test", "/limited/seven api.test", "/limited/"]
OF_FASTAPI = ["/outer/inner/items/7", "POST /outer/inner/items/7", "/free", "/none", "DELETE /outer/inner/items/7"]
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

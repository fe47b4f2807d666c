"""Tests that the default limits apply to nested routers, mounts, redirects and paths without a route.

FastAPI 0.137 made `app.routes` a tree. `tox -e oldest` runs these tests with the release before that, every other
environment with the current one.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.testing import Clock, RecordingStore

LIMIT = "2/minute"
CALLS = {  # method and path, and the status with which the app responds
    "direct": ("GET", "/direct", 200),
    "included": ("GET", "/one/items", 200),
    "included with a parameter": ("GET", "/one/items/7", 200),
    "twice included": ("GET", "/one/two/items", 200),
    "three times included": ("GET", "/one/two/three/items", 200),
    "three times included, with a parameter": ("GET", "/one/two/three/items/7", 200),
    "three times included, another method": ("POST", "/one/two/three/items", 200),
    "included without a prefix": ("GET", "/plain", 200),
    "root of a router": ("GET", "/one/two/three/", 200),
    "redirect to the root of a router": ("GET", "/one/two/three", 307),
    "redirect to a route without a slash": ("GET", "/one/two/three/items/", 307),
    "mounted": ("GET", "/mounted/direct", 200),
    "mounted, three times included": ("GET", "/mounted/one/two/three/items", 200),
    "mounted in what is mounted": ("GET", "/mounted/deeper/one/two/three/items/7", 200),
    "root of what is mounted": ("GET", "/mounted/", 404),
    "no route": ("GET", "/none", 404),
    "no route under a prefix": ("GET", "/one/two/three/none", 404),
    "no route in what is mounted": ("GET", "/mounted/one/none", 404),
    "no such method": ("DELETE", "/one/two/three/items", 405),
    "the schema": ("GET", "/openapi.json", 200),
    "the docs": ("GET", "/docs", 200),
}


async def hello() -> str:
    return "hello"


# Calls that run no dependency: FastAPI's own pages, redirects, and paths or methods without a route.
NOT_ROUTED = [name for name, (_, path, answer) in CALLS.items() if answer != 200 or path in ("/openapi.json", "/docs")]


def with_routes(**options: Any) -> FastAPI:
    """Return an app with nested routers. Each has the same routes and includes the next one under a prefix."""
    app = FastAPI(**options)
    app.add_api_route("/direct", hello)
    inner = APIRouter()
    inner.add_api_route("/", hello)
    for name in ("three", "two", "one"):
        inner.add_api_route("/items", hello)
        inner.add_api_route("/items", hello, methods=["POST"])
        inner.add_api_route("/items/{item}", hello)
        outer = APIRouter()
        outer.include_router(inner, prefix=f"/{name}")
        inner = outer
    inner.add_api_route("/plain", hello)
    app.include_router(inner)
    return app


def limited(**settings: Any) -> FastAPI:
    """Return an app that mounts a copy of itself, which mounts another copy. The limits are on the outermost."""
    app, mounted = with_routes(), with_routes()
    mounted.mount("/deeper", with_routes())
    app.mount("/mounted", mounted)
    app.add_middleware(RateLimitMiddleware, **settings)
    return app


def statuses(app: Any, *calls: tuple[str, str]) -> list[int]:
    async def talk() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            return [(await client.request(method, path)).status_code for method, path in calls]

    return asyncio.run(talk())


def open_paths(app: FastAPI) -> Sequence[tuple[str, str]]:
    """Return method and path of each call that the app's OpenAPI schema documents."""
    paths = app.openapi()["paths"]
    return [(method.upper(), path.replace("{item}", "7")) for path, methods in paths.items() for method in methods]


@pytest.mark.parametrize("name", CALLS)
def test_default_limits_apply_to_each_call(name: str) -> None:
    method, path, answer = CALLS[name]
    assert statuses(limited(limits=LIMIT), *[(method, path)] * 5) == [answer, answer, 429, 429, 429]


@pytest.mark.parametrize("name", CALLS)
def test_app_responds_to_each_call_without_limits(name: str) -> None:
    method, path, answer = CALLS[name]
    assert statuses(limited(limits=[]), *[(method, path)] * 5) == [answer] * 5


def test_default_limits_share_one_bucket_among_all_routes() -> None:
    calls = [(method, path) for method, path, _ in CALLS.values()]
    first, second, *others = statuses(limited(limits=LIMIT), *calls)
    assert (first, second) == (200, 200)
    assert others == [429] * (len(CALLS) - 2)


def test_default_limits_apply_to_every_documented_route() -> None:
    documented = open_paths(limited(limits=LIMIT))
    assert len(documented) == 1 + 1 + 1 + 3 * 3  # direct, plain, the root of the innermost, and items of each
    for call in documented:
        assert statuses(limited(limits=LIMIT), *[call] * 4) == [200, 200, 429, 429]


def test_rule_matches_the_whole_path_of_a_nested_route() -> None:
    rule = {"path": "/one/two/three/items/{item}", "limits": "1/minute"}
    items = [("GET", f"/one/two/three/items/{item}") for item in (7, 8, 7)]
    others = [("GET", f"/{prefix}/items/7") for prefix in ("one/two", "mounted/one/two/three")]
    assert statuses(limited(limits=LIMIT, rules=[rule]), *items, *others, *items) == [
        200,
        429,
        429,
        200,
        200,
        429,
        429,
        429,
    ]


def test_rule_of_a_mounted_app_matches_the_path_below_the_mount() -> None:
    app, mounted = with_routes(), with_routes()
    rule = {"path": "/one/two/three/items", "limits": "1/minute"}
    mounted.add_middleware(RateLimitMiddleware, limits=LIMIT, rules=[rule])
    app.mount("/mounted", mounted)
    assert statuses(app, *[("GET", "/mounted/one/two/three/items")] * 2) == [200, 429]
    assert statuses(app, *[("GET", "/mounted/one/items")] * 3) == [200, 200, 429]
    assert statuses(app, *[("GET", "/one/two/three/items")] * 3) == [200] * 3


TEMPLATES = {
    "direct": "/direct",
    "included": "/one/items",
    "included with a parameter": "/one/items/{item}",
    "twice included": "/one/two/items",
    "three times included": "/one/two/three/items",
    "three times included, with a parameter": "/one/two/three/items/{item}",
    "three times included, another method": "/one/two/three/items",
    "included without a prefix": "/plain",
    "root of a router": "/one/two/three/",
    "mounted": "/mounted/direct",
    "mounted, three times included": "/mounted/one/two/three/items",
    "mounted in what is mounted": "/mounted/deeper/one/two/three/items/{item}",
}


def depending(*limits: RateLimit, **settings: Any) -> FastAPI:
    """Return an app that mounts a copy of itself, which mounts another copy. Each has the same dependencies."""
    own = [Depends(limit) for limit in limits]
    app, mounted = with_routes(dependencies=own), with_routes(dependencies=own)
    mounted.mount("/deeper", with_routes(dependencies=own))
    app.mount("/mounted", mounted)
    if settings:
        app.add_middleware(RateLimitMiddleware, **settings)
    return app


def test_every_call_has_a_template_or_is_not_routed() -> None:
    assert [*TEMPLATES, *NOT_ROUTED] == sorted(CALLS, key=[*TEMPLATES, *NOT_ROUTED].index)


@pytest.mark.parametrize("root", ["", "/api"], ids=["at the root", "below a root_path"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_route_key_is_the_full_template(name: str, root: str) -> None:
    store = RecordingStore(clock=Clock())
    app = depending(RateLimit("9/minute", name="own", key="route"), limits=[], store=store, plain_keys=True)

    async def below(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root, "path": root + scope["path"]}, receive, send)

    method, path, answer = CALLS[name]
    assert statuses(below, (method, path)) == [answer]
    template = TEMPLATES[name].replace("{item}", "%7Bitem%7D")
    assert [[charge.key for charge in charges] for _, charges in store.calls] == [[f"{{route={template}}}:@own"]]


@pytest.mark.parametrize("name", TEMPLATES)
def test_dependency_limits_each_route(name: str) -> None:
    method, path, answer = CALLS[name]
    other = path.replace("7", "8")
    calls = [(method, path), (method, other), (method, path), (method, other)]
    assert statuses(depending(RateLimit(LIMIT)), *calls) == [answer, answer, 429, 429]


def test_unnamed_dependency_has_a_bucket_per_route() -> None:
    calls = [CALLS[name][:2] for name in TEMPLATES]
    app = depending(RateLimit("1/minute"))
    assert statuses(app, *calls, *calls) == [200] * len(calls) + [429] * len(calls)


@pytest.mark.promise(1, 2)
@pytest.mark.parametrize("name", TEMPLATES)
def test_two_dependencies_are_charged_all_or_nothing_in_one_call(name: str) -> None:
    store = RecordingStore(clock=Clock())
    app = depending(RateLimit("9/minute"), RateLimit("1/minute"), limits=[], store=store)
    assert statuses(app, *[CALLS[name][:2]] * 2) == [200, 429]
    assert [len(charges) for _, charges in store.calls] == [2, 2]
    assert [decision.remaining for decision in store.peek(store.calls[0][1])] == [8, 0]  # the refusal charged nothing

"""Runs the page on slowapi beside slowapi: its programs, and what its tables say of each."""

import asyncio
import importlib
import re
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request

from ratelimit_mw.fastapi import RateLimit, RateLimitMiddleware
from redis_servers import RedisServer
from test_docs import ROOT, blocks, serving

pytestmark = pytest.mark.one_redis

PAGE = ROOT / "docs/how-to/migrate-from-slowapi.md"
Call = tuple[str, str, dict[str, str]]
KEY = {"x-api-key": "key-1"}
LOGINS: list[Call] = [("POST", "/login", {})] * 6
SEARCHES: list[Call] = [("GET", "/search", KEY)] * 11
OTHERS: list[Call] = [
    ("GET", "/search", {}),
    ("GET", "/suggest", KEY),
    *[("GET", "/export", {})] * 11,
    *[("GET", "/health", {})] * 101,
]


def responses(app: Any, calls: Sequence[Call], address: str = "192.0.2.7") -> list[int]:
    async def call() -> list[int]:
        transport = httpx.ASGITransport(app=app, client=(address, 5000))
        async with serving(app), httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return [
                (await client.request(method, path, headers=headers)).status_code for method, path, headers in calls
            ]

    return asyncio.run(call())


def run(code: str, names: dict[str, Any], redis: RedisServer) -> Any:
    redis.ask("FLUSHALL")
    exec(compile(code.replace("redis://localhost:6379/0", redis.url), str(PAGE), "exec"), names)  # noqa: S102  # the point of this test
    return names["app"]


@pytest.mark.parametrize("address", ["192.0.2.7", "192.0.2.1"])  # /export is free for the second
def test_programs_before_and_after_give_the_same_responses(address: str, redis_server: RedisServer) -> None:
    before, by_path, on_endpoints = [block.text for block in blocks(PAGE)[1:4]]
    there = responses(run(before, {"__name__": "shop"}, redis_server), [*LOGINS, *SEARCHES, *OTHERS], address)
    names: dict[str, Any] = {"__name__": "shop"}
    assert responses(run(by_path, names, redis_server), [*LOGINS, *SEARCHES, *OTHERS], address) == there
    assert there.count(429) == (4 if address == "192.0.2.7" else 3)
    calls = [*LOGINS, *SEARCHES]
    assert responses(run(on_endpoints, names, redis_server), calls, address) == there[: len(calls)]


def peer(**options: Any) -> FastAPI:
    slowapi = importlib.import_module("slowapi")
    errors, by = importlib.import_module("slowapi.errors"), importlib.import_module("slowapi.util").get_remote_address
    app = FastAPI()
    app.state.limiter = limiter = slowapi.Limiter(key_func=by, **options)
    app.add_exception_handler(errors.RateLimitExceeded, slowapi._rate_limit_exceeded_handler)

    @app.get("/users/{number}")
    @limiter.limit("1/minute")  # type: ignore[untyped-decorator]  # slowapi has no types here
    async def user(request: Request, number: int) -> int:  # slowapi reads the request
        return number

    return app


def own(**options: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits=[], key="ip")

    @app.get("/users/{number}", dependencies=[Depends(RateLimit("1/minute", **options))])
    async def user(number: int) -> int:
        return number

    return app


(KEY_OF_URL,) = re.findall(r"`key=(lambda [^`]+)`", PAGE.read_text("utf-8"))


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (peer, [200, 200, 429]),
        (lambda: peer(key_style="endpoint"), [200, 429, 429]),
        (own, [200, 429, 429]),
        (lambda: own(key=eval(KEY_OF_URL)), [200, 200, 429]),  # noqa: S307  # what the page shows
    ],
    ids=["there", "there, by endpoint", "here", "here, by URL"],
)
def test_decorated_limits_are_for_each_url_there_and_for_each_route_here(app: Any, expected: list[int]) -> None:
    calls: list[Call] = [("GET", f"/users/{number}", {}) for number in (1, 2, 1)]
    assert responses(app(), calls) == expected

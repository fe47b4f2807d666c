"""Requests that the app could read differently from the middleware."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def read(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.headers.get('x-api-key')} {request.cookies.get('sid')}")


ROUTES = [
    Route("/login", read),
    Route("/items/{id:int}", read),
    Route("/slash/", read),
]


def statuses(app: Starlette, path: str, *headers: list[tuple[str, str]]) -> list[int]:
    async def call() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            return [(await client.get(path, headers=each)).status_code for each in headers]

    return asyncio.run(call())


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("rule", "path"),
    [
        ("/login", "/login%0a"),
        ("/items/{id:int}", "/items/1%0a"),
        ("/slash/", "/slash/%0a"),
    ],
)
def test_rule_applies_to_a_path_with_a_trailing_newline(rule: str, path: str) -> None:
    app = Starlette(routes=ROUTES)
    app.add_middleware(RateLimitMiddleware, limits=[], rules=[{"path": rule, "limits": "2/hour"}])
    assert statuses(app, path, *[[]] * 3) == [200, 200, 429]


@pytest.mark.promise(10)
@pytest.mark.parametrize(
    ("key", "others"),
    [
        ("header:X-Api-Key", [[("x-api-key", "K"), ("x-api-key", str(each))] for each in range(4)]),
        ("cookie:sid", [[("cookie", f"sid={each}; sid=K")] for each in range(4)]),
    ],
)
def test_repeated_header_or_cookie_gives_no_new_bucket(key: str, others: list[list[tuple[str, str]]]) -> None:
    app = Starlette(routes=ROUTES)
    app.add_middleware(RateLimitMiddleware, limits="2/hour", key=key)
    assert statuses(app, "/login", *others) == [200, 200, 429, 429]

"""`peek --app MODULE:APP`: the commands for operators with the settings of an ASGI app."""

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from httpx import ASGITransport, AsyncClient

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.cli import main
from ratelimit_mw.http.request import Request

pytestmark = pytest.mark.one_redis

UNANSWERED = (
    f"user_of_state found no key for this request, so ip=192.0.2.7 counts in the key 'call:{__name__}:user_of_state | "
    "ip'; describe the request with --header, --user or --ip"
)
MISSING = (
    "ratelimit_mw: --app: got 'shop_app:ap', expected MODULE:APP, or MODULE:FUNCTION of a function that returns the "
    "app: AttributeError: 'types.SimpleNamespace' object has no attribute 'ap', did you mean 'app'?"
)


def user_of_state(request: Request) -> str | None:
    return getattr(request.state, "user", None) or request.header("x-user")


def added(**settings: Any) -> FastAPI:
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, **settings)
    return app


async def get(app: Any, headers: dict[str, str]) -> None:
    async with AsyncClient(transport=ASGITransport(app, client=("192.0.2.7", 1)), base_url="http://test") as client:
        await client.get("/", headers=headers)


def around(**settings: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(FastAPI(), settings)


@pytest.mark.parametrize("make", [added, around])
@pytest.mark.parametrize("name", ["app", "factory"])
def test_commands_read_the_settings_of_an_app(
    make: Callable[..., Any],
    name: str,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = make(
        limits="3/hour using fixed_window",
        key=[user_of_state, "ip"],
        store=redis_url,
        store_timeout=5.0,
        plain_keys=True,
    )
    monkeypatch.setitem(sys.modules, "shop_app", SimpleNamespace(app=app, factory=lambda: app))
    for headers in ({}, {"x-user": "ann"}, {"x-user": "ann"}):
        asyncio.run(get(app, headers))
    words = ["--app", f"shop_app:{name}", "--request", "/", "--ip", "192.0.2.7"]

    assert main(["peek", *words]) == 0
    out, err = capsys.readouterr()
    assert ("2 of 3 left" in out, err.splitlines()[0]) == (
        True,
        UNANSWERED,
    )
    assert main(["peek", *words, "--header", "X-User: ann"]) == 0
    out, err = capsys.readouterr()
    assert ("1 of 3 left" in out, "found no key" in err) == (True, False)
    assert main(["reset", *words, "--yes"]) == 0
    out, err = capsys.readouterr()
    assert (out.split(";")[0], err.splitlines()[0].split(",")[0]) == (
        "1 bucket forgotten",
        "user_of_state found no key for this request",
    )
    assert main(["keys", "--app", f"shop_app:{name}"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2  # with the headings


def raising(request: Request) -> str:
    user: str = request.state.user
    return user


def test_peek_shows_the_bucket_of_the_address_where_a_key_callable_raises(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = added(limits="3/hour using fixed_window", key=raising, store=redis_url, store_timeout=5.0)
    monkeypatch.setitem(sys.modules, "shop_app", SimpleNamespace(app=app))
    asyncio.run(get(app, {}))
    assert main(["peek", "--app", "shop_app:app", "--request", "/", "--ip", "192.0.2.7"]) == 0
    out, err = capsys.readouterr()
    assert ("2 of 3 left" in out, "found no key for this request, so ip=192.0.2.7 counts in the key" in err) == (
        True,
        True,
    )


def test_an_app_without_middleware_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shop_app", SimpleNamespace(app=FastAPI()))
    results = []
    for words in (["--app", "shop_app:app"], ["--app", "shop_app:ap"], [], ["limits.toml", "--app", "shop_app:app"]):
        assert main(["keys", *words]) == 1
        results.append(capsys.readouterr().err.split(" [")[0].split("\n")[0])
    assert results == [
        "ratelimit_mw: --app: 'shop_app:app' has no RateLimitMiddleware of ratelimit_mw.asgi",
        MISSING,
        "ratelimit_mw: expected either the file of the settings or --app MODULE:APP",
        "ratelimit_mw: expected either the file of the settings or --app MODULE:APP",
    ]

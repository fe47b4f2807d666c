"""The state that the app finds in a request, also without a limit; and calls and arguments of the middleware."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from litestar.testing import TestClient as LitestarClient

from ratelimit_mw import ConfigError, MemoryStore, Verdict, asgi, wsgi
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.testing import Clock

HTTP: Mapping[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/",
    "headers": [],
    "query_string": b"",
    "client": ("192.0.2.1", 1),
}
UNLIMITED = [
    {"limits": "1/hour", "enabled": False},
    {"limits": "1/hour", "exempt": ["/"]},
    {"limits": "1/hour", "safelist": ["192.0.2.1"]},
    {"limits": []},
    {"limits": "1/hour", "rules": [{"path": "/", "exempt": True}]},
    {"limits": {"limit": "1/hour", "key": "header:x"}, "missing_key": "exempt"},
]


async def receive() -> Any:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(_: Any) -> None: ...


async def unused(_: Any, __: Any, ___: Any) -> None: ...


@pytest.mark.parametrize("settings", UNLIMITED)
@pytest.mark.parametrize("scope", [HTTP, {**HTTP, "state": {}}])
def test_asgi_apps_find_a_state_without_a_verdict(settings: Any, scope: Mapping[str, Any]) -> None:
    seen: list[Any] = []

    async def app(scope: Any, _: Any, __: Any) -> None:
        state = scope["state"]["ratelimit"]
        state.settle(5)  # has no effect
        seen.append(state.verdict)

    asyncio.run(asgi.RateLimitMiddleware(app, settings)({**scope}, receive, send))
    assert seen == [None]


@pytest.mark.parametrize("settings", UNLIMITED)
def test_wsgi_apps_find_a_state_without_a_verdict(settings: Any) -> None:
    seen: list[Any] = []

    def app(environ: Any, start_response: Any) -> list[bytes]:
        environ["ratelimit_mw"].settle(5)
        seen.append(environ["ratelimit_mw"].verdict)
        start_response("200 OK", [])
        return []

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}
    wsgi.RateLimitMiddleware(app, settings)(environ, lambda *_: lambda _: None)
    assert seen == [None]


@pytest.mark.promise(10)
@pytest.mark.parametrize("headers", [[(b"x", b"a"), (b"x", b"b")], [(b"cookie", b"s=1; s=2")]])
def test_a_client_that_repeats_its_key_is_not_exempt(headers: list[tuple[bytes, bytes]]) -> None:
    statuses: list[int] = []
    key = "header:x" if headers[0][0] == b"x" else "cookie:s"

    async def app(_: Any, __: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    async def note(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def main() -> None:
        limited = asgi.RateLimitMiddleware(
            app, limits={"limit": "2/hour", "key": key}, missing_key="exempt", store=MemoryStore(clock=Clock())
        )
        for sent in ([], [], [], headers, headers, headers):
            await limited({**HTTP, "headers": sent}, receive, note)

    asyncio.run(main())
    assert statuses == [200, 200, 200, 200, 200, 429]


def test_the_app_and_the_settings_can_be_keyword_arguments() -> None:
    @get("/", sync_to_thread=False)
    def home() -> str:
        return "hello"

    by_name: Any = asgi.RateLimitMiddleware
    site = Litestar([home], middleware=[DefineMiddleware(by_name, limits="1/hour")], logging_config=None)
    with LitestarClient(site) as client:
        assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    flask = Flask("named")
    flask.wsgi_app = wsgi.RateLimitMiddleware(  # type: ignore[method-assign]
        app=flask.wsgi_app, settings={"limits": "1/hour"}
    )
    assert [flask.test_client().get("/").status_code for _ in range(2)] == [404, 429]


def test_startup_without_asyncio_fails_with_an_error_that_names_the_fix() -> None:
    """Like trio, the test runs no event loop of asyncio."""
    sent: list[Any] = []

    async def note(message: Any) -> None:
        sent.append(message)

    async def startup() -> Any:
        return {"type": "lifespan.startup"}

    middleware = asgi.RateLimitMiddleware(unused, limits="1/hour")
    with pytest.raises(StopIteration):
        middleware({"type": "lifespan"}, startup, note).send(None)
    (failed,) = sent
    assert failed["type"] == "lifespan.startup.failed"
    assert "with trio, and RateLimitMiddleware needs asyncio; run the server with its asyncio" in failed["message"]


@pytest.mark.parametrize(("strict", "status"), [(True, 500), (False, 404)])
def test_a_flask_extension_without_an_app_obeys_its_strict_setting(*, strict: bool, status: int) -> None:
    forgotten = RateLimiter(limits="2/minute", strict=strict)
    assert Flask("forgets").test_client().get("/").status_code == status
    del forgotten


def test_the_error_for_the_option_block_explains_shadow() -> None:
    with pytest.raises(ConfigError, match="block") as caught:
        asgi.RateLimitMiddleware(unused, limits="1/hour", block=True)  # type: ignore[call-arg]
    assert str(caught.value).endswith(
        "here it is `shadow`: block=False is shadow=True; without it, requests are refused"
    )


def test_a_verdict_is_true_if_the_request_is_admitted() -> None:
    assert [bool(Verdict(allowed, (), ())) for allowed in (True, False)] == [True, False]

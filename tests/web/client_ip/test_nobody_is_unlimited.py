"""Tests that each client is limited by its own address, and gets no error, whatever it sends."""

import asyncio
import posixpath
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from profiles import half_as_many
from ratelimit_mw import Charge
from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.testing import Clock, RecordingStore
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware
from web.asgi_talk import HTTP, App200, Talk
from web.wsgi_talk import Server, hello

pytestmark = [pytest.mark.promise(9), pytest.mark.promise(10)]

CLIENT, PROXY = "192.0.2.7", "10.0.0.1"
SETTINGS: dict[str, Any] = {
    "limits": "1000000000/hour",
    "rules": [
        {"name": "login", "path": "/login", "methods": ["POST"], "limits": "1000000000/hour"},
        {"name": "api", "path": "/api/{rest:path}", "host": "*.example.com", "limits": "1000000000/hour"},
        {"name": "item", "path": ["/items/{id:int}", "/things/{id}/"], "limits": "1000000000/hour"},
    ],
    "exempt": ["/health", "/static/{rest:path}"],
    "key": "ip",
    "plain_keys": True,
    "trusted_proxies": ["10.0.0.0/8"],
}

words = [
    "login",
    "health",
    "static",
    "api",
    "items",
    "things",
    "..",
    ".",
    "",
    "7",
    "\n",
    "..\n",
    "LOGIN",
    "%2e%2e",
    "a b",
]
paths = st.lists(st.sampled_from(words) | st.text(max_size=4), max_size=6).map(lambda parts: "/" + "/".join(parts))
methods = st.sampled_from(["GET", "POST", "OPTIONS", "HEAD", "post", "PURGE"])
values = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"), max_size=20)
names = st.sampled_from(
    ["x-forwarded-for", "forwarded", "host", "origin", "access-control-request-method", "x-real-ip"]
)
headers = st.lists(
    st.tuples(names, values | st.sampled_from(["a.example.com", "203.0.113.9", "for=203.0.113.9", ","])), max_size=5
)

Ask = Callable[[str, str, Sequence[tuple[str, str]]], Sequence[Charge]]


def over_asgi() -> Ask:
    store = RecordingStore(clock=Clock())
    app = AsgiMiddleware(App200(), SETTINGS, store=store)

    def ask(method: str, path: str, fields: Sequence[tuple[str, str]]) -> Sequence[Charge]:
        store.calls.clear()
        lines = [(name.encode(), value.encode("latin-1")) for name, value in fields]
        scope = {**HTTP, "method": method, "path": path, "headers": lines, "client": (PROXY, 1)}
        spoken = asyncio.run(Talk().with_app(app, scope))
        assert spoken.sent[0]["status"] == 200
        return [charge for _, charges in store.calls for charge in charges]

    return ask


def over_wsgi() -> Ask:
    store = RecordingStore(clock=Clock())
    app = WsgiMiddleware(hello, SETTINGS, store=store)

    def ask(method: str, path: str, fields: Sequence[tuple[str, str]]) -> Sequence[Charge]:
        store.calls.clear()
        environ: dict[str, Any] = {}
        for name, value in fields:
            variable = f"HTTP_{name.upper().replace('-', '_')}"
            environ[variable] = f"{environ[variable]},{value}" if variable in environ else value
        server = Server(
            **{"HTTP_HOST": "", **environ},
            REQUEST_METHOD=method,
            PATH_INFO=path.encode("utf-8", "surrogatepass").decode("latin-1"),
            REMOTE_ADDR=PROXY,
        )
        server.ask(app)
        assert server.started[0][0] == "200 OK"
        return [charge for _, charges in store.calls for charge in charges]

    return ask


def is_exempt(path: str) -> bool:
    return path == "/health" or path.startswith("/static/")


def cleaned(path: str) -> str:
    """Return the path normalized as by a file system, and without slashes and newlines at its end."""
    return "/" + posixpath.normpath(path.rstrip("/\n")).lstrip("/")


@pytest.mark.parametrize("ask", [over_asgi(), over_wsgi()], ids=["asgi", "wsgi"])
@half_as_many
@given(methods, paths, headers)
@example("POST", "//login", [])
@example("POST", "/static/../login", [])
@example("POST", "/login/login/../\n/..", [])
@example("OPTIONS", "/login", [("origin", "x"), ("access-control-request-method", "POST")])
@example("GET", "/health/", [("x-forwarded-for", "203.0.113.9")])
def test_any_request_is_charged_to_its_own_client_unless_exempt(
    ask: Ask, method: str, path: str, fields: list[tuple[str, str]]
) -> None:
    charges = ask(method, path, [*fields, ("x-forwarded-for", CLIENT)])  # the proxy adds the last one
    buckets = {charge.key.partition("}:")[2] for charge in charges}
    rules = {bucket.removesuffix("/preflight") for bucket in buckets}
    event(",".join(sorted(rules)) or "exempt")
    if not charges:
        assert is_exempt(path)
        assert is_exempt(cleaned(path))
        return
    assert {charge.key.partition("}:")[0] for charge in charges} == {f"{{ip={CLIENT}"}
    announced = [value for name, value in fields if name == "access-control-request-method"]
    preflight = method == "OPTIONS" and bool(announced) and any(name == "origin" for name, _ in fields)
    assert {bucket.endswith("preflight") for bucket in buckets} == {preflight}
    if (method == "POST" or (preflight and announced == ["POST"])) and "/login" in (path, cleaned(path)):
        assert "login" in rules
        assert path == "/login" or rules & {"default", "api"}  # another spelling is also charged under another rule
    if not rules & {"login", "api", "item"}:
        assert rules in ({"default"}, {"preflight"})

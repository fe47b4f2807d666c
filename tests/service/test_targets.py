"""Checks that the service matches each form in which an app may read a request target, in every kind of call."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ratelimit_mw.service.grpc_messages import OK
from ratelimit_mw.testing import RecordingStore
from service.calls import call, calls, made
from service.test_grpc import answers, request

ADDRESS = "192.0.2.7"
RULES = [
    {"name": "admin", "path": "/login", "host": "admin.test", "limits": "9/day"},
    {"name": "lang", "path": "/{lang}/login", "limits": "9/day"},
    {"name": "login", "path": "/login", "limits": "9/day"},
    {"name": "post", "path": "/users/{id}/posts/{post}", "limits": "9/day"},
]


def by_headers(endpoint: str, method: str, uri: str) -> Callable[[Any, str, str], None]:
    def ask(app: Any, target: str, host: str) -> None:
        headers = {"Host": host, "X-Forwarded-For": ADDRESS, method: "GET", uri: target}
        (answer,) = calls(app, ("GET", endpoint, {"headers": headers}))
        assert answer.status_code == 200

    return ask


def by_envoy(app: Any, target: str, host: str) -> None:
    """Call the app as a server does that keeps `#`, because httpx would escape the target."""
    headers = [(b"host", host.encode()), (b"x-forwarded-for", ADDRESS.encode())]
    scope = {
        "type": "http", "method": "GET", "path": "/v1/envoy/", "raw_path": f"/v1/envoy{target}".encode(),
        "query_string": b"", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8900),
    }  # fmt: skip
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, None, send))
    assert sent[0]["status"] == 200


def by_grpc(app: Any, target: str, host: str) -> None:
    (answer,) = answers(app, request((("remote_address", ADDRESS), ("path", target), ("host", host))))
    assert answer.overall_code == OK


def by_check(app: Any, target: str, host: str) -> None:
    assert call(app, "/v1/check", {"path": target, "host": host, "ip": ADDRESS}).json()["allowed"]


ASKED: dict[str, Callable[[Any, str, str], None]] = {
    "forward": by_headers("/v1/forward", "X-Forwarded-Method", "X-Forwarded-Uri"),
    "nginx": by_headers("/v1/nginx", "X-Original-Method", "X-Original-URI"),
    "envoy": by_envoy,
    "grpc": by_grpc,
    "check": by_check,
}


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("target", "host", "charged"),
    [
        ("/en#/login", "x", {"lang", "default"}),  # some servers keep `#` in the path
        ("/login#/x", "x", {"login", "default"}),
        ("/login?#/x", "x", {"login"}),
        ("/health", "x", set()),
        ("/health#/login", "x", {"lang", "default"}),
        ("/lo%C0gin", "x", {"login", "default"}),  # Bottle
        ("/login%FF", "x", {"login", "default"}),
        ("/users//posts/9", "x", {"post", "default"}),  # Falcon
        ("/a//../../login", "x", {"login", "default"}),  # uWSGI; a normalized path is the last form
        ("/login%2f../../", "x", {"login", "default"}),  # uWSGI removes only what follows a decoded slash
        ("/users/a%%2fb/posts/9", "x", {"post", "default"}),  # uWSGI reads `%2f` from `%%2f`
        ("/login", "admin.test", {"admin"}),
        ("/login", "other.test", {"login"}),
        ("http://admin.test/login", "admin.test", {"admin", "default"}),
        ("http://admin.test/login", "other.test", {"admin", "login", "default"}),
        ("http://other.test/login", "admin.test", {"admin", "login", "default"}),
        ("http://other.test/login;a", "other.test", {"login", "default"}),  # Quart
        ("http://other.test/health", "other.test", {"default"}),  # an app may route the whole URL
    ],
)
@pytest.mark.parametrize("face", ASKED)
def test_each_form_of_a_target_is_charged(face: str, target: str, host: str, charged: set[str]) -> None:
    store = RecordingStore()
    ASKED[face](made(rules=RULES, exempt=["/health"], store=store), target, host)
    assert {charge.key.rpartition(":")[2] for _, each in store.calls for charge in each} == charged

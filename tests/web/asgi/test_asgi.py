"""The ASGI middleware passes messages unchanged between app and server, except its own fields."""

import asyncio
from typing import Any

import pytest

from ratelimit_mw import MemoryStore
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import App, Message, Scope
from ratelimit_mw.testing import Clock
from web.asgi_talk import BODY, HTTP, OFFERS_HTTP, START, WEBSOCKET, App200, Talk, header, talk

pytestmark = [pytest.mark.promise(11), pytest.mark.usefixtures("at_first_and_settled")]
OWN = [(b"ratelimit-policy", b'"default";q=1;w=60'), (b"ratelimit", b'"default";r=0;t=60')]


def limited(app: App, **settings: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, **{"limits": "1/minute", "store": MemoryStore(clock=Clock()), **settings})


def test_messages_pass_in_order_and_only_the_start_changes() -> None:
    messages: list[Message] = [
        {"type": "http.response.debug", "info": {}},
        {"type": "http.response.early_hint", "links": [b"</a.css>"]},
        {"type": "http.response.push", "path": "/a.css", "headers": []},
        {"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")], "trailers": True},
        {"type": "http.response.body", "body": b"one", "more_body": True},
        {"type": "http.response.body", "body": b"", "more_body": True},
        {"type": "http.response.pathsend", "path": "/tmp/a"},  # noqa: S108  # only a name
        {"type": "http.response.zerocopysend", "file": 3},
        {"type": "http.response.body", "body": b"two"},
        {"type": "http.response.trailers", "headers": [(b"x-sum", b"1")], "more_trailers": False},
        {"type": "of.another.century"},
    ]
    spoken = asyncio.run(Talk().with_app(limited(App200(*messages)), HTTP))  # messages that no server accepts pass too
    assert spoken.receives == 0
    for sent, message in zip(spoken.sent, messages, strict=True):
        if message["type"] == "http.response.start":
            assert sent == {**message, "headers": [(b"x-app", b"1"), *OWN]}
        else:
            assert sent is message


@pytest.mark.parametrize(
    "headers",
    [
        list,
        tuple,
        iter,
        lambda fields: [list(field) for field in fields],
    ],
    ids=["list", "tuple", "iterator", "list of lists"],
)
def test_app_headers_of_any_iterable_type_keep_their_order(headers: Any) -> None:
    theirs = headers([(b"x-app", b"1"), (b"x-app", b"2")])
    (start, _) = talk(limited(App200({**START, "headers": theirs}, BODY)), HTTP).sent
    assert [tuple(pair) for pair in start["headers"]] == [(b"x-app", b"1"), (b"x-app", b"2"), *OWN]


def test_start_without_headers_gets_the_ratelimit_fields() -> None:
    (start, _) = talk(limited(App200({"type": "http.response.start", "status": 204}, BODY)), HTTP).sent
    assert start["headers"] == OWN


def test_middleware_does_not_modify_the_apps_start_message() -> None:
    headers = [(b"x-app", b"1")]
    message = {**START, "headers": headers}
    talk(limited(App200(message, BODY)), HTTP)
    assert message == {**START, "headers": [(b"x-app", b"1")]}
    assert message["headers"] is headers


def test_ratelimit_fields_of_an_inner_limiter_are_kept() -> None:
    inner = [(b"ratelimit", b'"inner";r=3;t=9')]
    (start, _) = talk(limited(App200({**START, "headers": inner}, BODY)), HTTP).sent
    assert start["headers"] == [*inner, *OWN]


def test_app_gets_the_servers_receive() -> None:
    async def echo(scope: Scope, receive: Any, send: Any) -> None:
        assert receive == spoken.receive
        await send(START)
        while (message := await receive())["type"] == "http.request":
            await send({**BODY, "body": message["body"], "more_body": True})

    parts = [{"type": "http.request", "body": part, "more_body": True} for part in (b"a", b"b")]
    spoken = Talk(*parts, {"type": "http.disconnect"})
    asyncio.run(spoken.with_app(limited(echo), HTTP, method="POST"))
    assert [message.get("body") for message in spoken.sent[1:]] == [b"a", b"b"]
    assert spoken.receives == 3


@pytest.mark.parametrize("before", [(), (START,), (START, {**BODY, "more_body": True})], ids=["start", "body", "end"])
def test_app_exception_passes_through_unchanged(before: tuple[Message, ...]) -> None:
    error = RuntimeError("the app's")

    async def fails(scope: Scope, receive: Any, send: Any) -> None:
        for message in before:
            await send(message)
        raise error

    spoken = Talk()
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(spoken.with_app(limited(fails), HTTP))
    assert caught.value is error
    assert spoken.types == [message["type"] for message in before]


def test_exception_of_the_servers_send_propagates() -> None:
    async def gone(message: Message) -> None:
        raise OSError("the client has gone")

    async def run() -> None:
        await limited(App200())({**HTTP}, Talk().receive, gone)

    with pytest.raises(OSError, match="the client has gone"):
        asyncio.run(run())


@pytest.mark.parametrize("kind", ["mqtt", "lifespan2", ""])
def test_a_scope_of_an_unknown_type_passes_untouched(kind: str) -> None:
    app = App200({"type": f"{kind}.sent"})
    middleware = limited(app)
    scope: Scope = {"type": kind}  # without a path and headers
    for _ in range(3):
        spoken = Talk()
        asyncio.run(middleware(scope, spoken.receive, spoken.send))
        assert spoken.sent == [app.messages[0]]
    assert all(seen is scope for seen in app.scopes)
    assert scope == {"type": kind}


def test_refusal_sends_one_start_and_one_body_and_receives_nothing() -> None:
    app = App200()
    middleware = limited(app)
    talk(middleware, HTTP)
    spoken = talk(middleware, HTTP, method="POST")
    assert len(app.scopes) == 1
    assert spoken.receives == 0
    start, body = spoken.sent
    assert (start["type"], start["status"]) == ("http.response.start", 429)
    assert header(start, "retry-after") == ["60"]
    assert body == {"type": "http.response.body", "body": body["body"]}
    assert header(start, "content-length") == [str(len(body["body"]))]


@pytest.mark.parametrize("state", [{"state": {"db": 1}}, {}], ids=["given", "not given"])
def test_app_finds_the_verdict_in_the_scope_state(state: dict[str, Any]) -> None:
    app = App200()
    scope: Scope = {**HTTP, **state}
    spoken = Talk()
    asyncio.run(limited(app)(scope, spoken.receive, spoken.send))
    found = app.scopes[0]["state"]
    verdict = found["ratelimit"].verdict
    assert (verdict.allowed, verdict.limit, verdict.remaining, verdict.rule) == (True, 1, 0, "default")
    assert ("state" in scope) == bool(state), "a scope without state is not the middleware's to change"
    assert found.get("db") == (1 if state else None)


def test_an_admitted_websocket_passes_untouched() -> None:
    messages: list[Message] = [{"type": "websocket.accept", "headers": []}, {"type": "websocket.close", "code": 1000}]
    app = App200(*messages)
    spoken = talk(limited(app), WEBSOCKET)
    assert spoken.receives == 1, "the app's own"
    assert all(sent is message for sent, message in zip(spoken.sent, messages, strict=True))
    assert app.scopes[0]["state"]["ratelimit"].verdict.allowed


def test_websocket_handshake_is_charged_like_a_get_request() -> None:
    rules = [{"path": "/ws", "methods": ["GET"], "limits": "1/minute"}]
    middleware = limited(App200(), limits="9/minute", rules=rules)
    talk(middleware, HTTP, path="/ws")
    assert talk(middleware, WEBSOCKET, path="/ws").types == ["websocket.close"]


@pytest.mark.parametrize("extensions", [{}, {"extensions": None}, {"extensions": {}}])
def test_a_refused_handshake_is_closed(extensions: dict[str, Any]) -> None:
    middleware = limited(App200())
    talk(middleware, HTTP)
    spoken = talk(middleware, WEBSOCKET, **extensions)
    assert spoken.receives == 1
    assert spoken.sent == [{"type": "websocket.close", "code": 1013, "reason": "Too Many Requests"}]


def test_refused_handshake_gets_a_response_if_the_server_supports_it() -> None:
    middleware = limited(App200())
    talk(middleware, HTTP)
    refused = talk(middleware, HTTP).sent
    spoken = talk(middleware, WEBSOCKET, **OFFERS_HTTP)
    assert spoken.receives == 1
    assert spoken.sent == [{**message, "type": f"websocket.{message['type']}"} for message in refused]


def test_reused_start_message_gets_the_ratelimit_fields_once() -> None:
    start: Message = {**START, "headers": [(b"x-app", b"1")]}
    app = limited(App200(start, BODY), limits="2/minute")
    for _ in range(2):
        (sent, _) = talk(app, HTTP).sent
        assert [name for name, _ in sent["headers"]] == [b"x-app", b"ratelimit-policy", b"ratelimit"]
    assert start["headers"] == [(b"x-app", b"1")]


def test_scope_without_a_method_is_limited() -> None:
    scope = {name: value for name, value in HTTP.items() if name != "method"}
    app = limited(App200(START, BODY))
    assert [talk(app, scope).sent[0]["status"] for _ in range(2)] == [200, 429]

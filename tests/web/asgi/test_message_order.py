"""Tests the checker of the order of ASGI messages, and uses the checker on both sides of the middleware."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from ratelimit_mw import MemoryStore
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import App, Message, Receive, Scope, Send
from ratelimit_mw.testing import Clock
from web.asgi_talk import CONNECT, HTTP, LIFESPAN, OFFERS_HTTP, SHUTDOWN, STARTUP, WEBSOCKET, Talk
from web.message_order import in_order

SCOPES = {"http": HTTP, "websocket": WEBSOCKET, "lifespan": LIFESPAN}
GIVEN: dict[str, tuple[Message, ...]] = {"http": (), "websocket": (CONNECT,), "lifespan": (STARTUP, SHUTDOWN)}
LIVES = "< lifespan.startup.complete < lifespan.shutdown.complete"
WHOLE = "http.response.start http.response.body+ http.response.body"
DENIED = "< websocket.http.response.start websocket.http.response.body"

GOOD = [
    "http.response.start",
    WHOLE,
    f"http.response.early_hint {WHOLE} of.another.century",
    "http.response.start http.response.pathsend",
    "http.response.start+ http.response.body http.response.trailers+ http.response.trailers",
    "< websocket.accept websocket.send websocket.send websocket.close",
    "< websocket.close",
    DENIED,
    LIVES,
    "< lifespan.startup.failed",
]
WRONG = [
    "http.response.body",
    "http.response.start http.response.start",
    f"{WHOLE} http.response.body",
    f"{WHOLE} http.response.start",
    f"{WHOLE} http.response.pathsend",
    f"{WHOLE} http.response.trailers",
    "http.response.start http.response.pathsend http.response.body",
    "http.response.start+ http.response.trailers",
    "http.response.start+ http.response.body http.response.trailers http.response.trailers",
    "websocket.accept",
    "websocket.close <",
    "< websocket.send",
    "< websocket.close websocket.accept",
    "< websocket.accept websocket.http.response.start",
    f"{DENIED} websocket.http.response.body",
    f"{DENIED} websocket.close",
    "lifespan.startup.complete",
    "< lifespan.shutdown.complete",
    "< lifespan.startup.complete lifespan.shutdown.complete",
    "< lifespan.startup.failed lifespan.startup.complete",
]


def says(words: str) -> App:
    """Return an app that sends messages of these types. "<" receives a message; "+" announces more of the kind."""

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        for word in words.split():
            if word == "<":
                await receive()
            else:
                more = dict.fromkeys(("more_body", "more_trailers", "trailers"), True) if word.endswith("+") else {}
                await send({"type": word.rstrip("+"), **more})

    return app


def sent(app: App, kind: str, **more: Any) -> list[str]:
    return asyncio.run(Talk(*GIVEN[kind]).with_app(app, SCOPES[kind], **more)).types


def kind_of(words: str) -> str:
    return words.removeprefix("< ").partition(".")[0]


@pytest.mark.parametrize("words", GOOD)
def test_the_checker_accepts_valid_orders(words: str) -> None:
    assert sent(in_order(says(words)), kind_of(words)) == words.replace("< ", "").replace("+", "").split()


@pytest.mark.parametrize("words", WRONG)
def test_the_checker_rejects_invalid_orders(words: str) -> None:
    with pytest.raises(AssertionError):
        sent(in_order(says(words)), kind_of(words))


@pytest.mark.promise(11)
@pytest.mark.parametrize(
    ("words", "more", "refused"),
    [
        (WHOLE, {}, ["http.response.start", "http.response.body"]),
        (WHOLE, {"method": "HEAD"}, ["http.response.start", "http.response.body"]),
        ("< websocket.accept websocket.send websocket.close", {}, ["websocket.close"]),
        ("< websocket.accept websocket.send websocket.close", OFFERS_HTTP, DENIED.split()[1:]),
        (LIVES, {}, ["lifespan.startup.complete", "lifespan.shutdown.complete"]),
    ],
    ids=["http", "head", "websocket closed", "websocket answered", "lifespan"],
)
def test_the_middleware_keeps_the_message_order_on_both_sides(
    words: str, more: Mapping[str, Any], refused: list[str]
) -> None:
    store = MemoryStore(clock=Clock())
    middleware = in_order(RateLimitMiddleware(in_order(says(words)), limits="1/minute", store=store))
    turns = [sent(middleware, kind_of(words), **more) for _ in range(2)]
    assert turns == [words.replace("< ", "").replace("+", "").split(), refused]

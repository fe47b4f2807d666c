"""Runs an ASGI app for one connection, without a server."""

import asyncio
from collections.abc import Mapping
from typing import Any

from ratelimit_mw.asgi.send import App, Message, Scope
from web.message_order import in_order

HTTP: Mapping[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "method": "GET",
    "path": "/",
    "headers": [],
    "client": ("192.0.2.1", 50000),
}
WEBSOCKET: Mapping[str, Any] = {**HTTP, "type": "websocket", "subprotocols": []}
OFFERS_HTTP: Mapping[str, Any] = {
    "extensions": {"websocket.http.response": {}}
}  # a server that can refuse a handshake by a response
CONNECT = {"type": "websocket.connect"}
LIFESPAN: Mapping[str, Any] = {"type": "lifespan", "asgi": {"version": "3.0"}}
STARTUP = {"type": "lifespan.startup"}
SHUTDOWN = {"type": "lifespan.shutdown"}
START = {"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"1")]}
BODY = {"type": "http.response.body", "body": b"hello"}


class Talk:
    """The server's side of one connection. `given`: the messages for the app. `sent`: the objects that the app sent."""

    def __init__(self, *given: Message) -> None:
        self.given = list(given)
        self.sent: list[Message] = []
        self.receives = 0

    async def receive(self) -> Message:
        self.receives += 1
        return self.given.pop(0)

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def with_app(self, app: App, scope: Mapping[str, Any], /, **more: Any) -> "Talk":
        """Run the app on a copy of the scope."""
        await app({**scope, **more}, self.receive, self.send)
        return self

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.sent]


def talk(app: App, scope: Mapping[str, Any], /, *given: Message, **more: Any) -> Talk:
    """Run one connection in a new event loop. Raises `AssertionError` if its messages are out of order."""
    if scope["type"] == "websocket" and not given:
        given = (CONNECT,)
    return asyncio.run(Talk(*given).with_app(in_order(app), scope, **more))


class App200:
    """An app that sends START and BODY, or the given messages, and keeps its scopes.

    For a WebSocket or a lifespan it receives one message first.
    """

    def __init__(self, *messages: Message) -> None:
        self.messages = messages or (START, BODY)
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] in ("websocket", "lifespan"):
            await receive()
        for message in self.messages:
            await send(message)


def header(message: Message, name: str) -> list[str]:
    """Return all values of one header of a message that starts a response."""
    return [value.decode("ascii") for key, value in message["headers"] if key == name.encode("ascii")]

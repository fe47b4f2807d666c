"""A websocket in this process: its server, an app that echoes each message, and the messages that both receive."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.asgi.send import App, Message, Scope
from web.asgi_talk import WEBSOCKET, Talk

CONNECT: Message = {"type": "websocket.connect"}
ACCEPT: Message = {"type": "websocket.accept"}
GONE: Message = {"type": "websocket.disconnect", "code": 1005}
CLOSED: Message = {"type": "websocket.close", "code": 1013, "reason": "Too Many Requests"}
ENDED: Message = {**CLOSED, "type": "websocket.disconnect"}
DOWN: Message = {**CLOSED, "reason": "Service Unavailable"}
FORBIDDEN: Message = {"type": "websocket.close", "code": 1008, "reason": "Forbidden"}


def says(text: str) -> Message:
    return {"type": "websocket.receive", "text": text}


class Wire(Talk):
    """A server that passes the given messages to the app. It calls the callables among them in turn."""

    def __init__(self, *given: Message | Callable[[], Any]) -> None:
        super().__init__()
        self.given: list[Any] = [CONNECT, *given, GONE]

    async def receive(self) -> Message:
        self.receives += 1
        while callable(self.given[0]):
            self.given.pop(0)()
        message: Message = self.given.pop(0)
        return message

    @property
    def left(self) -> list[str]:
        """The texts that were never received."""
        return [message["text"] for message in self.given if message["type"] == "websocket.receive"]

    @property
    def answers(self) -> list[str]:
        """The texts that the client received from the app."""
        return [message["text"] for message in self.sent if message["type"] == "websocket.send"]


class Echo:
    """An app that echoes each message until the disconnect, and keeps the message objects that it received."""

    def __init__(self) -> None:
        self.got: list[Message] = []
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        while (message := await receive())["type"] != "websocket.disconnect":
            self.got.append(message)
            if message["type"] == "websocket.connect":
                await send(ACCEPT)
            elif message["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message.get("text")})
        self.got.append(message)

    @property
    def texts(self) -> list[str]:
        return [message["text"] for message in self.got if message["type"] == "websocket.receive"]


def limited(app: App, **settings: Any) -> RateLimitMiddleware:
    return RateLimitMiddleware(app, **{"limits": [], "plain_keys": True, **settings})


async def spoken(app: App, *given: Message | Callable[[], Any], **scope: Any) -> Wire:
    """Run a websocket from its handshake to its end, and return its server."""
    wire = Wire(*given)
    await wire.with_app(app, WEBSOCKET, **scope)
    return wire


def ended(wire: Wire) -> Message | None:
    """Return the message by which the middleware closed the websocket; None if the client disconnected."""
    return wire.sent[-1] if wire.sent[-1]["type"] == "websocket.close" else None


def chat(settings: Mapping[str, Any], *texts: str, **scope: Any) -> tuple[Echo, Wire]:
    """Run a websocket with an `Echo` app in its own event loop."""
    app = Echo()
    return app, asyncio.run(spoken(limited(app, **settings), *map(says, texts), **scope))

"""One websocket in process: what a client sends, an app that answers each message, and what both of them see."""

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
    """A server: it hands the app what it is given, and does what is callable on the way."""

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
        """What was never asked for."""
        return [message["text"] for message in self.given if message["type"] == "websocket.receive"]

    @property
    def answers(self) -> list[str]:
        """What the client heard from the app."""
        return [message["text"] for message in self.sent if message["type"] == "websocket.send"]


class Echo:
    """Accepts, answers each message with itself, and keeps the very objects that it receives until it is to go."""

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
    """One websocket, from its handshake to its end."""
    wire = Wire(*given)
    await wire.with_app(app, WEBSOCKET, **scope)
    return wire


def ended(wire: Wire) -> Message | None:
    """How we ended it; None where the client did."""
    return wire.sent[-1] if wire.sent[-1]["type"] == "websocket.close" else None


def chat(settings: Mapping[str, Any], *texts: str, **scope: Any) -> tuple[Echo, Wire]:
    """One websocket in a loop of its own."""
    app = Echo()
    return app, asyncio.run(spoken(limited(app, **settings), *map(says, texts), **scope))

"""Tracks the response of an ASGI app to its end."""

import asyncio
from typing import Final

from ratelimit_mw.asgi.send import App, Message, Receive, Scope, Send
from ratelimit_mw.engine.response_tracking import ResponseTracker, track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request

_DISCONNECTS: Final = ("http.disconnect", "websocket.disconnect")
_ACCEPTED: Final = 101
_DENIED: Final = 403  # the server's response if the app closes the handshake


def track(request: Request, state: RateLimitState, app: App, receive: Receive, send: Send) -> tuple[App, Receive, Send]:
    """Return the app, `receive` and `send` of an admitted request, wrapped to track its response.

    Returns them unchanged if an outer middleware tracks the response already.
    """
    tracker = track_response(request, state)
    if tracker is None:
        return app, receive, send
    tracked = TrackedApp(tracker, app, receive, send)
    return tracked.call, tracked.receive, tracked.send


class TrackedApp:
    """Reports the messages of one request to a `ResponseTracker`, and passes them on unchanged."""

    __slots__ = ("_app", "_disconnected", "_receive", "_send", "_tracker", "_trailers")

    def __init__(self, tracker: ResponseTracker, app: App, receive: Receive, send: Send) -> None:
        self._tracker, self._app, self._receive, self._send = tracker, app, receive, send
        self._disconnected = self._trailers = False

    async def receive(self) -> Message:
        """Return the server's next message."""
        message = await self._receive()
        if message["type"] in _DISCONNECTS:
            self._disconnected = True
        return message

    async def send(self, message: Message) -> None:
        """Pass on a message of the app. The last message ends the response, even if the app continues to run."""
        kind, response = message["type"], self._tracker.response
        if kind in ("http.response.start", "websocket.http.response.start"):
            response.started(message.get("status"), message.get("headers", ()))
            self._trailers = message.get("trailers", False)
        elif kind == "websocket.accept":
            response.started(_ACCEPTED, message.get("headers", ()))
        elif kind == "websocket.close" and response.status is None:
            response.started(_DENIED, ())
        await self._send(message)
        if self._is_last(message):
            self._tracker.end("ended")

    async def call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the app and report how it ends. `receive`, `send`: the methods above, possibly wrapped."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            self._tracker.end("cancelled")
            raise
        except BaseException:
            self._tracker.end("disconnected" if self._disconnected else "raised")  # e.g. while reading the body
            raise
        self._tracker.end("disconnected" if self._disconnected else "ended")

    def _is_last(self, message: Message) -> bool:
        """Return whether no message follows. A websocket can also end without such a message, when the app returns."""
        kind = message["type"]
        if kind == "http.response.trailers":
            return not message.get("more_trailers", False)
        if self._trailers:
            return False
        if kind in ("http.response.body", "http.response.zerocopysend", "websocket.http.response.body"):
            return not message.get("more_body", False)
        return kind in ("http.response.pathsend", "websocket.close")

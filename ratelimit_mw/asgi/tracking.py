"""Following the response of an ASGI app to its end."""

import asyncio
from typing import Final

from ratelimit_mw.asgi.send import App, Message, Receive, Scope, Send
from ratelimit_mw.engine.response_tracking import ResponseTracker, track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request

_DISCONNECTS: Final = ("http.disconnect", "websocket.disconnect")
_ACCEPTED: Final = 101
_DENIED: Final = 403  # what a server answers to a handshake that is closed


def track(request: Request, state: RateLimitState, app: App, receive: Receive, send: Send) -> tuple[App, Receive, Send]:
    """The app of an admitted request and what it is called with, so that its response is followed.

    They are what they were where one further out follows it already.
    """
    tracker = track_response(request, state)
    if tracker is None:
        return app, receive, send
    tracked = TrackedApp(tracker, app, receive, send)
    return tracked.call, tracked.receive, tracked.send


class TrackedApp:
    """`receive` and `send` of one request, which tell a `ResponseTracker` what passes; it passes as it is."""

    __slots__ = ("_app", "_disconnected", "_receive", "_send", "_tracker", "_trailers")

    def __init__(self, tracker: ResponseTracker, app: App, receive: Receive, send: Send) -> None:
        self._tracker, self._app, self._receive, self._send = tracker, app, receive, send
        self._disconnected = self._trailers = False

    async def receive(self) -> Message:
        """What the server says."""
        message = await self._receive()
        if message["type"] in _DISCONNECTS:
            self._disconnected = True
        return message

    async def send(self, message: Message) -> None:
        """What the app says. When the last of a response is out, that has ended, whatever the app does then."""
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
        """Call the app, and see how it ends. `receive`, `send`: these, and whatever else stands before the app."""
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            self._tracker.end("cancelled")
            raise
        except BaseException:
            self._tracker.end("disconnected" if self._disconnected else "raised")  # of a body that does not come, say
            raise
        self._tracker.end("disconnected" if self._disconnected else "ended")

    def _is_last(self, message: Message) -> bool:
        """Whether nothing follows: of an HTTP response, or of a websocket, which may end with the app's call too."""
        kind = message["type"]
        if kind == "http.response.trailers":
            return not message.get("more_trailers", False)
        if self._trailers:
            return False
        if kind in ("http.response.body", "http.response.zerocopysend", "websocket.http.response.body"):
            return not message.get("more_body", False)
        return kind in ("http.response.pathsend", "websocket.close")

"""Tracks the response of an ASGI app to its end."""

import asyncio
from collections import deque
from typing import Any, Final
from weakref import WeakSet

from ratelimit_mw.asgi.send import App, Message, Receive, Scope, Send
from ratelimit_mw.engine.response_tracking import ResponseTracker, track_response
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.request import Request

_DISCONNECTS: Final = ("http.disconnect", "websocket.disconnect")
_ACCEPTED: Final = 101
_DENIED: Final = 403  # the server's response if the app closes the handshake
_BODIES: Final = ("http.response.body", "http.response.trailers")
_PATIENCE: Final = 1.0  # seconds in which a server usually returns from `send`, before and after a disconnect
_MAX_KEPT: Final = 65_536  # bytes of a request's body after which no more is read to find a disconnect behind it


class _MiddlewareRegistry:
    """All middleware of this process, and whether it must track every response."""

    def __init__(self) -> None:
        self.tracking_required = False
        self._middleware: Final[WeakSet[Any]] = WeakSet()

    def register(self, middleware: Any) -> bool:
        """Add a middleware, whose `track_all` may be called later. Return whether it must track from the start."""
        self._middleware.add(middleware)
        return self.tracking_required

    def require_tracking(self) -> None:
        """Make all middleware track responses, because an endpoint limit needs it."""
        self.tracking_required = True
        for middleware in list(self._middleware):
            middleware.track_all()


MIDDLEWARE_REGISTRY: Final = _MiddlewareRegistry()


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
    """Reports the messages of one request to a `ResponseTracker`, and passes them on unchanged.

    Some servers never return from `send` after the client has disconnected: hypercorn does not over HTTP/2. The app
    then hangs, and would hold its slots as long as the process runs. So while `send` takes long, this class receives
    the messages of the client itself, keeps them for the app, and ends the response after a disconnect.
    """

    __slots__ = (
        "_app",
        "_disconnected",
        "_is_complete",
        "_read_ahead",
        "_receive",
        "_receiving",
        "_send",
        "_tracker",
        "_trailers",
        "_watching",
    )

    def __init__(self, tracker: ResponseTracker, app: App, receive: Receive, send: Send) -> None:
        self._tracker, self._app, self._receive, self._send = tracker, app, receive, send
        self._disconnected = self._is_complete = self._trailers = False
        self._receiving = 0  # calls of `receive` by the app in progress
        self._read_ahead: deque[Message] = deque()  # messages that the app has not received yet
        self._watching: asyncio.Task[None] | None = None

    async def receive(self) -> Message:
        """Return the server's next message."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        if self._read_ahead:
            return self._read_ahead.popleft()
        self._receiving += 1
        try:
            return await self._receive_next()
        finally:
            self._receiving -= 1

    async def _receive_next(self) -> Message:
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
        self._is_complete = self._is_last(message)
        if kind in _BODIES:
            await self._send_body(message)
        else:
            await self._send(message)
        if self._is_complete:
            self._tracker.end("ended")

    async def _send_body(self, message: Message) -> None:
        timer = asyncio.get_running_loop().call_later(_PATIENCE, self._start_watching)
        try:
            await self._send(message)
        finally:
            timer.cancel()
            if self._watching is not None:
                self._watching.cancel()

    def _start_watching(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """End the response if the client has disconnected, and `send` does not return, which would cancel this task."""
        kept = 0
        while not self._disconnected and kept <= _MAX_KEPT:
            if self._receiving:  # the app receives the disconnect
                await asyncio.sleep(_PATIENCE)
                continue
            message = await self._receive_next()
            if self._disconnected or not self._is_complete:  # no app reads a body after its response
                self._read_ahead.append(message)
                kept += len(message.get("body", b"")) + 1
        if self._disconnected:
            await asyncio.sleep(_PATIENCE)
            self._tracker.end("disconnected")

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

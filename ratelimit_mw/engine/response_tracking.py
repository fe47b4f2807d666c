"""Tracks the response to a request and calls the `on_end` callbacks when it has ended.

If a rule needs them, the gate adds callbacks to `Request.on_end`; the integration then tracks the response. Requests
without callbacks are not tracked, and pay nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.engine.runtime import CALLBACK_RAISED, spawn_task
from ratelimit_mw.engine.settle_hooks import settle_after_response
from ratelimit_mw.engine.state import RateLimitState

EndReason = Literal["ended", "raised", "cancelled", "disconnected"]
"""The response was sent; the app raised; its task was canceled; the client disconnected before the end."""

OnEnd = Callable[["ResponseTracker"], None]
"""Called once, in the thread or task of the response. Must not block it: pass coroutines to `spawn`."""

Fields = Sequence[tuple[Any, Any]]  # headers as the integration has them: text, or bytes under ASGI

_ERROR: Final = 500  # the status that servers send if the app raises


class ResponseInfo:
    """The response to a request, as far as it was sent.

    `status`: 101 for a websocket that was accepted; None if nothing was sent. `ending`: None until the response has
    ended. Flask and Django hide disconnects, so there a client that disconnects counts as `ended`.
    """

    __slots__ = ("_fields", "ending", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.ending: EndReason | None = None
        self._fields: Fields = ()

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers, with names in lower case. Several values of one name are joined with `, `."""
        headers: dict[str, str] = {}
        for name, value in self._fields:
            key, text = _text(name).lower(), _text(value)
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return headers

    def started(self, status: int | None, fields: Fields) -> None:
        """Record the start of the response."""
        self.status, self._fields = status, fields


class ResponseTracker:
    """Tracks the response to one request. The first call of `end` runs the callbacks.

    `request`, `state`: those of the gate and the app. `response`: what is known of the response so far. `loop`: the
    event loop for coroutines of the callbacks, if the response ends in another thread.
    """

    __slots__ = ("_on_end", "loop", "request", "response", "state")

    def __init__(
        self,
        request: Any,
        state: RateLimitState,
        on_end: Iterable[OnEnd],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.request = request
        self.state = state
        self.response = ResponseInfo()
        self.loop = loop
        self._on_end = list(on_end)
        state.tracker = self

    def add(self, on_end: Iterable[OnEnd]) -> None:
        """Add callbacks of an inner middleware or endpoint limit. Skips those that it has."""
        self._on_end += [one for one in on_end if one not in self._on_end]

    def settle_at_end(self) -> None:
        """Settle the request when its response has ended, because the app called `settle()`."""
        self.add((settle_after_response,))

    def end(self, ending: EndReason) -> None:
        """Record that the response has ended, and run the callbacks. Later calls have no effect."""
        response, state = self.response, self.state
        if response.ending is not None:
            return
        response.ending = ending
        if ending == "raised" and response.status is None:
            response.status = _ERROR
        state.tracker = None
        for callback in self._on_end:
            try:
                callback(self)
            except Exception as error:  # noqa: BLE001  # the response is sent, so no caller can handle the error
                warn_throttled("on_end callback", CALLBACK_RAISED, type(error).__name__, error=error)

    def abandon(self) -> None:
        """Drop the callbacks, because the end will not be known.

        They hold the only strong reference to the slots of this request, so its slots are no longer renewed.
        """
        self._on_end = []
        if self.request is not None:
            self.request.on_end = None

    def spawn(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a coroutine, now that the response is sent. See `spawn`."""
        spawn(work, self.loop)


def track_response(
    request: Any, state: RateLimitState, loop: asyncio.AbstractEventLoop | None = None
) -> ResponseTracker | None:
    """Return the tracker that an integration has to run; None if an outer one tracks the request already."""
    on_end = request.on_end or ()
    if state.tracker is not None:
        state.tracker.add(on_end)
        return None
    return ResponseTracker(request, state, on_end, loop)


def spawn(work: Callable[[], Coroutine[Any, Any, object]], loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Run a coroutine in a task, in the running loop or else in `loop`. Its errors are logged, at a limited rate.

    Raises `RuntimeError` if no loop runs here and `loop` is None or closed.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if loop is None or loop.is_closed():
            raise
        loop.call_soon_threadsafe(_start_task, work)
    else:
        _start_task(work)


def _start_task(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    spawn_task(work())


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)

"""After the response: who wants to know how a request was answered, and when that had ended.

A rule that does makes the gate leave `Request.on_end`; a face that finds some follows the response and tells them.
Requests without them are not followed, and pay nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.engine.runtime import CALLBACK_RAISED, spawn_task
from ratelimit_mw.engine.settle_hooks import settle_after_response
from ratelimit_mw.engine.state import RateLimitState

EndReason = Literal["ended", "raised", "cancelled", "disconnected"]
"""The response went out; the app raised; its task was cancelled; the client went away before it was whole."""

OnEnd = Callable[["ResponseTracker"], None]
"""Hears once, in the thread or task that answered, which it must not hold up: what has to be awaited is for `spawn`."""

Fields = Sequence[tuple[Any, Any]]  # headers as the face has them: text, or bytes under ASGI

_ERROR: Final = 500  # what a server answers where the app raised


class ResponseInfo:
    """How a request was answered, as far as it was.

    `status`: 101 for a websocket that was accepted; None where nothing was sent. `ending`: in Flask and Django, which
    hide it, a client that went away counts as `ended`. None until it has ended.
    """

    __slots__ = ("_fields", "ending", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.ending: EndReason | None = None
        self._fields: Fields = ()

    @property
    def headers(self) -> Mapping[str, str]:
        """All headers, names in lower case; several lines of one name are joined by `, `."""
        found: dict[str, str] = {}
        for name, value in self._fields:
            known, more = _text(name).lower(), _text(value)
            found[known] = f"{found[known]}, {more}" if known in found else more
        return found

    def started(self, status: int | None, fields: Fields) -> None:
        """It begins like that."""
        self.status, self._fields = status, fields


class ResponseTracker:
    """One request that is followed. `end` tells the followers, whoever calls it first.

    `request`, `state`: as the gate and the app have them. `response`: what is known of the answer. `loop`: where
    followers find it if the end is told in another thread than the request's.
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
        """More of them, from one of us further in."""
        self._on_end += [one for one in on_end if one not in self._on_end]

    def settle_at_end(self) -> None:
        """The app has said the true cost, which is to be sent when the response has ended."""
        self.add((settle_after_response,))

    def end(self, ending: EndReason) -> None:
        """It has ended. What is said after the first time is not heard."""
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
            except Exception as error:  # noqa: BLE001  # the response is out, and nobody is there to hear it
                warn_throttled("follower", CALLBACK_RAISED, type(error).__name__, error=error)

    def abandon(self) -> None:
        """Nobody will say how it ended, so nobody will hear. The slots among what waited for it are not renewed."""
        self._on_end = []
        if self.request is not None:
            self.request.on_end = None

    def spawn(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have this awaited, now that the response is out. See `spawn`."""
        spawn(work, self.loop)


def track_response(
    request: Any, state: RateLimitState, loop: asyncio.AbstractEventLoop | None = None
) -> ResponseTracker | None:
    """The following that a face is to begin; None where one further out follows the request already."""
    on_end = request.on_end or ()
    if state.tracker is not None:
        state.tracker.add(on_end)
        return None
    return ResponseTracker(request, state, on_end, loop)


def spawn(work: Callable[[], Coroutine[Any, Any, object]], loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Have this awaited in a task of its own: in the running loop, else in `loop`. What it raises is logged, rarely.

    Raises `RuntimeError` where there is neither.
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

"""After the response: who wants to know how a request was answered, and when that had ended.

A rule that does makes the gate leave `Request.followers`; a face that finds some follows the response and tells them.
Requests without them are not followed, and pay nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from ratelimit_mw.background import UNHEARD, keep
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.outcome import Outcome
from ratelimit_mw.settling import settle_after

Ending = Literal["ended", "raised", "cancelled", "disconnected"]
"""The response went out; the app raised; its task was cancelled; the client went away before it was whole."""

Follower = Callable[["Following"], None]
"""Hears once, in the thread or task that answered, which it must not hold up: what has to be awaited is for `soon`."""

Fields = Sequence[tuple[Any, Any]]  # headers as the face has them: text, or bytes under ASGI

_ERROR: Final = 500  # what a server answers where the app raised


class Answered:
    """How a request was answered, as far as it was.

    `status`: 101 for a websocket that was accepted; None where nothing was sent. `ending`: in Flask and Django, which
    hide it, a client that went away counts as `ended`. None until it has ended.
    """

    __slots__ = ("_fields", "ending", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.ending: Ending | None = None
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


class Following:
    """One request that is followed. `end` tells the followers, whoever calls it first.

    `request`, `outcome`: as the gate and the app have them. `response`: what is known of the answer. `loop`: where
    followers find it if the end is told in another thread than the request's.
    """

    __slots__ = ("_followers", "loop", "outcome", "request", "response")

    def __init__(
        self,
        request: Any,
        outcome: Outcome,
        followers: Iterable[Follower],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.request = request
        self.outcome = outcome
        self.response = Answered()
        self.loop = loop
        self._followers = list(followers)
        outcome.following = self

    def add(self, followers: Iterable[Follower]) -> None:
        """More of them, from one of us further in."""
        self._followers += [one for one in followers if one not in self._followers]

    def settles(self) -> None:
        """The app has said the true cost, which is to be sent when the response has ended."""
        self.add((settle_after,))

    def end(self, ending: Ending) -> None:
        """It has ended. What is said after the first time is not heard."""
        response, outcome = self.response, self.outcome
        if response.ending is not None:
            return
        response.ending = ending
        if ending == "raised" and response.status is None:
            response.status = _ERROR
        outcome.following = None
        for follower in self._followers:
            try:
                follower(self)
            except Exception as error:  # noqa: BLE001  # the response is out, and nobody is there to hear it
                warn_rarely("follower", UNHEARD, type(error).__name__, error=error)

    def forget(self) -> None:
        """Nobody will say how it ended, so nobody will hear. The slots among what waited for it are not renewed."""
        self._followers = []
        if self.request is not None:
            self.request.followers = None

    def soon(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have this awaited, now that the response is out. See `soon`."""
        soon(work, self.loop)


def following(request: Any, outcome: Outcome, loop: asyncio.AbstractEventLoop | None = None) -> Following | None:
    """The following that a face is to begin; None where one further out follows the request already."""
    followers = request.followers or ()
    if outcome.following is not None:
        outcome.following.add(followers)
        return None
    return Following(request, outcome, followers, loop)


def soon(work: Callable[[], Coroutine[Any, Any, object]], loop: asyncio.AbstractEventLoop | None = None) -> None:
    """Have this awaited in a task of its own: in the running loop, else in `loop`. What it raises is logged, rarely.

    Raises `RuntimeError` where there is neither.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if loop is None or loop.is_closed():
            raise
        loop.call_soon_threadsafe(_begin, work)
    else:
        _begin(work)


def _begin(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    keep(work())


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)

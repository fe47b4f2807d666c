"""Event loops share nothing: what a store keeps for its tasks, it keeps for each loop."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

M = TypeVar("M")


def at_end(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Have the running loop await this before it ends, as `asyncio.run` and its like end what was left open.

    Keep what is returned; its `aclose` does so at once.
    """
    ending = _ending(close)
    with suppress(StopIteration):  # up to where it waits; from here on the loop knows it
        ending.asend(None).send(None)
    return ending


async def _ending(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await close()


class OfLoop(Generic[M]):
    """One of a kind for each event loop, made when it is first asked for."""

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, M] = weakref.WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, M] | None = None

    def get(self) -> M:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last  # once: other threads have loops of their own
        if last is not None and last[0] is loop:
            return last[1]
        made = self._made.get(loop)
        if made is None:
            self._forget_closed_loops()
            made = self._made[loop] = self._make()
        self._last = (loop, made)
        return made

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that asked last, in whichever thread."""
        return None if self._last is None else self._last[0]

    def pop(self) -> M | None:
        """That of the running loop, if there is one; it is not kept any longer."""
        self._last = None
        return self._made.pop(asyncio.get_running_loop(), None)

    def __len__(self) -> int:
        return len(self._made)

    def _forget_closed_loops(self) -> None:
        """A connection holds on to its loop, so what is of a loop that ended without close does not go by itself."""
        for reference in self._made.keyrefs():
            loop = reference()
            if loop is not None and loop.is_closed():
                self._made.pop(loop, None)

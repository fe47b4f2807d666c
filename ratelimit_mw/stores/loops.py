"""Event loops share nothing: what a store keeps for its tasks, it keeps for each loop."""

import asyncio
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

M = TypeVar("M")


def on_loop_shutdown(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    """Have the running loop await this before it ends, as `asyncio.run` and its like end what was left open.

    Keep what is returned; its `aclose` does so at once.
    """
    hook = _shutdown_hook(close)
    with suppress(StopIteration):  # up to where it waits; from here on the loop knows it
        hook.asend(None).send(None)
    return hook


async def _shutdown_hook(close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await close()


class PerLoop(Generic[M]):
    """One of a kind for each event loop, made when it is first asked for."""

    def __init__(self, make: Callable[[], M]) -> None:
        self._make = make
        self._instances: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, M] = weakref.WeakKeyDictionary()
        self._last: tuple[asyncio.AbstractEventLoop, M] | None = None

    def get(self) -> M:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        last = self._last  # once: other threads have loops of their own
        if last is not None and last[0] is loop:
            return last[1]
        instance = self._instances.get(loop)
        if instance is None:
            self._forget_closed_loops()
            instance = self._instances[loop] = self._make()
        self._last = (loop, instance)
        return instance

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that asked last, in whichever thread."""
        return None if self._last is None else self._last[0]

    def pop(self) -> M | None:
        """That of the running loop, if there is one; it is not kept any longer."""
        self._last = None
        return self._instances.pop(asyncio.get_running_loop(), None)

    def __len__(self) -> int:
        return len(self._instances)

    def _forget_closed_loops(self) -> None:
        """A connection holds on to its loop, so what is of a loop that ended without close does not go by itself."""
        for reference in self._instances.keyrefs():
            loop = reference()
            if loop is not None and loop.is_closed():
                self._instances.pop(loop, None)

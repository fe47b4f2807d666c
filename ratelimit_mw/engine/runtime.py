"""Whether there is an event loop."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from ratelimit_mw.core.log import warn_throttled


def in_event_loop() -> bool:
    """Whether one runs in this thread, so that nothing may block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


CALLBACK_RAISED: Final = "raised after a response: %s"
_tasks: Final[set["asyncio.Task[Any]"]] = set()  # a loop alone does not hold on to them


def spawn_task(
    coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop | None = None
) -> "asyncio.Task[Any]":
    """Run this in a task of its own, in `loop` or else the running one. What it raises is logged, rarely."""
    task = (loop or asyncio.get_running_loop()).create_task(coroutine)
    _tasks.add(task)
    task.add_done_callback(_on_done)
    return task


async def run_to_completion(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Wait until this is done. It goes on when the waiting task is cancelled, however often."""
    await asyncio.shield(spawn_task(coroutine))


async def drain(seconds: float) -> None:
    """Wait until all such work of the running loop is done, also what it starts, or so many seconds are over."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while running := [task for task in _tasks if task.get_loop() is loop and not task.done()]:
        if (left := end - loop.time()) <= 0:
            return
        await asyncio.wait(running, timeout=left)


def _on_done(task: "asyncio.Task[Any]") -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        warn_throttled("follower", CALLBACK_RAISED, type(error).__name__, error=error)

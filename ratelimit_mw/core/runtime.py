"""Runs coroutines in threads, and background tasks in event loops.

Code for threads and for asyncio is written once, as coroutines. Under asyncio a coroutine is awaited. A thread calls
`run`. There, each function that the coroutine awaits blocks the thread, so the coroutine never suspends.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from ratelimit_mw.core.log import warn_throttled

T = TypeVar("T")

CALLBACK_RAISED: Final = "raised: %s"
_tasks: Final[set["asyncio.Task[Any]"]] = set()  # loops keep only weak references to tasks


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends, in a thread. Raises `RuntimeError` if it suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine was suspended in a thread: it awaited something that needs an event loop")


def in_event_loop() -> bool:
    """Return whether an event loop runs in this thread. If so, the thread must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def spawn_task(coroutine: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    """Run a coroutine in a new task. Its exceptions are logged, at a limited rate."""
    task = asyncio.get_running_loop().create_task(coroutine)
    _tasks.add(task)
    task.add_done_callback(_on_done)
    return task


async def run_to_completion(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Await a coroutine in a separate task, which completes even if the caller is canceled."""
    await asyncio.shield(spawn_task(coroutine))


async def drain(seconds: float) -> None:
    """Wait at most `seconds` until all tasks of the running loop are done, including the tasks that these start."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while running := [task for task in _tasks if task.get_loop() is loop and not task.done()]:
        if (remaining := end - loop.time()) <= 0:
            return
        await asyncio.wait(running, timeout=remaining)


def _on_done(task: "asyncio.Task[Any]") -> None:
    _tasks.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        warn_throttled("background task", CALLBACK_RAISED, type(error).__name__, error=error, code="RL-223")

"""Deadlines for calls to a store."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

CONNECT_TIMEOUT: Final = 1.0  # seconds to open a connection and prepare it
# The server may still count a take that timed out. Its units are not refunded.
# Seconds for work that continues after its request has stopped waiting: to read the replies that other requests still
# wait for, and to finish a refund of a canceled request. In asyncio: how long a retired connection stays open, and how
# long a task continues after the timeout of its request. In threads: the timeout of each call of a part
# (`protocol.Part`).
LATE_WORK_TIMEOUT: Final = 1.0
REPLY_GRACE: Final = 0.001  # seconds of a last read after the deadline; a reply that arrived during a stall is used
FIND_INTERVAL: Final = 0.5  # seconds between checks of the address of a server that may move
_MAX_WAIT: Final = 0.005  # seconds of a slice


class Deadline:
    """A deadline that ignores stalls of this process. `left`: seconds.

    Waits are split into slices. However long a slice really takes, at most 5 ms of it count, so that a blocked event
    loop does not look like a slow store.
    """

    __slots__ = ("left",)

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def next_wait(self) -> float:
        """Return the seconds of the next slice. Call `record_wait` after it."""
        return max(0.0, min(self.left, _MAX_WAIT))

    def record_wait(self, since: float) -> None:
        """Count a slice that began at `since` (`time.monotonic`)."""
        self.left -= min(time.monotonic() - since, _MAX_WAIT)


@asynccontextmanager
async def timeout_without_stalls(seconds: float) -> AsyncIterator[None]:
    """Raise `TimeoutError` as `asyncio.timeout` does, but ignore stalls of the loop, as `Deadline` does."""
    loop, deadline = asyncio.get_running_loop(), Deadline(seconds)
    timer: asyncio.TimerHandle

    def wait() -> asyncio.TimerHandle:
        return loop.call_later(deadline.next_wait(), tick, time.monotonic())

    def tick(since: float) -> None:
        nonlocal timer
        deadline.record_wait(since)
        if deadline.left > 0:
            timer = wait()
        else:
            limit.reschedule(loop.time())

    async with asyncio.timeout(None) as limit:
        timer = wait()
        try:
            yield
        finally:
            timer.cancel()


class LoopClock:
    """A clock, in seconds, for all deadlines of one event loop. It ignores stalls of the loop.

    Between two calls of `advance` it runs for one slice at most.
    """

    __slots__ = ("_at", "_since")

    def __init__(self) -> None:
        self._at, self._since = 0.0, time.monotonic()

    def now(self) -> float:
        """Return the time."""
        passed = time.monotonic() - self._since
        return self._at + (passed if passed < _MAX_WAIT else _MAX_WAIT)  # min() takes twice as long

    def advance(self) -> float:
        """Begin the next slice, and return the time."""
        self._at = self.now()
        self._since = time.monotonic()
        return self._at

    def next_wait(self, deadline: float) -> float:
        """Return the seconds until the next call of `advance`, if nothing happens before `deadline`."""
        return min(deadline - self._at, _MAX_WAIT)

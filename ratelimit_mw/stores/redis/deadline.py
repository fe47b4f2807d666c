"""How long a call waits for its store."""

import time
from typing import Final

ORPHAN_TIMEOUT: Final = 1.0  # seconds that opening, or what no request waits for any more, may take
_MAX_WAIT: Final = 0.005  # seconds


class Deadline:
    """What is left of the time that a call may wait, in seconds.

    Waits are made in slices, and a slice counts as no more than its length. So the store is blamed for the time in
    which it could have been heard, not for that in which this process was too busy to listen: a blocked event loop is
    not a store that failed.
    """

    __slots__ = ("left",)

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def next_wait(self) -> float:
        """How long to wait next; then say so with `record_wait`."""
        return max(0.0, min(self.left, _MAX_WAIT))

    def record_wait(self, since: float) -> None:
        """A wait is over that began at `since` (`time.monotonic`)."""
        self.left -= min(time.monotonic() - since, _MAX_WAIT)


class LoopClock:
    """The same for all that wait in one event loop: a clock, in seconds, that runs only while the loop listens.

    It is looked at once in a while with `advance`; from one tick to the next it goes on by a slice at most.
    """

    __slots__ = ("_at", "_since")

    def __init__(self) -> None:
        self._at, self._since = 0.0, time.monotonic()

    def now(self) -> float:
        """What time it is."""
        passed = time.monotonic() - self._since
        return self._at + (passed if passed < _MAX_WAIT else _MAX_WAIT)  # `min` takes as long again, for each request

    def advance(self) -> float:
        """What time it is; the next slice begins."""
        self._at = self.now()
        self._since = time.monotonic()
        return self._at

    def next_wait(self, until: float) -> float:
        """How long to wait for the next tick."""
        return min(until - self._at, _MAX_WAIT)

"""How long a call waits for its store."""

import time
from typing import Final

LINGER: Final = 1.0  # seconds that opening, or what no request waits for any more, may take
_SLICE: Final = 0.005  # seconds


class Patience:
    """What is left of the time that a call may wait, in seconds.

    Waits are made in slices, and a slice counts as no more than its length. So the store is blamed for the time in
    which it could have been heard, not for that in which this process was too busy to listen: a blocked event loop is
    not a store that failed.
    """

    __slots__ = ("left",)

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def slice(self) -> float:
        """How long to wait next; then say so with `spend`."""
        return max(0.0, min(self.left, _SLICE))

    def spend(self, since: float) -> None:
        """A wait is over that began at `since` (`time.monotonic`)."""
        self.left -= min(time.monotonic() - since, _SLICE)


class ListeningClock:
    """The same for all that wait in one event loop: a clock, in seconds, that runs only while the loop listens.

    It is looked at once in a while with `tick`; from one tick to the next it goes on by a slice at most.
    """

    __slots__ = ("_at", "_since")

    def __init__(self) -> None:
        self._at, self._since = 0.0, time.monotonic()

    def now(self) -> float:
        """What time it is."""
        passed = time.monotonic() - self._since
        return self._at + (passed if passed < _SLICE else _SLICE)  # `min` takes as long again, for each request

    def tick(self) -> float:
        """What time it is; the next slice begins."""
        self._at = self.now()
        self._since = time.monotonic()
        return self._at

    def slice(self, until: float) -> float:
        """How long to wait for the next tick."""
        return min(until - self._at, _SLICE)

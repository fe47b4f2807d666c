"""Adapts how many requests are at work in this process, so that nine of ten are answered within a goal.

Once per window of 100 ms, the 90th percentile of the latencies is compared with the goal. If it is longer, fewer
requests may be at work; otherwise, slowly, more. A gradient against a long average (Gradient2, Vegas) learns the
overload as the usual state: at 1.3 times the capacity it falls to a quarter of it within ten minutes. A goal in seconds
does not drift.

A request is at work from its admission to the start of its response. A stream or an accepted websocket is not at work,
because an idle one needs nothing.
"""

import math
import time
from collections.abc import Callable
from typing import Final

from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_START: Final = 60  # requests; from 20, the first minute at 0.7 of the capacity refused some
_WINDOW: Final = 0.1  # seconds
_LONGEST_WINDOW: Final = 1.0  # seconds, while there are fewer than `_MIN_SAMPLES`
_MIN_SAMPLES: Final = 10  # so that one slow request of a few does not count as the 90th percentile
_PERCENTILE: Final = 0.9
_LARGEST_CUT: Final = 0.7  # per window: the latencies of the next windows are those of requests admitted before it
_GROWTH: Final = 1.02  # per window
_USED: Final = 0.4  # of the limit; while fewer are at work, the limit stays, as a slow request of few is no overload
_STARVED: Final = 50  # windows in a row over the goal at the least number; then the goal is likely too short
_TOO_SHORT: Final = (
    "with only %s requests at work, the slowest tenth still takes %s seconds or more, and the goal is %s; if the app "
    "is not slower than usual, raise the goal"
)


class Ticket:
    """The key of a request at work whose response is tracked. A callback for the end of its response."""

    __slots__ = ("guard",)

    def __init__(self, guard: "OverloadGuard") -> None:
        self.guard: Final = guard

    def __call__(self, _: object) -> None:
        """See `OverloadGuard.left`."""
        self.guard.left(self)


class OverloadGuard:
    """Counts the requests at work in this process, and has no room for those beyond what the latency goal allows.

    `goal`: seconds. `least`, `most`: bounds of `limit`. `refuses`: False in shadow mode, where there is always room.
    `before`: the guard that this one replaces in a reload, whose requests are still at work. `at_work`: the key of each
    request at work, and when it was admitted. A key is a `Ticket`, or the `id` of a scope that lives until the request
    has left. Thread-safe without a lock for each request, because the methods of a dict are atomic. Threads that enter
    at the same instant may exceed the limit by their number.
    """

    def __init__(
        self,
        goal: float,
        least: int,
        most: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        refuses: bool = True,
        before: "OverloadGuard | None" = None,
    ) -> None:
        self.goal: Final = goal
        self._least: Final = least
        self._most: Final = most
        self._clock: Final = clock
        self._refuses: Final = refuses
        self.at_work: Final[dict[Ticket | int, float]] = {} if before is None else before.at_work
        self.limit: float = float(min(most, max(least, _START if before is None else before.limit)))
        # seconds: the 90th percentile of the latest window
        self.reached: float = 0.0 if before is None else before.reached
        self._samples: list[float] = []
        self._peak = 0  # requests at work at once in this window, at most
        self._began = clock()  # the window
        self._ends = self._began + _WINDOW
        self._starved = 0  # windows
        self._updating: Final = fork_safe_lock()

    def enter(self, share: float, key: Ticket | int) -> bool:
        """Count a request as at work, and return whether there is room for it.

        `share`: the part of the limit that the request may use.
        """
        at_work = self.at_work
        already = len(at_work)
        if already >= self.limit * share and self._refuses:
            return False
        if already >= self._peak:
            self._peak = already + 1
        at_work[key] = self._clock()
        return True

    def restart(self, key: Ticket | int) -> None:
        """Measure a request from now on. Counts it as at work again, if it has left."""
        self.at_work[key] = self._clock()

    def leave(self, key: Ticket | int) -> None:
        """Count a request as at work no longer, because it is not admitted."""
        self.at_work.pop(key, None)

    def left(self, key: Ticket | int) -> None:
        """Count a request as at work no longer, because it ends. Without a response, it counts only if it was slow.

        So clients that leave do not hide how slow the app is, and requests that fail at once do not make it look fast.
        """
        admitted = self.at_work.get(key)
        if admitted is not None and self._clock() - admitted > self.goal:
            self.answered(key)
        else:
            self.leave(key)

    def answered(self, key: Ticket | int) -> None:
        """Count a request as at work no longer, because its response starts. Later calls have no effect."""
        admitted = self.at_work.pop(key, None)
        if admitted is None:
            return
        now = self._clock()
        samples = self._samples
        samples.append(now - admitted)
        if now >= self._ends and (len(samples) >= _MIN_SAMPLES or now >= self._began + _LONGEST_WINDOW):
            self._end_window(now)

    def _end_window(self, now: float) -> None:
        if not self._updating.acquire(blocking=False):  # another thread does it
            return
        try:
            if now < self._ends:  # another thread has done it
                return
            samples, self._samples = self._samples, []
            peak, self._peak = self._peak, len(self.at_work)
            self._began, self._ends = now, now + _WINDOW
            self._adapt(sorted(samples), peak)
        finally:
            self._updating.release()

    def _adapt(self, samples: list[float], peak: int) -> None:
        """Adapt the limit. `samples`: the latencies of a window, sorted. `peak`: of the requests at work."""
        self.reached = samples[math.ceil(len(samples) * _PERCENTILE) - 1]
        is_used = peak >= self.limit * _USED
        is_starved = is_used and self.reached > self.goal and self.limit <= self._least
        if is_used and self.reached > self.goal:
            self.limit = max(float(self._least), self.limit * max(_LARGEST_CUT, math.sqrt(self.goal / self.reached)))
        elif is_used:
            self.limit = min(float(self._most), self.limit * _GROWTH)
        self._starved = self._starved + 1 if is_starved else 0
        if self._starved >= _STARVED:
            warn_throttled("latency_goal", _TOO_SHORT, self._least, f"{self.reached:.3g}", self.goal, code="RL-259")

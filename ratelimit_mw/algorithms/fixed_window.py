"""Fixed window: one counter, reset when its window ends. The Lua implementation is `fixed_window.lua`."""

import math
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, MICROSECONDS, Decision, Limit


class WindowState(Struct, frozen=True, gc=False, array_like=True):
    """The units taken in a window."""

    count: int  # units
    start: int  # microseconds


class FixedWindow(Limit, frozen=True, kw_only=True):
    """Admits while the units of the window plus the cost are at most `quota`. The first hit starts the window.

    Simple, small and widely known. A client that waits for the end of a window can get up to `2 * quota - 1` units
    within the length of one window. Raises `ConfigError` for a quota of 2**52 or more.
    """

    algorithm: ClassVar[str] = "fixed_window"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quota >= MAX_EXACT_INT // 2:
            raise ConfigError(
                f"quota {self.quota} is too large to count exactly: it must stay below 2**52", code="RL-013"
            )

    @property
    def max_per_window(self) -> int:
        return self.quota and 2 * self.quota - 1

    def decide(
        self, state: WindowState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, WindowState | None]:
        quota = self.quota
        count, start, end = self._current_window(state, now)
        rest = end - now
        retry_after = 0.0
        if allowed := count + cost <= quota or not cost:
            if cost:
                count += cost
                state = WindowState(count, start)
        else:
            retry_after = rest / MICROSECONDS if cost <= quota else math.inf
            if state is not None and state.start > start:
                # the clock stepped back: the old state would refuse until the clock reaches its time
                state = WindowState(count, start)
        remaining = quota - count if count < quota else 0
        next_after = rest / MICROSECONDS
        return Decision(
            allowed, quota, remaining, retry_after, next_after, next_after if count else 0.0, 0.0, max(now, start)
        ), state

    def settle(self, state: WindowState | None, now: int, delta: int, at: int) -> WindowState | None:
        count, start, _ = self._current_window(state, now)
        if delta > 0:
            new_count = max(count, min(count + delta, 2 * self.quota))
        else:
            new_count = max(0, count + delta) if at >= start else count
        if new_count == count:
            return state
        return WindowState(new_count, start) if new_count else None

    def expires(self, state: WindowState) -> int:
        return state.start + self.window_us

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.window_us, self.quota

    # the rest is for limits that take over the units of another one, see takeover.py

    @property
    def capacity(self) -> int:
        """See `takeover.Counting.capacity`."""
        return self.quota

    def used(self, state: WindowState, now: int) -> int:
        """See `takeover.Counting.used`."""
        return self._current_window(state, now)[0]

    def until_used(self, state: WindowState, now: int, units: int) -> int:
        """See `takeover.Counting.until_used`."""
        count, _, end = self._current_window(state, now)
        return end - now if count > units else 0

    def room(self, cost: int, max_delay: int | None) -> int:  # a window delays no request
        """See `takeover.Counting.room`."""
        return self.quota - cost

    def holding(self, now: int, units: int) -> WindowState | None:
        """See `takeover.Counting.holding`."""
        return self.settle(None, now, units, now)

    def continued(self, old: Limit, state: WindowState, now: int) -> WindowState | None:
        """See `takeover.Counting.continued`."""
        return state if old.algorithm == self.algorithm and old.window_us == self.window_us else None

    def _current_window(self, state: WindowState | None, now: int) -> tuple[int, int, int]:
        """Return count, start and end of the window at `now`. A clock that steps back does not end a window.

        The start is later than `now` only if `now` is before the window, see `CalendarWindow`.
        """
        if state is None or now - state.start >= self.window_us:
            return 0, now, now + self.window_us
        start = min(state.start, now)
        return state.count, start, start + self.window_us

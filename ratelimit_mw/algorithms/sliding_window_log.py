"""Sliding window log: the instant of every admitted unit. The Lua implementation is `sliding_window_log.lua`."""

import math
from array import array
from bisect import bisect_left, bisect_right
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, MOST_RECENT, Decision, Limit

_MAX_QUOTA = 100_000  # units; each takes 8 bytes in memory, about 100 in Redis
_MAX_COST = 1_000  # units that one charge can add
_TRIM = 2_000  # units that one charge can drop: twice what it can add, so that dropping keeps up


class LogState(Struct, frozen=True, gc=False):
    """Instants of units, microseconds, oldest first.

    The instants are `past[head:tail]`, followed by `newest`, `count` times. States share `past`, which only grows. The
    units of the newest charge are not in `past`; the next charge appends them. So a state that is not stored leaves
    nothing in `past`, and storing a state copies nothing.
    """

    past: "array[int]"
    head: int
    tail: int
    newest: int
    count: int

    def pack(self) -> bytes:
        """Return the instants as bytes, 8 for each unit."""
        return (self.past[self.head : self.tail] + array("q", [self.newest]) * self.count).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "LogState":
        """Return a state with these instants. Raises `ValueError` for other bytes."""
        times = array("q", packed)
        if not times:
            raise ValueError("a log without instants")
        return _state_of(times)


class SlidingWindowLog(Limit, frozen=True, kw_only=True):
    """Admits while the units of the last `window`, including now, plus the cost are at most `quota`. It is exact.

    At most `quota` units pass in any window; the size of the state is proportional to them. Raises `ConfigError` for a
    quota over 100,000. A cost over 1,000 never passes.
    """

    algorithm: ClassVar[str] = "sliding_window_log"
    max_settle_units: ClassVar[int] = _MAX_COST

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quota > _MAX_QUOTA:
            raise ConfigError(
                f"quota: got {self.quota}, expected at most {_MAX_QUOTA}: {self.algorithm} keeps every unit; "
                "sliding_window_counter does not",
                code="RL-014",
            )

    @property
    def most(self) -> int:
        return min(self.quota, _MAX_COST)

    @property
    def max_per_window(self) -> int:
        return self.quota

    def decide(
        self, state: LogState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, LogState | None]:
        quota = self.quota
        used = self._used(state, now)
        retry_after = 0.0
        if allowed := not cost or (used + cost <= quota and cost <= self.most):
            if cost:
                state = self._add(state, now, cost)
                used += cost
        else:
            retry_after = math.inf
            if cost <= self.most:
                retry_after = self._seconds_until_gone(state, now, used, used + cost - quota)
            if state is not None and state.newest > now:
                # the clock stepped back: the old state would refuse until the clock reaches its time
                state = self._clamped_to_now(state, now)
        remaining = quota - used if used < quota else 0
        next_after = self._seconds_until_gone(state, now, used, used + remaining + 1 - quota)
        reset_after = self._seconds_until_gone(state, now, used, used) if used else 0.0
        return Decision(allowed, quota, remaining, retry_after, next_after, reset_after, 0.0, now), state

    def settle(self, state: LogState | None, now: int, delta: int, at: int) -> LogState | None:
        used = self._used(state, now)
        if delta > 0:
            added = min(delta, 2 * self.quota - used)
            return self._add(state, now, added) if added > 0 else state
        if state is None or at <= now - self.window_us:
            return state
        times = array("q", state.pack())
        first, last = bisect_left(times, at), bisect_right(times, at)
        last = min(last, first - delta)
        if at == MOST_RECENT:
            first, last = len(times) - min(used, -delta), len(times)
        if first == last:
            return state
        if last - first == used:
            return None
        del times[first:last]
        rest = _state_of(times)
        return self._clamped_to_now(rest, now) if rest.newest > now else rest

    def expires(self, state: LogState) -> int:
        return state.newest + self.window_us

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.window_us, self.quota, self.most

    # the following six are for limits that take over the units of another one, see takeover.py

    @property
    def capacity(self) -> int:
        """See `takeover.Counting.capacity`."""
        return self.quota

    def used(self, state: LogState, now: int) -> int:
        """See `takeover.Counting.used`."""
        return self._used(state, now)

    def until_used(self, state: LogState, now: int, units: int) -> int:
        """See `takeover.Counting.until_used`."""
        used = self._used(state, now)
        return self._us_until_gone(state, now, used, used - units) if used > units else 0

    def room(self, cost: int, max_delay: int | None) -> int:  # a window delays no request
        """See `takeover.Counting.room`."""
        return self.quota - cost

    def holding(self, now: int, units: int) -> LogState | None:
        """See `takeover.Counting.holding`."""
        return self.settle(None, now, units, now)

    def continued(self, old: Limit, state: LogState, now: int) -> LogState | None:
        """See `takeover.Counting.continued`."""
        return state if isinstance(old, SlidingWindowLog) and old.window_us == self.window_us else None

    def _used(self, state: LogState | None, now: int) -> int:
        """Return the number of units in (now - window, now] and later."""
        if state is None or state.newest <= now - self.window_us:
            return 0
        return state.tail - self._first(state, now) + state.count

    def _first(self, state: LogState, now: int) -> int:
        """Return the index in `past` of the first unit that counts at `now`."""
        return bisect_right(state.past, now - self.window_us, state.head, state.tail)

    def _seconds_until_gone(self, state: LogState | None, now: int, used: int, nth: int) -> float:
        """Return the seconds until `nth` of the used units have expired; later units expire a window from now."""
        return self._us_until_gone(state, now, used, nth) / MICROSECONDS

    def _us_until_gone(self, state: LogState | None, now: int, used: int, nth: int) -> int:
        instant = now
        if state is not None and nth <= used:
            index = state.tail + state.count - used + nth - 1
            instant = min(state.past[index] if index < state.tail else state.newest, now)
        return instant + self.window_us - now

    def _add(self, state: LogState | None, now: int, units: int) -> LogState:
        """Return the state with `units` more at `now`, without the oldest expired ones."""
        if state is None or state.newest <= now - self.window_us:
            return LogState(array("q"), 0, 0, now, units)
        if state.newest > now:
            state = self._clamped_to_now(state, now)
        past, head, tail = state.past, min(self._first(state, now), state.head + _TRIM), state.tail + state.count
        newest = array("q", [state.newest]) * state.count
        if len(past) == state.tail and head <= tail - head:
            past.extend(newest)
        elif past[state.tail : tail] != newest or head > tail - head:  # another state appended, or many expired
            past, head, tail = past[head : state.tail] + newest, 0, tail - head
        return LogState(past, head, tail, now, units)

    def _clamped_to_now(self, state: LogState, now: int) -> LogState:
        """Return a state later than `now` without expired units, and with no instant after `now`."""
        expired = now - self.window_us
        instants = [min(instant, now) for instant in array("q", state.pack()) if instant > expired]
        return _state_of(array("q", instants))


def _state_of(times: "array[int]") -> LogState:
    """Return the state of these instants, at least one. Takes over `times`."""
    newest = times.pop()
    return LogState(times, 0, len(times), newest, 1)

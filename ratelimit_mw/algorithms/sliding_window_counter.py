"""Sliding window counter: counts units per sub-window, and weights the oldest sub-window.

The Lua implementation is `sliding_window_counter.lua`.
"""

import math
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.algorithms.ticks import CounterSteps, counter_steps
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MICROSECONDS, Decision, Limit, check_int

_MAX_BUCKETS = 1000


class SubWindowState(Struct, frozen=True, gc=False, array_like=True):
    """Units per sub-window.

    `newest` and `oldest` are fields of their own, not items of one tuple. With the default `buckets` of 1, `between` is
    the shared empty tuple, so the garbage collector need not track the state.
    """

    start: int  # clock steps; the start of the newest sub-window
    newest: int
    oldest: int
    between: tuple[int, ...] = ()  # newest sub-window first; empty unless `buckets` is 2 or more


class SlidingWindowCounter(Limit, frozen=True, kw_only=True):
    """Admits while the units of the last `window`, estimated from counters, leave room for the cost.

    The first hit of an empty state starts a sequence of sub-windows of `window / buckets`. The newest `buckets` of them
    count in full. The one before them counts by the part that the window still covers (the estimate popularized by
    Cloudflare). An adversary gets at most `2 * quota` in any window, and steady traffic gets `quota`. With `strict`
    that one counts in full, too, and any traffic gets at most `quota`.

    `buckets`: the number of sub-windows, 1 to 1000; more of them are closer to the exact count and cost one counter
    each. `strict`: bool.
    """

    buckets: int = 1
    strict: bool = False

    algorithm: ClassVar[str] = "sliding_window_counter"
    words: ClassVar[tuple[str, ...]] = ("buckets", "strict")
    steps: ClassVar[CounterSteps]
    """Instance value: `(clock, length)`, see `ticks.py`."""
    _fast_steps: ClassVar[tuple[int, int, int, int] | None]
    """Instance value for the fast path: `(clock, length, length - 1, quota)`; None with more `buckets` or `strict`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_int("buckets", self.buckets, 1) > _MAX_BUCKETS:
            raise ConfigError(f"buckets: got {self.buckets}, expected at most {_MAX_BUCKETS}", code="RL-014")
        if type(self.strict) is not bool:
            raise ConfigError(f"strict: got {self.strict!r}, expected true or false", code="RL-003")
        self.__dict__["steps"] = counter_steps(self.quota, self.window_us, self.buckets)
        fast_steps = (*self.steps, self.steps[1] - 1, self.quota)
        self.__dict__["_fast_steps"] = None if self.buckets > 1 or self.strict else fast_steps
        if self.steps[0] * self.buckets > self.window_us:
            raise ConfigError(
                f"buckets: got {self.buckets}, expected at most {self.window_us // self.steps[0]} in a window of "
                f"{self.window} seconds: shorter ones cannot be counted exactly",
                code="RL-013",
            )

    @property
    def max_wait(self) -> float:
        clock, length = self.steps
        return clock * length * (self.buckets + self.strict) / MICROSECONDS

    @property
    def max_per_window(self) -> int:
        return self.quota if self.strict else 2 * self.quota

    def decide(
        self, state: SubWindowState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, SubWindowState | None]:
        if (fast_steps := self._fast_steps) is None or not cost:
            return self._decide(state, now, cost)
        clock, length, length_less_1, quota = fast_steps
        step = now if clock == 1 else now // clock
        if state is None:
            start, newest, oldest, rest = step, 0, 0, length
        else:
            start, newest, oldest = state.start, state.newest, state.oldest
            rest = start + length - step  # until the next sub-window starts
            if not 0 < rest <= length:
                return self._decide(state, now, cost)
        # fast path: equal to _decide(), in half the time
        room, next_wait = quota - newest, rest
        if oldest and (weighted := oldest * (rest - 1) // length):
            room -= weighted
            next_wait -= (weighted * length - 1) // oldest + 1
        if allowed := cost <= room:
            room -= cost
            newest += cost
            retry_after, state = 0.0, SubWindowState(start, newest, oldest)
        elif room < 0 or not newest or cost > quota:
            return self._decide(state, now, cost)
        else:
            if newest + cost <= quota:  # it passes when the oldest counts less
                retry = rest - 1 - ((quota - newest - cost + 1) * length - 1) // oldest
            else:
                retry = rest + length_less_1 - ((quota - cost + 1) * length - 1) // newest
            retry_after = (retry * clock - now % clock) / MICROSECONDS if retry else 0.0
        reset = rest + length_less_1 - length_less_1 // newest
        if clock != 1:
            phase = now % clock  # elapsed part of this clock step
            next_wait, reset = next_wait * clock - phase, reset * clock - phase
        return Decision(
            allowed, quota, room, retry_after, next_wait / MICROSECONDS, reset / MICROSECONDS, 0.0, now
        ), state

    def _decide(self, state: SubWindowState | None, now: int, cost: int) -> tuple[Decision, SubWindowState | None]:
        """Decide in the general case."""
        clock, length = self.steps
        quota = self.quota
        step = now if clock == 1 else now // clock
        if state is not None and 0 <= step - state.start < length:  # _slide(), inlined
            start, newest, between, oldest = state.start, state.newest, state.between, state.oldest
        else:
            start, newest, between, oldest = self._slide(state, step)
        elapsed = step - start
        room = quota - (self._used(elapsed, newest, between, oldest) if between or oldest else newest)
        retry_after = 0.0
        if allowed := cost <= room or not cost:
            if cost:
                room -= cost
                newest += cost
                state = SubWindowState(start, newest, oldest, between)
        else:
            retry_after = math.inf
            if cost <= quota:
                wait = self._wait(elapsed, newest, between, oldest, quota - cost)
                retry_after = (wait * clock - now % clock) / MICROSECONDS
            if state is not None and state.start > step:
                # the clock stepped back: the old state would refuse until the clock reaches its time
                state = SubWindowState(start, newest, oldest, between)
        remaining = room if room > 0 else 0
        filled = newest + remaining
        next_wait = self._wait(elapsed, filled, between, oldest, quota - 1)
        reset = self._wait(elapsed, newest, between, oldest, 0)
        if clock > 1:
            phase = now % clock  # elapsed part of this clock step
            next_wait = next_wait * clock - phase
            reset = reset and reset * clock - phase
        return Decision(
            allowed, quota, remaining, retry_after, next_wait / MICROSECONDS, reset / MICROSECONDS, 0.0, now
        ), state

    def settle(self, state: SubWindowState | None, now: int, delta: int, at: int) -> SubWindowState | None:
        clock, length = self.steps
        step = now // clock
        start, newest, between, oldest = self._slide(state, step)
        counts = (newest, *between, oldest)
        age = 0  # sub-windows ago
        if delta > 0:
            room_with_debt = 2 * self.quota - self._used(step - start, newest, between, oldest)
            delta = max(0, min(delta, room_with_debt))
        else:
            age = max(0, -((at // clock - start) // length))
            if age > self.buckets:
                return state  # those units no longer count
            delta = max(delta, -counts[age])
        if not delta:
            return state
        counts = (*counts[:age], counts[age] + delta, *counts[age + 1 :])
        return SubWindowState(start, counts[0], counts[-1], counts[1:-1]) if any(counts) else None

    def expires(self, state: SubWindowState) -> int:
        clock, length = self.steps
        return (state.start + (self.buckets + 1) * length) * clock

    @property
    def numbers(self) -> tuple[int, ...]:
        return *self.steps, self.quota, self.buckets, int(self.strict)

    # the following six are for limits that take over the units of another one, see takeover.py

    @property
    def capacity(self) -> int:
        """See `takeover.Counting.capacity`."""
        return self.quota

    def used(self, state: SubWindowState, now: int) -> int:
        """See `takeover.Counting.used`."""
        start, newest, between, oldest = self._slide(state, step := now // self.steps[0])
        return self._used(step - start, newest, between, oldest)

    def until_used(self, state: SubWindowState, now: int, units: int) -> int:
        """See `takeover.Counting.until_used`."""
        clock = self.steps[0]
        start, newest, between, oldest = self._slide(state, step := now // clock)
        wait = self._wait(step - start, newest, between, oldest, units)
        return wait and wait * clock - now % clock

    def room(self, cost: int, max_delay: int | None) -> int:  # a window delays no request
        """See `takeover.Counting.room`."""
        return self.quota - cost

    def holding(self, now: int, units: int) -> SubWindowState | None:
        """See `takeover.Counting.holding`."""
        return self.settle(None, now, units, now)

    def continued(self, old: Limit, state: SubWindowState, now: int) -> SubWindowState | None:
        """See `takeover.Counting.continued`."""
        if not isinstance(old, SlidingWindowCounter):
            return None
        same = (old.steps, old.buckets, old.strict) == (self.steps, self.buckets, self.strict)
        return state if same else None

    def _slide(self, state: SubWindowState | None, step: int) -> tuple[int, int, tuple[int, ...], int]:
        """Return the start of the newest sub-window, and the newest, between and oldest counts, at `step`."""
        length = self.steps[1]
        if state is not None:
            passed = (step - state.start) // length
            if passed <= 0:  # if negative, the clock stepped back
                return min(state.start, step), state.newest, state.between, state.oldest
            counts = (
                ((0,) * passed + (state.newest, *state.between))[: self.buckets + 1] if passed <= self.buckets else ()
            )
            if any(counts):
                return state.start + passed * length, counts[0], counts[1:-1], counts[-1]
        return step, 0, (0,) * (self.buckets - 1), 0

    def _used(self, elapsed: int, newest: int, between: tuple[int, ...], oldest: int) -> int:
        """Return the units that count `elapsed` clock steps after the start of the newest sub-window."""
        if oldest and not self.strict:
            length = self.steps[1]
            oldest = oldest * (length - elapsed - 1) // length
        return newest + sum(between) + oldest if between else newest + oldest

    def _wait(self, elapsed: int, newest: int, between: tuple[int, ...], oldest: int, max_used: int) -> int:
        """Return the clock steps until at most `max_used` units count, if nothing more is taken."""
        length = self.steps[1]
        strict = self.strict
        if strict:  # like one more full sub-window, and no weighted one
            between, oldest = (*between, oldest), 0
        counted = newest
        if between:
            counted += sum(between)
            for count in reversed(between):  # the oldest no longer counts, and the next one becomes the oldest
                if counted <= max_used:
                    break
                counted -= count
                elapsed -= length
                oldest = 0 if strict else count
        if counted > max_used:
            counted = 0
            elapsed -= length
            oldest = 0 if strict else newest
        overlap = ((max_used - counted + 1) * length - 1) // oldest if oldest else length
        wait = length - 1 - overlap - elapsed if overlap < length else -elapsed
        return wait if wait > 0 else 0

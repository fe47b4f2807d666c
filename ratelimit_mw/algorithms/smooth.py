"""Guava's RateLimiter: each request waits for the cost of the one before. The Lua implementation is `smooth.lua`.

The state counts time, in ticks: the time until the next free ticket, and the stored idle time.
"""

import math
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.algorithms.bucket import Admission, DelayableLimit
from ratelimit_mw.algorithms.ticks import SmoothTicks, WarmUp, ceil_div, smooth_ticks, storage_steps
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import (
    MAX_EXACT_INT,
    MAX_SECONDS,
    MICROSECONDS,
    Decision,
    Limit,
    check_int,
    check_seconds,
    microseconds,
)

_MAX_COLD_FACTOR = 100  # times the stable price


class SmoothState(Struct, frozen=True, gc=False, array_like=True):
    """The next free ticket and the stored time at an instant, in the ticks of the rate at that time."""

    wait: int  # ticks until the next free ticket
    # Ticks of stored idle time. Below 0: charges took -stored ticks more than were stored, and the wait is for these.
    # Lua writes full - stored in this case.
    stored: int
    delayed_ticks: int  # ticks of the wait that are the price of delayed charges
    updated: int  # clock steps
    drain: int  # ticks per clock step
    clock: int  # microseconds per clock step


class Smooth(DelayableLimit, frozen=True, kw_only=True):
    """Admits if the next free ticket is due now or within `max_delay` seconds; the next request waits for the cost.

    `Smooth(5, 1)`: one unit every 0.2 s. A charge of 5 passes at once, and the next charge waits for a second. Idle
    time is stored, up to `max_burst` seconds, and later spent for free: Guava's SmoothBursty. With `warmup` seconds it
    is SmoothWarmingUp: an idle limit is cold, so its units take up to `cold_factor` times as long. It reaches its rate
    after `warmup` seconds of steady use. A new limit has full storage; with a `warmup` it is therefore cold.

    A cost over `quota` never passes. `remaining` is how many units pass at once, for any division into charges.
    `max_burst`: seconds, 0 or more; only without `warmup`. `warmup`: seconds, 0 disables it; together with the window
    at most 100 years. `cold_factor`: a whole number from 1 to 100; only with `warmup`. The rate is not part of the
    bucket id. If the rate changes, the limit keeps the stored fraction.
    """

    max_burst: float = 1.0
    warmup: float = 0.0
    cold_factor: int = 3
    max_delay: float = 0.0

    algorithm: ClassVar[str] = "smooth"
    words: ClassVar[tuple[str, ...]] = ("max_burst", "warmup", "cold_factor")
    borrows: ClassVar[bool] = True
    max_ticks: ClassVar[int] = MAX_EXACT_INT // 4
    ticks: ClassVar[SmoothTicks]
    warm_up: ClassVar[WarmUp | None]
    """Instance value: how the price of a unit falls during the warm-up; None without a warm-up."""
    idle_us: ClassVar[int]
    """Instance value: the idle microseconds after which storage is full."""
    cold: ClassVar[int]
    """Instance value: the cold factor with a warm-up, else 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check()
        self.__dict__["idle_us"] = microseconds(self.warmup or self.max_burst)
        self.__dict__["cold"] = self.cold_factor if self.warmup else 0
        ticks, self.__dict__["warm_up"] = smooth_ticks(self.quota or 1, self.window_us, self.idle_us, self.cold)
        self._set_ticks(ticks)
        self._set_bucket(self.notation.split(" ", 1)[1])  # without the rate

    @property
    def max_per_window(self) -> int:
        stored = 0 if self.cold else ceil_div(self.idle_us * self.quota, self.window_us)
        return self.quota and 2 * self.quota - 1 + stored

    @property
    def max_wait(self) -> float:
        return self.wait(0, self._max_quota_price) / MICROSECONDS

    def decide(
        self, state: SmoothState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, SmoothState | None]:
        clock, drain, *_ = self.ticks
        wait, stored, delayed_ticks = self._current(state, now)
        allowed, retry_after, delay = True, 0.0, 0.0
        if cost:
            if cost > self.quota:
                allowed, retry_after = False, math.inf
            else:
                allowed, retry_after, delay = self._admission(now, wait, wait - self.delay_ticks(max_delay))
            if allowed:
                before, (wait, stored) = wait, self._after_charge(wait, stored, cost)
                delayed_ticks = delayed_ticks + wait - before if before else 0
            if allowed or (state is not None and state.updated * state.clock > now):
                # also if refused, because the clock stepped back: the old state would refuse until its time
                state = SmoothState(wait, stored, delayed_ticks, now // clock, drain, clock)
        return self._decision(now, wait, stored, (allowed, retry_after, delay)), state

    def settle(self, state: SmoothState | None, now: int, delta: int, at: int) -> SmoothState | None:
        clock, drain, _, _, full = self.ticks
        wait, stored, delayed_ticks = self._current(state, now)
        before = wait, stored
        units = min(abs(delta), self._max_correction)
        debt = self._max_wait_ticks
        left_ticks = (at // clock - now // clock) * drain  # ticks for which the units still count
        if delta > 0 and wait < debt:
            wait, stored = self._after_charge(wait, stored, units)
            wait = min(wait, debt)
            stored = max(stored, self._min_stored(wait))
        elif delta < 0 < left_ticks:
            wait, stored, delayed_ticks = self._after_refund(wait, stored, delayed_ticks, units, left_ticks)
        if (wait, stored) == before:
            return state
        if (wait, stored) == (0, full):
            return None
        return SmoothState(wait, stored, min(delayed_ticks, wait), now // clock, drain, clock)

    def expires(self, state: SmoothState) -> int:
        ticks_to_full = state.wait + self._capacity(state) - max(0, state.stored)
        return (state.updated + ceil_div(ticks_to_full, state.drain)) * state.clock

    @property
    def numbers(self) -> tuple[int, ...]:
        clock, drain, unit_time, *_ = self.ticks
        scale = self.warm_up.scale if self.warm_up else 1
        return clock, drain // scale, unit_time // scale, self.quota, self.idle_us, self.cold

    # the following six are for limits that take over the units of another one, see takeover.py

    @property
    def capacity(self) -> int:
        """See `takeover.Counting.capacity`."""
        _, _, _, unit_storage, full = self.ticks
        return 1 if self.warm_up else full // unit_storage + 1

    def used(self, state: SmoothState, now: int) -> int:
        """See `takeover.Counting.used`."""
        wait, stored, _ = self._current(state, now)
        if wait:
            return self.capacity - 1 + ceil_div(wait, self.ticks[2])
        return 0 if self.warm_up else self.capacity - 1 - stored // self.ticks[3]

    def until_used(self, state: SmoothState, now: int, units: int) -> int:
        """See `takeover.Counting.until_used`."""
        _, _, unit_time, unit_storage, _ = self.ticks
        wait, stored, _ = self._current(state, now)
        free = self.capacity - 1 - units  # stored units
        ticks = wait + free * unit_time if free < 0 else wait + max(0, free * unit_storage - max(0, stored))
        return self.wait(now, ticks) if ticks > 0 else 0

    def room(self, cost: int, max_delay: int | None) -> int:  # the next request pays the cost
        """See `takeover.Counting.room`."""
        *_, unit_time, _, full = self.ticks
        over = self.delay_ticks(max_delay)
        if self.warm_up:  # the units that count are taken from a cold limit, so they cost more
            over = max(0, over - self._surcharge(full))
        return self.capacity - 1 + over // unit_time

    def holding(self, now: int, units: int) -> SmoothState | None:
        """See `takeover.Counting.holding`."""
        return self.settle(None, now, units, now)

    def continued(self, old: Limit, state: SmoothState, now: int) -> None:
        """Return None: units do not keep the times at which they were taken."""

    def _check(self) -> None:
        for field in ("max_burst", "warmup"):
            duration = check_seconds(field, getattr(self, field))
            if duration and not microseconds(duration):
                raise ConfigError(
                    f"{field}: got {duration!r} seconds, expected 0 or a microsecond and more", code="RL-014"
                )
        check_seconds("max_delay", self.max_delay)
        if check_int("cold_factor", self.cold_factor, 1) > _MAX_COLD_FACTOR:
            raise ConfigError(
                f"cold_factor: got {self.cold_factor}, expected at most {_MAX_COLD_FACTOR}", code="RL-014"
            )
        if self.warmup and self.warmup + self.window > MAX_SECONDS:
            raise ConfigError(
                f"warmup: got {self.warmup!r} seconds, expected at most a hundred years with the window", code="RL-014"
            )
        if self.warmup and self.max_burst != 1.0:
            raise ConfigError(
                f"max_burst: got {self.max_burst!r} with a warmup, which stores no burst; expected 1.0", code="RL-014"
            )
        if not self.warmup and self.cold_factor != 3:  # noqa: PLR2004  # the default
            raise ConfigError(
                f"cold_factor: got {self.cold_factor} without warmup, expected 3, or a warmup", code="RL-014"
            )

    @property
    def _max_correction(self) -> int:
        """Most units that a settlement can refund or charge."""
        _, _, _, unit_storage, full = self.ticks
        return 2 * self.quota + full // unit_storage + 1

    @property
    def _max_wait_ticks(self) -> int:
        """Most ticks until the next free ticket."""
        return self._max_quota_price + self.quota * self.ticks[2]

    @property
    def _max_quota_price(self) -> int:
        """Most ticks that a whole quota can cost."""
        *_, full = self.ticks
        return self._after_charge(0, full if self.warm_up else 0, self.quota or 1)[0]

    def _capacity(self, state: SmoothState) -> int:
        """Return the ticks of storage in total, in the ticks of `state`."""
        return storage_steps(self.idle_us, self.cold, state.clock) * state.drain

    def _min_stored(self, wait: int) -> int:
        """Return the least possible `stored` for a wait of `wait` ticks."""
        _, _, unit_time, unit_storage, _ = self.ticks
        part = math.gcd(unit_time, unit_storage)
        return -(ceil_div(wait, unit_time // part) * (unit_storage // part))

    def _current(self, state: SmoothState | None, now: int) -> tuple[int, int, int]:
        """Return `wait`, `stored` and `delayed_ticks` at `now`, in the ticks of this limit.

        Nothing is stored if the clock steps back.
        """
        clock, drain, *_, full = self.ticks
        if state is None:
            return 0, full, 0
        wait = state.wait - max(0, now // state.clock - state.updated) * state.drain
        stored, delayed_ticks = state.stored, state.delayed_ticks
        if wait <= 0:  # the time since the ticket was due is stored
            most = self._capacity(state)
            wait, stored = 0, min(most, max(0, stored) - wait)
            if stored == most:
                return 0, full, 0
        if (state.drain, state.clock) != (drain, clock):  # the rate changed: convert to its ticks
            ratio = (drain / state.drain) * (state.clock / clock)  # as in Lua, where all numbers are doubles
            wait = min(MAX_EXACT_INT // 2, math.ceil(wait * ratio))
            stored = min(full, math.floor(stored * ratio))
            delayed_ticks = math.ceil(delayed_ticks * ratio)
        if stored < 0:
            stored = max(stored, self._min_stored(wait))
        return wait, stored, min(delayed_ticks, wait)

    def _after_charge(self, wait: int, stored: int, cost: int) -> tuple[int, int]:
        """Return `wait` and `stored` after `cost` units: first stored units, at their price, then new units."""
        _, _, unit_time, unit_storage, _ = self.ticks
        stored_after = stored - cost * unit_storage
        return wait + cost * unit_time + self._surcharge(stored) - self._surcharge(stored_after), stored_after

    def _surcharge(self, stored: int) -> int:
        """Return by how many ticks all stored units cost more than as many new ones."""
        if self.warm_up is None:
            return -max(0, stored)
        return self.warm_up.surcharge(stored)

    def _after_refund(
        self, wait: int, stored: int, delayed_ticks: int, units: int, left_ticks: int
    ) -> tuple[int, int, int]:
        """Return `wait`, `stored` and `delayed_ticks` after a refund of units that count for `left_ticks` more ticks.

        Later requests that are delayed keep their instants, so their part of the wait remains. A refund of the latest
        charge restores the state before that charge.
        """
        _, _, unit_time, unit_storage, full = self.ticks
        if self.warm_up is None:
            left_ticks += full % unit_storage  # `at` is when all whole units are stored again
            later_wait = max(0, wait + full - max(0, stored) - left_ticks)
            refund = max(0, min(units * unit_storage, left_ticks) - min(delayed_ticks, later_wait))
            stored = min(full, (-wait if wait else stored) + refund)
            return max(0, -stored), stored, delayed_ticks if later_wait else max(0, delayed_ticks - refund)
        before = min(full, stored + units * unit_storage)
        price = units * unit_time + self._surcharge(before) - self._surcharge(stored)
        later_wait = max(0, wait - left_ticks)
        refund = max(0, min(price, left_ticks) - min(delayed_ticks, later_wait))
        return max(0, wait - refund), before, delayed_ticks if later_wait else max(0, delayed_ticks - refund)

    def _decision(self, now: int, wait: int, stored: int, admission: Admission) -> Decision:
        _, _, _, unit_storage, full = self.ticks
        allowed, retry_after, delay = admission
        stored = max(0, stored)
        if self.warm_up is None:
            limit, free = full // unit_storage + 1, stored // unit_storage + 1
            next_wait = wait or free * unit_storage - stored
            missing = max(0, (limit - 1) * unit_storage - stored)
        else:  # the first unit makes the next one wait
            limit = free = 1
            next_wait = wait or self._after_charge(0, stored, 1)[0]
            missing = 0
        next_after = self.wait(now, next_wait) / MICROSECONDS
        reset = self.wait(now, wait + missing) if wait + missing else 0
        remaining = 0 if wait else free
        return Decision(allowed, limit, remaining, retry_after, next_after, reset / MICROSECONDS, delay, now + reset)

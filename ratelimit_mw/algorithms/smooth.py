"""Guava's RateLimiter: who comes pays for who came before. Its Lua twin is `smooth.lua`.

What is counted is time, in ticks: how long until the next free ticket, and how much idle time is stored.
"""

import math
from typing import ClassVar

from msgspec import Struct

from ratelimit_mw.delay import DelayLimit, Outcome
from ratelimit_mw.errors import ConfigError
from ratelimit_mw.kept import cached_property
from ratelimit_mw.limit import EXACT, LONGEST, MICROSECONDS, Decision, microseconds, seconds, whole
from ratelimit_mw.ticks import SmoothTicks, WarmUp, ceil_div, moved, smooth_ticks, stored_us

_COLDEST = 100  # times the usual price


class Ticket(Struct, frozen=True, gc=False):
    """The next free ticket and what is stored, when that was so, and in which ticks: another rate has others."""

    wait: int  # ticks until the next free ticket
    stored: int  # ticks; below 0, how much of the wait is for units that were not stored
    held: int  # how many ticks of the wait are the price of charges that were held back themselves
    updated: int  # clock ticks
    drain: int  # ticks in a clock tick
    clock: int  # microseconds in a clock tick


class Smooth(DelayLimit, frozen=True, kw_only=True):
    """Admits while the next free ticket is due, or within `max_delay` seconds; the cost is paid by the next caller.

    `Smooth(5, 1)`: one unit every 0.2 s; a charge of 5 passes at once, and the next one waits for a second. Idle time
    is stored, up to `max_burst` seconds of it, and then spent for nothing: Guava's SmoothBursty. With `warmup` seconds
    it is SmoothWarmingUp: a limit that was idle is cold, its units take up to `cold_factor` times as long, and it gets
    to its rate in `warmup` seconds of steady use. A limit nobody has used yet is full: it has stored all, or is cold.

    A cost over `quota` never passes. `remaining` is how many units pass at once in whatever charges they come.
    `max_burst`: seconds, 0 or more. `warmup`: seconds, 0 is none; with the window at most a hundred years.
    `cold_factor`: a whole number from 1 to 100. `max_burst` goes without `warmup`, `cold_factor` with it.
    The rate is not part of the bucket's id: the part of the whole that is stored is kept when it changes.
    """

    max_burst: float = 1.0
    warmup: float = 0.0
    cold_factor: int = 3
    max_delay: float = 0.0

    algorithm: ClassVar[str] = "smooth"
    words: ClassVar[tuple[str, ...]] = ("max_burst", "warmup", "cold_factor")
    pays_later: ClassVar[bool] = True
    longest_ticks: ClassVar[int] = EXACT // 4
    ticks: ClassVar[SmoothTicks]
    warming: ClassVar[WarmUp | None]
    """Of the instance: how the price of a unit falls, where there is a warm-up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check()
        self.__dict__["ticks"], self.__dict__["warming"] = smooth_ticks(
            self.quota, self.window_us, self._idle_us, self._cold
        )
        self.delay_ticks(None)
        notation = self._written(self.words).split(" ", 1)[1].replace(" ", "_")  # without the rate
        self.__dict__["bucket"] = f"{self.name}:{notation}" if self.name else notation

    @property
    def worst_window(self) -> int:
        stored = 0 if self._cold else ceil_div(self._idle_us * self.quota, self.window_us)
        return 2 * self.quota - 1 + stored

    @property
    def longest_wait(self) -> float:
        return self.wait(0, self._dearest) / MICROSECONDS

    def decide(
        self, state: Ticket | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, Ticket | None]:
        clock, drain, *_ = self.ticks
        wait, stored, held = self._seen(state, now)
        allowed, retry_after, delay = True, 0.0, 0.0
        if cost:
            patience = self.delay_ticks(max_delay)
            if cost > self.quota:
                allowed, retry_after = False, math.inf
            elif wait > patience:
                allowed, retry_after = False, self.wait(now, wait - patience) / MICROSECONDS
            else:
                delay = self.wait(now, wait) / MICROSECONDS if wait else 0.0
                before, (wait, stored) = wait, self._taken(wait, stored, cost)
                held = held + wait - before if before else 0
            if allowed or (state is not None and state.updated * state.clock > now):
                # refused too, else the lock-out would last until that time comes again
                state = Ticket(wait, stored, held, now // clock, drain, clock)
        return self._answer(now, wait, stored, (allowed, retry_after, delay)), state

    def settle(self, state: Ticket | None, now: int, delta: int, at: int) -> Ticket | None:
        clock, drain, _, _, full = self.ticks
        wait, stored, held = self._seen(state, now)
        before = wait, stored
        units = min(abs(delta), self._whole)
        debt = self._debt
        left = (at // clock - now // clock) * drain  # of the time for which the units count
        if delta > 0 and wait < debt:
            wait, stored = self._taken(wait, stored, units)
            wait = min(wait, debt)
            stored = max(stored, self._not_stored(wait))
        elif delta < 0 < left:
            wait, stored, held = self._given_back(wait, stored, held, units, left)
        if (wait, stored) == before:
            return state
        if (wait, stored) == (0, full):
            return None
        return Ticket(wait, stored, min(held, wait), now // clock, drain, clock)

    def moved(self, at: int, units: int) -> int:
        clock, drain, fresh, *_ = self.ticks
        price = fresh * max(1, self._cold) if units < 0 else fresh  # the one on which nobody gets back too much
        return moved(at, units * price, drain, clock)

    def forgiven(self, state: Ticket | None, now: int, delta: int) -> int:
        wait, stored, _ = self._seen(state, now)
        if wait >= self._debt:
            return delta
        units = min(delta, self._whole)
        over = max(0, self._taken(wait, stored, units)[0] - self._debt)
        return delta - units + ceil_div(over, self.ticks[2])

    def expires(self, state: Ticket) -> int:
        until = state.wait + self._full(state) - max(0, state.stored)
        return (state.updated + ceil_div(until, state.drain)) * state.clock

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        clock, drain, fresh, *_ = self.ticks
        scale = self.warming.scale if self.warming else 1
        return clock, drain // scale, fresh // scale, self.quota, self._idle_us, self._cold

    def _check(self) -> None:
        for field in ("max_burst", "warmup"):
            given = seconds(field, getattr(self, field))
            if given and not microseconds(given):
                raise ConfigError(f"{field}: found {given!r} seconds, allowed are 0 or a microsecond and more")
        seconds("max_delay", self.max_delay)
        if whole("cold_factor", self.cold_factor, 1) > _COLDEST:
            raise ConfigError(f"cold_factor: found {self.cold_factor}, allowed is at most {_COLDEST}")
        if self.warmup and self.warmup + self.window > LONGEST:
            raise ConfigError(
                f"warmup: found {self.warmup!r} seconds, allowed are at most a hundred years with the window"
            )
        if self.warmup and self.max_burst != 1.0:
            raise ConfigError(
                f"max_burst: found {self.max_burst!r} beside warmup, which saves nothing up; allowed is 1.0"
            )
        if not self.warmup and self.cold_factor != 3:  # noqa: PLR2004  # as above: the default
            raise ConfigError(f"cold_factor: found {self.cold_factor} without warmup, allowed is 3, or a warmup")

    @cached_property
    def _cold(self) -> int:
        """How many times the usual price a unit costs at first; 0 without a warm-up."""
        return self.cold_factor if self.warmup else 0

    @cached_property
    def _idle_us(self) -> int:
        """Idle microseconds after which nothing more is stored."""
        return microseconds(self.warmup or self.max_burst)

    @cached_property
    def _whole(self) -> int:
        """Units of which more are neither there to give back, nor to be taken."""
        _, _, _, own, full = self.ticks
        return 2 * self.quota + full // own + 1

    @cached_property
    def _debt(self) -> int:
        """Ticks that the next free ticket can be away at most."""
        return self._dearest + self.quota * self.ticks[2]

    @cached_property
    def _dearest(self) -> int:
        """Ticks that a whole quota costs at most."""
        *_, full = self.ticks
        return self._taken(0, full if self.warming else 0, self.quota)[0]

    def _full(self, state: Ticket) -> int:
        """Ticks of storage, in those of a state."""
        return stored_us(self._idle_us, self._cold, state.clock) * state.drain

    def _not_stored(self, wait: int) -> int:
        """The least that `stored` can be while there are so many ticks to wait."""
        _, _, fresh, own, _ = self.ticks
        part = math.gcd(fresh, own)
        return -(ceil_div(wait, fresh // part) * (own // part))

    def _seen(self, state: Ticket | None, now: int) -> tuple[int, int, int]:
        """`wait`, `stored` and `held` by now, in the ticks of this limit; a clock that stepped back stores nothing."""
        clock, drain, *_, full = self.ticks
        if state is None:
            return 0, full, 0
        wait = state.wait - max(0, now // state.clock - state.updated) * state.drain
        stored, held = state.stored, state.held
        if wait <= 0:  # time since it was due is stored
            most = self._full(state)
            wait, stored = 0, min(most, max(0, stored) - wait)
            if stored == most:
                return 0, full, 0
        if (state.drain, state.clock) != (drain, clock):  # the rate was changed: the same times in other ticks
            ratio = (drain / state.drain) * (state.clock / clock)  # as in Lua, where all numbers are doubles
            wait = min(EXACT // 2, math.ceil(wait * ratio))
            stored = min(full, math.floor(stored * ratio))
            held = math.ceil(held * ratio)
        if stored < 0:
            stored = max(stored, self._not_stored(wait))
        return wait, stored, min(held, wait)

    def _taken(self, wait: int, stored: int, cost: int) -> tuple[int, int]:
        """The same after so many units: first those that are stored, at their price, then others."""
        _, _, fresh, own, _ = self.ticks
        left = stored - cost * own
        return wait + cost * fresh + self._surcharge(stored) - self._surcharge(left), left

    def _surcharge(self, stored: int) -> int:
        """By how much all that is stored costs more than as many units that are not; ticks."""
        if self.warming is None:
            return -max(0, stored)
        return self.warming.surcharge(stored)

    def _given_back(self, wait: int, stored: int, held: int, units: int, left: int) -> tuple[int, int, int]:
        """`wait`, `stored` and `held` after giving back units that count for so many ticks more.

        Whoever took its units later and is held back goes when it was told to: that much of the wait stays. What was
        taken last is as if it had never been.
        """
        _, _, fresh, own, full = self.ticks
        if self.warming is None:
            left += full % own  # `at` is when all whole units are stored again
            later = max(0, wait + full - max(0, stored) - left)
            back = max(0, min(units * own, left) - min(held, later))
            stored = min(full, (-wait if wait else stored) + back)
            return max(0, -stored), stored, held if later else max(0, held - back)
        before = min(full, stored + units * own)
        price = units * fresh + self._surcharge(before) - self._surcharge(stored)
        later = max(0, wait - left)
        back = max(0, min(price, left) - min(held, later))
        return max(0, wait - back), before, held if later else max(0, held - back)

    def _answer(self, now: int, wait: int, stored: int, outcome: Outcome) -> Decision:
        _, _, _, own, full = self.ticks
        allowed, retry_after, delay = outcome
        stored = max(0, stored)
        if self.warming is None:
            limit, free = full // own + 1, stored // own + 1
            following = wait or free * own - stored
            short = max(0, (limit - 1) * own - stored)
        else:  # whoever comes first makes the next one wait
            limit = free = 1
            following = wait or self._taken(0, stored, 1)[0]
            short = 0
        next_after = self.wait(now, following) / MICROSECONDS
        reset = self.wait(now, wait + short) if wait + short else 0
        left = 0 if wait else free
        return Decision(allowed, limit, left, retry_after, next_after, reset / MICROSECONDS, delay, now + reset)

"""Concurrency: how many are at work at once. Its Lua twin is `concurrency.lua`."""

import math
from collections.abc import Iterable
from itertools import islice
from typing import ClassVar, Final

from ratelimit_mw.algorithms.slot_set import SlotState
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Decision, Limit, check_seconds, microseconds
from ratelimit_mw.core.memo import cached_property

MAX_SLOTS: Final = 10_000  # some 100 bytes each in Redis
LIFETIME: Final = 15.0  # seconds
RETRY: Final = 1.0  # seconds


class _SlotLifetime(Limit, frozen=True):
    window: float = LIFETIME


class Concurrency(_SlotLifetime, frozen=True, kw_only=True):
    """Admits while at most `quota` units are at work at once: a unit is a slot, held until it is given back.

    `quota`: slots, at most 10,000. `window`: a slot's lifetime, seconds: one that is neither renewed nor given back is
    free after that long, because whoever held it is gone. `retry`: seconds that a refused client is told to wait, more
    than 0: a hint, because nobody knows when a slot is given back.

    A charge takes `cost` slots, named `at`, `at + 1` and so on, for the `at` of its decision: no two are alike.
    `settle` with the negative cost and that `at` gives them back, twice as well as once; with the cost itself it renews
    them, and takes them again where they were lost. The slots of a key are the same whatever `quota` is.
    """

    retry: float = RETRY

    algorithm: ClassVar[str] = "concurrency"
    is_concurrency: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quota > MAX_SLOTS:
            raise ConfigError(f"quota: got {self.quota}, expected at most {MAX_SLOTS} slots")
        if microseconds(check_seconds("retry", self.retry)) < 1:
            raise ConfigError(f"retry: got {self.retry!r}, expected more than 0 seconds")
        # without the quota: who changes it changes how many may be at work, and those who are stay so
        self.__dict__["bucket"] = self.bucket.replace(f"{self.quota}/", "")

    @property
    def max_wait(self) -> float:
        return self.retry

    def decide(
        self, state: SlotState | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, SlotState | None]:
        quota, at, retry_after = self.quota, now, 0.0
        used = state.in_use(now) if state is not None else 0
        if allowed := not cost or used + cost <= quota:
            if cost:
                at = _free_name(state, now, now + self.window_us, cost)
                state = self._with_slots(state, now, range(at, at + cost))
                used += cost
        else:
            retry_after = self.retry if cost <= quota else math.inf
            if state is not None and state.last[0] > now + self.window_us:
                state = self._with_slots(
                    state, now, ()
                )  # else they would outlive their holders until that time comes again
        remaining = quota - used if used < quota else 0
        return Decision(allowed, quota, remaining, retry_after, self.retry, self.retry * (used > 0), 0.0, at), state

    def settle(self, state: SlotState | None, now: int, delta: int, at: int) -> SlotState | None:
        used = state.in_use(now) if state is not None else 0
        names = range(max(at, 0), max(at, 0) + min(abs(delta), MAX_SLOTS))
        current = [name for name in names if used and state is not None and state.end(name) > now]
        if delta > 0 and at <= MAX_EXACT_INT // 2:  # names that follow must be exact
            to_hold = set(current)
            lost = (name for name in names if name not in to_hold)
            current += islice(lost, max(0, 2 * self.quota - used))
            return self._with_slots(state, now, current) if current else state
        if delta >= 0 or not current:
            return state
        return None if len(current) == used else self._with_slots(state, now, (), current)

    def expires(self, state: SlotState) -> int:
        return state.last[0]

    @cached_property
    def notation(self) -> str:
        """What errors call it. Nothing reads it back: it is no rate."""
        return f"{self.quota} at once"

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return self.window_us, self.quota, microseconds(self.retry)

    def _with_slots(
        self, state: SlotState | None, now: int, to_hold: Iterable[int], to_release: Iterable[int] = ()
    ) -> SlotState:
        """The state in which these are held from now on and those given back. What ended is dropped.

        No lifetime ends later than one that begins now.
        """
        latest = now + self.window_us
        changes: list[tuple[int, int | None]] = []
        if state is not None:
            changes += [(name, None) for _, name in state.expired(now)]
            changes += [(name, latest) for _, name in state.expiring_from(latest + 1)]
        changes += [(name, latest) for name in to_hold]
        changes += [(name, None) for name in to_release]
        return (state or SlotState(None, ())).with_changes(changes)


def _free_name(slots: SlotState | None, now: int, latest: int, cost: int) -> int:
    """The first name from now on, and from the name of the last to end on, that is free with those after it.

    Whatever is taken at one instant is named after what was taken before, so there is next to nothing to look for.
    """
    if slots is None or slots.last[0] <= now:
        return now
    last = slots.last[1]
    if slots.last[0] > latest:  # all that end later will end then
        last = max(name for _, name in slots.expiring_from(latest))
    first = name = max(now, last + 1)
    while name < first + cost:
        name += 1
        if slots.end(name - 1) > now:
            first = name
    return first

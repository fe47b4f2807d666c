"""Concurrency: how many requests are in progress at once. The Lua implementation is `concurrency.lua`."""

import math
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import ClassVar, Final

from ratelimit_mw.algorithms.fair_slots import decide_fairly, expires_fairly, number_of, settle_fairly
from ratelimit_mw.algorithms.slot_state import SlotState
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Decision, Limit, check_seconds, microseconds

MAX_SLOTS: Final = 10_000  # about 100 bytes each in Redis
LIFETIME: Final = 15.0  # seconds
RETRY: Final = 1.0  # seconds


class _SlotLifetime(Limit, frozen=True):
    """Gives `window` a default. A class of its own, because in `Concurrency` the field would be keyword only."""

    window: float = LIFETIME


class Concurrency(_SlotLifetime, frozen=True, kw_only=True):
    """Admits while at most `quota` slots are in use. Each unit is a slot, which is held until it is released.

    `quota`: slots, at most 10,000. `window`: the lifetime of a slot in seconds. A slot that is neither renewed nor
    released is free after that time, because its holder is then considered gone. `retry`: seconds, more than 0, after
    which a refused client should retry. It is a hint, because the time of a release cannot be predicted.

    A charge takes `cost` slots. Their unique names are `at`, `at + 1` and so on, where `at` comes from the decision.
    `settle` with that `at` and the negative cost releases them, and can be repeated. With the positive cost it renews
    them, and takes them again if they were lost. The slots of a key do not depend on `quota`.

    `holder`: the client, or another name, that has the slots. While another holder waits, none gets more than its share
    of the quota, see `fair_slots`. Slots without a holder are in other buckets.
    """

    retry: float = RETRY
    holder: str | None = None

    algorithm: ClassVar[str] = "concurrency"
    min_quota: ClassVar[int] = 1
    is_concurrency: ClassVar[bool] = True
    holder_number: ClassVar[int]  # set on each instance with a holder

    def __post_init__(self) -> None:
        if self.holder is not None:  # first, so that `keep` applies, too
            self._share_fairly(self.holder)
        super().__post_init__()
        if self.quota > MAX_SLOTS:
            raise ConfigError(f"quota: got {self.quota}, expected at most {MAX_SLOTS} slots", code="RL-014")
        if microseconds(check_seconds("retry", self.retry)) < 1:
            raise ConfigError(f"retry: got {self.retry!r}, expected more than 0 seconds", code="RL-014")
        # without the quota, so that slots remain in use when the quota changes
        self.__dict__["bucket"] = self.bucket.replace(f"{self.quota}/", "")
        if self.holder is not None:
            self.__dict__["bucket"] = self.bucket.replace("_using_", "_fair_using_")
            self.__dict__["script"] = "fair_slots", (*self.numbers, 1, 1)
        self.__dict__["notation"] = f"{self.quota} at once"  # `parse` does not accept it, because it is not a rate

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
                # the clock stepped back; without this, the slots would outlive their holders
                state = self._with_slots(state, now, ())
        remaining = quota - used if used < quota else 0
        return Decision(allowed, quota, remaining, retry_after, self.retry, self.retry * (used > 0), 0.0, at), state

    def settle(self, state: SlotState | None, now: int, delta: int, at: int) -> SlotState | None:
        used = state.in_use(now) if state is not None else 0
        names = range(max(at, 0), max(at, 0) + min(abs(delta), MAX_SLOTS))
        current = [name for name in names if used and state is not None and state.end(name) > now]
        if delta > 0 and at <= MAX_EXACT_INT // 2:  # the names after a larger one may not be exact in Lua
            to_hold = set(current)
            lost = (name for name in names if name not in to_hold)
            # others may have taken the whole quota since the slots were lost, so twice the quota has room for both
            current += islice(lost, max(0, 2 * self.quota - used))
            return self._with_slots(state, now, current) if current else state
        if delta >= 0 or not current:
            return state
        return None if len(current) == used else self._with_slots(state, now, (), current)

    def expires(self, state: SlotState) -> int:
        return state.last[0]

    @property
    def numbers(self) -> tuple[int, ...]:
        numbers = self.window_us, self.quota, microseconds(self.retry)
        return numbers if self.holder is None else (*numbers, self.holder_number)

    def _share_fairly(self, holder: object) -> None:
        if not isinstance(holder, str):
            raise ConfigError(f"holder: got {holder!r:.100}, expected text", code="RL-014")
        number = self.__dict__["holder_number"] = number_of(holder)
        self.__dict__["decide"] = partial(decide_fairly, self, number)
        self.__dict__["settle"] = partial(settle_fairly, self, number)
        self.__dict__["expires"] = expires_fairly

    def _with_slots(
        self, state: SlotState | None, now: int, to_hold: Iterable[int], to_release: Iterable[int] = ()
    ) -> SlotState:
        """Return the state with these slots held or released from `now` on, and without expired slots.

        No slot ends later than a slot taken at `now`.
        """
        latest = now + self.window_us
        changes: list[tuple[int, int | None]] = []
        if state is not None:
            changes += [(name, None) for _, name in state.expired(now)]
            changes += [(name, latest) for _, name in state.expiring_from(latest + 1)]
        changes += [(name, latest) for name in to_hold]
        changes += [(name, None) for name in to_release]
        return SlotState(state, changes)


def _free_name(slots: SlotState | None, now: int, latest: int, cost: int) -> int:
    """Return the first of `cost` consecutive free names, at least `now`, and after the name of the slot that ends last.

    Slots taken at the same instant get consecutive names, so this search is short.
    """
    if slots is None or slots.last[0] <= now:
        return now
    last = slots.last[1]
    if slots.last[0] > latest:  # the ends of slots that end later are set to `latest`
        last = max(name for _, name in slots.expiring_from(latest))
    first = name = max(now, last + 1)
    while name < first + cost:
        name += 1
        if slots.end(name - 1) > now:
            first = name
    return first

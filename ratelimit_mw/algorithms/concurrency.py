"""Concurrency: how many requests are in progress at once. The Lua implementation is `concurrency.lua`."""

import math
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar, Final, Optional

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Decision, Limit, check_seconds, microseconds

MAX_SLOTS: Final = 10_000  # about 100 bytes each in Redis
LIFETIME: Final = 15.0  # seconds
RETRY: Final = 1.0  # seconds

_LAST: Final = 2**63  # larger than any name

# (end, name). `end`: when the slot ends unless it is renewed, in microseconds. `name`: a unique number, at least the
# time in microseconds at which the slot was taken.
Slot = tuple[int, int]


class _Core:
    """The end of each slot by its name, and the slots in order of their ends."""

    __slots__ = ("ends", "order")

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends: Final = ends
        self.order: Final[list[Slot]] = sorted((end, name) for name, end in ends.items())

    def write(self, name: int, end: int | None) -> int | None:
        """Set the end of a slot; None drops it. Return its previous end."""
        old = self.ends.pop(name, None)
        if old is not None:
            del self.order[bisect_left(self.order, (old, name))]
        if end is not None:
            self.ends[name] = end
            insort(self.order, (end, name))
        return old


class SlotState:
    """The slots of one bucket that are in use. Immutable for its users, but not thread-safe, even for reads.

    States share one sorted list, so that a change does not copy it. The first read of a derived state writes its
    changes into the list. The older state can still be read, but then has to rebuild a list of its own. This does not
    happen often, because stores read only the newest state. A state that is never read costs nothing.

    `base`: the state before `changes`, which are pairs of name and end; an end of None drops the slot.
    """

    __slots__ = ("_base", "_changes", "_core", "_newer", "_undo")

    def __init__(self, base: Optional["SlotState"], changes: Sequence[tuple[int, int | None]]) -> None:
        self._base = base
        self._changes = changes
        self._core: _Core | None = None
        self._newer: SlotState | None = None  # the state that took the list; `_undo` leads back
        self._undo: list[tuple[int, int | None]] = []

    def in_use(self, now: int) -> int:
        """Return the number of slots held at `now`."""
        order = self._read().order
        return len(order) - bisect_right(order, (now, _LAST))

    def end(self, name: int) -> int:
        """Return when the slot ends; 0 if no slot has this name."""
        return self._read().ends.get(name, 0)

    @property
    def last(self) -> Slot:
        """The last slot to end; among equals, the one with the largest name."""
        return self._read().order[-1]

    def expired(self, now: int) -> list[Slot]:
        """Return the slots that have ended by `now`."""
        order = self._read().order
        return order[: bisect_right(order, (now, _LAST))]

    def expiring_from(self, instant: int) -> list[Slot]:
        """Return the slots that end at `instant` or later."""
        order = self._read().order
        return order[bisect_left(order, (instant, 0)) :]

    def pack(self) -> bytes:
        """Return the slots as bytes: the name and the end of each, with 8 bytes for a number."""
        return array("q", [number for slot in self._read().ends.items() for number in slot]).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "SlotState":
        """Return a state with these slots. Raises `ValueError` for other bytes."""
        numbers = array("q", packed)
        if not numbers or len(numbers) % 2:
            raise ValueError("slots without a name or an end")
        state = cls(None, ())
        state._core = _Core(dict(zip(numbers[::2], numbers[1::2], strict=True)))
        return state

    def _read(self) -> _Core:
        core = self._core
        if core is None:
            core = self._core = _Core(self._rebuilt_ends()) if self._newer is not None else self._take_list_from_base()
            self._newer, self._undo = None, []
        return core

    def _take_list_from_base(self) -> _Core:
        """Take the list from the base state and write this state's changes into it."""
        base, self._base = self._base, None
        core = _Core({}) if base is None else base._read()  # noqa: SLF001  # same class
        undo = [(name, core.write(name, end)) for name, end in self._changes]
        self._changes = ()
        if base is not None:
            base._core, base._newer, base._undo = None, self, undo[::-1]  # noqa: SLF001  # same class
        return core

    def _rebuilt_ends(self) -> dict[int, int]:
        """Return the ends in this state by undoing the changes of newer states."""
        undone, one = [self._undo], self._newer
        while one is not None and one._newer is not None:  # noqa: SLF001  # same class
            undone.append(one._undo)  # noqa: SLF001  # same class
            one = one._newer  # noqa: SLF001  # same class
        ends = {} if one is None else dict(one._read().ends)  # noqa: SLF001  # same class
        for changes in reversed(undone):
            ends.update({name: end or 0 for name, end in changes})
        return {name: end for name, end in ends.items() if end}


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
    """

    retry: float = RETRY

    algorithm: ClassVar[str] = "concurrency"
    min_quota: ClassVar[int] = 1
    is_concurrency: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quota > MAX_SLOTS:
            raise ConfigError(f"quota: got {self.quota}, expected at most {MAX_SLOTS} slots", code="RL-014")
        if microseconds(check_seconds("retry", self.retry)) < 1:
            raise ConfigError(f"retry: got {self.retry!r}, expected more than 0 seconds", code="RL-014")
        # without the quota, so that slots remain in use when the quota changes
        self.__dict__["bucket"] = self.bucket.replace(f"{self.quota}/", "")
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
        return self.window_us, self.quota, microseconds(self.retry)

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

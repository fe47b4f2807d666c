"""The state of concurrency limits: the slots in use, and when they end."""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Final, Optional

_BITS: Final = 53
_LOW: Final = 2**_BITS - 1
LAST: Final = 2**128  # larger than any name, and than any end

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
        return len(order) - bisect_right(order, (now, LAST))

    def end(self, name: int) -> int:
        """Return when the slot ends; 0 if no slot has this name."""
        return self._read().ends.get(name, 0)

    def between(self, first: int, last: int) -> list[Slot]:
        """Return the slots that end from `first` to `last`."""
        order = self._read().order
        return order[bisect_left(order, (first, -LAST)) : bisect_right(order, (last, LAST))]

    def count(self, first: int, last: int) -> int:
        """Return the number of slots that end from `first` to `last`."""
        order = self._read().order
        return bisect_right(order, (last, LAST)) - bisect_left(order, (first, -LAST))

    @property
    def first(self) -> Slot:
        """The first slot to end."""
        return self._read().order[0]

    @property
    def last(self) -> Slot:
        """The last slot to end; among equals, the one with the largest name."""
        return self._read().order[-1]

    def expired(self, now: int) -> list[Slot]:
        """Return the slots that have ended by `now`."""
        order = self._read().order
        return order[: bisect_right(order, (now, LAST))]

    def expiring_from(self, instant: int) -> list[Slot]:
        """Return the slots that end at `instant` or later."""
        order = self._read().order
        return order[bisect_left(order, (instant, 0)) :]

    def pack(self) -> bytes:
        """Return the slots as bytes: the name and the end of each, with 8 bytes for a number.

        If a name does not fit in, -1 comes first, and each name is its part above and below 2**53.
        """
        ends = self._read().ends
        try:
            return array("q", [number for slot in ends.items() for number in slot]).tobytes()
        except OverflowError:
            parts = [(name >> _BITS, name & _LOW, end) for name, end in ends.items()]
            return array("q", [-1, *(number for slot in parts for number in slot)]).tobytes()

    @classmethod
    def unpack(cls, packed: bytes) -> "SlotState":
        """Return a state with these slots. Raises `ValueError` for other bytes."""
        numbers = array("q", packed)
        if len(numbers) % 3 == 1 and numbers[0] == -1:
            above, below, ends = (numbers[first::3] for first in (1, 2, 3))
            names = [(one << _BITS) + other for one, other in zip(above, below, strict=True)]
            return cls._of(dict(zip(names, ends, strict=True)))
        if not numbers or len(numbers) % 2:
            raise ValueError("slots without a name or an end")
        return cls._of(dict(zip(numbers[::2], numbers[1::2], strict=True)))

    @classmethod
    def _of(cls, ends: dict[int, int]) -> "SlotState":
        state = cls(None, ())
        state._core = _Core(ends)
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

"""The slots of one bucket in memory: states that share one sorted list, so that a change costs no walk through it.

A state that was made of another one is written into the list when it is first read. The older state can still be read:
it makes a list of its own then. A store reads the newest one only, and a decision that it throws away costs nothing.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Final, Optional

Slot = tuple[int, int]  # when it ends unless it is renewed, and its name; both microseconds


class _Core:
    """When each slot ends, by its name; and the slots in the order in which they end."""

    __slots__ = ("ends", "order")

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends: Final = ends
        self.order: Final[list[Slot]] = sorted((end, name) for name, end in ends.items())

    def write(self, name: int, end: int | None) -> int | None:
        """Have a slot end then; None drops it. When it ended before."""
        old = self.ends.pop(name, None)
        if old is not None:
            del self.order[bisect_left(self.order, (old, name))]
        if end is not None:
            self.ends[name] = end
            insort(self.order, (end, name))
        return old


class SlotState:
    """The slots that are held. Never changed, as far as can be seen. Several threads must not read it at once."""

    __slots__ = ("_base", "_changes", "_core", "_newer", "_undo")

    def __init__(self, base: Optional["SlotState"], changes: Sequence[tuple[int, int | None]]) -> None:
        self._base = base
        self._changes = changes
        self._core: _Core | None = None
        self._newer: SlotState | None = None  # the state that has the list now, and what leads back to this one
        self._undo: list[tuple[int, int | None]] = []

    def in_use(self, now: int) -> int:
        """How many are held at `now`."""
        order = self._read().order
        return len(order) - bisect_right(order, (now, _LAST))

    def end(self, name: int) -> int:
        """When a slot ends, 0 if there is none of this name."""
        return self._read().ends.get(name, 0)

    @property
    def last(self) -> Slot:
        """The last of them to end, by its name where several end then."""
        return self._read().order[-1]

    def expired(self, now: int) -> list[Slot]:
        """Those that are not held any more at `now`."""
        order = self._read().order
        return order[: bisect_right(order, (now, _LAST))]

    def expiring_from(self, instant: int) -> list[Slot]:
        """Those that end at this instant or later."""
        order = self._read().order
        return order[bisect_left(order, (instant, 0)) :]

    def with_changes(self, changes: Iterable[tuple[int, int | None]]) -> "SlotState":
        """The same with some that end at other times; None is a slot that is not held."""
        return SlotState(self, list(changes))

    def _read(self) -> _Core:
        core = self._core
        if core is None:
            core = self._core = _Core(self._rebuilt_ends()) if self._newer is not None else self._take_list_from_base()
            self._newer, self._undo = None, []
        return core

    def _take_list_from_base(self) -> _Core:
        """The list of the state that this one was made of, with its changes."""
        base, self._base = self._base, None
        core = _Core({}) if base is None else base._read()  # noqa: SLF001  # one of us
        undo = [(name, core.write(name, end)) for name, end in self._changes]
        self._changes = ()
        if base is not None:
            base._core, base._newer, base._undo = None, self, undo[::-1]  # noqa: SLF001  # the same
        return core

    def _rebuilt_ends(self) -> dict[int, int]:
        """What was held before newer states were made of this one."""
        undone, one = [self._undo], self._newer
        while one is not None and one._newer is not None:  # noqa: SLF001  # one of us
            undone.append(one._undo)  # noqa: SLF001  # the same
            one = one._newer  # noqa: SLF001  # the same
        ends = {} if one is None else dict(one._read().ends)  # noqa: SLF001  # the same
        for changes in reversed(undone):
            ends.update({name: end or 0 for name, end in changes})
        return {name: end for name, end in ends.items() if end}


_LAST: Final = 2**63  # no name is as large

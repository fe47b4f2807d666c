"""The stores of this process, so that a test can stop their time and have them begin anew. Only `testing` does."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary


class Stage(NamedTuple):
    """What stores go by. As it is by itself: time runs, and keys are where they always are."""

    steady: Callable[[], float] | None = None  # seconds, in place of time.monotonic
    wall: Callable[[], float] | None = None  # seconds, in place of a server's TIME
    room: str = ""  # stands in front of every key on a server


class Live(Protocol):
    """A store that is one of them."""

    def _enter(self, stage: Stage, *, empty: bool) -> None:
        """Go by this from now on, a clock of one's own excepted. `empty`: states in this process are forgotten."""


class Company:
    """All stores that still live. None is kept alive by it."""

    def __init__(self) -> None:
        self.stage = Stage()
        self._stores: WeakValueDictionary[int, Live] = WeakValueDictionary()  # by id: a store need not have a hash

    def enrol(self, store: Live) -> None:
        """A store was made."""
        self._stores[id(store)] = store  # before it looks: a stage that is set meanwhile is told to all who are here
        if self.stage != Stage():
            store._enter(self.stage, empty=False)  # noqa: SLF001  # the stores' own, and no verb of the public ones

    def enter(self, stage: Stage, *, empty: bool) -> None:
        """All go by this from now on, and so do those that are made later."""
        self.stage = stage
        for reference in self._stores.valuerefs():
            if (store := reference()) is not None:
                store._enter(stage, empty=empty)  # noqa: SLF001  # see enrol


STORES: Final = Company()

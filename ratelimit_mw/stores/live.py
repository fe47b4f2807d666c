"""The stores of this process, so that a test can stop their time and have them begin anew. Only `testing` does."""

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol
from weakref import WeakValueDictionary


class StoreOverrides(NamedTuple):
    """What stores go by. As it is by itself: time runs, and keys are where they always are."""

    monotonic: Callable[[], float] | None = None  # seconds, in place of time.monotonic
    wall: Callable[[], float] | None = None  # seconds, in place of a server's TIME
    key_prefix: str = ""  # stands in front of every key on a server


class RegisteredStore(Protocol):
    """A store that is one of them."""

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        """Go by this from now on, a clock of one's own excepted. `empty`: states in this process are forgotten."""


class StoreRegistry:
    """All stores that still live. None is kept alive by it."""

    def __init__(self) -> None:
        self.overrides = StoreOverrides()
        # by id: a store need not have a hash
        self._stores: WeakValueDictionary[int, RegisteredStore] = WeakValueDictionary()

    def register(self, store: RegisteredStore) -> None:
        """A store was made."""
        self._stores[id(store)] = store  # before it looks: a stage that is set meanwhile is told to all who are here
        if self.overrides != StoreOverrides():
            store._apply(self.overrides, empty=False)  # noqa: SLF001  # the stores' own, and no verb of the public ones

    def apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        """All go by this from now on, and so do those that are made later."""
        self.overrides = overrides
        for reference in self._stores.valuerefs():
            if (store := reference()) is not None:
                store._apply(overrides, empty=empty)  # noqa: SLF001  # see enrol


REGISTRY: Final = StoreRegistry()

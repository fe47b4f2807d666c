"""What was worked out lately, by what it was worked out of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")


class Budget:
    """The number of entries that several `Kept` may hold together. Beyond it all of them are emptied."""

    def __init__(self, most: int) -> None:
        self.most: Final = most
        self._count = 0
        self._kept: Final[WeakValueDictionary[int, Kept[Any, Any]]] = WeakValueDictionary()

    def share_with(self, kept: "Kept[Any, Any]") -> None:
        """Have the entries of this one counted, too."""
        self._kept[id(kept)] = kept

    def spend(self) -> None:
        """Make room for one more entry."""
        if self._count >= self.most:
            self.clear()
        self._count += 1

    def clear(self) -> None:
        """Forget all entries."""
        self._count = 0
        for known in self._kept.valuerefs():
            if (kept := known()) is not None:
                kept.clear()


def _every(_: object) -> bool:
    return True


class Kept(dict[K, V], Generic[K, V]):
    """`kept[key]` is what `make` says of it: a third of the price of an `lru_cache`, for what each request looks up.

    `budget`: bounds how many are kept. `keeps`: which are kept at all.
    """

    def __init__(self, make: Callable[[K], V], budget: Budget, keeps: Callable[[K], bool] = _every) -> None:
        super().__init__()
        self._make: Final = make
        self._budget: Final = budget
        self._keeps: Final = keeps
        budget.share_with(self)

    def __missing__(self, key: K) -> V:
        made = self._make(key)
        if self._keeps(key):
            self._budget.spend()
            self[key] = made
        return made


if TYPE_CHECKING:
    from functools import cached_property  # type checkers know what it does
else:

    class cached_property:  # noqa: N801  # as in functools
        """As that of `functools`, which in Python 3.11 holds a lock while it computes.

        A process that is forked meanwhile would wait for that lock for ever.
        """

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self._make = make
            self.__doc__ = make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            made = instance.__dict__[self._name] = self._make(instance)  # over what `super()` computed under this name
            return made


def made_once(owner: object, name: str, make: Callable[[], V]) -> V:
    """What `owner` keeps under this name, made when it is first needed: the same one for all threads."""
    kept: dict[str, Any] = owner.__dict__
    found = kept.get(name)
    made: V = kept.setdefault(name, make()) if found is None else found
    return made


__all__ = ["Budget", "Kept", "cached_property", "made_once"]

"""What was worked out lately, by what it was worked out of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")


class Budget:
    """The number of entries that several `Memo` may hold together. Beyond it all of them are emptied."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize: Final = maxsize
        self._count = 0
        self._memos: Final[WeakValueDictionary[int, Memo[Any, Any]]] = WeakValueDictionary()

    def register(self, memo: "Memo[Any, Any]") -> None:
        """Have the entries of this one counted, too."""
        self._memos[id(memo)] = memo

    def reserve(self) -> None:
        """Make room for one more entry."""
        if self._count >= self.maxsize:
            self.clear()
        self._count += 1

    def clear(self) -> None:
        """Forget all entries."""
        self._count = 0
        for reference in self._memos.valuerefs():
            if (memo := reference()) is not None:
                memo.clear()


def _always(_: object) -> bool:
    return True


class Memo(dict[K, V], Generic[K, V]):
    """`kept[key]` is what `make` says of it: a third of the price of an `lru_cache`, for what each request looks up.

    `budget`: bounds how many are kept. `should_cache`: which are kept at all.
    """

    def __init__(self, make: Callable[[K], V], budget: Budget, should_cache: Callable[[K], bool] = _always) -> None:
        super().__init__()
        self._make: Final = make
        self._budget: Final = budget
        self._should_cache: Final = should_cache
        budget.register(self)

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if self._should_cache(key):
            self._budget.reserve()
            self[key] = value
        return value


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
            value = instance.__dict__[self._name] = self._make(instance)  # over what `super()` computed under this name
            return value


def get_or_create(owner: object, name: str, make: Callable[[], V]) -> V:
    """What `owner` keeps under this name, made when it is first needed: the same one for all threads."""
    memo: dict[str, Any] = owner.__dict__
    existing = memo.get(name)
    value: V = memo.setdefault(name, make()) if existing is None else existing
    return value


__all__ = ["Budget", "Memo", "cached_property", "get_or_create"]

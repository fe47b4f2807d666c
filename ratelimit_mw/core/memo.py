"""Caches of computed values for the request path."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
V = TypeVar("V")


class Budget:
    """A maximum number of entries that several `Memo`s share. Before it is exceeded, all of them are cleared."""

    def __init__(self, maxsize: int) -> None:
        self.maxsize: Final = maxsize
        self.count = 0
        self._memos: Final[WeakValueDictionary[int, Memo[Any, Any]]] = WeakValueDictionary()

    def register(self, memo: "Memo[Any, Any]") -> None:
        """Count the entries of `memo` too."""
        self._memos[id(memo)] = memo

    def clear(self) -> None:
        """Clear all memos."""
        self.count = 0
        for reference in self._memos.valuerefs():
            if (memo := reference()) is not None:
                memo.clear()


class Memo(dict[K, V], Generic[K, V]):
    """A dict that computes missing values with `make`.

    A hit is faster than one in `lru_cache`, so the request path uses this. `budget`: bounds the number of entries.
    A value of None is computed each time.
    """

    def __init__(self, make: Callable[[K], V], budget: Budget) -> None:
        super().__init__()
        self._make: Final = make
        self._budget: Final = budget
        budget.register(self)

    def __missing__(self, key: K) -> V:
        value = self._make(key)
        if value is not None:
            budget = self._budget
            if budget.count >= budget.maxsize:
                budget.clear()
            budget.count += 1
            self[key] = value
        return value


if TYPE_CHECKING:
    from functools import cached_property  # type checkers know its semantics
else:

    class cached_property:  # noqa: N801  # as in functools
        """`functools.cached_property` without the lock that Python 3.11 holds while it computes.

        A process that is forked meanwhile would wait for that lock forever.
        """

        def __init__(self, make: Callable[[Any], Any]) -> None:
            self._make = make
            self.__doc__ = make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self._name] = self._make(instance)  # overwrites the value that `super()` cached
            return value


def get_or_create(owner: object, name: str, make: Callable[[], V]) -> V:
    """Return the value that `owner` stores under `name`; create it on first use.

    Threads may call `make` concurrently, but all of them get the same value.
    """
    memo: dict[str, Any] = owner.__dict__
    existing = memo.get(name)
    value: V = memo.setdefault(name, make()) if existing is None else existing
    return value


__all__ = ["Budget", "Memo", "cached_property", "get_or_create"]

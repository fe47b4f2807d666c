"""What was worked out lately, by what it was worked out of."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


def _every(_: object) -> bool:
    return True


class Kept(dict[K, V], Generic[K, V]):
    """`kept[key]` is what `make` says of it: a third of the price of an `lru_cache`, for what each request looks up.

    At most `most` are kept: when there is no more room it begins anew. `keeps`: which are kept at all.
    """

    def __init__(self, make: Callable[[K], V], most: int, keeps: Callable[[K], bool] = _every) -> None:
        super().__init__()
        self._make: Final = make
        self._most: Final = most
        self._keeps: Final = keeps

    def __missing__(self, key: K) -> V:
        made = self._make(key)
        if self._keeps(key):
            if len(self) >= self._most:
                self.clear()
            self[key] = made
        return made

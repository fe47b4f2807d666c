"""What rows of requests share: an app under a limit is timed only after it was seen to limit, and to say so."""

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeVar

App = TypeVar("App")

IETF: Final = frozenset({"ratelimit", "ratelimit-policy"})
LEGACY: Final = frozenset({"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"})
NONE: Final[frozenset[str]] = frozenset()
PLENTY: Final = 10**6  # an hour; more would make the clock of our counter coarser than that of a limit somebody has
_FEW: Final = 2


class Answer(NamedTuple):
    """What a server is told."""

    status: int
    fields: AbstractSet[str]  # names, in lower case


def held(
    make: Callable[[int], App], ask: Callable[[App], Answer], fields: Collection[str] = IETF, refusal: int = 429
) -> App:
    """The app that `make` limits to plenty of requests an hour.

    One that it limits to a few has refused the next one; what is admitted has these header fields.
    """
    spent(make, ask, refusal)
    plenty = make(PLENTY)
    missing = {*fields} - ask(plenty).fields
    assert not missing, missing
    return plenty


def spent(make: Callable[[int], App], ask: Callable[[App], Answer], refusal: int = 429) -> App:
    """The app that `make` limits to a few requests an hour, which has admitted them, and refused the next one."""
    few = make(_FEW)
    statuses = [ask(few).status for _ in range(_FEW + 1)]
    assert statuses == [200] * _FEW + [refusal], statuses
    return few

"""Checks that an app limits, and shows it in its headers, before it is timed. All rows of requests use it."""

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, TypeVar

App = TypeVar("App")

IETF: Final = frozenset({"ratelimit", "ratelimit-policy"})
LEGACY: Final = frozenset({"x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"})
NONE: Final[frozenset[str]] = frozenset()
PLENTY: Final = 10**6  # an hour; with more, this package's counter would use a coarser clock than for realistic limits
_FEW: Final = 2


class Answer(NamedTuple):
    """What the app sends to the server."""

    status: int
    fields: AbstractSet[str]  # names, in lower case


def held(
    make: Callable[[int], App], ask: Callable[[App], Answer], fields: Collection[str] = IETF, refusal: int = 429
) -> App:
    """Return the app that `make` limits to plenty of requests an hour.

    Checks that an app limited to a few requests refuses the next one, and that admitted requests have these header
    fields.
    """
    spent(make, ask, refusal)
    plenty = make(PLENTY)
    missing = {*fields} - ask(plenty).fields
    assert not missing, missing
    return plenty


def spent(make: Callable[[int], App], ask: Callable[[App], Answer], refusal: int = 429) -> App:
    """Return the app that `make` limits to a few requests an hour, after they were admitted and another one refused."""
    few = make(_FEW)
    statuses = [ask(few).status for _ in range(_FEW + 1)]
    assert statuses == [200] * _FEW + [refusal], statuses
    return few

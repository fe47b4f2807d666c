"""The settings `settle` and `count_status`: which callable reports the true cost, and which statuses are charged."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ratelimit_mw.calls import resolve_callable
from ratelimit_mw.errors import ConfigError, error_location

SettleSpec = Callable[..., Any] | str  # a callable of the request and its response; text is its name
StatusSpec = Sequence[int | str]
SettleCall = Callable[..., Any]

_LOWEST: Final = 100
_HIGHEST: Final = 599


class SettlePolicy:
    """How the limits of a rule are settled. `call`: says the true cost. `counted_statuses`: those charged."""

    __slots__ = ("call", "counted_statuses")

    def __init__(self, call: SettleCall | None, counted_statuses: frozenset[int] | None) -> None:
        self.call: Final = call
        self.counted_statuses: Final = counted_statuses

    def charges(self, response: Any) -> bool:
        """Whether an answer is charged. A client that goes away before its status got none; what was cut off stays."""
        if self.counted_statuses is None:
            return True
        return (
            response.ending != "disconnected" if response.status is None else response.status in self.counted_statuses
        )


def settle_policy(settle: SettleSpec | None, count_status: StatusSpec | None) -> SettlePolicy | None:
    """What these settings say; None where nothing is settled. Raises `ConfigError` naming the one that is wrong."""
    call, counted_statuses = check_settle(settle), check_statuses(count_status)
    return None if call is None and counted_statuses is None else SettlePolicy(call, counted_statuses)


def check_settle(value: SettleSpec | None) -> SettleCall | None:
    """A callable, or one that `call:package.module:function` names. Raises `ConfigError` naming `settle`."""
    if value is None:
        return None
    with error_location("settle"):
        return resolve_callable(value, ("request", "response"))


def check_statuses(value: object) -> frozenset[int] | None:
    """The statuses that `[401, "4xx"]` stands for; None for all, which an empty list says too.

    Raises `ConfigError` naming `count_status`.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(f'count_status: found {value!r:.100}, allowed is a list of statuses such as [401, "4xx"]')
    statuses: list[int] = []
    for index, one in enumerate(value):
        statuses += _statuses(index, one)
    return frozenset(statuses) or None


def _statuses(index: int, value: object) -> Iterable[int]:
    text = str(value) if type(value) in (int, str) else ""
    if len(text) == len("4xx") and text[1:].lower() == "xx" and text[0] in "12345":
        return range(int(text[0]) * 100, int(text[0]) * 100 + 100)
    if text.isascii() and text.isdecimal() and _LOWEST <= int(text) <= _HIGHEST:
        return [int(text)]
    raise ConfigError(
        f'count_status[{index}]: found {value!r:.100}, allowed is a status from 100 to 599, or a class such as "4xx"'
    )

"""Checks the options for penalties, concurrency slots and settlement after the response."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ratelimit_mw.algorithms import DEFAULT
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.concurrency import MAX_SLOTS, Concurrency
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.limit import Limit, check_int, check_seconds
from ratelimit_mw.http.callables import resolve_callable
from ratelimit_mw.settings.limits import LimitSelector, LimitSpec, known_specs

PenaltySpec = str | Ban
_FIGURE = r"\s*([0-9]+(?:\.[0-9]+)?)\s*"
_NUMBER: Final = re.compile(_FIGURE)
_NO_UNIT: Final = re.compile(rf"\b(?:per|for){_FIGURE}$")
_ALLOWED: Final = "expected text such as '10 refusals per minute: 15 minutes', or a Ban"


def parse_penalty(value: object) -> Ban | None:
    """Return the ban that text such as `10 refusals per minute: 15 minutes` describes; None for None.

    The word `refusals` is optional. Rate and duration use the notation of limits. Raises `ConfigError` that names
    `penalty`.
    """
    if value is None or isinstance(value, Ban):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"penalty: got {value!r:.100}, {_ALLOWED}")
    rate, colon, duration = value.lower().partition(":")
    if number := _NO_UNIT.search(rate) or _NUMBER.fullmatch(duration):
        raise ConfigError(
            f"penalty: got {value!r:.100}, where {number[1]} has no unit: write '{number[1]} seconds', or another "
            f"unit; {_ALLOWED}"
        )
    if not colon:
        hint = ": write a colon in place of 'for'" if " for " in rate else ""
        raise ConfigError(f"penalty: got {value!r:.100}, which has no duration{hint}; {_ALLOWED}")
    with error_location("penalty"):
        counted = _rate(rate.replace("refusals", " ").replace("refusal", " "), value)
        length = _rate(f"1 per {duration.strip()}", value)
        return Ban(counted.quota, counted.window, ban=length.window)


def _rate(text: str, value: str) -> Limit:
    """Parse a rate without options. Raises `ConfigError` for anything else."""
    try:
        limits = parse(text)
    except ConfigError as error:
        raise ConfigError(f"got {value!r:.100}, {_ALLOWED}: {error}") from None
    plain = DEFAULT(limits[0].quota, limits[0].window)
    if limits != (plain,):
        raise ConfigError(f"got {value!r:.100}, {_ALLOWED}")
    return plain


_MAX_QUEUE: Final = 100_000  # requests that wait for a slot, in one process


def slot_limit_spec(concurrent: int, lifetime: float, retry: float) -> LimitSpec:
    """Return the limit that `concurrent` defines. A request takes one slot, whatever it costs elsewhere."""
    return LimitSpec(limit=Concurrency(concurrent, lifetime, retry=retry), cost=1, settle=False)


def check_slots(concurrent: Any, queue: Any, queue_timeout: Any) -> None:
    """Raise `ConfigError` for an invalid option. None, for the queue, means that the global setting applies."""
    if check_int("concurrent", concurrent, 0) > MAX_SLOTS:
        raise ConfigError(f"concurrent: got {concurrent}, expected at most {MAX_SLOTS} slots")
    if queue is not None and check_int("queue", queue, 0) > _MAX_QUEUE:
        raise ConfigError(f"queue: got {queue}, expected at most {_MAX_QUEUE} requests")
    if queue_timeout is not None and not check_seconds("queue_timeout", queue_timeout):
        raise ConfigError("queue_timeout: got 0, expected more than 0 seconds; queue = 0 turns waiting off")


def check_slot_times(lifetime: Any, retry: Any) -> None:
    """Raise `ConfigError` for a lifetime under a second, which is too short to renew, and for a retry of 0."""
    if check_seconds("slot_lifetime", lifetime) < 1:
        raise ConfigError(f"slot_lifetime: got {lifetime}, expected at least 1 second")
    if not check_seconds("slot_retry", retry):
        raise ConfigError("slot_retry: got 0, expected more than 0 seconds")


def check_single_concurrency(limits: Sequence[LimitSpec] | LimitSelector, concurrent: Any) -> None:
    """Raise `ConfigError` if `concurrent` and a limit both count slots, because they would share a bucket."""
    if concurrent and any(spec.limit.is_concurrency for specs in known_specs(limits) for spec in specs):
        raise ConfigError("concurrent: limits have a Concurrency already; expected only one of the two")


def check_queue_has_slots(limits: Sequence[LimitSpec] | LimitSelector, concurrent: Any, **options: Any) -> None:
    """Raise `ConfigError` if a rule without slots has options for waiting. `options`: their names and values."""
    has_slots = concurrent or any(spec.limit.is_concurrency for specs in known_specs(limits) for spec in specs)
    for field, value in options.items():
        if value and not has_slots:
            raise ConfigError(f"{field}: the rule has no slots to wait for; add `concurrent` to it")


def check_no_concurrency(field: str, limits: Sequence[LimitSpec] | LimitSelector) -> None:
    """Raise `ConfigError` for a Concurrency among limits of messages, which have no duration and so hold no slot."""
    if any(spec.limit.is_concurrency for specs in known_specs(limits) for spec in specs):
        raise ConfigError(f"{field}: got a Concurrency, which counts requests in progress; a message has no duration")


SettleSpec = Callable[..., Any] | str  # a callable of the request and its response; text is the name of one
StatusSpec = Sequence[int | str]
SettleCall = Callable[..., Any]

_LOWEST: Final = 100
_HIGHEST: Final = 599


class SettlePolicy:
    """How the limits of a rule are settled after the response.

    `call`: returns the true cost, if set. `counted_statuses`: the statuses that are charged; None for all.
    """

    __slots__ = ("call", "counted_statuses")

    def __init__(self, call: SettleCall | None, counted_statuses: frozenset[int] | None) -> None:
        self.call: Final = call
        self.counted_statuses: Final = counted_statuses

    def keeps_charge(self, response: Any) -> bool:
        """Return whether a request with this response stays charged.

        A response that ended without a status is charged: the app may have evaluated the request, and a client could
        disconnect on purpose before the status is known.
        """
        return self.counted_statuses is None or response.status is None or response.status in self.counted_statuses


def settle_policy(settle: SettleSpec | None, count_status: StatusSpec | None) -> SettlePolicy | None:
    """Return the policy of these options; None if neither is set. Raises `ConfigError` that names the invalid one."""
    call, counted_statuses = resolve_settle(settle), parse_statuses(count_status)
    return None if call is None and counted_statuses is None else SettlePolicy(call, counted_statuses)


def resolve_settle(value: SettleSpec | None) -> SettleCall | None:
    """Return the callable of `settle`, which may also be its name. Raises `ConfigError` that names `settle`."""
    if value is None:
        return None
    with error_location("settle"):
        return resolve_callable(value, ("request", "response"))


def parse_statuses(value: object) -> frozenset[int] | None:
    """Return the statuses of a list such as `[401, "4xx"]`; None means all, and so does an empty list.

    Raises `ConfigError` that names `count_status`.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(f'count_status: got {value!r:.100}, expected a list of statuses such as [401, "4xx"]')
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
        f'count_status[{index}]: got {value!r:.100}, expected a status from 100 to 599, or a class such as "4xx"'
    )

"""The setting `penalty`: after so many refusals in a window, refuse for a while."""

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
from ratelimit_mw.settings.limits import LimitSelector, LimitSpec, static_specs

PenaltySpec = str | Ban
_FIGURE = r"\s*([0-9]+(?:\.[0-9]+)?)\s*"
_NUMBER: Final = re.compile(_FIGURE)
_NO_UNIT: Final = re.compile(rf"\b(?:per|for){_FIGURE}$")
_ALLOWED: Final = "expected text such as '10 refusals per minute: 15 minutes', or a Ban"


def check_penalty(value: object) -> Ban | None:
    """The ban that `10 refusals per minute: 15 minutes` stands for; None for None.

    The word `refusals` may be left out; rate and duration are written as in the notation of limits. Raises
    `ConfigError` naming `penalty`.
    """
    if value is None or isinstance(value, Ban):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"penalty: got {value!r:.100}, {_ALLOWED}")
    rate, colon, duration = value.lower().partition(":")
    if found := _NO_UNIT.search(rate) or _NUMBER.fullmatch(duration):
        raise ConfigError(
            f"penalty: got {value!r:.100}, where {found[1]} has no unit: write '{found[1]} seconds', or another "
            f"unit; {_ALLOWED}"
        )
    if not colon:
        meant = ": write a colon in place of 'for'" if " for " in rate else ""
        raise ConfigError(f"penalty: got {value!r:.100}, which does not say how long to refuse{meant}; {_ALLOWED}")
    with error_location("penalty"):
        counted = _rate(rate.replace("refusals", " ").replace("refusal", " "), value)
        length = _rate(f"1 per {duration.strip()}", value)
        return Ban(counted.quota, counted.window, ban=length.window)


def _rate(text: str, value: str) -> Limit:
    """A plain rate. Raises `ConfigError` for anything besides."""
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
    """The limit that `concurrent` stands for: a request takes one slot, whatever else it costs."""
    return LimitSpec(limit=Concurrency(concurrent, lifetime, retry=retry), cost=1, settle=False)


def check_slots(concurrent: Any, queue: Any, queue_timeout: Any) -> None:
    """Raises `ConfigError` that names what is wrong. A queue of None is the top's."""
    if check_int("concurrent", concurrent, 0) > MAX_SLOTS:
        raise ConfigError(f"concurrent: got {concurrent}, expected at most {MAX_SLOTS} slots")
    if queue is not None and check_int("queue", queue, 0) > _MAX_QUEUE:
        raise ConfigError(f"queue: got {queue}, expected at most {_MAX_QUEUE} requests")
    if queue_timeout is not None and not check_seconds("queue_timeout", queue_timeout):
        raise ConfigError("queue_timeout: got 0, expected more than 0 seconds; queue = 0 lets nobody wait")


def check_slot_times(lifetime: Any, retry: Any) -> None:
    """Raises `ConfigError` for a lifetime under a second, in which nobody could renew, and for no time to wait."""
    if check_seconds("slot_lifetime", lifetime) < 1:
        raise ConfigError(f"slot_lifetime: got {lifetime}, expected at least 1 second")
    if not check_seconds("slot_retry", retry):
        raise ConfigError("slot_retry: got 0, expected more than 0 seconds")


def check_single_concurrency(limits: Sequence[LimitSpec] | LimitSelector, concurrent: Any) -> None:
    """Raises `ConfigError` where slots are limited twice: both would count in one bucket."""
    if concurrent and any(spec.limit.is_concurrency for specs in static_specs(limits) for spec in specs):
        raise ConfigError("concurrent: limits hold a Concurrency already; expected one of both")


def check_queue_has_slots(limits: Sequence[LimitSpec] | LimitSelector, concurrent: Any, **options: Any) -> None:
    """Raises `ConfigError` where a rule says how to wait for slots that it does not have. `options`: such settings."""
    has_slots = concurrent or any(spec.limit.is_concurrency for specs in static_specs(limits) for spec in specs)
    for field, value in options.items():
        if value and not has_slots:
            raise ConfigError(f"{field}: the rule has no slots to wait for; it needs `concurrent` beside it")


def check_no_concurrency(field: str, limits: Sequence[LimitSpec] | LimitSelector) -> None:
    """Raises `ConfigError` where what is over at once would have to be held: a message is not at work."""
    if any(spec.limit.is_concurrency for specs in static_specs(limits) for spec in specs):
        raise ConfigError(f"{field}: got a Concurrency, which counts requests at work; a message is over at once")


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

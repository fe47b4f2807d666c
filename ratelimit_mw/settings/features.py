"""Checks the options for penalties, concurrency slots and settlement after the response."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from msgspec.structs import replace

from ratelimit_mw.algorithms import DEFAULT
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.bucket import BucketLimit
from ratelimit_mw.algorithms.concurrency import MAX_SLOTS, Concurrency
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.algorithms.smooth import Smooth
from ratelimit_mw.core.errors import ConfigError, error_location
from ratelimit_mw.core.limit import Limit, check_seconds
from ratelimit_mw.core.validation import at_most, positive_seconds
from ratelimit_mw.http.callables import callable_check, resolve_callable
from ratelimit_mw.http.keys import ANY_PREFIX, Key, check_key
from ratelimit_mw.settings.limits import LimitSpec, ParsedLimits, has_concurrency

PenaltySpec = str | Ban
SettleSpec = Callable[..., Any] | str  # a callable of the request and its response; text is the name of a callable
SettleCall = Callable[..., Any]
StatusSpec = Sequence[int | str]

Priority = Literal["critical", "normal", "low"]
SHARES: Final[dict[Priority, float]] = {"critical": 1.0, "normal": 0.9, "low": 0.5}  # of what may be at work; falling

_PERCENT: Final = re.compile(r"([1-9]\d?)%")


def check_keep(option: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is a part of a quota, from 1% to 99%."""
    if value is not None and (not isinstance(value, str) or _PERCENT.fullmatch(value) is None):
        raise ConfigError(f"{option}: got {value!r}, expected text from '1%' to '99%'", code="RL-081")


def kept_percent(value: str | None) -> int:
    """Return the option `keep` as a whole number; 0 for None."""
    return 0 if value is None else int(value[:-1])


def keeping(limit: Limit, percent: int, cost: int) -> Limit:
    """Return a limit that keeps so much of its quota for other charges. `cost`: what a charge takes at least.

    Raises `ConfigError` if no charge could pass.
    """
    if not limit.quota:
        return limit
    units = -(-(limit.most if isinstance(limit, BucketLimit) else limit.quota) * percent // 100)
    if isinstance(limit, Smooth) or units + cost > limit.most:
        text = f"{percent}% of {limit.notation} leaves no request of this rule a chance"
        raise ConfigError(f"keep: {text}", code="RL-081")
    return replace(limit, keep=units)


check_concurrent: Final = at_most(MAX_SLOTS, "slots")
check_queue: Final = at_most(100_000, "requests")  # in one process
check_remember_refused: Final = at_most(10_000, "clients")
check_queue_timeout: Final = positive_seconds("; queue = 0 turns waiting off")


def check_fair_share(option: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a key that differs between clients."""
    check_key(option, value)
    if Key(value, ANY_PREFIX).is_shared:
        raise ConfigError(
            f"{option}: got {value!r}, which all clients have in common, expected a key such as 'ip'", code="RL-021"
        )


check_settle: Final = callable_check(("request", "response"))

_FIGURE = r"\s*([0-9]+(?:\.[0-9]+)?)\s*"
_NUMBER: Final = re.compile(_FIGURE)
_NO_UNIT: Final = re.compile(rf"\b(?:per|for){_FIGURE}$")
_MIN_STATUS, _MAX_STATUS = 100, 599
_STATUS: Final = re.compile("[0-9]{3}")
_ALLOWED: Final = "expected text such as '10 refusals per minute: 15 minutes', or a Ban"


def parse_penalty(value: object) -> Ban | None:
    """Return the ban that text such as `10 refusals per minute: 15 minutes` describes; None for None.

    The word `refusals` is optional. Rate and duration use the notation of limits. Raises `ConfigError` that names
    `penalty`.
    """
    if value is None or isinstance(value, Ban):
        return value
    if not isinstance(value, str):
        raise ConfigError(f"penalty: got {value!r:.100}, {_ALLOWED}", code="RL-022")
    rate, colon, duration = value.lower().partition(":")
    if number := _NO_UNIT.search(rate) or _NUMBER.fullmatch(duration):
        raise ConfigError(
            f"penalty: got {value!r:.100}, where {number[1]} has no unit: write '{number[1]} seconds', or another "
            f"unit; {_ALLOWED}",
            code="RL-022",
        )
    if not colon:
        hint = ": write a colon in place of 'for'" if " for " in rate else ""
        raise ConfigError(f"penalty: got {value!r:.100}, which has no duration{hint}; {_ALLOWED}", code="RL-022")
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
        raise ConfigError(f"got {value!r:.100}, {_ALLOWED}", code="RL-022")
    return plain


def check_penalty(_: str, value: object) -> None:
    """Raise `ConfigError` for an invalid `penalty`."""
    parse_penalty(value)


def check_count_status(_: str, value: object) -> None:
    """Raise `ConfigError` for an invalid `count_status`."""
    parse_statuses(value)


def slot_limit_spec(concurrent: int, lifetime: float, retry: float) -> LimitSpec:
    """Return the limit that `concurrent` defines. A request takes one slot, whatever its cost for other limits."""
    return LimitSpec(limit=Concurrency(concurrent, lifetime, retry=retry), cost=1, settle=False)


def check_slot_lifetime(option: str, value: object) -> None:
    """Raise `ConfigError` for a lifetime under a second, which is too short to renew."""
    if check_seconds(option, value) < 1:
        raise ConfigError(f"{option}: got {value}, expected at least 1 second", code="RL-004")


def check_single_concurrency(limits: ParsedLimits, concurrent: Any) -> None:
    """Raise `ConfigError` if `concurrent` and a limit both count slots, because they would share a bucket."""
    if concurrent and has_concurrency(limits):
        raise ConfigError("concurrent: limits have a Concurrency already; expected only one of the two", code="RL-021")


def check_no_concurrency(field: str, limits: ParsedLimits) -> None:
    """Raise `ConfigError` for a Concurrency among limits of messages: without a duration, a message holds no slot."""
    if has_concurrency(limits):
        raise ConfigError(
            f"{field}: got a Concurrency, which counts requests in progress; a message has no duration", code="RL-021"
        )


class SettlePolicy:
    """Decides how the limits of a rule are settled after the response.

    `call`: returns the true cost, if set. `counted_statuses`: the statuses that are charged; None for all.
    """

    __slots__ = ("call", "counted_statuses")

    def __init__(self, call: SettleCall | None, counted_statuses: frozenset[int] | None) -> None:
        self.call: Final = call
        self.counted_statuses: Final = counted_statuses

    def keeps_charge(self, response: Any) -> bool:
        """Return whether a request with this response stays charged.

        A request whose response ended without a status stays charged. The app may have evaluated the request, and a
        client could disconnect on purpose before the status is known.
        """
        return self.counted_statuses is None or response.status is None or response.status in self.counted_statuses


def settle_policy(settle: SettleSpec | None, count_status: StatusSpec | None) -> SettlePolicy | None:
    """Return the policy of these options; None if neither is set. Raises `ConfigError` that names the invalid one."""
    with error_location("settle"):
        call = None if settle is None else resolve_callable(settle, ("request", "response"))
    counted_statuses = parse_statuses(count_status)
    return None if call is None and counted_statuses is None else SettlePolicy(call, counted_statuses)


def parse_statuses(value: object) -> frozenset[int] | None:
    """Return the statuses of a list such as `[401, "4xx"]`. None and an empty list mean all statuses.

    Raises `ConfigError` that names `count_status`.
    """
    if value is None:
        return None
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ConfigError(
            f'count_status: got {value!r:.100}, expected a list of statuses such as [401, "4xx"]', code="RL-023"
        )
    statuses: list[int] = []
    for index, one in enumerate(value):
        statuses += _statuses(index, one)
    return frozenset(statuses) or None


def _statuses(index: int, value: object) -> Iterable[int]:
    text = str(value) if type(value) in (int, str) else ""
    if len(text) == len("4xx") and text[1:].lower() == "xx" and text[0] in "12345":
        return range(int(text[0]) * 100, int(text[0]) * 100 + 100)
    if _STATUS.fullmatch(text) and _MIN_STATUS <= int(text) <= _MAX_STATUS:
        return [int(text)]
    raise ConfigError(
        f'count_status[{index}]: got {value!r:.100}, expected a status from 100 to 599, or a class such as "4xx"',
        code="RL-023",
    )

"""The core values: Limit, Charge and Decision, which refer to each other."""

import math
import re
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, Self

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.keeping import decide_keeping
from ratelimit_mw.core.memo import cached_property
from ratelimit_mw.core.structs import defaults_of

MAX_EXACT_INT = 2**53  # integers up to here are exact as doubles; below it, so is floor(a / b)
MICROSECONDS = 1_000_000  # per second

Role = Literal["limit", "shadow", "penalty"]
ROLES = ("limit", "shadow", "penalty")

State = Any  # specific to the algorithm, opaque to stores; None is the state of an unused bucket

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEFAULT_LEASE_TIME = 1.0  # seconds
MOST_RECENT = MAX_EXACT_INT - 1  # the `at` of a settlement that refunds the units taken last, whatever their time
_SCALED = 4096  # scaled limits that are cached
_DIGITS = 9  # decimal places to round to before rounding down, so that 0.29 of 100 is 29, not 28
MAX_SECONDS = 100 * 365 * 24 * 3600.0  # 100 years; twice that plus the current time is still exact in microseconds


def microseconds(seconds: float) -> int:
    """Convert seconds to whole microseconds. Rounds, because truncation can lose one."""
    return round(seconds * MICROSECONDS)


class Decision(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The store's decision on one charge.

    `retry_after`, `next_after`, `reset_after` and `delay` are durations from the store's current time, in seconds
    with fractions. Where an algorithm has to round them, it rounds up: to a microsecond, or to the end of a clock step
    (see `ticks.py`). `at` is an instant, in microseconds.

    It is serialized as an array in this order. A server's reply has the same order, so msgspec decodes it directly.
    """

    allowed: bool
    limit: int  # units from which `remaining` counts down: burst for buckets, quota for windows
    remaining: int  # whole units left; includes this charge only if the group was admitted
    retry_after: float  # until this charge alone would pass: 0.0 if it would pass now, inf if it never can
    next_after: float  # until one unit is available, if the client takes `remaining` now
    reset_after: float  # until the full quota is available again
    delay: float  # how long to delay the admitted request
    # The reference time of a refund, in microseconds of the store's clock. For a window, it is the time of this
    # decision. For a bucket, it is the instant at which the bucket has drained, including this charge.
    at: int


class _Rate(Struct, frozen=True, dict=True):
    quota: int
    window: float  # seconds


class Limit(_Rate, frozen=True, kw_only=True):
    """A limit of `quota` units per `window` seconds; the base class of all algorithms.

    `quota`: a whole number; 0 admits nothing, whatever the algorithm. `window`: seconds, from one microsecond to 100
    years. `name`: keyword only; 1 to 64 of `A-Za-z0-9_.-`; names the policy in headers and is part of the bucket id.
    `keep`: see `core.keeping`. Raises `ConfigError` for other values, and for a quota too large to be counted exactly.

    A custom algorithm is a subclass with `decide`, `settle` and `expires`: pure functions without clock or I/O.
    """

    name: str | None = None
    keep: int = 0

    algorithm: ClassVar[str] = ""
    """The name after `using` in the notation, and the stem of its files."""
    words: ClassVar[tuple[str, ...]] = ()
    """The fields that the notation can set, such as `burst`, in the order in which the notation writes them."""
    not_in_bucket_id: ClassVar[tuple[str, ...]] = ()
    """The `words` that do not affect the state. The state remains if their values change."""
    borrows: ClassVar[bool] = False
    """Whether a charge may take more than `remaining`. The next charge then has to wait."""
    max_settle_units: ClassVar[int] = MAX_EXACT_INT
    """The most units that one settlement can have. Larger settlements are split."""
    min_quota: ClassVar[int] = 0
    """The smallest valid quota."""
    is_concurrency: ClassVar[bool] = False
    """Whether units are slots, which requests hold until they release them, at a time that cannot be predicted."""

    uses_wall_time: ClassVar[bool] = False
    """Whether `now` has to be the time since 1970, and the script and the window depend on it."""

    # `ClassVar` only hides them from msgspec. `__post_init__` sets them on each instance: every request reads them, and
    # a property takes at least twice as long to read.
    window_us: ClassVar[int]
    """The window in whole microseconds."""
    notation: ClassVar[str]
    """Canonical notation, which `parse` accepts: `100/60s burst 20 using token_bucket`."""
    bucket: ClassVar[str]
    """The bucket id, by which stores tell limits apart: the name and the notation, without anything about the client.

    It contains everything that affects a state, so that a changed limit starts with empty buckets. Only `smooth` omits
    its rate, and keeps its state when the rate changes.
    """

    def __post_init__(self) -> None:
        check_int("quota", self.quota, self.min_quota)
        self.__dict__["window_us"] = microseconds(check_seconds("window", self.window))
        if self.window_us < 1:
            raise ConfigError(
                f"window: got {self.window!r} seconds, expected one microsecond to a hundred years", code="RL-014"
            )
        if self.name is not None:
            check_name("name", self.name)
        self.__dict__["notation"] = self._format_notation(self.words)
        self._set_bucket(self._format_notation([word for word in self.words if word not in self.not_in_bucket_id]))
        if not self.quota:  # here, so that no algorithm has to divide by a quota of 0
            self.__dict__["decide"] = partial(_decide_closed, self.window_us)
            self.__dict__["settle"] = _settle_closed
        if check_int("keep", self.keep, 0):
            self.__dict__["decide"] = partial(decide_keeping, self.decide, self.keep)

    def __copy__(self) -> Self:
        """Return self, which is immutable."""
        return self

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        """Return the decision on `cost` units at `now`, and the new state.

        `now` and `max_delay` are microseconds; `max_delay` None: use the limit's own `max_delay`. A refused charge is
        not counted. Cost 0 is always admitted, changes nothing and reports what is left. Returns the same state object
        if there is nothing to write. The new state is None only if `state` is.
        """
        raise TypeError(f"{type(self).__name__} must define decide()")

    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        """Return the state after a settlement.

        `delta` < 0 refunds units that were taken at `at`; `delta` > 0 takes units even if they do not fit. If `at` is
        `MOST_RECENT`, a window refunds its newest units, and a bucket any units that have not drained.
        """
        raise TypeError(f"{type(self).__name__} must define settle()")

    def expires(self, state: State) -> int:
        """Return the instant, in microseconds, from which `state` decides exactly like None."""
        raise TypeError(f"{type(self).__name__} must define expires()")

    def has_room(self, state: State, now: int) -> bool:
        """Whether a charge of one unit would pass."""
        return self.decide(state, now, 1, None)[0].allowed

    @property
    def most(self) -> int:
        """The largest cost that can pass at once, in units: the quota of a window, the burst of a bucket."""
        return self.quota

    @property
    def max_per_window(self) -> int | None:
        """The most units that pass in any interval (x, x + window], for any instants and costs; None if unknown.

        A delayed request counts when its delay ends. If the clock of a limit is coarser than a microsecond, the window
        is a whole number of its steps.
        """
        return None

    @property
    def max_wait(self) -> float:
        """Longest wait for one unit of a limit without debt, in seconds. By default the window."""
        return self.window

    def delay_ticks(self, max_delay: int | None) -> int:
        """Return how many ticks beyond its capacity a bucket may be filled, given `max_delay` in microseconds.

        None: use the limit's own `max_delay`. Raises `ConfigError` if the limit cannot delay requests.
        """
        raise ConfigError(f"max_delay: {self.algorithm} cannot delay requests; a bucket algorithm can", code="RL-015")

    @property
    def max_delay_limit(self) -> float:
        """Longest `max_delay` that can be computed exactly, in seconds; 0.0 if the limit cannot delay requests."""
        return MAX_SECONDS if self.can_delay else 0.0

    @property
    def can_delay(self) -> bool:
        """Whether the limit can delay requests, that is, has a `max_delay`."""
        return hasattr(self, "max_delay")

    def with_max_delay(self, max_delay: float | None) -> "Limit":
        """Return this limit, on the same bucket, with another `max_delay` in seconds.

        None means the longest possible delay; larger values are cut to `max_delay_limit`. Returns self if the limit
        cannot delay requests.
        """
        if not self.can_delay:
            return self
        maximum = self.max_delay_limit
        return replace(self, max_delay=maximum if max_delay is None else min(max_delay, maximum))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The limit as arguments of its Lua script: at most six whole numbers below 2**53, the first four above 0."""
        return ()

    @cached_property
    def script(self) -> tuple[str, tuple[int, ...]]:
        """The name of the functions that decide and settle the limit in Lua, and `numbers`, padded with 1 to six."""
        name, numbers = (self.algorithm, self.numbers) if self.quota else ("closed", (self.window_us,))
        return name, (*numbers, 1, 1, 1, 1, 1, 1)[:6]

    def script_at(self, now: int) -> tuple[str, tuple[int, ...]]:  # only with `uses_wall_time`
        """Return `script` for a call at about `now`, in microseconds since 1970."""
        return self.script

    def window_at(self, now: int) -> float:  # only with `uses_wall_time`
        """Return the length of the window with this instant, in seconds."""
        return self.window

    @cached_property
    def effective_max_delay_us(self) -> int:
        """Longest delay of a request, in microseconds."""
        return microseconds(getattr(self, "max_delay", 0.0))

    def _set_bucket(self, notation: str) -> None:
        notation = notation.replace(" ", "_")
        self.__dict__["bucket"] = f"{self.name}:{notation}" if self.name else notation

    def _format_notation(self, names: Iterable[str]) -> str:
        length = f"{self.window_us}us" if self.window_us % MICROSECONDS else f"{self.window_us // MICROSECONDS}s"
        parts = [f"{self.quota}/{length}"]
        for word in names:
            value = getattr(self, word)
            if value is not None and value != defaults_of(type(self))[word]:
                parts.append(
                    word if value is True else f"{word} {_format_seconds(value) if isinstance(value, float) else value}"
                )
        return " ".join([*parts, "using", self.algorithm])


def _decide_closed(window: int, state: State, now: int, cost: int, _: int | None) -> tuple[Decision, State]:
    """Return the decision of a limit with a quota of 0, see `Limit.decide`. In Lua: `stores/redis/closed.lua`."""
    return Decision(not cost, 0, 0, math.inf if cost else 0.0, window / MICROSECONDS, 0.0, 0.0, now), state


def _settle_closed(state: State, _: int, __: int, ___: int) -> State:
    return state


class Charge(Struct, frozen=True, gc=False):
    """A cost to charge to the bucket of one key under one limit.

    `key`: identifies the client. `cost`: whole units, at least 0; negative only for `settle`, which needs `at` of the
    decision. `max_delay`: longest delay of this request in seconds; None: use the limit's own `max_delay`.

    `role`: a `limit` refuses. A `shadow` only reports. A `penalty` counts refusals until it starts a ban, and refuses
    during the ban. With cost 0 it counts nothing, but still refuses during the ban.

    `lease`: units that a process may take in advance and spend locally; at most as many as can pass at once; 0 for
    none. `lease_time`: seconds, more than 0, after which the process refunds the units that it did not spend. Only
    limits without a delay are leased, and only by stores on a server. `lease` and `lease_time` do not affect the bucket
    id. Raises `ConfigError` for other values.
    """

    key: str
    limit: Limit
    cost: int = 1
    max_delay: float | None = None
    role: Role = "limit"
    at: int | None = None
    lease: int = 0
    lease_time: float = DEFAULT_LEASE_TIME  # seconds

    def __post_init__(self) -> None:
        if type(self.key) is not str or not self.key:
            raise ConfigError(f"key: got {self.key!r}, expected a string that is not empty", code="RL-045")
        if not isinstance(self.limit, Limit):
            several = isinstance(self.limit, (tuple, list)) and self.limit and isinstance(self.limit[0], Limit)
            text = self.limit if isinstance(self.limit, str) else "1/minute"
            raise ConfigError(
                "limit: got a sequence of limits, expected one; parse returns a tuple: parse('1/minute')[0]"
                if several
                else f"limit: got {self.limit!r:.100}, expected a Limit, such as parse({text!r:.100})[0]",
                code="RL-045",
            )
        if (
            type(self.cost) is not int
            or not (-MAX_EXACT_INT if self.at is not None else -1) < self.cost < MAX_EXACT_INT
        ):
            raise ConfigError(
                f"cost: got {self.cost!r}, expected a whole number from 0 to {MAX_EXACT_INT - 1}", code="RL-045"
            )
        if self.at is not None and (type(self.at) is not int or not -MAX_EXACT_INT < self.at < MAX_EXACT_INT):
            raise ConfigError(f"at: got {self.at!r}, expected the `at` of a decision, in microseconds", code="RL-045")
        if self.max_delay is not None:
            self.limit.delay_ticks(microseconds(check_seconds("max_delay", self.max_delay)))
        if self.role not in ROLES:
            raise ConfigError(f"role: got {self.role!r}, expected one of {', '.join(ROLES)}", code="RL-045")
        if self.lease != 0:
            check_lease([self.limit], self.lease, self.lease_time)
            if self.effective_max_delay_us:
                raise ConfigError(
                    "lease: units charged in advance cannot be delayed; expected no max_delay beside it", code="RL-016"
                )

    @property
    def max_delay_us(self) -> int | None:
        """`max_delay` in microseconds."""
        return None if self.max_delay is None else microseconds(self.max_delay)

    @property
    def effective_max_delay_us(self) -> int:
        """Longest delay of this request in microseconds: its own `max_delay`, else the limit's."""
        return self.limit.effective_max_delay_us if self.max_delay is None else microseconds(self.max_delay)


class PlainGroup(tuple[Charge, ...]):  # noqa: SLOT001  # a tuple of any length can have no slots
    """Charges in distinct buckets, each of the role `limit`, with a cost of at least 0 and no `max_delay` of its own.

    No limit uses wall time.

    A store need not check that again. `shape_key`: what groups have in common that differ in their keys only.
    """

    shape_key: object

    def __reduce__(self) -> tuple[type[tuple[Charge, ...]], tuple[tuple[Charge, ...]]]:
        """Support pickling and copying, without `shape_key`."""
        return tuple, (tuple(self),)


def _format_seconds(value: float) -> str:
    """Format seconds for the notation, to the microsecond."""
    if not math.isfinite(value):
        return str(value)  # an invalid value, which the check of the field reports
    whole_seconds, part = divmod(microseconds(value), MICROSECONDS)
    return f"{whole_seconds}.{part:06d}".rstrip("0") if part else str(whole_seconds)


def check_lease(limits: Iterable[Limit], lease: object, lease_time: object) -> None:
    """Raise `ConfigError` if a limit cannot admit `lease` units at once, or `lease_time` is invalid."""
    units = check_int("lease", lease, 0)
    for limit in limits:
        if units and limit.is_concurrency:
            raise ConfigError(
                f"lease: slots of {limit.notation} are held by requests in progress, and cannot be taken in advance",
                code="RL-016",
            )
        if units > limit.most and limit.quota:
            raise ConfigError(
                f"lease: {units} can never pass {limit.notation}, which admits at most {limit.most} at once",
                code="RL-016",
            )
    if not check_seconds("lease_time", lease_time):
        raise ConfigError("lease_time: got 0, expected more than 0 seconds", code="RL-004")


def check_int(field: str, value: object, minimum: int) -> int:
    """Return `value` if it is a whole number from `minimum` to 2**53 - 1. Raises `ConfigError` naming `field`."""
    if type(value) is not int or not minimum <= value < MAX_EXACT_INT:
        raise ConfigError(
            f"{field}: got {value!r}, expected a whole number from {minimum} to {MAX_EXACT_INT - 1}", code="RL-004"
        )
    return value


def check_seconds(field: str, value: object) -> float:
    """Return `value` if it is a number of seconds from 0 to 100 years. Raises `ConfigError` naming `field`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field}: got {value!r}, expected a finite number of seconds, 0 or more", code="RL-004")
    if value > MAX_SECONDS:
        raise ConfigError(f"{field}: got {value!r} seconds, expected at most a hundred years", code="RL-004")
    return value


def check_name(field: str, value: object) -> str:
    """Return `value` if it is valid in a header and in a key. Raises `ConfigError` naming `field`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigError(f"{field}: got {value!r}, expected 1 to 64 of A-Z a-z 0-9 _ . -", code="RL-005")
    return value


@lru_cache(maxsize=_SCALED)
def scaled(limit: Limit, share: float) -> Limit:
    """Return the limit with a share of its units, rounded down, at least 1."""
    if share == 1:
        return limit
    names = {*limit.__struct_fields__} & {"quota", "burst", "at_once", "keep"}
    units = {name: value for name in names if (value := getattr(limit, name))}
    return replace(limit, **{name: max(1, math.floor(round(value * share, _DIGITS))) for name, value in units.items()})


RequestBucket = tuple[str, str, str]
"""Identifies a bucket among the charges of a request: the key, the bucket id of the limit, and the role."""


def request_bucket(charge: Charge) -> RequestBucket:
    """Return the bucket of a charge within its request: its key, bucket id and role. Stores ignore the role."""
    return charge.key, charge.limit.bucket, charge.role

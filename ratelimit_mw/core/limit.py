"""Decision, Charge and Limit: the three that know each other."""

import math
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

from msgspec import Struct
from msgspec.structs import fields, replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.memo import cached_property

MAX_EXACT_INT = 2**53  # every integer up to here is a double; floor(a / b) in doubles is exact below it
MICROSECONDS = 1_000_000  # in a second

Role = Literal["limit", "shadow", "penalty"]
ROLES = ("limit", "shadow", "penalty")

State = Any  # each algorithm has its own; a store only keeps it. None is the state of a bucket that was never touched.

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
DEFAULT_LEASE_TIME = 1.0  # seconds
MOST_RECENT = MAX_EXACT_INT - 1  # as `at` of a correction: what was taken last, whenever that was
MAX_SECONDS = 100 * 365 * 24 * 3600.0  # 100 years, in seconds: twice that and now are still exact in microseconds


def microseconds(seconds: float) -> int:
    """Convert seconds to whole microseconds. Rounds, because truncating loses one now and then."""
    return round(seconds * MICROSECONDS)


class Decision(Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The store's answer to one charge. Times are seconds from the store's now, and never too small.

    Written as an array, in this order, as a server answers it: so it is read without a step in between.
    """

    allowed: bool
    limit: int  # what `remaining` counts down from: burst for buckets, quota for windows
    remaining: int  # whole units left: after the charge if the group was admitted, else as it stands
    retry_after: float  # 0.0 if this charge alone would pass, inf if it never can
    next_after: float  # until one unit more than `remaining` could pass, if the client took `remaining` now
    reset_after: float  # until the quota is whole again
    delay: float  # how long the admitted request is to be held back
    at: int  # the store's clock, microseconds; for buckets the instant at which they drain, with this charge in it


class _Rate(Struct, frozen=True, dict=True):
    quota: int
    window: float  # seconds


class Limit(_Rate, frozen=True, kw_only=True):
    """How much is allowed: `quota` units per `window` seconds under one algorithm.

    `quota`: a whole number of at least 1. `window`: seconds, finite, from a microsecond to a hundred years.
    `name`: keyword only; 1 to 64 of `A-Za-z0-9_.-`; names the policy in headers and is part of the bucket's id.
    Raises `ConfigError` for anything else, and for a quota too large to be counted exactly.

    An algorithm of your own is a subclass with `decide`, `settle` and `expires`: pure functions, no clock and no I/O.
    """

    name: str | None = None

    algorithm: ClassVar[str] = ""  # the word after `using`; also the stem of the algorithm's files
    words: ClassVar[tuple[str, ...]] = ()  # fields that the notation can set, in the order it writes them
    not_in_bucket_id: ClassVar[tuple[str, ...]] = ()  # of these, the ones that do not shape a state
    borrows: ClassVar[bool] = False  # whether one charge may take more than `remaining`, and who comes next waits
    max_settle_units: ClassVar[int] = MAX_EXACT_INT  # units of one correction in one step; more are settled in several
    # what is taken is held until it is given back, and nobody knows when that will be
    is_concurrency: ClassVar[bool] = False

    # Of the instance, and not of the class: kept beside its fields, because a property is looked for in the class
    # first, at three times the price, and these are read with every request.
    window_us: ClassVar[int]
    """The window in whole microseconds."""
    bucket: ClassVar[str]
    """Id of the states of this limit: its name and all that shapes a state. A changed limit starts fresh.

    `smooth` leaves its rate out, and keeps what is stored when that changes.
    """

    def __post_init__(self) -> None:
        check_int("quota", self.quota, 1)
        self.__dict__["window_us"] = microseconds(check_seconds("window", self.window))
        if self.window_us < 1:
            raise ConfigError(f"window: got {self.window!r} seconds, expected one microsecond to a hundred years")
        if self.name is not None:
            check_name("name", self.name)
        notation = self._format_notation([word for word in self.words if word not in self.not_in_bucket_id]).replace(
            " ", "_"
        )
        self.__dict__["bucket"] = f"{self.name}:{notation}" if self.name else notation

    def __copy__(self) -> Self:
        """Itself: it never changes."""
        return self

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        """The decision for `cost` units at `now`, and the state to keep.

        `now` and `max_delay` are microseconds; `max_delay` None is the limit's own. A refused charge is not counted;
        cost 0 is always admitted, changes nothing and shows what is left. The very same state object is returned when
        there is nothing to write.
        """
        raise TypeError(f"{type(self).__name__} must define decide()")

    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        """The state after a correction.

        `delta` < 0 gives back what was taken at `at`, > 0 takes though it may not fit. `MOST_RECENT` is what was taken
        last: of a window what counts newest, of a bucket whatever has not drained.
        """
        raise TypeError(f"{type(self).__name__} must define settle()")

    def shift_at(self, at: int, units: int) -> int:
        """The `at` of a decision on a charge, had it been for so many units more; below 0 for fewer.

        Where units drain one after the other, that is another instant.
        """
        return at

    def forgiven(self, state: State, now: int, delta: int) -> int:
        """Of a correction, the units beyond the debt that this limit bears: `settle` does not count them.

        The debt is one quota at most. 0 where a limit does not say.
        """
        return 0

    def expires(self, state: State) -> int:
        """The instant, in microseconds, from which `state` decides exactly like None."""
        raise TypeError(f"{type(self).__name__} must define expires()")

    @property
    def most(self) -> int:
        """The largest cost that can ever pass, in units."""
        return self.quota

    @property
    def max_per_window(self) -> int | None:
        """The most units in any (x, x + window], whoever chooses instants and costs; None when that is not known.

        Where something is held back, those that leave. Where the clock of a limit is coarser than a microsecond, in a
        window of whole ticks.
        """
        return None

    @property
    def max_wait(self) -> float:
        """Seconds until a unit can pass, at most, where nothing is owed: the window."""
        return self.window

    @cached_property
    def notation(self) -> str:
        """Canonical notation, which `parse` reads back: `100/60s burst 20 using token_bucket`."""
        return self._format_notation(self.words)

    def delay_ticks(self, max_delay: int | None) -> int:
        """How far over full a bucket may go when a request may be held back `max_delay` microseconds.

        None is the limit's own. Raises `ConfigError` where nothing can be held back.
        """
        raise ConfigError(f"max_delay: {self.algorithm} cannot hold a request back; a bucket algorithm can")

    @property
    def max_delay_limit(self) -> float:
        """The longest `max_delay` that can be counted exactly, in seconds; 0.0 where nothing is ever held back."""
        return MAX_SECONDS if self.can_delay else 0.0

    @property
    def can_delay(self) -> bool:
        """Whether a request can be held back until its turn comes: whether the limit has a `max_delay`."""
        return hasattr(self, "max_delay")

    def with_max_delay(self, max_delay: float | None) -> "Limit":
        """The same bucket, for whoever waits for a turn up to so many seconds; None is as long as can be said.

        Itself where nothing is ever held back. A longer time than can be counted exactly is as good as None.
        """
        if not self.can_delay:
            return self
        maximum = self.max_delay_limit
        return replace(self, max_delay=maximum if max_delay is None else min(max_delay, maximum))

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """What the Lua twin needs of this limit: at most six whole numbers below 2**53, the first four above 0."""
        return ()

    @cached_property
    def script_args(self) -> tuple[int, ...]:
        """`numbers`, which 1 makes up to six: as a script is told them."""
        return (*self.numbers, 1, 1, 1, 1, 1, 1)[:6]

    @cached_property
    def effective_max_delay_us(self) -> int:
        """How long a request may be held back, microseconds."""
        return microseconds(getattr(self, "max_delay", 0.0))

    def _format_notation(self, names: Iterable[str]) -> str:
        length = f"{self.window_us}us" if self.window_us % MICROSECONDS else f"{self.window_us // MICROSECONDS}s"
        parts = [f"{self.quota}/{length}"]
        defaults = {field.name: field.default for field in fields(self)}
        for word in names:
            value = getattr(self, word)
            if value is not None and value != defaults[word]:
                parts.append(
                    word if value is True else f"{word} {_format_seconds(value) if isinstance(value, float) else value}"
                )
        return " ".join([*parts, "using", self.algorithm])


class Charge(Struct, frozen=True, gc=False):
    """One bucket key, one limit, one cost: what a request asks of the store.

    `key`: whose bucket. `cost`: whole units, at least 0; negative only for `settle`, which needs `at`, the instant
    that the decision named. `max_delay`: seconds this request may be held back, None for the limit's own. `role`:
    `limit` refuses, `shadow` only reports, `penalty` refuses while its ban lasts, also with a cost of 0, which counts
    nothing. `lease`: units, at most those that can pass at once, that a process may take ahead and spend by itself; 0
    is none. `lease_time`: seconds, more than 0, after which it gives back what it did not spend. Only limits that hold
    nothing back are leased, and only by stores on a server; `lease` and `lease_time` shape no bucket. Raises
    `ConfigError` for anything else.
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
            raise ConfigError(f"key: got {self.key!r}, expected a string that is not empty")
        if not isinstance(self.limit, Limit):
            raise ConfigError(f"limit: got {self.limit!r}, expected a Limit, such as parse({str(self.limit)!r})[0]")
        if (
            type(self.cost) is not int
            or not (-MAX_EXACT_INT if self.at is not None else -1) < self.cost < MAX_EXACT_INT
        ):
            raise ConfigError(f"cost: got {self.cost!r}, expected a whole number from 0 to {MAX_EXACT_INT - 1}")
        if self.at is not None and (type(self.at) is not int or not -MAX_EXACT_INT < self.at < MAX_EXACT_INT):
            raise ConfigError(f"at: got {self.at!r}, expected the `at` of a decision, in microseconds")
        if self.max_delay is not None:
            self.limit.delay_ticks(microseconds(check_seconds("max_delay", self.max_delay)))
        if self.role not in ROLES:
            raise ConfigError(f"role: got {self.role!r}, expected one of {', '.join(ROLES)}")
        if self.lease != 0:
            check_lease([self.limit], self.lease, self.lease_time)
            if self.effective_max_delay_us:
                raise ConfigError("lease: what is taken ahead cannot be held back; expected no max_delay beside it")

    @property
    def max_delay_us(self) -> int | None:
        """`max_delay` in microseconds."""
        return None if self.max_delay is None else microseconds(self.max_delay)

    @property
    def effective_max_delay_us(self) -> int:
        """How long this request may be held back, microseconds: its own `max_delay`, or else the limit's."""
        return self.limit.effective_max_delay_us if self.max_delay is None else microseconds(self.max_delay)


def _format_seconds(value: float) -> str:
    """Seconds as the notation reads them, to the microsecond."""
    if not math.isfinite(value):
        return str(value)  # wrong, as whoever checks the field says
    whole_seconds, part = divmod(microseconds(value), MICROSECONDS)
    return f"{whole_seconds}.{part:06d}".rstrip("0") if part else str(whole_seconds)


def check_lease(limits: Iterable[Limit], lease: object, lease_time: object) -> None:
    """Raises `ConfigError` for units that these limits cannot give at once, and for a time that is none."""
    units = check_int("lease", lease, 0)
    for limit in limits:
        if units and limit.is_concurrency:
            raise ConfigError(f"lease: slots of {limit.notation} are held by who is at work, and not taken ahead")
        if units > limit.most:
            raise ConfigError(
                f"lease: {units} can never pass {limit.notation}, which admits at most {limit.most} at once"
            )
    if not check_seconds("lease_time", lease_time):
        raise ConfigError("lease_time: got 0, expected more than 0 seconds")


def check_int(field: str, value: object, minimum: int) -> int:
    """`value` if it is a whole number from `minimum` to 2**53. Raises `ConfigError` naming `field`."""
    if type(value) is not int or not minimum <= value < MAX_EXACT_INT:
        raise ConfigError(f"{field}: got {value!r}, expected a whole number from {minimum} to {MAX_EXACT_INT - 1}")
    return value


def check_seconds(field: str, value: object) -> float:
    """`value` if it is a number of seconds, from 0 to a hundred years. Raises `ConfigError` naming `field`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field}: got {value!r}, expected a finite number of seconds, 0 or more")
    if value > MAX_SECONDS:
        raise ConfigError(f"{field}: got {value!r} seconds, expected at most a hundred years")
    return value


def check_name(field: str, value: object) -> str:
    """`value` if it can stand in a header and in a key. Raises `ConfigError` naming `field`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigError(f"{field}: got {value!r}, expected 1 to 64 of A-Z a-z 0-9 _ . -")
    return value


Bucket = tuple[str, str, str]
"""Key, bucket id of the limit, role: tells the buckets of a request's charges apart."""


def bucket_of(charge: Charge) -> Bucket:
    """The bucket that a charge goes to. A shadow's is another one: the request was not refused by it."""
    return charge.key, charge.limit.bucket, charge.role

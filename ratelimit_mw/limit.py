"""Decision, Charge and Limit: the three that know each other."""

import math
import re
from functools import cached_property
from typing import Any, ClassVar, Literal

from msgspec import Struct
from msgspec.structs import fields

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.ticks import EXACT, MICROSECONDS, BucketTicks, bucket_ticks, microseconds

Role = Literal["limit", "shadow", "penalty"]
ROLES = ("limit", "shadow", "penalty")

State = Any  # each algorithm has its own; a store only keeps it. None is the state of a bucket that was never touched.

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LONGEST = 100 * 365 * 24 * 3600.0  # 100 years, in seconds: twice that and now are still exact in microseconds


class Decision(Struct, frozen=True, gc=False):
    """The store's answer to one charge. Times are seconds from the store's now, and never too small."""

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

    def __post_init__(self) -> None:
        whole("quota", self.quota, 1)
        seconds("window", self.window)
        if self.window_us < 1:
            raise ConfigError(f"window: found {self.window!r} seconds, allowed is one microsecond to a hundred years")
        if self.name is not None:
            well_named("name", self.name)

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]:
        """The decision for `cost` units at `now`, and the state to keep.

        `now` and `max_delay` are microseconds; `max_delay` None is the limit's own. A refused charge is not counted;
        cost 0 is always admitted, changes nothing and shows what is left. The very same state object is returned when
        there is nothing to write.
        """
        raise TypeError(f"{type(self).__name__} must define decide()")

    def settle(self, state: State, now: int, delta: int, at: int) -> State:
        """The state after a correction.

        `delta` < 0 gives back what was taken at `at`, > 0 takes though it may not fit.
        """
        raise TypeError(f"{type(self).__name__} must define settle()")

    def expires(self, state: State) -> int:
        """The instant, in microseconds, from which `state` decides exactly like None."""
        raise TypeError(f"{type(self).__name__} must define expires()")

    @property
    def most(self) -> int:
        """The largest cost that can ever pass, in units."""
        return self.quota

    @cached_property
    def window_us(self) -> int:
        """The window in whole microseconds."""
        return microseconds(self.window)

    @cached_property
    def notation(self) -> str:
        """Canonical notation, which `parse` reads back: `100/60s burst 20 using token_bucket`."""
        length = f"{self.window_us}us" if self.window_us % MICROSECONDS else f"{self.window_us // MICROSECONDS}s"
        words = [f"{self.quota}/{length}"]
        usual = {field.name: field.default for field in fields(self)}
        for word in self.words:
            value = getattr(self, word)
            if value is not None and value != usual[word]:
                words.append(word if value is True else f"{word} {value}")
        return " ".join([*words, "using", self.algorithm])

    @cached_property
    def bucket(self) -> str:
        """Id of the states of this limit: its name and all that shapes a state. A changed limit starts fresh."""
        notation = self.notation.replace(" ", "_")
        return f"{self.name}:{notation}" if self.name else notation

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """What the Lua twin needs of this limit: non-negative whole numbers below 2**53."""
        return ()


class BucketLimit(Limit, frozen=True, kw_only=True):
    """A limit with a bucket: up to `burst` units at one instant, `quota` per `window` in the long run.

    `burst`: units, at least 1; None is the quota. `max_delay`: seconds that a request may be held back; 0.0 is never.
    In any window of that length at most `burst + quota - 1` units pass: to promise N, choose burst + quota <= N.
    """

    burst: int | None = None
    max_delay: float = 0.0

    words: ClassVar[tuple[str, ...]] = ("burst",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burst is not None:
            whole("burst", self.burst, 1)
            if self.burst * self.window_us > self.quota * microseconds(_LONGEST):
                raise ConfigError(
                    f"burst: found {self.burst!r}, allowed are at most the units that come back in a hundred years"
                )
        seconds("max_delay", self.max_delay)
        self.delay_ticks(None)

    @cached_property
    def notation(self) -> str:
        """See `Limit.notation`. A burst of one quota is not written."""
        return super().notation.replace(f" burst {self.quota} ", " ")

    @cached_property
    def ticks(self) -> BucketTicks:
        """The numbers that the algorithm and its Lua twin compute with."""
        return bucket_ticks(self.quota, self.window_us, self.burst or self.quota)

    def delay_ticks(self, max_delay: int | None) -> int:
        """How far over full the bucket may go when a request may be held back `max_delay` microseconds.

        None is the limit's own.

        Raises `ConfigError` beyond 2**52 ticks, where sums would no longer be exact.
        """
        if max_delay is None:
            return self._own_delay_ticks
        clock, drain, *_ = self.ticks
        over = max_delay // clock * drain
        if over > EXACT // 2:
            longest = EXACT // 2 // drain * clock / MICROSECONDS
            raise ConfigError(
                f"max_delay: found {max_delay / MICROSECONDS} seconds, allowed are {longest}: beyond, {self.notation} "
                "would not be exact"
            )
        return over

    @cached_property
    def _own_delay_ticks(self) -> int:
        return self.delay_ticks(microseconds(self.max_delay))


class Charge(Struct, frozen=True, gc=False):
    """One bucket key, one limit, one cost: what a request asks of the store.

    `key`: whose bucket. `cost`: whole units, at least 0; negative only for `settle`, which needs `at`, the instant
    that the decision named. `max_delay`: seconds this request may be held back, None for the limit's own. `role`:
    `limit` refuses, `shadow` only reports, `penalty` refuses while its ban lasts. Raises `ConfigError` for anything
    else.
    """

    key: str
    limit: Limit
    cost: int = 1
    max_delay: float | None = None
    role: Role = "limit"
    at: int | None = None

    def __post_init__(self) -> None:
        if type(self.key) is not str or not self.key:
            raise ConfigError(f"key: found {self.key!r}, allowed is a string that is not empty")
        if not isinstance(self.limit, Limit):
            raise ConfigError(f"limit: found {self.limit!r}, allowed is a Limit, such as parse({str(self.limit)!r})[0]")
        if type(self.cost) is not int or not (-EXACT if self.at is not None else -1) < self.cost < EXACT:
            raise ConfigError(f"cost: found {self.cost!r}, allowed is a whole number from 0 to {EXACT - 1}")
        if self.at is not None and (type(self.at) is not int or not -EXACT < self.at < EXACT):
            raise ConfigError(f"at: found {self.at!r}, allowed is the `at` of a decision, in microseconds")
        if self.max_delay is not None:
            self._check_max_delay(self.max_delay)
        if self.role not in ROLES:
            raise ConfigError(f"role: found {self.role!r}, allowed is one of {', '.join(ROLES)}")

    @property
    def max_delay_us(self) -> int | None:
        """`max_delay` in microseconds."""
        return None if self.max_delay is None else microseconds(self.max_delay)

    @property
    def patience_us(self) -> int:
        """How long this request may be held back, microseconds: its own `max_delay`, or else the limit's."""
        own = self.max_delay_us
        return microseconds(getattr(self.limit, "max_delay", 0.0)) if own is None else own

    def _check_max_delay(self, max_delay: float) -> None:
        if not isinstance(self.limit, BucketLimit):
            raise ConfigError(f"max_delay: {self.limit.algorithm} cannot hold a request back; a bucket algorithm can")
        self.limit.delay_ticks(microseconds(seconds("max_delay", max_delay)))


def whole(field: str, value: object, least: int) -> int:
    """`value` if it is a whole number from `least` to 2**53. Raises `ConfigError` naming `field`."""
    if type(value) is not int or not least <= value < EXACT:
        raise ConfigError(f"{field}: found {value!r}, allowed is a whole number from {least} to {EXACT - 1}")
    return value


def seconds(field: str, value: object) -> float:
    """`value` if it is a number of seconds, from 0 to a hundred years. Raises `ConfigError` naming `field`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ConfigError(f"{field}: found {value!r}, allowed is a finite number of seconds, 0 or more")
    if value > _LONGEST:
        raise ConfigError(f"{field}: found {value!r} seconds, allowed are at most a hundred years")
    return value


def well_named(field: str, value: object) -> str:
    """`value` if it can stand in a header and in a key. Raises `ConfigError` naming `field`."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise ConfigError(f"{field}: found {value!r}, allowed are 1 to 64 of A-Z a-z 0-9 _ . -")
    return value

"""Limits that take over what another limit with the same name has counted: the setting `on_change`.

The bucket of such a limit is named by the limit's name or place, not by its numbers. So limits with other numbers, of
an older or newer version of the settings, find it. A stored state is kept together with the limit that wrote it. The
Lua implementation is `stores/redis/takeover.lua`.

A limit that finds a state of another one converts it, and decides on the result. It writes its own state only if it
admits a charge: a refusal changes nothing, so the state remains the other limit's. Units are rounded up. Therefore,
limits that take turns on one bucket never get units back that were taken.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, NamedTuple, Protocol, cast

from msgspec import defstruct
from msgspec.structs import fields, replace

from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.calendar_window import CalendarWindow
from ratelimit_mw.algorithms.fixed_window import FixedWindow
from ratelimit_mw.algorithms.gcra import GCRA
from ratelimit_mw.algorithms.leaky_bucket import LeakyBucket
from ratelimit_mw.algorithms.sliding_window_counter import SlidingWindowCounter
from ratelimit_mw.algorithms.sliding_window_log import SlidingWindowLog
from ratelimit_mw.algorithms.smooth import Smooth
from ratelimit_mw.algorithms.ticks import scale_down, scale_up
from ratelimit_mw.algorithms.token_bucket import TokenBucket
from ratelimit_mw.core.limit import MAX_EXACT_INT, MICROSECONDS, Decision, Limit, State

OnChange = Literal["fresh", "used", "share"]
PREFIX: Final = "~"  # of the bucket ids; no other bucket id begins with it
_REFUSED: Final = MAX_EXACT_INT - 1  # a cost that no limit admits


class Written(NamedTuple):
    """A state, and the limit that wrote it."""

    limit: Limit
    state: State


class Counting(Protocol):
    """What an algorithm defines so that limits can take over its units, and those of others. Times: microseconds."""

    quota: int
    notation: str

    def decide(self, state: State, now: int, cost: int, max_delay: int | None) -> tuple[Decision, State]: ...
    def settle(self, state: State, now: int, delta: int, at: int) -> State: ...

    @property
    def capacity(self) -> int:
        """The units from which `Decision.remaining` counts down."""

    def used(self, state: State, now: int) -> int:
        """Return the units that count at `now`, rounded up."""

    def until_used(self, state: State, now: int, units: int) -> int:
        """Return the time until at most `units` count, if nothing more is taken."""

    def room(self, cost: int, max_delay: int | None) -> int:
        """Return the most units that may count for a charge of `cost` to pass."""

    def holding(self, now: int, units: int) -> State:
        """Return a state in which `units` count at `now`; None without units."""

    def continued(self, old: Limit, state: State, now: int) -> State:
        """Return a state with the units of another limit's state, at their times; None if it has no such state."""


class TakingOver(Limit, frozen=True, kw_only=True):
    """A limit that takes over the units that another one counted under the same name.

    `on_change`: `used` takes over the units, `share` their share of the capacity. `series`: identifies the limit within
    its rule, whatever its numbers.
    """

    base: ClassVar[type[Limit]]
    on_change: ClassVar[str]
    series: ClassVar[str]
    plain: ClassVar[Any]
    """Instance value: the same limit without `on_change`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        values = {field.name: getattr(self, field.name) for field in fields(self.base)}
        self.__dict__["plain"] = self.base(values.pop("quota"), values.pop("window"), **values)

    def _set_bucket(self, notation: str) -> None:  # it has the numbers
        self.__dict__["bucket"] = f"{PREFIX}{self.series}"

    @property
    def script(self) -> tuple[str, tuple[int, ...]]:
        return self._script(*self.plain.script)

    def script_at(self, now: int) -> tuple[str, tuple[int, ...]]:
        return self._script(*self.plain.script_at(now))

    def _script(self, name: str, numbers: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        return (f"{self.on_change} {name}" if self.quota else name), numbers

    def decide(
        self, state: Written | None, now: int, cost: int, max_delay: int | None
    ) -> tuple[Decision, Written | None]:
        plain: Limit = self.plain
        old, inner = state or (plain, None)
        if old is not plain and old.notation != plain.notation:
            return self._decide_over(cast("Written", state), now, cost, max_delay)
        decision, new = plain.decide(inner, now, cost, max_delay)
        return decision, state if new is inner else Written(plain, new)

    def settle(self, state: Written | None, now: int, delta: int, at: int) -> Written | None:
        """See `Limit.settle`. The state of another limit is settled by that limit, and remains its own."""
        plain = self.plain
        old, inner = state or (plain, None)
        if old.notation == plain.notation:
            old = plain  # also if they differ in what the notation leaves out
        elif not cast("Counting", old).used(inner, now):
            old, inner = plain, None  # as if the store had forgotten the state, which it may have at any time
        if self.max_settle_units < MAX_EXACT_INT:  # all stores cut the units of such limits
            delta = max(-2 * self.quota, min(delta, 2 * self.quota))
        new = old.settle(inner, now, delta, at)
        if new is inner:
            return state
        return None if new is None else Written(old, new)

    def expires(self, state: Written) -> int:
        return state.limit.expires(state.state)

    def has_room(self, state: Written, now: int) -> bool:
        """See `Limit.has_room`. The limit that wrote the state answers, because limits of several rules share a map."""
        return state.limit.has_room(state.state, now)

    def _decide_over(self, given: Written, now: int, cost: int, max_delay: int | None) -> tuple[Decision, Written]:
        """Decide on the state of another limit."""
        old, state = cast("Counting", given.limit), given.state
        new: Counting = self.plain
        is_share = self.on_change == "share"
        taken = None
        if not is_share or new.capacity == old.capacity:
            taken = new.continued(cast("Limit", old), state, now)
        if taken is None:
            units = old.used(state, now)
            taken = new.holding(now, scale_up(units, new.capacity, old.capacity) if is_share else units)
        decision, written = new.decide(taken, now, cost, max_delay)
        if decision.allowed and cost:
            return decision, Written(self.plain, written)

        def seconds_until(room: int) -> float:
            """Return the wait until the units that the other limit counts are few enough for `room`."""
            units = scale_down(room, old.capacity, new.capacity) if is_share else room
            return max(1, old.until_used(state, now, units)) / MICROSECONDS

        retry_after = decision.retry_after
        if not decision.allowed and retry_after < math.inf:
            retry_after = seconds_until(new.room(cost, max_delay))
        next_after = decision.next_after if decision.remaining else seconds_until(new.room(1, 0))
        reset_after = old.until_used(state, now, 0) / MICROSECONDS
        shown = replace(decision, retry_after=retry_after, next_after=next_after, reset_after=reset_after)
        kept = old.decide(state, now, _REFUSED, 0)[1] if cost else state  # a state later than now is moved back
        return shown, given if kept is state else Written(cast("Limit", old), kept)


class _TakingOverBan(TakingOver, frozen=True, kw_only=True):
    """A ban that takes over the refusals that another one counted, and a ban that runs. Refusals have no share."""

    def _decide_over(self, given: Written, now: int, cost: int, max_delay: int | None) -> tuple[Decision, Written]:
        new: Ban = self.plain
        old, state = cast("Ban", given.limit), given.state
        if old.is_running(state, now):
            decision, kept = old.decide(state, now, cost, max_delay)
            return replace(decision, limit=new.quota, remaining=0), given if kept is state else Written(old, kept)
        decision, written = new.decide(new.continued(old, state, now), now, cost, max_delay)
        return decision, Written(new, written) if cost else given


def _kind(base: type[Limit]) -> Any:
    parent = _TakingOverBan if base is Ban else TakingOver
    own_fields = [("on_change", str), ("series", str)]
    return defstruct(
        base.__name__, own_fields, bases=(parent, base), namespace={"base": base}, frozen=True, kw_only=True
    )


_BASES: Final[tuple[type[Limit], ...]] = (
    FixedWindow,
    SlidingWindowCounter,
    SlidingWindowLog,
    TokenBucket,
    GCRA,
    LeakyBucket,
    Smooth,
    Ban,
    CalendarWindow,
)
KINDS: Final[Mapping[type[Limit], Any]] = {base: _kind(base) for base in _BASES}


def taking_over(limit: Limit, on_change: OnChange, series: str) -> Limit:
    """Return a limit with the same numbers that takes over what another one of the same name counted.

    `series`: identifies a limit without a name, and a ban. Returns `limit` itself for `fresh`, and for an algorithm
    outside this package. Also for a concurrency limit: its slots are those of requests in progress, whatever its quota.
    """
    kind = KINDS.get(type(limit))
    if on_change == "fresh" or kind is None:
        return limit
    values = {field.name: getattr(limit, field.name) for field in fields(limit)}
    made: Limit = kind(**values, on_change=on_change, series=series if kind.base is Ban else limit.name or series)
    return made

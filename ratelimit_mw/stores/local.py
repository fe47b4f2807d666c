"""What decides in this process while a store cannot: `on_store_error = "local"`."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import floor, isinf
from typing import Final, NamedTuple

from msgspec.structs import fields, replace

from ratelimit_mw.limit import Charge, Decision, Limit, microseconds
from ratelimit_mw.stores.deny_cache import later
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.stores.live import Stage
from ratelimit_mw.stores.memory import MemoryStore

_REFUSALS: Final = 10_000  # that are remembered
_LIMITS: Final = 4096  # of which the shares are
_EXACT: Final = 9  # digits behind the point: 0.29 of 100 is 29


class _Refusal(NamedTuple):
    """What the store said, of how many units, and when. Microseconds."""

    decision: Decision
    cost: int
    heard: int
    until: int


class LocalStore(MemoryStore):
    """A `MemoryStore` that keeps to a share of each limit, and to what the store refused before it failed.

    `share`: of each quota and burst, more than 0 and at most 1. It forgets nothing when the store is back: a store that
    fails again and again renews no quota. A bucket that the store refused is refused here too, for as much or more,
    until its `retry_after` is over; of 10,000 buckets that is known.
    """

    def __init__(self, share: float = 1.0, *, clock: Callable[[], float] | None = None) -> None:
        super().__init__(clock=clock)
        self._share: Final = share
        self._refusals: OrderedDict[tuple[str, str], _Refusal] = OrderedDict()  # by bucket; the oldest first
        self._guard = lock()

    @property
    def refuses(self) -> bool:
        """Whether there is anything that the store refused."""
        return bool(self._refusals)

    def hear(self, charges: Sequence[Charge], decisions: Sequence[Decision]) -> None:
        """What the store itself decided."""
        now = self._now()
        with self._guard:
            for charge, decision in zip(charges, decisions, strict=True):
                if charge.role == "limit":
                    self._note(charge, decision, now)
            while len(self._refusals) > _REFUSALS:
                self._refusals.popitem(last=False)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `MemoryStore.take`; the charges are those that the store was asked for."""
        own = self._own_share(charges)
        refused = self._refused(charges)
        return self._refuse(own, refused) if refused else super().take(own)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What `take` would answer now; changes nothing."""
        own = self._own_share(charges)
        refused = self._refused(charges)
        return self._refuse(own, refused) if refused else super().peek(own)

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `MemoryStore.settle`."""
        return super().settle(self._own_share(charges))

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets, and that the store refused them."""
        with self._guard:
            for charge in charges:
                self._refusals.pop(_bucket(charge), None)
        super().reset(self._own_share(charges))

    def _enter(self, stage: Stage, *, empty: bool) -> None:
        super()._enter(stage, empty=empty)
        if empty:
            with self._guard:
                self._refusals.clear()

    def _note(self, charge: Charge, decision: Decision, now: int) -> None:
        bucket = _bucket(charge)
        known = self._refusals.get(bucket)
        if decision.allowed:
            if known is not None and charge.cost >= known.cost:  # it was reset, or given back
                del self._refusals[bucket]
        elif isinf(decision.retry_after):
            pass  # what can never pass cannot here either
        elif known is None or now >= known.until or charge.cost <= known.cost:  # what refuses less refuses more too
            until = now + microseconds(decision.retry_after)
            self._refusals[bucket] = _Refusal(decision, charge.cost, now, until)
            self._refusals.move_to_end(bucket)

    def _own_share(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        return charges if self._share == 1 else [_part(charge, self._share) for charge in charges]

    def _refused(self, charges: Sequence[Charge]) -> dict[int, Decision]:
        """The decisions of the store that still hold, by the index of the charge."""
        if not self._refusals:
            return {}
        now = self._now()
        found = {}
        for index, charge in enumerate(charges):
            known = self._refusals.get(_bucket(charge))
            if known is None or charge.role != "limit" or charge.cost < known.cost:
                continue
            if known.heard <= now < known.until:  # not when the clock stepped back
                found[index] = later(charge, known.decision, now - known.heard)
        return found

    def _refuse(self, charges: Sequence[Charge], refused: dict[int, Decision]) -> Sequence[Decision]:
        """A whole group, of which nothing is charged: what has room is shown as it stands."""
        decisions = list(super().peek(charges))
        for index, charge in enumerate(charges):
            if index in refused:
                decisions[index] = refused[index]
            elif decisions[index].allowed:
                decisions[index] = super().peek([replace(charge, cost=0)])[0]
        return decisions


@lru_cache(maxsize=_LIMITS)
def share_of(limit: Limit, share: float) -> Limit:
    """The same limit with a share of its units, each rounded down, and at least one."""
    if share == 1:
        return limit
    words = {field.name for field in fields(limit)} & {"quota", "burst", "at_once"}
    units = {word: value for word in words if (value := getattr(limit, word))}
    return replace(limit, **{word: max(1, floor(round(value * share, _EXACT))) for word, value in units.items()})


def can_fail(store: object) -> bool:
    """Whether it may have no answer, as one in memory never has."""
    return type(store) is not MemoryStore


def _part(charge: Charge, share: float) -> Charge:
    """The charge as it is counted here. What the whole limit can admit takes at most a whole share, and so can pass."""
    limit = share_of(charge.limit, share)
    fits = abs(charge.cost) <= charge.limit.most
    cost = max(-limit.most, min(charge.cost, limit.most)) if fits else charge.cost
    return replace(charge, limit=limit, cost=cost, lease=0)


def _bucket(charge: Charge) -> tuple[str, str]:
    return charge.key, charge.limit.bucket

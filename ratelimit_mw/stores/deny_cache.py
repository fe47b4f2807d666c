"""A layer that remembers refused groups of charges, so that a flood of them costs the server next to nothing.

The same group is refused again until its `retry_after` is over, and nothing but a correction changes that: what is
remembered is true, and the server need not be asked. Another process may correct a bucket, so no refusal is remembered
for longer than `seconds`.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from ratelimit_mw.delay import DelayLimit
from ratelimit_mw.limit import MICROSECONDS, Charge, Decision, microseconds, seconds
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.stores.layer import Clock, Layer
from ratelimit_mw.verdict import Answer

_GROUPS: Final = 10_000  # that are remembered
_CORRECTED: Final = 1_000  # keys of which it is known when they were corrected

T = TypeVar("T")
Group = tuple[Charge, ...]


class _Refusal(NamedTuple):
    """Decisions, and when they hold. Microseconds."""

    decisions: Sequence[Decision]
    asked: int  # the decision was made after that
    heard: int  # and before that
    until: int  # from here on the store may decide otherwise


class DenyCache(Layer):
    """See `layer.Layer`. `seconds`: how long a refusal is remembered at most."""

    def __init__(self, longest: float) -> None:
        self._longest: Final = seconds("deny_cache", longest)
        self._refusals: OrderedDict[Group, _Refusal] = OrderedDict()  # the oldest first
        self._groups: dict[str, set[Group]] = {}  # by the key of each of their charges
        self._refusing: dict[tuple[str, str], set[Group]] = {}  # by the bucket of each that refuses
        self._corrected: OrderedDict[str, float] = OrderedDict()  # by key: when; the oldest first
        self._forgotten_until = 0.0  # when that of `_corrected` was which is not known any more
        self._lock = lock()

    def before(self, charges: Sequence[Charge], now: float) -> Sequence[Decision] | None:
        """The refusal of this very group, if it is remembered, with what is left of its times."""
        # the last key is a client's own rather than one of all, and its hash is known, unlike that of a group
        if not self._groups or not charges or charges[-1].key not in self._groups:
            return None
        group, time = tuple(charges), microseconds(now)
        known = self._refusals.get(group)
        if known is None:
            return None
        if not known.asked <= time < known.until:  # also when the clock stepped back
            with self._lock:
                if self._refusals.get(group) is known:  # and not a newer one
                    self._drop(group)
            return None
        passed = max(0, time - known.heard)
        return Answer(map(later, group, known.decisions, [passed] * len(group)), "remembered")

    def after(self, charges: Sequence[Charge], decisions: Sequence[Decision], began: float, clock: Clock) -> None:
        """Remember what refused. A bucket that was taken from refuses for longer than was told before."""
        for decision in decisions:
            if not decision.allowed:
                self._remember(tuple(charges), decisions, began, clock())
                return
        for charge in charges if self._groups else ():
            if charge.key in self._groups:
                with self._lock:
                    self._drop_all(self._refusing.get(_bucket(charge)))

    @property
    def remembers(self) -> bool:
        """Whether there is anything that refused."""
        return bool(self._groups)

    def forget(self, charges: Sequence[Charge], now: float) -> None:
        """Forget the groups in which one of these keys stands, and what was asked of them before it was corrected."""
        with self._lock:
            for charge in charges:
                self._drop_all(self._groups.get(charge.key))
                self._corrected[charge.key] = now
                self._corrected.move_to_end(charge.key)
            while len(self._corrected) > _CORRECTED:
                self._forgotten_until = max(self._forgotten_until, self._corrected.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._refusals.clear()
            self._groups.clear()
            self._refusing.clear()

    def start_over(self) -> None:
        """After a fork: who held the lock is not here."""
        self._lock = lock()
        self.clear()

    def _remember(self, group: Group, decisions: Sequence[Decision], began: float, now: float) -> None:
        asked = microseconds(began)
        until = asked + microseconds(min(_refused_for(group, decisions), self._longest))
        if until <= asked or isinstance(decisions, Answer):  # what is told from memory is not news
            return
        with self._lock:
            if any(self._corrected.get(charge.key, self._forgotten_until) > began for charge in group):
                return  # the answer may be older than the correction
            self._drop(group)
            self._make_room(asked)
            self._refusals[group] = _Refusal(decisions, asked, max(asked, microseconds(now)), until)
            for charge, decision in zip(group, decisions, strict=True):
                self._groups.setdefault(charge.key, set()).add(group)
                if not decision.allowed:
                    self._refusing.setdefault(_bucket(charge), set()).add(group)

    def _make_room(self, now: int) -> None:
        """The oldest goes, and two that are over: what is remembered shrinks when a flood ends."""
        if len(self._refusals) >= _GROUPS:
            self._drop(next(iter(self._refusals)))
        for _ in range(2):
            oldest = next(iter(self._refusals), None)
            if oldest is not None and self._refusals[oldest].until <= now:
                self._drop(oldest)

    def _drop_all(self, groups: set[Group] | None) -> None:
        for group in tuple(groups or ()):
            self._drop(group)

    def _drop(self, group: Group) -> None:
        if self._refusals.pop(group, None) is not None:
            for charge in group:
                _discard(self._groups, charge.key, group)
                _discard(self._refusing, _bucket(charge), group)


def _bucket(charge: Charge) -> tuple[str, str]:
    return charge.key, charge.limit.bucket


def _discard(groups: dict[T, set[Group]], place: T, group: Group) -> None:
    if found := groups.get(place):
        found.discard(group)
        if not found:
            del groups[place]


def _refused_for(group: Group, decisions: Sequence[Decision]) -> float:
    """Seconds for which the store would answer the same and change nothing; 0 where each refusal is to be counted.

    While a ban runs no refusal is counted; without one, a penalty counts each. When a slot is free again nobody knows.
    """
    refused: dict[str, list[float]] = {}
    for charge, decision in zip(group, decisions, strict=True):
        if not decision.allowed and (not charge.limit.held or decision.retry_after == math.inf):
            refused.setdefault(charge.role, []).append(decision.retry_after)
    counts = any(charge.role == "penalty" for charge in group)
    return max(refused.get("penalty" if counts else "limit", ()), default=0.0)


def later(charge: Charge, decision: Decision, passed: int) -> Decision:
    """The decision when so many microseconds have passed. `remaining` is left as it stood: by now it may be more."""
    if not passed:
        return decision
    wait, used = _less(decision.retry_after, passed), min(passed, microseconds(decision.reset_after))
    return replace(
        decision,
        allowed=not wait,
        retry_after=wait,
        next_after=_less(decision.next_after, used),  # of a whole quota it counts from now, whenever that is
        reset_after=_less(decision.reset_after, used),
        at=decision.at + passed - (used if isinstance(charge.limit, DelayLimit) else 0),  # a bucket's: when it is empty
    )


def _less(wait: float, passed: int) -> float:
    return wait if wait == math.inf else max(0, microseconds(wait) - passed) / MICROSECONDS

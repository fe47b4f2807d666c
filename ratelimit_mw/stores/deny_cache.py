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

from ratelimit_mw.algorithms.bucket import DelayableLimit
from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, check_seconds, microseconds
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.layer import Clock, Layer
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_MAX_GROUPS: Final = 10_000  # that are remembered
_MAX_SETTLED_KEYS: Final = 1_000  # keys of which it is known when they were corrected

T = TypeVar("T")
Group = tuple[Charge, ...]


class _Refusal(NamedTuple):
    """Decisions, and when they hold. Microseconds."""

    decisions: Sequence[Decision]
    asked_at: int  # the decision was made after that
    answered_at: int  # and before that
    until: int  # from here on the store may decide otherwise


class DenyCache(Layer):
    """See `layer.Layer`. `seconds`: how long a refusal is remembered at most."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds: Final = check_seconds("deny_cache", max_seconds)
        self._refusals: OrderedDict[Group, _Refusal] = OrderedDict()  # the oldest first
        self._by_key: dict[str, set[Group]] = {}  # by the key of each of their charges
        self._by_refusing_bucket: dict[tuple[str, str], set[Group]] = {}  # by the bucket of each that refuses
        self._settled_at: OrderedDict[str, float] = OrderedDict()  # by key: when; the oldest first
        self._evicted_until = 0.0  # when that of `_settled_at` was which is not known any more
        self._lock = fork_safe_lock()

    def before_take(self, charges: Sequence[Charge], now: float) -> Sequence[Decision] | None:
        """The refusal of this very group, if it is remembered, with what is left of its times."""
        # the last key is a client's own rather than one of all, and its hash is known, unlike that of a group
        if not self._by_key or not charges or charges[-1].key not in self._by_key:
            return None
        group, time = tuple(charges), microseconds(now)
        refusal = self._refusals.get(group)
        if refusal is None:
            return None
        if not refusal.asked_at <= time < refusal.until:  # also when the clock stepped back
            with self._lock:
                if self._refusals.get(group) is refusal:  # and not a newer one
                    self._drop(group)
            return None
        elapsed_us = max(0, time - refusal.answered_at)
        return Answer(map(aged, group, refusal.decisions, [elapsed_us] * len(group)), "remembered")

    def after_take(
        self, charges: Sequence[Charge], decisions: Sequence[Decision], started_at: float, clock: Clock
    ) -> None:
        """Remember what refused. A bucket that was taken from refuses for longer than was told before."""
        for decision in decisions:
            if not decision.allowed:
                self._remember(tuple(charges), decisions, started_at, clock())
                return
        for charge in charges if self._by_key else ():
            if charge.key in self._by_key:
                with self._lock:
                    self._drop_all(self._by_refusing_bucket.get(_bucket(charge)))

    @property
    def has_entries(self) -> bool:
        """Whether there is anything that refused."""
        return bool(self._by_key)

    def invalidate(self, charges: Sequence[Charge], now: float) -> None:
        """Forget the groups in which one of these keys stands, and what was asked of them before it was corrected."""
        with self._lock:
            for charge in charges:
                self._drop_all(self._by_key.get(charge.key))
                self._settled_at[charge.key] = now
                self._settled_at.move_to_end(charge.key)
            while len(self._settled_at) > _MAX_SETTLED_KEYS:
                self._evicted_until = max(self._evicted_until, self._settled_at.popitem(last=False)[1])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._refusals.clear()
            self._by_key.clear()
            self._by_refusing_bucket.clear()

    def reset_after_fork(self) -> None:
        """After a fork: who held the lock is not here."""
        self._lock = fork_safe_lock()
        self.clear()

    def _remember(self, group: Group, decisions: Sequence[Decision], started_at: float, now: float) -> None:
        asked_at = microseconds(started_at)
        until = asked_at + microseconds(min(_refusal_seconds(group, decisions), self._max_seconds))
        if until <= asked_at or isinstance(decisions, Answer):  # what is told from memory is not news
            return
        with self._lock:
            if any(self._settled_at.get(charge.key, self._evicted_until) > started_at for charge in group):
                return  # the answer may be older than the correction
            self._drop(group)
            self._evict(asked_at)
            self._refusals[group] = _Refusal(decisions, asked_at, max(asked_at, microseconds(now)), until)
            for charge, decision in zip(group, decisions, strict=True):
                self._by_key.setdefault(charge.key, set()).add(group)
                if not decision.allowed:
                    self._by_refusing_bucket.setdefault(_bucket(charge), set()).add(group)

    def _evict(self, now: int) -> None:
        """The oldest goes, and two that are over: what is remembered shrinks when a flood ends."""
        if len(self._refusals) >= _MAX_GROUPS:
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
                _discard(self._by_key, charge.key, group)
                _discard(self._by_refusing_bucket, _bucket(charge), group)


def _bucket(charge: Charge) -> tuple[str, str]:
    return charge.key, charge.limit.bucket


def _discard(groups: dict[T, set[Group]], key: T, group: Group) -> None:
    if entries := groups.get(key):
        entries.discard(group)
        if not entries:
            del groups[key]


def _refusal_seconds(group: Group, decisions: Sequence[Decision]) -> float:
    """Seconds for which the store would answer the same and change nothing; 0 where each refusal is to be counted.

    While a ban runs no refusal is counted; without one, a penalty counts each. When a slot is free again nobody knows.
    """
    waits: dict[str, list[float]] = {}
    for charge, decision in zip(group, decisions, strict=True):
        if not decision.allowed and (not charge.limit.is_concurrency or decision.retry_after == math.inf):
            waits.setdefault(charge.role, []).append(decision.retry_after)
    has_penalty = any(charge.role == "penalty" for charge in group)
    return max(waits.get("penalty" if has_penalty else "limit", ()), default=0.0)


def aged(charge: Charge, decision: Decision, elapsed_us: int) -> Decision:
    """The decision when so many microseconds have passed. `remaining` is left as it stood: by now it may be more."""
    if not elapsed_us:
        return decision
    wait, used = _reduced(decision.retry_after, elapsed_us), min(elapsed_us, microseconds(decision.reset_after))
    return replace(
        decision,
        allowed=not wait,
        retry_after=wait,
        next_after=_reduced(decision.next_after, used),  # of a whole quota it counts from now, whenever that is
        reset_after=_reduced(decision.reset_after, used),
        # a bucket's: when it is empty
        at=decision.at + elapsed_us - (used if isinstance(charge.limit, DelayableLimit) else 0),
    )


def _reduced(wait: float, elapsed_us: int) -> float:
    return wait if wait == math.inf else max(0, microseconds(wait) - elapsed_us) / MICROSECONDS

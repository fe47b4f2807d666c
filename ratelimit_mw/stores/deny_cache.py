"""A cache of refusals, so that a flood of refused requests costs the server almost nothing.

The store would refuse the same group of charges until its `retry_after` is over, unless a bucket is settled or reset.
So a cached refusal is correct, and the server need not be queried. Other processes may also settle a bucket. Therefore
no refusal is cached for longer than `max_seconds`, the setting `deny_cache`.
"""

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import replace

from ratelimit_mw.algorithms.bucket import DelayableLimit
from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, check_seconds, microseconds
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.contract import Clock
from ratelimit_mw.stores.group import stored_bucket
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_MAX_GROUPS: Final = 10_000  # cached refusals
_MAX_SETTLED_KEYS: Final = 1_000  # keys whose latest settlement is recorded

T = TypeVar("T")
RefusedGroup = tuple[Charge, ...]


class RememberedRefusal(NamedTuple):
    """A refused group, the decisions on it, and the time for which they are valid. Times are in microseconds.

    The store decided at an unknown instant between `queried_at` and `answered_at`. The refusal expires as if the store
    had decided at `queried_at`, so that it does not last too long. Its waits are counted from `answered_at`, so that
    none is too short.
    """

    charges: RefusedGroup
    decisions: Sequence[Decision]
    queried_at: int
    answered_at: int
    expires_at: int  # from then on the store may decide differently

    def is_valid(self, now: int) -> bool:
        """Whether the store would refuse the group at `now`. False if the clock stepped back."""
        return self.queried_at <= now < self.expires_at

    def decisions_at(self, now: int) -> Iterator[Decision]:
        """Return the decisions with their times reduced by the age of the refusal."""
        return map(_aged, self.charges, self.decisions, repeat(max(0, now - self.answered_at)))


class DenyCache:
    """Caches each refusal for at most `max_seconds`. Thread-safe; does no I/O. Time is passed in, in seconds.

    `by_key`: the refused groups by the key of each charge; empty without a refusal, so that `find` need not be called.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds: Final = check_seconds("deny_cache", max_seconds)
        self._refusals: OrderedDict[RefusedGroup, RememberedRefusal] = OrderedDict()  # oldest first
        self.by_key: dict[str, set[RefusedGroup]] = {}
        self._by_refusing_bucket: dict[tuple[str, str], set[RefusedGroup]] = {}  # by each refusing bucket
        self._settled_at: OrderedDict[str, float] = OrderedDict()  # by key, oldest first
        self._latest_evicted = 0.0  # the latest time that was evicted from `_settled_at`
        self._lock = fork_safe_lock()

    def find(self, charges: Sequence[Charge], now: float) -> Sequence[Decision] | None:
        """Return the cached refusal of this group with its times reduced by its age, or None."""
        # A quick check first: a string caches its hash, a group does not. The last key is more likely than the others
        # to belong to one client alone.
        if not charges or charges[-1].key not in self.by_key:
            return None
        group, time = tuple(charges), microseconds(now)
        refusal = self._refusals.get(group)
        if refusal is None:
            return None
        if not refusal.is_valid(time):
            with self._lock:
                if self._refusals.get(group) is refusal:  # not replaced by another thread
                    self._drop(group)
            return None
        return Answer(refusal.decisions_at(time), "remembered")

    def remember(
        self, charges: Sequence[Charge], decisions: Sequence[Decision], started_at: float, clock: Clock
    ) -> None:
        """Cache a refusal. If the group was admitted, drop refusals by its buckets: their waits are now too short."""
        for decision in decisions:
            if not decision.allowed:
                self._cache(tuple(charges), decisions, started_at, clock())
                return
        for charge in charges if self.by_key else ():
            if charge.key in self.by_key:
                with self._lock:
                    self._drop_all(self._by_refusing_bucket.get(stored_bucket(charge)))

    def forget(self, charges: Sequence[Charge], now: float) -> None:
        """Drop the groups with one of these keys. Decisions on them requested before `now` will not be cached."""
        with self._lock:
            for charge in charges:
                self._drop_all(self.by_key.get(charge.key))
                self._settled_at[charge.key] = now
                self._settled_at.move_to_end(charge.key)
            while len(self._settled_at) > _MAX_SETTLED_KEYS:
                self._latest_evicted = max(self._latest_evicted, self._settled_at.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop all refusals."""
        with self._lock:
            self._refusals.clear()
            self.by_key.clear()
            self._by_refusing_bucket.clear()

    def _cache(self, group: RefusedGroup, decisions: Sequence[Decision], started_at: float, now: float) -> None:
        queried_at = microseconds(started_at)
        expires_at = queried_at + microseconds(min(_refusal_seconds(group, decisions), self._max_seconds))
        if expires_at <= queried_at or isinstance(decisions, Answer):  # an `Answer` is not a decision of the store
            return
        with self._lock:
            if any(self._settled_at.get(charge.key, self._latest_evicted) > started_at for charge in group):
                return  # the decision may be older than the settlement
            self._drop(group)
            self._evict(queried_at)
            answered_at = max(queried_at, microseconds(now))
            self._refusals[group] = RememberedRefusal(group, decisions, queried_at, answered_at, expires_at)
            for charge, decision in zip(group, decisions, strict=True):
                self.by_key.setdefault(charge.key, set()).add(group)
                if not decision.allowed:
                    self._by_refusing_bucket.setdefault(stored_bucket(charge), set()).add(group)

    def _evict(self, now: int) -> None:
        """Drop the oldest refusal if the cache is full, and up to two expired ones, to shrink it after a flood."""
        if len(self._refusals) >= _MAX_GROUPS:
            self._drop(next(iter(self._refusals)))
        for _ in range(2):
            oldest = next(iter(self._refusals), None)
            if oldest is not None and self._refusals[oldest].expires_at <= now:
                self._drop(oldest)

    def _drop_all(self, groups: set[RefusedGroup] | None) -> None:
        for group in tuple(groups or ()):
            self._drop(group)

    def _drop(self, group: RefusedGroup) -> None:
        if self._refusals.pop(group, None) is not None:
            for charge in group:
                _discard(self.by_key, charge.key, group)
                _discard(self._by_refusing_bucket, stored_bucket(charge), group)


def _discard(groups: dict[T, set[RefusedGroup]], key: T, group: RefusedGroup) -> None:
    if entries := groups.get(key):
        entries.discard(group)
        if not entries:
            del groups[key]


def _refusal_seconds(group: RefusedGroup, decisions: Sequence[Decision]) -> float:
    """Return for how many seconds the store would refuse the group again and change nothing.

    If the group has a penalty, only the refusal by a ban can be cached: before the ban, the store has to count each
    refusal. A refusal for lack of slots cannot be cached, because a slot may be released at any time. Returns 0 if no
    refusal can be cached.
    """
    waits: dict[str, list[float]] = {}
    for charge, decision in zip(group, decisions, strict=True):
        if not decision.allowed and (not charge.limit.is_concurrency or decision.retry_after == math.inf):
            waits.setdefault(charge.role, []).append(decision.retry_after)
    has_penalty = any(charge.role == "penalty" for charge in group)
    return max(waits.get("penalty" if has_penalty else "limit", ()), default=0.0)


def _aged(charge: Charge, decision: Decision, elapsed_us: int) -> Decision:
    """Return the decision as it is `elapsed_us` microseconds later, except that `remaining` may be too low.

    `allowed` becomes true if this charge alone would pass by then. The group is still refused, by another charge.
    """
    if not elapsed_us:
        return decision
    wait = _reduced(decision.retry_after, elapsed_us)
    until_full = min(elapsed_us, microseconds(decision.reset_after))  # the part of the time in which units came back
    return replace(
        decision,
        allowed=not wait,
        retry_after=wait,
        next_after=_reduced(decision.next_after, until_full),  # it stays the same while the full quota is available
        reset_after=_reduced(decision.reset_after, until_full),
        # A window's `at` is the time of the decision. A bucket's `at` is the instant at which the bucket will be empty.
        # This instant is fixed until the bucket is empty; from then on, it is the present time.
        at=decision.at + elapsed_us - (until_full if isinstance(charge.limit, DelayableLimit) else 0),
    )


def _reduced(wait: float, elapsed_us: int) -> float:
    return wait if wait == math.inf else max(0, microseconds(wait) - elapsed_us) / MICROSECONDS

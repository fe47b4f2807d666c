"""The queues of requests in one process that wait for a concurrency slot. No I/O.

Requests that need slots of the same buckets form a FIFO queue. Several queues may share a bucket: for example, each
client has its queue, and all need slots of a limit with the key `all`. The queue with the oldest request then goes
first. It is passed over while its oldest request waits for a slot of another bucket, so that no request waits behind
one that cannot proceed anyway. Each process has its own queues, and processes have no common order.

The share of a holder, see `algorithms.fair_slots`, is a bucket of its own here, so each holder has its own queue. These
queues take turns, whatever the age of their requests (start-time fair queuing).
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from ratelimit_mw.stores.lifecycle import after_fork_in_child, fork_safe_lock

_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.0)  # seconds until a full bucket is tried again; the last one repeats
_MAX_PAUSE: Final = 1.0  # seconds; the longest sleep of the first request in a queue

SlotBucket = tuple[str, str]  # key, and bucket id of the limit


class SlotDemand(Struct, frozen=True):
    """The slots that a request may wait for.

    `buckets`: the buckets whose slots the request needs, and how many requests of this process may wait for each.
    `max_wait`: seconds. `keys`: the keys of the request. `shared`: buckets in which each key gets at most half of the
    places. `shares`: those of `buckets` that are the share of a holder, each with the bucket of its slots, which counts
    the requests that wait for it.
    """

    buckets: Mapping[SlotBucket, int]
    max_wait: float
    keys: Sequence[str] = ()
    shared: frozenset[SlotBucket] = frozenset()
    shares: Mapping[SlotBucket, SlotBucket] = {}

    def slots_of(self, buckets: Iterable[SlotBucket]) -> tuple[SlotBucket, ...]:
        """Return the buckets of slots among these, and in place of shares."""
        return tuple(dict.fromkeys(self.shares.get(bucket, bucket) for bucket in buckets))


class Waiter:
    """The place of one request in a queue.

    `may_try`: whether it may query the store now. `refused_by`: the buckets that refused it last. `turn`: of several
    first requests, that with the lowest turn goes first, and among equals the oldest.
    """

    __slots__ = ("age", "demand", "may_try", "refused_by", "turn", "wake")

    def __init__(self, demand: SlotDemand, wake: Callable[[], object], age: int, turn: int) -> None:
        self.demand: Final = demand
        self.wake: Final = wake
        self.age: Final = age
        self.turn: Final = turn
        self.refused_by: Sequence[SlotBucket] = ()
        self.may_try = False


_Queue = dict[Waiter, None]
_QueuesByBuckets = dict[tuple[SlotBucket, ...], _Queue]


class _BucketState:
    """The state of one bucket of slots in this process, and the queues that need its slots.

    An attempt is a query of the store by a request that needs slots of the bucket. `full`: whether the last attempt got
    no slot, and none was released since. `retry_at`: when to try again although the bucket is full, because other
    processes release slots, too. `has_attempt`: whether an attempt is in progress. `released_during_attempt`: whether a
    slot was released after the current attempt began.
    """

    __slots__ = (
        "failed_attempts",
        "full",
        "has_attempt",
        "last_turn",
        "queues",
        "released_during_attempt",
        "retry_at",
        "waiter_count",
        "waiters_by_key",
    )

    def __init__(self) -> None:
        self.queues: _QueuesByBuckets = {}
        self.full = self.has_attempt = self.released_during_attempt = False
        self.retry_at = 0.0
        self.failed_attempts = 0  # consecutive ones
        self.last_turn = 0  # of a share: that of its latest request
        self.waiter_count = 0  # how many requests wait for this bucket
        self.waiters_by_key = Counter[str]()  # the same by key


class Queues:
    """The queues of a process. Thread-safe; private methods require the lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._lock = fork_safe_lock()
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        """Empty the queues. Also runs after a fork, because the child has none of the waiting threads."""
        self._queues: _QueuesByBuckets = {}
        self._by_bucket: dict[SlotBucket, _BucketState] = {}
        self._age = self._turn = 0
        self.release_count = 0  # how many times slots were released

    def must_wait(self, buckets: Iterable[SlotBucket]) -> bool:
        """Return whether a request for slots of these buckets would overtake one that waits for them."""
        bucket_states = [
            bucket_state for bucket in buckets if (bucket_state := self._by_bucket.get(bucket)) is not None
        ]
        return any(bucket_state.full or bucket_state.has_attempt for bucket_state in bucket_states)

    def join(
        self,
        demand: SlotDemand,
        full: Sequence[SlotBucket],
        wake: Callable[[], object],
        release_count: int | None = None,
    ) -> Waiter | None:
        """Add a request to the end of its queue; return None if a queue has no place left.

        `full`: the buckets that refused the request. `wake`: called, in any thread, when the request must call `pause`
        again. `release_count`: its value before the store was queried. If it changed since, a slot may be free.
        """
        with self._lock:
            waits_for = demand.slots_of(full or [bucket for bucket in demand.buckets if self.must_wait([bucket])])
            if not all(self._has_capacity(demand, bucket) for bucket in waits_for):
                return None
            self._age += 1
            buckets = tuple(demand.buckets)
            queue = self._queues.setdefault(buckets, {})
            for bucket in buckets:
                self._by_bucket.setdefault(bucket, _BucketState()).queues[buckets] = queue
            shares = [self._by_bucket[bucket] for bucket in demand.shares]
            waiter = Waiter(demand, wake, self._age, 1 + max([self._turn, *(share.last_turn for share in shares)]))
            queue[waiter] = None
            for share in shares:
                share.last_turn = waiter.turn
            self._set_refused_by(waiter, waits_for)
            if release_count == self.release_count:
                self._mark_full([bucket for bucket in full if not self._by_bucket[bucket].full])
            woken = self._choose_next(buckets)
        _wake_all(woken)
        return waiter

    def record_refusal(self, waiter: Waiter, full: Sequence[SlotBucket]) -> None:
        """Record that a request with `may_try` queried the store and these buckets refused it."""
        with self._lock:
            self._end_attempt(waiter, full)
            self._set_refused_by(waiter, waiter.demand.slots_of(full))
            woken = self._choose_next(waiter.demand.buckets)
        _wake_all(woken)

    def leave(self, waiter: Waiter, full: Sequence[SlotBucket] = ()) -> None:
        """Remove a request. `full`: the buckets whose last slot it took."""
        with self._lock:
            buckets = tuple(waiter.demand.buckets)
            queue = self._queues[buckets]
            first = next(iter(queue)) is waiter
            del queue[waiter]
            if waiter.may_try:
                self._turn = max(self._turn, waiter.turn)
                for bucket in buckets:
                    self._by_bucket[bucket].failed_attempts = 0
                self._end_attempt(waiter, full)
            self._set_refused_by(waiter, ())
            woken = [next(iter(queue))] if first and queue else []  # from now on, it watches `retry_at`
            if not queue:
                del self._queues[buckets]
                for bucket in buckets:
                    del self._by_bucket[bucket].queues[buckets]
                    if not self._by_bucket[bucket].queues:
                        del self._by_bucket[bucket]
            woken += self._choose_next(buckets)
        _wake_all(woken)

    def wake(self, buckets: Sequence[SlotBucket]) -> None:
        """Record that slots of these buckets were released, and wake the next requests."""
        with self._lock:
            self.release_count += 1
            for bucket in buckets:
                if (bucket_state := self._by_bucket.get(bucket)) is not None:
                    bucket_state.full, bucket_state.released_during_attempt = False, True
            woken = self._choose_next(buckets)
        _wake_all(woken)

    def pause(self, waiter: Waiter) -> float:
        """Return the seconds that a request must sleep unless it is woken; 0 if it must query the store now."""
        with self._lock:
            buckets = tuple(waiter.demand.buckets)
            if next(iter(self._queues[buckets])) is not waiter:
                return 0.0 if waiter.may_try else math.inf  # it is woken when it becomes the first in its queue
            now = self._clock()
            due = self._due(buckets, now)
            # Any request that is the first of a queue for a due bucket may be chosen, unless another of its buckets
            # counts as full. So look for due buckets among all buckets of these requests.
            firsts = [next(iter(queue)) for bucket in due for queue in self._by_bucket[bucket].queues.values()]
            due += self._due([bucket for first in firsts for bucket in first.demand.buckets if bucket not in due], now)
            for bucket in due:
                self._by_bucket[bucket].full = False
            woken = self._choose_next(due)
            later = [self._by_bucket[bucket].retry_at - now for bucket in buckets if self._by_bucket[bucket].full]
            rest = 0.0 if waiter.may_try else min([*later, _MAX_PAUSE])
        _wake_all([one for one in woken if one is not waiter])
        return rest

    def _due(self, buckets: Iterable[SlotBucket], now: float) -> list[SlotBucket]:
        """Return the full buckets for which the store has to be queried again."""
        states = [(bucket, self._by_bucket[bucket]) for bucket in dict.fromkeys(buckets)]
        return [bucket for bucket, state in states if state.full and state.retry_at <= now]

    def _has_capacity(self, demand: SlotDemand, bucket: SlotBucket) -> bool:
        bucket_state, capacity = self._by_bucket.get(bucket), demand.buckets[bucket]
        if bucket_state is None:
            return True
        if bucket_state.waiter_count >= capacity:
            return False
        return bucket not in demand.shared or all(
            bucket_state.waiters_by_key[one] < max(1, capacity // 2) for one in demand.keys
        )

    def _set_refused_by(self, waiter: Waiter, full: Sequence[SlotBucket]) -> None:
        """Count the request as waiting for these buckets, and no longer for those that refused it before."""
        for buckets, step in ((waiter.refused_by, -1), (full, 1)):
            for bucket in buckets:
                bucket_state = self._by_bucket[bucket]
                bucket_state.waiter_count += step
                for key in waiter.demand.keys if bucket in waiter.demand.shared else ():
                    bucket_state.waiters_by_key[key] += step
                    if not bucket_state.waiters_by_key[key]:
                        del bucket_state.waiters_by_key[key]
        waiter.refused_by = full

    def _mark_full(self, full: Iterable[SlotBucket]) -> None:
        now = self._clock()
        for bucket in full:
            bucket_state = self._by_bucket[bucket]
            bucket_state.full = True
            bucket_state.retry_at = now + _PAUSES[min(bucket_state.failed_attempts, len(_PAUSES) - 1)]
            bucket_state.failed_attempts += 1

    def _end_attempt(self, waiter: Waiter, full: Sequence[SlotBucket]) -> None:
        waiter.may_try = False
        for bucket in waiter.demand.buckets:
            bucket_state = self._by_bucket[bucket]
            bucket_state.has_attempt = False
            if bucket not in full:
                bucket_state.full, bucket_state.failed_attempts = False, 0
            elif not bucket_state.released_during_attempt:
                self._mark_full([bucket])

    def _choose_next(self, buckets: Iterable[SlotBucket]) -> list[Waiter]:
        """Set `may_try` for requests that need these buckets. Return them. The caller wakes them without the lock."""
        firsts = {
            next(iter(queue)): None
            for bucket in buckets
            if (bucket_state := self._by_bucket.get(bucket)) is not None
            and not bucket_state.full
            and not bucket_state.has_attempt
            for queue in bucket_state.queues.values()
        }
        chosen = []
        for waiter in sorted(firsts, key=lambda one: (one.turn, one.age)):
            if not self.must_wait(waiter.demand.buckets):
                chosen.append(waiter)
                waiter.may_try = True
                for bucket in waiter.demand.buckets:
                    self._by_bucket[bucket].has_attempt, self._by_bucket[bucket].released_during_attempt = True, False
        return chosen


def _wake_all(waiters: Iterable[Waiter]) -> None:
    for waiter in waiters:
        waiter.wake()

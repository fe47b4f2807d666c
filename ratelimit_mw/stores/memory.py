"""States of one process, in memory: bounded, exact across threads and tasks, and without a thread of its own."""

import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import ClassVar

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.limit import Charge, Decision, Limit, State, whole
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores.group import Group, committed
from ratelimit_mw.ticks import microseconds

_TIDY = 2  # states looked at for expiry in one call: twice what one call can add, so that tidying always catches up
_LOOKS = 32  # states looked at to make room for a new one
_ENOUGH = 8  # of these, when one that does not refuse was among them and only an expired one would be better

Found = tuple["_Shelf", str, State]


class _Shelf:
    """The states of one limit, in two generations.

    States are written to the young one. Now and then young becomes old, and each call then moves a few old states on:
    into the bin if they expired, else back among the young. So expiry costs a constant per call, and nothing is ever
    swept at once.
    """

    __slots__ = ("limit", "old", "turn", "young")

    def __init__(self, limit: Limit, turn: int) -> None:
        self.limit = limit
        self.young: dict[str, State] = {}
        self.old: dict[str, State] = {}
        self.turn = turn  # microseconds: when young becomes old, once old is empty


class MemoryStore:
    """Keeps states in this process. For threads (`take`) and for asyncio (`atake`): a call never waits for I/O.

    `max_keys`: the most states it holds, at least 1. When it is full, a state that expired or, of the limit that holds
    most keys, one that does not refuse makes room; a flood of new keys never frees a key that is being refused. If
    there is no room, new keys of a limit share one overflow bucket. `clock`: a callable giving seconds, for tests;
    None is `time.monotonic`.
    """

    ends_in_time: ClassVar[bool] = True  # nobody need watch over how long a call takes

    def __init__(self, *, max_keys: int = 1_000_000, clock: Callable[[], float] | None = None) -> None:
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: found {clock!r}, allowed is a callable that returns seconds")
        self._room = self._max_keys = whole("max_keys", max_keys, 1)  # keys that can still be added
        self._told = clock
        self._shelves: dict[str, _Shelf] = {}
        self._lock = threading.Lock()
        self._acquire, self._release = self._lock.acquire, self._lock.release

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none. Raises `ConfigError` for a negative cost."""
        self._acquire()
        try:
            # read the clock under the lock: two threads must not commit out of order
            now = monotonic_ns() // 1000 if self._told is None else microseconds(self._told())
            if len(charges) == 1:  # the common case, without the bookkeeping of groups: one charge, its state at hand
                charge = charges[0]
                limit, key, cost = charge.limit, charge.key, charge.cost
                if cost >= 0 and charge.role == "limit" and charge.max_delay is None:
                    try:
                        young = self._shelves[limit.bucket].young
                        old = young[key]
                    except KeyError:
                        pass  # new, or not young any more
                    else:
                        decision, new = limit.decide(old, now, cost, None)
                        if new is not old:
                            young[key] = new
                        return [decision]
            return self._take(charges, now, commit=True)
        finally:
            self._release()

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What `take` would answer now; changes nothing."""
        with self._lock:
            return self._take(charges, self._now(), commit=False)

    def settle(self, charges: Sequence[Charge]) -> None:
        """Correct what was taken: `cost` is signed, `at` comes from the decision."""
        with self._lock:
            now = self._now()
            for charge in charges:
                ((shelf, key, old),) = self._find_all([charge], now, free=charge.cost > 0)
                new = charge.limit.settle(old, now, charge.cost, now if charge.at is None else charge.at)
                if new is None:
                    self._forget(shelf, key)
                elif new is not old:
                    self._add(shelf, key, new, now)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        with self._lock:
            for charge in charges:
                if shelf := self._shelves.get(charge.limit.bucket):
                    self._forget(shelf, charge.key)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._shelves.clear()
            self._room = self._max_keys

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `take`."""
        return self.take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `peek`."""
        return self.peek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `settle`."""
        self.settle(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `reset`."""
        self.reset(charges)

    async def aclose(self) -> None:
        """See `close`."""
        self.close()

    def _now(self) -> int:
        return monotonic_ns() // 1000 if self._told is None else microseconds(self._told())

    def __len__(self) -> int:
        """How many states are held, expired ones that were not tidied yet among them."""
        return self._max_keys - self._room

    def _take(self, asked: Sequence[Charge], now: int, *, commit: bool) -> Sequence[Decision]:
        """A whole group. Looks at all of it before it writes any of it."""
        group = Group(asked)
        charges = group.charges
        found = self._find_all(charges, now, free=commit)
        looks = [
            charge.limit.decide(old, now, charge.cost, charge.max_delay_us)
            for charge, (_, _, old) in zip(charges, found, strict=True)
        ]
        decisions = [decision for decision, _ in looks]
        for index, charged in enumerate(committed(charges, decisions)):
            shelf, key, old = found[index]
            decision, new = looks[index]
            if decision.allowed and not charged:
                decisions[index] = shelf.limit.decide(old, now, 0, None)[0]  # room, but not charged: as it stands
            elif commit and new is not old:
                self._add(shelf, key, new, now)
        return group.spread(decisions)

    def _find_all(self, charges: Sequence[Charge], now: int, *, free: bool) -> list[Found]:
        """The shelf, key and state of each charge's bucket. What is new has room, or shares the overflow bucket."""
        found = [self._find(charge.limit, charge.key, now) for charge in charges]
        if self._room >= len(charges):
            return found
        kept = {key for _, key, state in found if state is not None}
        room = self._room
        for index, (shelf, _, state) in enumerate(found):
            if state is not None or not charges[index].cost:
                continue
            if room > 0:
                room -= 1
            elif not self._make_room(now, kept, free=free):
                warn_rarely("MemoryStore", "%d keys are held and all refuse: new ones share a bucket", self._max_keys)
                found[index] = self._find(shelf.limit, _OVERFLOW, now)
        return found

    def _find(self, limit: Limit, key: str, now: int) -> Found:
        shelf = self._shelves.get(limit.bucket)
        if shelf is None:
            shelf = self._shelves[limit.bucket] = _Shelf(limit, now + limit.window_us)
        state = shelf.young.get(key)
        return shelf, key, shelf.old.get(key) if state is None else state

    def _add(self, shelf: _Shelf, key: str, state: State, now: int) -> None:
        """Keep a state. Whoever adds a key pays for tidying; who finds its key among the young need not come here."""
        if key not in shelf.young and shelf.old.pop(key, None) is None:
            self._room -= 1
        shelf.young[key] = state
        if shelf.old:
            self._tidy(shelf, now)
        elif now >= shelf.turn:
            shelf.old, shelf.young = shelf.young, shelf.old
            shelf.turn = now + shelf.limit.window_us

    def _forget(self, shelf: _Shelf, key: str) -> None:
        if shelf.young.pop(key, None) is not None or shelf.old.pop(key, None) is not None:
            self._room += 1

    def _tidy(self, shelf: _Shelf, now: int) -> None:
        for _ in range(min(_TIDY, len(shelf.old))):
            key, state = shelf.old.popitem()
            if shelf.limit.expires(state) <= now:
                self._room += 1
            else:
                shelf.young[key] = state

    def _make_room(self, now: int, kept: set[str], *, free: bool) -> bool:
        """Whether a key can go for a new one; `free` frees it, a peek does not.

        One that expired, of the limit that holds most keys or of another, each in its turn; else one that does not
        refuse, of the limit that holds most keys. Never one of `kept`.
        """
        largest = max(self._shelves.values(), key=lambda shelf: len(shelf.young) + len(shelf.old))
        for shelf in (largest, self._another(largest)):
            key = self._spare(shelf, now, kept, expired=shelf is not largest) if shelf else None
            if shelf and key is not None:
                if free:
                    self._forget(shelf, key)
                return True
        return False

    def _another(self, shelf: _Shelf) -> _Shelf | None:
        """The shelf whose turn it is, other than this one."""
        for _ in range(min(2, len(self._shelves))):
            bucket = next(iter(self._shelves))
            another = self._shelves[bucket] = self._shelves.pop(bucket)  # to the end of the queue
            if another is not shelf:
                return another
        return None

    def _spare(self, shelf: _Shelf, now: int, kept: set[str], *, expired: bool) -> str | None:
        """Of the next few keys one that expired, else one that does not refuse, unless only `expired` ones may go."""
        spare = None
        for looks in range(_LOOKS):
            if not shelf.old:
                shelf.old, shelf.young = shelf.young, shelf.old
            if not shelf.old or (spare is not None and looks >= _ENOUGH):
                break
            key, state = shelf.old.popitem()
            shelf.young[key] = state
            if key in kept:
                continue
            if shelf.limit.expires(state) <= now:
                return key
            if spare is None and not expired and shelf.limit.decide(state, now, 1, None)[0].allowed:
                spare = key
        return spare


_OVERFLOW = ""  # no charge has an empty key

"""States of one process, in memory: bounded, exact across threads and tasks, and without a thread of its own."""

from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic_ns
from typing import ClassVar

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.limit import Charge, Decision, Limit, State, microseconds, whole
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.stores.group import FORGIVEN, Group, committed, taken, units_to_look_at
from ratelimit_mw.stores.live import STORES, Stage
from ratelimit_mw.stores.shelf import PART, Shelf

_LOOKS = 8  # states of a limit that are looked at for one that expired, to make room for a new one
_OTHERS = 3  # limits, besides the one that holds most keys, that are searched for one
_FURTHER = 24  # states of that limit that are looked at for one that does not refuse, if none of the first ones is
_PAGES = 24  # that a limit which holds all keys is spread over: of a million, a dict grows for under two milliseconds

Found = tuple[Shelf, str, State]


class MemoryStore:
    """Keeps states in this process. For threads (`take`) and for asyncio (`atake`): a call never waits for I/O.

    `max_keys`: the most states it holds, at least 1. When it is full, an expired state makes room; if a few looks find
    none, an idle one does, of the limit that holds most keys: its last request was admitted, and it has a unit left.
    So a flood of new keys never frees a key whose last request was refused, whatever its cost. Where all keys are such,
    new keys of a limit share one overflow bucket. `clock`: a callable giving seconds, for tests; None is
    `time.monotonic`.
    """

    ends_in_time: ClassVar[bool] = True  # nobody need watch over how long a call takes

    def __init__(self, *, max_keys: int = 1_000_000, clock: Callable[[], float] | None = None) -> None:
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: found {clock!r}, allowed is a callable that returns seconds")
        self._room = self._max_keys = whole("max_keys", max_keys, 1)  # keys that can still be added
        self._own = self._told = clock  # what it was given, and what it goes by: tests may stop its time
        self._shelves: dict[str, Shelf] = {}
        self.forgiven = 0  # units of corrections beyond a debt of one quota, which nobody is charged
        self._new_limit = False
        self._largest: Shelf | None = None  # of those that grew, the one that holds most keys
        self._lock = lock(half_written=self._clear)
        STORES.enrol(self)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all of them if all are admitted, else none. Raises `ConfigError` for a negative cost."""
        own = self._lock
        own.acquire()  # half the price of `with`
        try:
            # read the clock under the lock: two threads must not commit out of order
            now = monotonic_ns() // 1000 if self._told is None else microseconds(self._told())
            if len(charges) == 1:  # the common case, without the bookkeeping of groups: one charge, its state at hand
                charge = charges[0]
                limit, key, cost = charge.limit, charge.key, charge.cost
                if cost >= 0 and charge.role == "limit" and charge.max_delay is None:
                    try:
                        page = self._shelves[limit.bucket].young
                        old = page[key]
                    except KeyError:  # new, or not young any more
                        page, old = self._recent(limit, key, now)
                    if old is not None:
                        decision, page[key] = limit.decide(old, now, cost, None)
                        if not decision.allowed:  # as `Shelf.refuse`, of which the call would cost as much again
                            self._shelves[limit.bucket].refusals[hash(key) & PART][key] = page[key]
                        return (decision,)
            elif (decisions := self._admitted(charges, now)) is not None:
                return decisions
            return self._take(charges, now, commit=True)
        finally:
            own.release()

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """What `take` would answer now; changes nothing."""
        with self._lock:
            return self._take(charges, self._now(), commit=False)

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """Correct what was taken: `cost` is signed, `at` comes from the decision. Answers what was taken by it."""
        with self._lock:
            now = self._now()
            return [self._settle(charge, now) for charge in charges]

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        with self._lock:
            for charge in charges:
                if shelf := self._shelves.get(charge.limit.bucket):
                    self._forget(shelf, charge.key)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `take`."""
        return self.take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `peek`."""
        return self.peek(charges)

    async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `settle`."""
        return self.settle(charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `reset`."""
        self.reset(charges)

    async def aclose(self) -> None:
        """See `close`."""
        self.close()

    def _enter(self, stage: Stage, *, empty: bool) -> None:
        with self._lock:
            if self._own is None:
                self._told = stage.steady
            if empty:
                self._clear()

    def _clear(self) -> None:
        self._shelves.clear()
        self._largest = None
        self._room = self._max_keys

    def _now(self) -> int:
        return monotonic_ns() // 1000 if self._told is None else microseconds(self._told())

    def __len__(self) -> int:
        """How many states are held, expired ones that were not tidied yet among them."""
        return self._max_keys - self._room

    def _admitted(self, charges: Sequence[Charge], now: int) -> list[Decision] | None:
        """The usual case of a group: limits with young states in buckets of their own that all admit. Else None."""
        decisions, written = [], {}
        for charge in charges:
            limit, key = charge.limit, charge.key
            shelf = self._shelves.get(limit.bucket)
            old = None if shelf is None else shelf.young.get(key)
            if (
                shelf is None
                or old is None
                or charge.cost < 0
                or charge.role != "limit"
                or charge.max_delay is not None
            ):
                return None
            decision, new = limit.decide(old, now, charge.cost, None)
            if not decision.allowed:
                return None
            decisions.append(decision)
            written[limit.bucket, key] = shelf.young, new
        if len(written) != len(charges):
            return None
        for (_, key), (young, new) in written.items():
            young[key] = new
        return decisions

    def _recent(self, limit: Limit, key: str, now: int) -> tuple[dict[str, State], State]:
        """See `Shelf.recent`. Once all room is used up, what is asked for has to be young, so that others go first."""
        shelf = self._shelves.get(limit.bucket)
        return ({}, None) if shelf is None or self._room <= 0 else shelf.recent(key, now)

    def _take(self, asked: Sequence[Charge], now: int, *, commit: bool) -> Sequence[Decision]:
        """A whole group. Looks at all of it before it writes any of it."""
        if self._new_limit:  # before any shelf is at hand
            self._drop_idle(now)
        group = Group(asked)
        charges = group.charges
        found = self._find_all(charges, now, free=commit)
        looks = [
            charge.limit.decide(old, now, units_to_look_at(charge), charge.max_delay_us)
            for charge, (_, _, old) in zip(charges, found, strict=True)
        ]
        decisions = [decision for decision, _ in looks]
        refused = not all(
            decision.allowed or charge.role == "shadow" for charge, decision in zip(charges, decisions, strict=True)
        )
        for index, charged in enumerate(committed(charges, decisions)):
            shelf, key, old = found[index]
            decision, new = looks[index]
            if decision.allowed and not charged:
                # room, but not charged: as it stands
                decisions[index] = charges[index].limit.decide(old, now, 0, None)[0]
                new = old
            elif commit and new is not None and (new is not old or key not in shelf.young):
                self._add(shelf, key, new, now)  # also what refused: it is asked for, and is found at once from now on
            if commit and refused and new is not None:
                shelf.refuse(key, new)  # also a limit with room, and the penalty: the request was refused
        return group.spread(decisions)

    def _settle(self, charge: Charge, now: int) -> Charge:
        limit, units = charge.limit, charge.cost
        ((shelf, key, old),) = self._find_all([charge], now, free=units > 0)
        if units > 0 and (beyond := limit.forgiven(old, now, units)):
            self.forgiven += beyond
            warn_rarely("settle", FORGIVEN, beyond)
            units -= beyond
        new = limit.settle(old, now, charge.cost, now if charge.at is None else charge.at)
        if new is None:
            self._forget(shelf, key)
        elif new is not old:
            refused = old is not None and shelf.refused(key, old)
            self._add(shelf, key, new, now)
            if refused:  # a correction is no request
                shelf.refuse(key, new)
        return charge if charge.cost <= 0 else taken(charge, units, limit.decide(new, now, 0, None)[0])

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
                warn_rarely("MemoryStore", "%d keys are held and none is idle: new ones share a bucket", self._max_keys)
                found[index] = self._find(shelf.limit, _OVERFLOW, now)
            elif self._room <= 0 and free:
                self._make_room(now, kept, free=True)  # one more, for a bucket that was shared: they come on top
        return found

    def _find(self, limit: Limit, key: str, now: int) -> Found:
        shelf = self._shelves.get(limit.bucket)
        if shelf is None:
            self._new_limit = True
            shelf = self._shelves[limit.bucket] = Shelf(limit, now, max(64, self._max_keys // _PAGES))
        return shelf, key, shelf.get(key)

    def _drop_idle(self, now: int) -> None:
        """Limits that are made as the app runs come and go: for each new one, two others are looked at."""
        self._new_limit = False
        for shelf in self._some(2):
            self._room += shelf.tidy(now)
            if not shelf.count:
                del self._shelves[shelf.limit.bucket]

    def _add(self, shelf: Shelf, key: str, state: State, now: int) -> None:
        """Keep a state. Whoever comes here pays for tidying; who finds its key among the young need not."""
        if shelf.put(key, state, now):
            self._room -= 1
            if self._largest is None or shelf.count > self._largest.count:
                self._largest = shelf
        self._room += shelf.tidy(now)

    def _forget(self, shelf: Shelf, key: str) -> None:
        self._room += shelf.forget(key)

    def _make_room(self, now: int, kept: set[str], *, free: bool) -> bool:
        """Whether a key can go for a new one; `free` frees it, a peek does not. Never one of `kept`."""
        largest = self._largest
        if largest is None or largest.count * len(self._shelves) < len(self):  # below the average: it has shrunk
            largest = self._largest = max(self._shelves.values(), key=lambda shelf: shelf.count)
        expired, idle = largest.spare(now, kept, _LOOKS)
        victim, shelf = expired, largest
        for other in self._some(_OTHERS):
            if victim is None and other is not largest:
                (victim, _), shelf = other.spare(now, kept, _LOOKS), other
        if victim is None:
            shelf = largest
            victim = idle or next(filter(None, largest.spare(now, kept, _FURTHER)), None)
        if victim is not None and free:
            self._forget(shelf, victim)
        return victim is not None

    def _some(self, number: int) -> list[Shelf]:
        """A few shelves, each in its turn."""
        turn = list(islice(self._shelves, number))
        for bucket in turn:
            self._shelves[bucket] = self._shelves.pop(bucket)  # to the end of the queue
        return [self._shelves[bucket] for bucket in turn]


_OVERFLOW = ""  # no charge has an empty key

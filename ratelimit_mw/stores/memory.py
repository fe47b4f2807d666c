"""The store in memory: bounded, exact across threads and tasks, without a background thread."""

from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic_ns, time_ns
from typing import ClassVar

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Charge, Decision, Limit, PlainGroup, State, check_int, microseconds
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.validation import check_arguments
from ratelimit_mw.stores.contract import InPlace
from ratelimit_mw.stores.generations import GenerationalMap
from ratelimit_mw.stores.group import Group, decide_group, is_plain
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides, fork_safe_lock

_PROBES = 8  # states per limit that are checked for an expired one, to make room for a new one
_OTHER_LIMITS = 3  # other limits to search for an expired key, round-robin; 2 if the largest limit is among them
_MORE_PROBES = 24  # more states to check of the limit with the most keys, if the first searches found no key to drop
# A generation closes when it has this part of `max_keys`. A dict with a 24th of a million keys resizes in under two
# milliseconds.
_SIZE_DIVISOR = 24

Entry = tuple[GenerationalMap, str, State]


class MemoryStore(InPlace):
    """Keeps states in this process, for threads (`take`) and for asyncio (`atake`). A call never waits for I/O.

    `max_keys`: the maximum number of states, at least 1. Overflow buckets come on top, one per limit at most. In a full
    store, a new key replaces an expired key or else an evictable one. A key is evictable if its last request was
    admitted and a unit is left. So a flood of new keys never replaces an unexpired key whose last request was refused,
    whatever the cost of that request. If a short search finds no key to replace, the new keys of a limit share one
    overflow bucket. `clock`: a callable that returns seconds, for tests; None is `time.monotonic`, and the time of day
    for calendar periods.
    """

    can_fail: ClassVar[bool] = False
    has_own_timeout: ClassVar[bool] = True  # a call never waits, so callers need no timeout

    def __init_subclass__(cls) -> None:
        """Let a subclass that declares nothing raise, and suspend if it has an `atake` of its own."""
        super().__init_subclass__()
        own = vars(cls)
        cls.can_fail = own.get("can_fail", True)
        cls.suspends = own.get("suspends", cls.suspends or "atake" in own)

    @check_arguments(elsewhere=dict.fromkeys(("maxsize", "max_size", "max_entries"), "into `max_keys`"))
    def __init__(self, *, max_keys: int = 1_000_000, clock: Callable[[], float] | None = None) -> None:
        if clock is not None and not callable(clock):
            raise ConfigError(f"clock: got {clock!r}, expected a callable that returns seconds", code="RL-043")
        self._free_keys = self._max_keys = check_int("max_keys", max_keys, 1)  # keys that can still be added
        self._configured_clock = self._clock = clock  # `testing` may replace `_clock`
        self._wall_clock: Callable[[], float] | None = None  # in place of `time_ns`; `testing` may replace it
        self._maps: dict[str, GenerationalMap] = {}  # by bucket id of the limit
        self._limit_was_added = False
        # A map with nearly the most keys: replaced when another grows past it, and in `_make_room` if it has fewer keys
        # than the average.
        self._largest: GenerationalMap | None = None
        self._lock = fork_safe_lock(on_interrupted_write=self._clear)
        REGISTRY.register(self)

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:  # noqa: C901, PLR0912  # calls of helpers would cost a tenth
        """See `Store.take`, and `group.committed` for shadows and penalties.

        Raises `ConfigError` for a negative cost, and for charges of one bucket that `group.can_be_summed` rejects.
        """
        lock = self._lock
        lock.acquire()  # takes half as long as `with`
        try:
            # Read the clock under the lock. Otherwise a thread could write a state with an earlier time over one with a
            # later time.
            now = monotonic_ns() // 1000 if self._clock is None else microseconds(self._clock())  # _now(), inlined
            if (type(charges) is PlainGroup or is_plain(charges)) and (count := len(charges)) <= self._free_keys:
                # the same as _take(), in a third of the time
                states: dict[str, State] | None
                decisions: list[Decision]
                changed: list[tuple[dict[str, State], str, State]]
                added: list[tuple[GenerationalMap, str, State]]
                if is_group := count != 1:
                    decisions, changed, added = [], [], []
                for charge in charges:
                    limit, key = charge.limit, charge.key
                    try:
                        state_map = self._maps[limit.bucket]
                    except KeyError:
                        break
                    states = state_map.current
                    old = states.get(key)
                    if old is None:
                        states, old = state_map.find_older(key, now)
                    decision, new = limit.decide(old, now, charge.cost, None)
                    if is_group:
                        if not decision.allowed:
                            break
                        decisions.append(decision)
                        if states is not None:
                            changed.append((states, key, new))
                        elif new is not None:
                            added.append((state_map, key, new))
                        continue
                    if states is not None:
                        if new is not old:
                            states[key] = new
                    elif new is not None:
                        self._add(state_map, key, new, now)
                    if not decision.allowed and new is not None:
                        state_map.mark_refused(key, new)
                    return (decision,)
                else:
                    for states, key, new in changed:
                        states[key] = new
                    for state_map, key, new in added:  # last, because it may move other states to other dicts
                        self._add(state_map, key, new, now)
                    return decisions
            return self._take(charges, now, commit=True)
        finally:
            lock.release()

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what `take` would return now, and charge nothing."""
        with self._lock:
            return self._take(charges, self._now(), commit=False)

    def settle(self, charges: Sequence[Charge]) -> None:
        """Correct earlier charges. See `Store.settle`."""
        with self._lock:
            now = self._now()
            for charge in charges:
                self._settle(charge, now)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        with self._lock:
            for charge in charges:
                if state_map := self._maps.get(charge.limit.bucket):
                    self._discard(state_map, charge.key)

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            self._clear()

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        with self._lock:
            if self._configured_clock is None:
                self._clock, self._wall_clock = overrides.monotonic, overrides.wall
            if empty:
                self._clear()

    def _clear(self) -> None:
        self._maps.clear()
        self._largest = None
        self._free_keys = self._max_keys

    def _now(self) -> int:
        return monotonic_ns() // 1000 if self._clock is None else microseconds(self._clock())

    def _wall_now(self) -> int:
        wall = self._wall_clock
        return time_ns() // 1000 if wall is None else microseconds(wall())

    def count_states(self) -> int:
        """See `BaseStore`."""
        return len(self)

    def __len__(self) -> int:
        """Return the number of states, including expired ones that were not dropped yet."""
        return self._max_keys - self._free_keys

    def _take(self, requested: Sequence[Charge], now: int, *, commit: bool) -> Sequence[Decision]:
        """Decide a whole group, and then write it if `commit` is set. Requires the lock."""
        if self._limit_was_added:  # first, because `_drop_empty` could delete a map that `_find_all` returned
            self._drop_empty(now)
        group = Group(requested)
        charges = group.charges
        entries = self._find_all(charges, now, evict=commit)
        # in a full store, several new keys of a limit may have its overflow bucket
        buckets = [entry[:2] for entry in entries] if self._free_keys < len(charges) else ()
        times = [state_map.time(now) for state_map, *_ in entries]
        outcome = decide_group(charges, [state for *_, state in entries], now, buckets, times)
        for index, (state_map, key, old) in enumerate(entries if commit else ()):
            new = outcome.states[index]
            if new is None:
                continue
            # An unchanged state moves to the current generation, unless its charge admits but does not count.
            moves = outcome.charged[index] or not outcome.decisions[index].allowed
            if new is not old or (moves and key not in state_map.current):
                self._add(state_map, key, new, now)
            if outcome.refused:
                # a full store must not evict any bucket of a refused request, not even those that did not refuse
                state_map.mark_refused(key, new)
        return group.spread(outcome.decisions)

    def _settle(self, charge: Charge, now: int) -> None:
        ((state_map, key, old),) = self._find_all([charge], now, evict=charge.cost > 0)
        time = state_map.time(now)
        new = charge.limit.settle(old, time, charge.cost, time if charge.at is None else charge.at)
        if new is None:
            self._discard(state_map, key)
        elif new is not old:
            refused = old is not None and state_map.is_refused(key, old)
            self._add(state_map, key, new, now)
            if refused:  # the mark stays, because a settlement is not a request
                state_map.mark_refused(key, new)

    def _find_all(self, charges: Sequence[Charge], now: int, *, evict: bool) -> list[Entry]:
        """Return map, key and state of each bucket. In a full store, room is made for new keys, or they share a bucket.

        `evict`: drop keys to make room, which a peek must not do.
        """
        entries = [self._find(charge.limit, charge.key, now) for charge in charges]
        if self._free_keys >= len(charges):
            return entries
        protected = {key for _, key, state in entries if state is not None}
        free_keys = self._free_keys
        for index, (state_map, _, state) in enumerate(entries):
            if state is not None or not charges[index].cost:
                continue
            if free_keys > 0:
                free_keys -= 1
            elif not self._make_room(now, protected, evict=evict):
                warn_throttled(
                    "MemoryStore",
                    "full with %d keys: new keys of a limit share a bucket",
                    self._max_keys,
                    code="RL-212",
                )
                entries[index] = self._find(state_map.limit, _OVERFLOW_KEY, now)
            elif self._free_keys <= 0 and evict:
                # overflow buckets have made `_free_keys` negative, so drop a key to return to `max_keys`
                self._make_room(now, protected, evict=True)
        return entries

    def _find(self, limit: Limit, key: str, now: int) -> Entry:
        state_map = self._maps.get(limit.bucket)
        if state_map is None:
            self._limit_was_added = True
            size = max(64, self._max_keys // _SIZE_DIVISOR)
            has_other_clock = limit.uses_wall_time and self._configured_clock is None  # one counts from 1970
            wall_clock = self._wall_now if has_other_clock else None
            state_map = self._maps[limit.bucket] = GenerationalMap(limit, now, size, wall_clock)
        return state_map, key, state_map.get(key)

    def _drop_empty(self, now: int) -> None:
        """Drop empty maps of limits: check two maps.

        Runs with the first take by `_take` after a limit was added. Otherwise an app that creates limits would add maps
        forever.
        """
        self._limit_was_added = False
        for state_map in self._rotate(2):
            self._free_keys += state_map.expire_some(now)
            if not state_map.count:
                del self._maps[state_map.limit.bucket]

    def _add(self, state_map: GenerationalMap, key: str, state: State, now: int) -> None:
        """Store a state, and drop a few expired ones. The states of recent clients are updated in place instead."""
        if state is None:  # a charge of 0 of a new key leaves no state
            return
        grown = state_map.set(key, state, now)
        if grown > 0 and (self._largest is None or state_map.count > self._largest.count):
            self._largest = state_map
        self._free_keys -= grown

    def _discard(self, state_map: GenerationalMap, key: str) -> None:
        self._free_keys += state_map.discard(key)

    def _make_room(self, now: int, protected: set[str], *, evict: bool) -> bool:
        """Return whether a key outside `protected` can make room. `evict`: drop it, which a peek must not do."""
        largest = self._largest
        if largest is None or largest.count * len(self._maps) < len(self):  # it has shrunk to less than the average
            largest = self._largest = max(self._maps.values(), key=lambda state_map: state_map.count)
        state_map, victim = self._find_victim(largest, now, protected)
        if victim is not None and evict:
            self._discard(state_map, victim)
        return victim is not None

    def _find_victim(
        self, largest: GenerationalMap, now: int, protected: set[str]
    ) -> tuple[GenerationalMap, str | None]:
        """Search for a key to drop, and return its map and the key; None as the key if it finds none.

        Searches in this order: an expired key of the largest limit, an expired key of a few other limits, an
        evictable key of the largest limit. Then it checks more keys of the largest limit. Only the largest limit loses
        evictable keys: a flood makes its own limit the largest, so it does not displace the clients of others.
        """
        others = [state_map for state_map in self._rotate(_OTHER_LIMITS) if state_map is not largest]
        expired, evictable = largest.find_evictable(now, protected, _PROBES)
        if expired is not None:
            return largest, expired
        for other in others:
            expired, _ = other.find_evictable(now, protected, _PROBES)
            if expired is not None:
                return other, expired
        if evictable is None or evictable == _OVERFLOW_KEY:
            expired, evictable = largest.find_evictable(now, protected, _MORE_PROBES)
        for victim in (expired, evictable):
            # An evictable overflow bucket stays. An expired one is left to the first search of the next call.
            if victim is not None and victim != _OVERFLOW_KEY:
                return largest, victim
        return largest, None

    def _rotate(self, number: int) -> list[GenerationalMap]:
        """Return the next few maps, round-robin."""
        buckets = list(islice(self._maps, number))
        for bucket in buckets:
            self._maps[bucket] = self._maps.pop(bucket)  # to the end of the queue
        return [self._maps[bucket] for bucket in buckets]


_OVERFLOW_KEY = ""  # no charge has an empty key

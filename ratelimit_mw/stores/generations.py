"""The states of one limit in memory, in generations: expired states are found without ever sweeping all of them."""

from collections import deque
from collections.abc import Container, Iterator
from typing import Final

from ratelimit_mw.core.limit import Limit, State

# states checked per call: twice as many as a call can add, so that expiry always catches up
_EXPIRE_PER_CALL: Final = 2
_MAX_GENERATIONS: Final = 48  # with more, the oldest generation is emptied before its states can have expired
# `hash(key) & PART_MASK` selects the dict of a refused key: several dicts, because a large one takes long to grow
PART_MASK: Final = 15


class GenerationalMap:
    """Maps keys to states. New states go to the current generation, which closes when full or half a window old.

    A window later, each call removes a few states from the oldest generation: expired ones are dropped, the others move
    to the current generation. So expiry costs a constant per call, and the oldest states are checked first. A
    generation holds at most `size` states, because growing or freeing a large dict delays the call in which it happens.
    Not thread-safe: `MemoryStore` calls it with its lock held.
    """

    __slots__ = ("_closes_at", "_cursor", "_older", "_size", "count", "current", "limit", "refusals")

    def __init__(self, limit: Limit, now: int, size: int) -> None:
        self.limit = limit
        self.count = 0  # states
        self.current: dict[str, State] = {}
        self._size = size
        self._closes_at = now + limit.window_us // 2  # microseconds
        self._older: deque[tuple[int, dict[str, State]]] = deque()  # (when to empty it, generation), oldest first
        self._cursor: Iterator[tuple[str, State]] | None = None  # over the oldest generation; removed states are None
        # key -> its state when its last request was refused. States are compared with `is`: an admitted request
        # replaces the state object, which makes the entry stale at no cost for that request. Stale entries are dropped
        # when they are read.
        self.refusals: tuple[dict[str, State], ...] = tuple({} for _ in range(PART_MASK + 1))

    def get(self, key: str) -> State:
        """Return the state of a key, or None."""
        state = self.current.get(key)
        if state is None:
            for _, generation in self._older:
                state = generation.get(key)
                if state is not None:
                    break
        return state

    def promote_or_get(self, key: str, now: int) -> tuple[dict[str, State], State]:
        """Return the state of a key that is not in the current generation, and the generation to update it in.

        The state is None for a new key and for one whose generation closed at least half a window ago: `set` then moves
        it to the current generation. Other keys stay where they are: if a limit has more keys than one generation
        holds, each of them would move again and again.
        """
        since = now + self.limit.window_us // 2
        for due_at, generation in reversed(self._older):
            if due_at <= since:
                break
            state = generation.get(key)
            if state is not None:
                return generation, state
        return self.current, None

    def set(self, key: str, state: State, now: int) -> bool:
        """Store a state in the current generation. Return whether its key is new."""
        is_new = key not in self.current and not self._remove(key)
        self.current[key] = state
        self.count += is_new
        if len(self.current) >= self._size or now >= self._closes_at:
            self._close(now)
        return is_new

    def mark_refused(self, key: str, state: State) -> None:
        """Record that the last request of this key was refused. `state` is the key's present state."""
        self.refusals[hash(key) & PART_MASK][key] = state

    def is_refused(self, key: str, state: State) -> bool:
        """Whether the last request of this key was refused. `state` is the key's present state."""
        part = self.refusals[hash(key) & PART_MASK]
        if part.get(key) is state:
            return True
        part.pop(key, None)
        return False

    def discard(self, key: str) -> bool:
        """Drop a state. Return whether there was one."""
        self.refusals[hash(key) & PART_MASK].pop(key, None)
        existed = self.current.pop(key, None) is not None or self._remove(key)
        self.count -= existed
        return existed

    def expire_some(self, now: int) -> int:
        """Drop the expired ones among a few of the oldest states, if their generation is due. Return their number."""
        expired_count = 0
        if self.current and now >= self._closes_at + self.limit.window_us:  # no writes for a window
            self._close(self._closes_at)
        if self._older and (self._older[0][0] <= now or len(self._older) > _MAX_GENERATIONS):
            for _ in range(_EXPIRE_PER_CALL):
                oldest = self._pop_oldest()
                if oldest is None:
                    break
                key, state = oldest
                if self.limit.expires(state) <= now:
                    self.refusals[hash(key) & PART_MASK].pop(key, None)
                    expired_count += 1
                else:
                    self.current[key] = state
                    self.is_refused(key, state)  # drops a stale entry
        self.count -= expired_count
        return expired_count

    def find_evictable(self, now: int, protected: Container[str], probes: int) -> tuple[str | None, str | None]:
        """Search a few keys, oldest first, for an expired and an idle one.

        Returns both; None for one that is not found. A key is idle if its last request was admitted and it has a unit
        left. Keys in `protected` are skipped. Checked keys move to the current generation, so that they are not checked
        again soon.
        """
        idle = None
        for _ in range(min(probes, self.count)):
            if not self._older:
                self._close(now)
            oldest = self._pop_oldest()
            if oldest is None:
                break
            key, state = oldest
            self.current[key] = state
            if key in protected:
                continue
            if self.limit.expires(state) <= now:
                return key, idle
            is_refused = self.is_refused(key, state)
            if idle is None and not is_refused and self.limit.decide(state, now, 1, None)[0].allowed:
                idle = key
        return None, idle

    def _close(self, now: int) -> None:
        self._older.append((now + self.limit.window_us, self.current))
        self._closes_at = now + self.limit.window_us // 2
        self.current = {}

    def _remove(self, key: str) -> bool:
        for _, generation in self._older:
            if generation.get(key) is not None:
                if self._cursor is not None and generation is self._older[0][1]:
                    generation[key] = None  # a dict must not change its size during iteration
                else:
                    del generation[key]
                return True
        return False

    def _pop_oldest(self) -> tuple[str, State] | None:
        """Remove and return the next state of the oldest generation that has one, or return None."""
        while self._older:
            generation = self._older[0][1]
            if self._cursor is None:
                self._cursor = iter(generation.items())
            for key, state in self._cursor:
                if state is not None:
                    generation[key] = None
                    return key, state
            self._older.popleft()
            self._cursor = None
        return None

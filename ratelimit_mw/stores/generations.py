"""Keeps the states of one limit in memory, in generations, so that expired states are found without a sweep of all."""

from collections import deque
from collections.abc import Callable, Container, Iterator
from typing import Final, NamedTuple

from ratelimit_mw.core.limit import Limit, State

# States that a call of `expire_some` checks. The `set` before it adds at most one, so expiry catches up.
_EXPIRE_PER_CALL: Final = 2
# The maximum number of closed generations of a map, because a lookup may search all of them. If there are more, the
# oldest one is emptied before it is due.
_MAX_GENERATIONS: Final = 48


class _Generation(NamedTuple):
    """A generation that is closed."""

    due_at: int  # when to empty it, in microseconds
    states: dict[str, State]  # values are None for removed states
    refusals: dict[str, State]  # see `GenerationalMap.current_refusals`


class GenerationalMap:
    """Maps keys to states. New states go to the current generation.

    The current generation closes in three cases:

    - at a call of `set`, once it has `size` states or began half a window ago;
    - at a call of `expire_some`, once it began one and a half windows ago, if no `set` has closed it before;
    - at a call of `find_evictable` that has no closed generation to search.

    A closed generation is *due* a window after it closed; in the second case, it is due at once. While the oldest one
    is due, each call of `expire_some` removes two states from it: expired ones are dropped, the others move to the
    current generation. So expiry costs a constant per call, and the oldest states are checked first.

    `wall_clock`: returns the time by which states expire, in microseconds; None if it is the time of the calls.

    `size` is limited because growing or freeing a large dict delays the call in which it happens. A generation can
    have more than `size` states, because states that move to it are not counted until the next `set`.

    Not thread-safe: `MemoryStore` calls it with its lock held.
    """

    __slots__ = (
        "_closes_at",
        "_cursor",
        "_older",
        "_size",
        "_wall_clock",
        "count",
        "current",
        "current_refusals",
        "limit",
    )

    def __init__(self, limit: Limit, now: int, size: int, wall_clock: Callable[[], int] | None = None) -> None:
        self.limit = limit
        self._wall_clock = wall_clock
        self.count = 0  # states
        self.current: dict[str, State] = {}
        self._size = size
        self._closes_at = now + limit.window_us // 2  # microseconds
        self._older: deque[_Generation] = deque()  # oldest first
        self._cursor: Iterator[tuple[str, State]] | None = None  # over the oldest generation; removed states are None
        # The keys of the current generation whose last request was refused. A full store must not evict them. Each key
        # has the state that its refused request left. The entry counts only while this object is still the key's state.
        # An admitted charge stores another object, so the entry no longer counts. An admitted cost of 0 keeps the
        # object, so the key remains marked as refused.
        self.current_refusals: dict[str, State] = {}

    def time(self, now: int) -> int:
        """Return `now` by the clock of the limit."""
        return now if self._wall_clock is None else self._wall_clock()

    def get(self, key: str) -> State:
        """Return the state of a key, or None."""
        state = self.current.get(key)
        if state is None:
            for generation in self._older:
                state = generation.states.get(key)
                if state is not None:
                    break
        return state

    def find_older(self, key: str, now: int) -> tuple[dict[str, State] | None, State]:
        """Find a key in the closed generations. Return the dict in which the caller updates its state, and the state.

        Returns None as the dict if the key is new, or if its generation closed at least half a window ago. The caller
        then uses `set`, which moves the state to the current generation. States of younger generations do not move.
        Otherwise, all states of a limit with more keys than fit into one generation would move again and again.
        """
        for generation in reversed(self._older) if self._older else ():
            state = generation.states.get(key)
            if state is not None:
                # A generation is due a window after it closed. So if it is due at most half a window from now, it
                # closed at least half a window ago.
                due_limit = now + self.limit.window_us // 2
                return (None if generation.due_at <= due_limit else generation.states), state
        return None, None

    def set(self, key: str, state: State, now: int) -> int:
        """Store a state in the current generation, then `expire_some`. Return by how many states the map has grown."""
        current, older = self.current, self._older
        is_new = key not in current and not (older and self._remove(key))
        current[key] = state
        self.count += is_new
        if len(current) >= self._size or now >= self._closes_at:
            self._close(now)
        return is_new - (self.expire_some(now) if older else 0)

    def mark_refused(self, key: str, state: State) -> None:
        """Record that the last request of this key was refused. `state`: the key's present state."""
        self._refusals_of(key)[key] = state

    def is_refused(self, key: str, state: State) -> bool:
        """Whether the last request of this key was refused. `state`: the key's present state."""
        return self._refusals_of(key).get(key) is state

    def _refusals_of(self, key: str) -> dict[str, State]:
        """Return the refusals of the generation that contains this key."""
        if key not in self.current:
            for generation in reversed(self._older):
                if generation.states.get(key) is not None:
                    return generation.refusals
        return self.current_refusals

    def discard(self, key: str) -> bool:
        """Drop a state. Return whether there was one."""
        self.current_refusals.pop(key, None)
        existed = self.current.pop(key, None) is not None or self._remove(key)
        self.count -= existed
        return existed

    def expire_some(self, now: int) -> int:
        """If the oldest generation is due, check two of its states and drop expired ones. Return how many were dropped.

        Also for limits that may have no keys left.
        """
        expired_count = 0
        if self.current and now >= self._closes_at + self.limit.window_us:  # no call of `set` for a window
            self._close(self._closes_at)  # so it is due at once
        if self._older and (self._older[0].due_at <= now or len(self._older) > _MAX_GENERATIONS):
            time = self.time(now)
            for _ in range(_EXPIRE_PER_CALL):
                oldest = self._pop_oldest()
                if oldest is None:
                    break
                key, state, is_refused = oldest
                if self.limit.expires(state) <= time:
                    expired_count += 1
                else:
                    self._keep(key, state, is_refused=is_refused)
        self.count -= expired_count
        return expired_count

    def find_evictable(self, now: int, protected: Container[str], probes: int) -> tuple[str | None, str | None]:
        """Search a few keys, oldest first, for an expired one and for an evictable one.

        Returns both; None for one that is not found. `MemoryStore` defines which unexpired keys are evictable. Keys in
        `protected` are skipped. Checked keys move to the current generation, so that they are not checked again soon.
        """
        evictable, time = None, self.time(now)
        for _ in range(min(probes, self.count)):
            if not self._older:
                self._close(now)
            oldest = self._pop_oldest()
            if oldest is None:
                break
            key, state, is_refused = oldest
            self._keep(key, state, is_refused=is_refused)
            if key in protected:
                continue
            if self.limit.expires(state) <= time:
                return key, evictable
            if evictable is None and not is_refused and self.limit.has_room(state, time):
                evictable = key
        return None, evictable

    def _close(self, now: int) -> None:
        self._older.append(_Generation(now + self.limit.window_us, self.current, self.current_refusals))
        self._closes_at = now + self.limit.window_us // 2
        self.current, self.current_refusals = {}, {}

    def _remove(self, key: str) -> bool:
        for generation in self._older:
            if generation.states.get(key) is not None:
                if self._cursor is not None and generation is self._older[0]:
                    generation.states[key] = None  # `_cursor` iterates over this dict, so its size must not change
                else:
                    del generation.states[key]
                generation.refusals.pop(key, None)
                return True
        return False

    def _keep(self, key: str, state: State, *, is_refused: bool) -> None:
        """Move a state from the oldest generation to the current one."""
        self.current[key] = state
        if is_refused:
            self.current_refusals[key] = state

    def _pop_oldest(self) -> tuple[str, State, bool] | None:
        """Remove the next state of the oldest generation that has one.

        Returns its key, the state, and whether its last request was refused; None without a state.
        """
        while self._older:
            generation = self._older[0]
            if self._cursor is None:
                self._cursor = iter(generation.states.items())
            for key, state in self._cursor:
                if state is not None:
                    generation.states[key] = None
                    return key, state, generation.refusals.pop(key, None) is state
            self._older.popleft()
            self._cursor = None
        return None

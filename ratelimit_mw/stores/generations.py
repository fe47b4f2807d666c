"""The states of one limit in memory, on pages, so that what is old is found first and nothing is ever swept at once."""

from collections import deque
from collections.abc import Container, Iterator
from typing import Final

from ratelimit_mw.core.limit import Limit, State

# states looked at in one call: twice what one call can add, so that tidying always catches up
_EXPIRE_PER_CALL: Final = 2
_MAX_GENERATIONS: Final = 48  # beyond that many, the oldest is emptied though its states still count
# `hash(key) & PART_MASK` is the dict of a refused key: there are several, as there are several pages
PART_MASK: Final = 15


class GenerationalMap:
    """States are written to the young page. It is closed when it is full or half a window old.

    A window later each call takes a few states out of the oldest page: into the bin if they expired, else back to the
    young one. So expiry costs a constant per call, and the oldest states are the first to be looked at. A page holds
    at most `size` states, because a dict that grows, or goes, holds up the call in which it does.
    """

    __slots__ = ("_closes_at", "_cursor", "_older", "_size", "count", "current", "limit", "refusals")

    def __init__(self, limit: Limit, now: int, size: int) -> None:
        self.limit = limit
        self.count = 0  # states
        self.current: dict[str, State] = {}
        self._size = size
        self._closes_at = now + limit.window_us // 2  # microseconds
        self._older: deque[tuple[int, dict[str, State]]] = deque()  # when to tidy it, and the page; the oldest first
        self._cursor: Iterator[tuple[str, State]] | None = None  # through the oldest page; what was taken out is None
        # key -> its state when its last request was refused. An admitted request replaces the state object, which ends
        # this without any work for that request; what is out of date is dropped when it is looked at.
        self.refusals: tuple[dict[str, State], ...] = tuple({} for _ in range(PART_MASK + 1))

    def get(self, key: str) -> State:
        """The state of a key, or None."""
        state = self.current.get(key)
        if state is None:
            for _, generation in self._older:
                state = generation.get(key)
                if state is not None:
                    break
        return state

    def promote_or_get(self, key: str, now: int) -> tuple[dict[str, State], State]:
        """The state of a key that is not young, and its page; None where it is to be put among the young.

        That is where its page is over half a window old. Else it may stay: a limit with more keys than one page holds
        would have each of them moved from page to page.
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
        """Keep a state. Whether its key is new."""
        is_new = key not in self.current and not self._remove(key)
        self.current[key] = state
        self.count += is_new
        if len(self.current) >= self._size or now >= self._closes_at:
            self._close(now)
        return is_new

    def mark_refused(self, key: str, state: State) -> None:
        """Remember that the last request of a key, whose state this is, was refused."""
        self.refusals[hash(key) & PART_MASK][key] = state

    def is_refused(self, key: str, state: State) -> bool:
        """Whether the last request of a key, whose state this is, was refused."""
        part = self.refusals[hash(key) & PART_MASK]
        if part.get(key) is state:
            return True
        part.pop(key, None)
        return False

    def discard(self, key: str) -> bool:
        """Drop a state. Whether there was one."""
        self.refusals[hash(key) & PART_MASK].pop(key, None)
        existed = self.current.pop(key, None) is not None or self._remove(key)
        self.count -= existed
        return existed

    def expire_some(self, now: int) -> int:
        """Drop what expired among a few of the oldest states, if their page is due. How many were dropped."""
        expired_count = 0
        if self.current and now >= self._closes_at + self.limit.window_us:  # nobody has written for long
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
                    self.is_refused(key, state)  # drops a mark that is out of date
        self.count -= expired_count
        return expired_count

    def find_evictable(self, now: int, protected: Container[str], probes: int) -> tuple[str | None, str | None]:
        """Of the next few keys, the oldest first, one that expired, and one that is idle; none of `protected`.

        A key is idle if its last request was admitted and it has a unit left.
        What is looked at and stays is among the young ones then, so that it is not looked at again soon.
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
                    generation[key] = None  # a dict that is walked through must not change its size
                else:
                    del generation[key]
                return True
        return False

    def _pop_oldest(self) -> tuple[str, State] | None:
        """Take the next state out of the oldest page that holds one."""
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

"""The states of one limit in memory, on pages, so that what is old is found first and nothing is ever swept at once."""

from collections import deque
from collections.abc import Container, Iterator
from typing import Final

from ratelimit_mw.limit import Limit, State

_TIDY: Final = 2  # states looked at in one call: twice what one call can add, so that tidying always catches up
_PAGES: Final = 48  # beyond that many, the oldest is emptied though its states still count
PART: Final = 15  # `hash(key) & PART` is the dict of a refused key: there are several, as there are several pages


class Shelf:
    """States are written to the young page. It is closed when it is full or half a window old.

    A window later each call takes a few states out of the oldest page: into the bin if they expired, else back to the
    young one. So expiry costs a constant per call, and the oldest states are the first to be looked at. A page holds
    at most `size` states, because a dict that grows, or goes, holds up the call in which it does.
    """

    __slots__ = ("_closes", "_older", "_size", "_walk", "count", "limit", "refusals", "young")

    def __init__(self, limit: Limit, now: int, size: int) -> None:
        self.limit = limit
        self.count = 0  # states
        self.young: dict[str, State] = {}
        self._size = size
        self._closes = now + limit.window_us // 2  # microseconds
        self._older: deque[tuple[int, dict[str, State]]] = deque()  # when to tidy it, and the page; the oldest first
        self._walk: Iterator[tuple[str, State]] | None = None  # through the oldest page; what was taken out is None
        # key -> its state when its last request was refused. An admitted request replaces the state object, which ends
        # this without any work for that request; what is out of date is dropped when it is looked at.
        self.refusals: tuple[dict[str, State], ...] = tuple({} for _ in range(PART + 1))

    def get(self, key: str) -> State:
        """The state of a key, or None."""
        state = self.young.get(key)
        if state is None:
            for _, page in self._older:
                state = page.get(key)
                if state is not None:
                    break
        return state

    def recent(self, key: str, now: int) -> tuple[dict[str, State], State]:
        """The state of a key that is not young, and its page; None where it is to be put among the young.

        That is where its page is over half a window old. Else it may stay: a limit with more keys than one page holds
        would have each of them moved from page to page.
        """
        since = now + self.limit.window_us // 2
        for due, page in reversed(self._older):
            if due <= since:
                break
            state = page.get(key)
            if state is not None:
                return page, state
        return self.young, None

    def put(self, key: str, state: State, now: int) -> bool:
        """Keep a state. Whether its key is new."""
        fresh = key not in self.young and not self._take_out(key)
        self.young[key] = state
        self.count += fresh
        if len(self.young) >= self._size or now >= self._closes:
            self._close(now)
        return fresh

    def refuse(self, key: str, state: State) -> None:
        """Remember that the last request of a key, whose state this is, was refused."""
        self.refusals[hash(key) & PART][key] = state

    def refused(self, key: str, state: State) -> bool:
        """Whether the last request of a key, whose state this is, was refused."""
        part = self.refusals[hash(key) & PART]
        if part.get(key) is state:
            return True
        part.pop(key, None)
        return False

    def forget(self, key: str) -> bool:
        """Drop a state. Whether there was one."""
        self.refusals[hash(key) & PART].pop(key, None)
        found = self.young.pop(key, None) is not None or self._take_out(key)
        self.count -= found
        return found

    def tidy(self, now: int) -> int:
        """Drop what expired among a few of the oldest states, if their page is due. How many were dropped."""
        dropped = 0
        if self.young and now >= self._closes + self.limit.window_us:  # nobody has written for long
            self._close(self._closes)
        if self._older and (self._older[0][0] <= now or len(self._older) > _PAGES):
            for _ in range(_TIDY):
                oldest = self._next()
                if oldest is None:
                    break
                key, state = oldest
                if self.limit.expires(state) <= now:
                    self.refusals[hash(key) & PART].pop(key, None)
                    dropped += 1
                else:
                    self.young[key] = state
                    self.refused(key, state)  # drops a mark that is out of date
        self.count -= dropped
        return dropped

    def spare(self, now: int, kept: Container[str], looks: int) -> tuple[str | None, str | None]:
        """Of the next few keys, the oldest first, one that expired, and one that is idle; none of `kept`.

        A key is idle if its last request was admitted and it has a unit left.
        What is looked at and stays is among the young ones then, so that it is not looked at again soon.
        """
        idle = None
        for _ in range(min(looks, self.count)):
            if not self._older:
                self._close(now)
            oldest = self._next()
            if oldest is None:
                break
            key, state = oldest
            self.young[key] = state
            if key in kept:
                continue
            if self.limit.expires(state) <= now:
                return key, idle
            refused = self.refused(key, state)
            if idle is None and not refused and self.limit.decide(state, now, 1, None)[0].allowed:
                idle = key
        return None, idle

    def _close(self, now: int) -> None:
        self._older.append((now + self.limit.window_us, self.young))
        self._closes = now + self.limit.window_us // 2
        self.young = {}

    def _take_out(self, key: str) -> bool:
        for _, page in self._older:
            if page.get(key) is not None:
                if self._walk is not None and page is self._older[0][1]:
                    page[key] = None  # a dict that is walked through must not change its size
                else:
                    del page[key]
                return True
        return False

    def _next(self) -> tuple[str, State] | None:
        """Take the next state out of the oldest page that holds one."""
        while self._older:
            page = self._older[0][1]
            if self._walk is None:
                self._walk = iter(page.items())
            for key, state in self._walk:
                if state is not None:
                    page[key] = None
                    return key, state
            self._older.popleft()
            self._walk = None
        return None

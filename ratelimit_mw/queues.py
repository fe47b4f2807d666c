"""The requests of one process that wait for a slot, and which of them asks the store next. No I/O.

Requests that need slots of the same buckets form a line, in which the oldest comes first. Of several lines that share
a bucket, such as one for each client beside a limit of key `all`, the line with the oldest request goes first, unless
it waits for a slot of another bucket: so nobody waits behind a request that could not go anyway. Between processes
there is no order: each has lines of its own.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from ratelimit_mw.stores.forks import lock, start_over_in_child

_PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.0)  # seconds until a full bucket is asked again; the last one from then on
_LONGEST_PAUSE: Final = 1.0  # seconds

Bucket = tuple[str, str]


class Wish(Struct, frozen=True):
    """What a request may wait for.

    `buckets`: of which it needs slots; for each, how many requests of this process may wait. `longest`: seconds. `who`:
    the keys of the request, each of which gets at most half of the places of a bucket in `shared`.
    """

    buckets: Mapping[Bucket, int]
    longest: float
    who: Sequence[str] = ()
    shared: frozenset[Bucket] = frozenset()


class Place:
    """The place of one request. `turn`: whether the request is to ask the store now. `full`: what refused it last."""

    __slots__ = ("age", "full", "turn", "wake", "wish")

    def __init__(self, wish: Wish, wake: Callable[[], object], age: int) -> None:
        self.wish: Final = wish
        self.wake: Final = wake
        self.age: Final = age
        self.full: Sequence[Bucket] = ()
        self.turn = False


_Line = dict[Place, None]
_Lines = dict[tuple[Bucket, ...], _Line]


class _Waited:
    """A bucket for whose slots requests wait.

    `full`: the last request that asked got none, and none was given back since; `again`: when this is to be asked
    again, because other processes give back slots too. `asking`: whether a request is asking now; `stale`: whether a
    slot was given back since it began to.
    """

    __slots__ = ("again", "asking", "full", "lines", "places", "stale", "vain", "who")

    def __init__(self) -> None:
        self.lines: _Lines = {}
        self.full = self.asking = self.stale = False
        self.again = 0.0
        self.vain = 0  # times that the store was asked for nothing, in a row
        self.places = 0  # requests that wait for this bucket
        self.who = Counter[str]()  # the same by key


class Queues:
    """The lines of a process. Several threads may call at once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock: Final = clock
        self._lock = lock()
        start_over_in_child(self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        """Empty the lines, also in a child process, where no thread waits."""
        self._lines: _Lines = {}
        self._waited: dict[Bucket, _Waited] = {}
        self._age = 0
        self.given = 0  # times that slots were given back

    def busy(self, buckets: Iterable[Bucket]) -> bool:
        """Whether a request for slots of these would overtake one that waits for them."""
        found = [waited for bucket in buckets if (waited := self._waited.get(bucket)) is not None]
        return any(waited.full or waited.asking for waited in found)

    def join(
        self, wish: Wish, full: Sequence[Bucket], wake: Callable[[], object], given: int | None = None
    ) -> Place | None:
        """A place at the end of a line; None where as many requests wait as may.

        `full`: the buckets that refused the request. `wake`: called, in any thread, when the request is to look at its
        place. `given`: what `given` was before the store was asked.
        """
        with self._lock:
            for_these = full or [bucket for bucket in wish.buckets if self.busy([bucket])]
            if not all(self._has_room(wish, bucket) for bucket in for_these):
                return None
            self._age += 1
            place = Place(wish, wake, self._age)
            buckets = tuple(wish.buckets)
            line = self._lines.setdefault(buckets, {})
            line[place] = None
            for bucket in buckets:
                self._waited.setdefault(bucket, _Waited()).lines[buckets] = line
            self._count(place, for_these)
            if given == self.given:
                self._mark([bucket for bucket in full if not self._waited[bucket].full])
            woken = self._choose(buckets)
        _wake(woken)
        return place

    def looked(self, place: Place, full: Sequence[Bucket]) -> None:
        """A request whose turn it was has asked the store, and these buckets refused it."""
        with self._lock:
            self._end_turn(place, full)
            self._count(place, full)
            woken = self._choose(place.wish.buckets)
        _wake(woken)

    def leave(self, place: Place, full: Sequence[Bucket] = ()) -> None:
        """A request waits no more. `full`: buckets of which it took the last slot."""
        with self._lock:
            buckets = tuple(place.wish.buckets)
            line = self._lines[buckets]
            first = next(iter(line)) is place
            del line[place]
            if place.turn:
                for bucket in buckets:
                    self._waited[bucket].vain = 0
                self._end_turn(place, full)
            self._count(place, ())
            woken = [next(iter(line))] if first and line else []  # it looks at the clock from now on
            if not line:
                del self._lines[buckets]
                for bucket in buckets:
                    del self._waited[bucket].lines[buckets]
                    if not self._waited[bucket].lines:
                        del self._waited[bucket]
            woken += self._choose(buckets)
        _wake(woken)

    def wake(self, buckets: Sequence[Bucket]) -> None:
        """Slots of these buckets were given back."""
        with self._lock:
            self.given += 1
            for bucket in buckets:
                if (waited := self._waited.get(bucket)) is not None:
                    waited.full, waited.stale = False, True
            woken = self._choose(buckets)
        _wake(woken)

    def pause(self, place: Place) -> float:
        """For how many seconds a request is to sleep, unless it is woken; 0 where it is to ask now."""
        with self._lock:
            buckets = tuple(place.wish.buckets)
            if next(iter(self._lines[buckets])) is not place:
                return 0.0 if place.turn else math.inf  # it is woken when it comes to the front
            now = self._clock()
            due = [bucket for bucket in buckets if self._waited[bucket].full and self._waited[bucket].again <= now]
            for bucket in due:  # whichever request is the oldest asks
                self._waited[bucket].full = False
            woken = self._choose(due)
            later = [self._waited[bucket].again - now for bucket in buckets if self._waited[bucket].full]
            rest = 0.0 if place.turn else min([*later, _LONGEST_PAUSE])
        _wake([one for one in woken if one is not place])
        return rest

    def _has_room(self, wish: Wish, bucket: Bucket) -> bool:
        waited, most = self._waited.get(bucket), wish.buckets[bucket]
        if waited is None:
            return True
        if waited.places >= most:
            return False
        return bucket not in wish.shared or all(waited.who[one] < max(1, most // 2) for one in wish.who)

    def _count(self, place: Place, full: Sequence[Bucket]) -> None:
        """From now on the request waits for these buckets."""
        for buckets, one in ((place.full, -1), (full, 1)):
            for bucket in buckets:
                waited = self._waited[bucket]
                waited.places += one
                for key in place.wish.who if bucket in place.wish.shared else ():
                    waited.who[key] += one
                    if not waited.who[key]:
                        del waited.who[key]
        place.full = full

    def _mark(self, full: Iterable[Bucket]) -> None:
        now = self._clock()
        for bucket in full:
            waited = self._waited[bucket]
            waited.full = True
            waited.again = now + _PAUSES[min(waited.vain, len(_PAUSES) - 1)]
            waited.vain += 1

    def _end_turn(self, place: Place, full: Sequence[Bucket]) -> None:
        place.turn = False
        for bucket in place.wish.buckets:
            waited = self._waited[bucket]
            waited.asking = False
            if bucket not in full:
                waited.full, waited.vain = False, 0
            elif not waited.stale:
                self._mark([bucket])

    def _choose(self, buckets: Iterable[Bucket]) -> list[Place]:
        """The requests whose turn it is from now on, of those that need one of these buckets: they are to be woken."""
        firsts = {
            next(iter(line)): None
            for bucket in buckets
            if (waited := self._waited.get(bucket)) is not None and not waited.full and not waited.asking
            for line in waited.lines.values()
        }
        chosen = []
        for place in sorted(firsts, key=lambda one: one.age):
            if not self.busy(place.wish.buckets):
                chosen.append(place)
                place.turn = True
                for bucket in place.wish.buckets:
                    self._waited[bucket].asking, self._waited[bucket].stale = True, False
        return chosen


def _wake(places: Iterable[Place]) -> None:
    for place in places:
        place.wake()

"""Requests that wait for a slot, in one process: the oldest first, and as many as may.

The first of a line asks the store again, when a slot was given back in this process and now and then, for others give
back too. Who comes later waits behind it without asking. Among processes there is no order: each has lines of its own.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from msgspec.structs import replace

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.policy import Plan
from ratelimit_mw.verdict import Verdict
from ratelimit_mw.waiting import Hold

_PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.25)  # seconds until the first asks again; the last one from then on

Bucket = tuple[str, str]


class Wish(NamedTuple):
    """What a request may wait for: a slot of one of these, among so many others, for so many seconds."""

    buckets: Sequence[Bucket]
    most: int
    longest: float


class _Place:
    """Of one request, in the lines of its buckets. `first`: whether it is the first in all of them."""

    __slots__ = ("buckets", "first", "wake")

    def __init__(self, buckets: Sequence[Bucket], wake: Callable[[], object]) -> None:
        self.buckets = buckets
        self.wake = wake
        self.first = False


class Queues:
    """The lines of a process, by bucket. Several threads may call at once."""

    def __init__(self) -> None:
        self._lines: dict[Bucket, deque[_Place]] = {}
        self._lock = threading.Lock()

    def busy(self, wish: Wish) -> bool:
        """Whether somebody waits already, who is not to be overtaken."""
        return any(bucket in self._lines for bucket in wish.buckets)

    def join(self, wish: Wish, wake: Callable[[], object]) -> _Place | None:
        """A place at the end; None where as many wait as may. `wake`: called in whatever thread gives back a slot."""
        place = _Place(wish.buckets, wake)
        with self._lock:
            if any(len(self._lines.get(bucket, ())) >= wish.most for bucket in wish.buckets):
                return None
            for bucket in wish.buckets:
                self._lines.setdefault(bucket, deque()).append(place)
            self._look(place)
        return place

    def leave(self, place: _Place) -> None:
        """It waits no more. Who is first now is woken."""
        with self._lock:
            for bucket in place.buckets:
                line = self._lines[bucket]
                line.remove(place)
                if not line:
                    del self._lines[bucket]
        self.wake(place.buckets)

    def wake(self, buckets: Iterable[Bucket]) -> None:
        """A slot was given back: who is first asks for it."""
        with self._lock:
            firsts = [line[0] for bucket in buckets if (line := self._lines.get(bucket))]
            for place in firsts:
                self._look(place)
        for place in firsts:
            place.wake()

    def _look(self, place: _Place) -> None:
        place.first = all(self._lines[bucket][0] is place for bucket in place.buckets)


def wish_of(asked: Plan) -> Wish | None:
    """What a request may wait for; None where nothing of it may."""
    lines = [(charge, line) for charge, line in zip(asked.charges, asked.lines, strict=True) if line.queue]
    if not lines:
        return None
    buckets = list(dict.fromkeys((charge.key, charge.limit.bucket) for charge, _ in lines))
    return Wish(buckets, min(line.queue for _, line in lines), min(line.queue_timeout for _, line in lines))


def waits(asked: Plan, verdict: Verdict | None) -> bool:
    """Whether nothing but slots that are waited for refuses."""
    if verdict is None or verdict.allowed or len(verdict.decisions) != len(asked.lines):
        return False
    return all(
        one.allowed or line.shadow or (line.queue > 0 and charge.cost <= one.limit)
        for charge, line, one in zip(asked.charges, asked.lines, verdict.decisions, strict=True)
    )


def none_free(asked: Plan, decisions: Sequence[Decision]) -> list[Decision]:
    """How things stand for one that must not wait: what is free is for those who do."""
    triples = zip(asked.charges, asked.lines, decisions, strict=True)
    return [_none_free(charge, one) if line.queue else one for charge, line, one in triples]


def _none_free(charge: Charge, decision: Decision) -> Decision:
    retry = charge.limit.longest_wait
    return replace(decision, allowed=False, remaining=0, retry_after=retry, next_after=retry, reset_after=retry)


def in_turn(
    queues: Queues, wish: Wish, ask: Callable[[], Verdict | None], again: Callable[[Verdict | None], bool]
) -> tuple[bool, Verdict | None]:
    """Wait in a thread. `ask`: the store's verdict; `again`: whether to wait on after it. Whether it came to an end."""
    woken = threading.Event()
    place = queues.join(wish, woken.set)
    if place is None:
        return False, None
    try:
        until, asked = time.monotonic() + wish.longest, 0
        while True:
            woken.clear()
            if place.first:
                verdict = ask()
                if not again(verdict):
                    return True, verdict
                asked += 1
            rest = until - time.monotonic()
            if rest <= 0:
                return False, None
            woken.wait(min(rest, _pause(asked)))
    finally:
        queues.leave(place)


async def ain_turn(
    queues: Queues,
    wish: Wish,
    ask: Callable[[], Awaitable[Verdict | None]],
    again: Callable[[Verdict | None], bool],
    hold: Hold,
) -> tuple[bool, Verdict | None]:
    """The same for asyncio. Who is cancelled, or whose `hold` raises, leaves the line."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        with suppress(RuntimeError):  # a loop that ended meanwhile has nobody who waits
            loop.call_soon_threadsafe(lambda: None if woken.done() else woken.set_result(None))

    place = queues.join(wish, wake)
    if place is None:
        return False, None
    try:
        until, asked = time.monotonic() + wish.longest, 0
        while True:
            woken = loop.create_future()
            if place.first:
                verdict = await ask()
                if not again(verdict):
                    return True, verdict
                asked += 1
            rest = until - time.monotonic()
            if rest <= 0:
                return False, None
            await hold(min(rest, _pause(asked)), woken)
    finally:
        queues.leave(place)


def _pause(asked: int) -> float:
    """Seconds until one that asked so often asks again; one that is not first yet only waits to be woken."""
    return _PAUSES[min(asked, len(_PAUSES)) - 1] if asked else float("inf")

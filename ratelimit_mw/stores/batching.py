"""How AsyncRedisStore sends: what many requests ask at once goes to the server as the groups of one call.

It adds no waiting. What comes in the same turn of the event loop goes together; what comes while the calls are under
way that may be, goes with the next one.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ratelimit_mw.errors import NotAsked, StoreError
from ratelimit_mw.stores.parcel import Parcel
from ratelimit_mw.stores.patience import LINGER, ListeningClock

_CALLS: Final = 2  # under way at most: client and server work at the same time, and calls do not get small
_GROUPS: Final = 32  # in one call at most: with more, the one waits until the other is done
_CHARGES: Final = 128  # in one call at most, unless one group has more: a script is not interrupted
_WAITING: Final = 10_000  # requests that are not sent yet, at most
_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used, even when the event loop was late


class _Call:
    """What is under way. When nobody waits for it any more, it is `late`, and another one may be sent."""

    __slots__ = ("asked", "late", "task", "until")

    def __init__(self, task: "asyncio.Task[None]", asked: Sequence[Parcel], until: float) -> None:
        self.task, self.asked, self.until, self.late = task, asked, until, False


def _unknown(_: Parcel) -> None:
    return None


class Batches:
    """The requests of one event loop.

    `ready` waits until something can be sent; `send` makes one call of groups and gives the reply of each. `timeout`:
    seconds that a request waits. Both raise `StoreError`. `recall`: the answer, if there is
    one by the time that a group is to be sent.
    """

    def __init__(
        self,
        ready: Callable[[], Awaitable[None]],
        send: Callable[[Sequence[Parcel]], Awaitable[Sequence[object]]],
        timeout: float,
        recall: Callable[[Parcel], object] = _unknown,
    ) -> None:
        self._ready, self._send, self._timeout, self._recall = ready, send, timeout, recall
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Parcel] = deque()  # in the order of their deadlines
        self._senders: set[asyncio.Task[None]] = set()
        self._due = 0  # senders that are about to take something from those who wait
        self._calls: list[_Call] = []
        self._clock = ListeningClock()
        self._watching = False
        self._looked = 0.0  # when it was last looked who waits too long, by the clock

    def reply(self, parcel: Parcel) -> "asyncio.Future[Any]":
        """To come: the reply to this group, or the `StoreError` that there is none. Who cancels it asks no more."""
        if len(self._waiting) >= _WAITING:
            raise NotAsked(f"{_WAITING} requests wait for the store already")
        reply = parcel.reply = self._loop.create_future()
        parcel.until = self._clock.now() + self._timeout
        self._waiting.append(parcel)
        self._start()
        if not self._watching:
            self._watch()
        return reply

    def close(self) -> None:
        """Whoever waits, waits in vain."""
        self._fail(NotAsked("the store was closed"))
        for call in self._calls:
            for asked in call.asked:
                asked.hear(NotAsked("the store was closed"))
        for sender in self._senders:
            sender.cancel()

    def _start(self) -> None:
        """Have what waits sent at the end of this turn, unless it will be anyway or as much is under way as may be."""
        if len(self._waiting) > self._due * _GROUPS and self._due + len(self._calls) < _CALLS:
            self._due += 1
            self._senders.add(self._loop.create_task(self._send_all()))

    async def _send_all(self) -> None:
        """Call after call, until nobody waits."""
        task: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment]  # it is a task
        try:
            while not await self._send_some(task) and self._waiting:
                self._due += 1
                await asyncio.sleep(0)  # who heard that it is refused tells what `recall` knows
        finally:
            self._senders.discard(task)

    async def _send_some(self, task: "asyncio.Task[None]") -> bool:
        """One call. Whether its place was given to another one meanwhile."""
        try:
            await self._ready()
        except StoreError as error:
            self._fail(error)
        finally:
            self._due -= 1
        together = self._next()
        if not together:
            return False
        call = _Call(task, together, self._clock.now() + self._timeout)
        self._calls.append(call)
        try:
            replies = await self._send(together)
        except StoreError as error:
            replies = [StoreError(str(error)) for _ in together]  # each its own: one that is raised remembers where
        finally:
            if not call.late:
                self._calls.remove(call)
        for asked, reply in zip(together, replies, strict=True):
            asked.hear(reply)
        return call.late

    def _next(self) -> Sequence[Parcel]:
        """The first of those who wait, as far as one call can take them, and without those who are gone."""
        together: list[Parcel] = []
        charges = 0
        waiting = self._waiting
        while waiting and len(together) < _GROUPS:
            first = waiting[0]
            if not first.reply.done() and (known := self._recall(first)) is not None:
                first.hear(known)
            if not first.reply.done():
                charges += len(first.charges)
                if together and (charges > _CHARGES or first.apart_from(together[0])):
                    break
                together.append(first)
            waiting.popleft()
        return together

    def _fail(self, error: StoreError) -> None:
        """Nobody waits any more."""
        while self._waiting:
            self._waiting.popleft().hear(type(error)(str(error)))

    def _watch(self) -> None:
        """See who waits too long, now and then while anybody waits.

        Who does hears of it the next time: what was in the socket by then is used.
        """
        self._give_up(self._looked)
        self._looked = self._clock.tick()
        self._watching = bool(self._waiting or self._calls)
        if self._watching:
            self._loop.call_later(max(_GRACE, self._clock.slice(self._first_deadline())), self._watch)

    def _first_deadline(self) -> float:
        firsts = [call.until for call in self._calls]
        firsts += [asked.until for call in self._calls for asked in call.asked if not asked.reply.done()]
        return min([*firsts, *(asked.until for asked in list(self._waiting)[:1])])

    def _give_up(self, looked: float) -> None:
        waiting = self._waiting
        while waiting and waiting[0].until <= looked:
            waiting.popleft().hear(self._too_late())
        for call in self._calls.copy():
            for asked in call.asked:
                if asked.until <= looked:
                    asked.hear(self._too_late())
            if call.until <= looked:
                call.late = True
                self._calls.remove(call)
                self._loop.call_later(LINGER, call.task.cancel)
                self._start()

    def _too_late(self) -> StoreError:
        return StoreError(f"no answer within {self._timeout} seconds")

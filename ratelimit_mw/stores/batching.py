"""How AsyncRedisStore sends: what many requests ask at once goes to the server as the groups of one call.

What comes in the same turn of the event loop goes together, at its end, or before where it is enough: then the server
works while the turn goes on. What comes while a call is under way goes with the next one: when that call is answered or
takes long, or as soon as it is enough. For each call costs both ends as much as several groups do.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final

from ratelimit_mw.errors import NotAsked, StoreError
from ratelimit_mw.stores.layer import Recall
from ratelimit_mw.stores.parcel import TAKEN, Parcel
from ratelimit_mw.stores.patience import LINGER, ListeningClock

_CALLS: Final = 2  # under way at most: client and server work at the same time
_ENOUGH: Final = 16  # groups for a call before the turn ends, or while another one is under way
_LONG: Final = 0.002  # seconds that a call is under way until the next one goes with fewer
_GROUPS: Final = 32  # in one call at most: with more, the one waits until the other is done
_CHARGES: Final = 128  # in one call at most, unless one group has more: a script is not interrupted
_WAITING: Final = 10_000  # requests that are not sent yet, at most
_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used, even when the event loop was late


Heard = Callable[[Sequence[object] | StoreError | None], None]
"""Is told the reply to each group; or why there is none; or None: nothing was done, and all may be sent again."""


class _Call:
    """What is under way. When nobody waits for it any more, it is `late`, and another one may be sent.

    `cancel`: ends it. `over`: it has ended.
    """

    __slots__ = ("asked", "cancel", "late", "over", "until")

    def __init__(self, asked: Sequence[Parcel], until: float) -> None:
        self.asked, self.until = asked, until
        self.late = self.over = False
        self.cancel: Callable[[], object] = bool

    def end(self) -> None:
        """End it, if it has not."""
        if not self.over:
            self.cancel()


def _nothing() -> None:
    return None


def _awaited(_: Sequence[Parcel], __: Heard) -> None:
    return None


def _unexpected(error: Exception) -> StoreError:
    return StoreError(f"{type(error).__name__}: {error}")


class Batches:
    """The requests of one event loop.

    `ready` waits until something can be sent; `send` makes one call of groups and gives the reply of each. Both raise
    `StoreError`. `begin` makes one at once, without a task for it: it answers what ends the call, or None where it has
    to be waited until something can be sent. `timeout`: seconds that a request waits. `recall`: what answers a take by
    the time that it is to be sent; None where nothing could.
    """

    def __init__(
        self,
        ready: Callable[[], Awaitable[None]],
        send: Callable[[Sequence[Parcel]], Awaitable[Sequence[object]]],
        timeout: float,
        recall: Callable[[], Recall | None] = _nothing,
        begin: Callable[[Sequence[Parcel], Heard], Callable[[], object] | None] = _awaited,
    ) -> None:
        self._ready, self._send, self._timeout, self._recall, self._begin = ready, send, timeout, recall, begin
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Parcel] = deque()  # in the order of their deadlines
        self._senders: set[asyncio.Task[None]] = set()
        self._turning = False  # the end of this turn sends something
        self._until = 0.0  # who comes in one turn waits until the same time
        self._due = 0  # calls that wait until something can be sent
        self._calls: list[_Call] = []
        self._clock = ListeningClock()
        self._watching = False
        self._looked = 0.0  # when it was last looked who waits too long, by the clock

    def reply(self, parcel: Parcel) -> "asyncio.Future[Any]":
        """To come: the reply to this group, or the `StoreError` that there is none. Who cancels it asks no more."""
        if len(self._waiting) >= _WAITING:
            raise NotAsked(f"{_WAITING} requests wait for the store already")
        reply = parcel.reply = self._loop.create_future()
        self._waiting.append(parcel)
        if self._turning:
            parcel.until = self._until
            if len(self._waiting) >= _ENOUGH and self._may_send():
                self._send_some()
        else:
            parcel.until = self._until = self._clock.now() + self._timeout
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
        """Have what waits sent at the end of this turn, unless as much is under way as may be."""
        if not self._turning and self._may_send():
            self._turning = True
            self._loop.call_soon(self._turn)

    def _may_send(self) -> bool:
        """Whether there are enough for whom no call is due, and one more may be under way."""
        one_will_do = not self._calls or self._until - self._calls[0].until > _LONG
        enough = 1 if one_will_do else _ENOUGH
        return len(self._waiting) >= self._due * _GROUPS + enough and self._due + len(self._calls) < _CALLS

    def _turn(self) -> None:
        self._turning = False
        if self._may_send():
            self._send_some()
            self._start()

    def _send_some(self) -> None:
        """One call for those who wait longest, except those of whom `recall` knows the answer by now."""
        together = self._next()
        if not together:
            return
        call = self._under_way(together)
        try:
            cancel = self._begin(together, partial(self._heard, call))
        except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            self._over(call, _unexpected(error))
            return
        if cancel is None:
            self._calls.remove(call)
            self._waiting.extendleft(reversed(together))
            self._due += 1
            self._keep(self._send_when_ready())
            return
        call.cancel = cancel

    def _heard(self, call: _Call, outcome: Sequence[object] | StoreError | None) -> None:
        if outcome is None:
            call.cancel = self._keep(self._send_call(call)).cancel
        else:
            self._over(call, outcome)

    async def _send_when_ready(self) -> None:
        try:
            await self._ready()
        except StoreError as error:
            self._fail(error)
        finally:
            self._due -= 1
        together = self._next()
        if together:
            call = self._under_way(together)
            task: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment]  # it is a task
            call.cancel = task.cancel
            await self._send_call(call)

    async def _send_call(self, call: _Call) -> None:
        try:
            outcome: Sequence[object] | StoreError = await self._send(call.asked)
        except StoreError as error:
            outcome = error
        except asyncio.CancelledError:  # nobody waits for it
            self._end(call)
            raise
        except Exception as error:  # noqa: BLE001  # as above
            outcome = _unexpected(error)
        self._over(call, outcome)

    def _under_way(self, together: Sequence[Parcel]) -> _Call:
        call = _Call(together, self._clock.now() + self._timeout)
        self._calls.append(call)
        return call

    def _over(self, call: _Call, outcome: Sequence[object] | StoreError) -> None:
        if isinstance(outcome, StoreError):  # to each its own: one that is raised remembers where
            outcome = [outcome.again() for _ in call.asked]
        for asked, reply in zip(call.asked, outcome, strict=True):
            asked.hear(reply)
        self._end(call)

    def _end(self, call: _Call) -> None:
        """Its place is free for another one."""
        call.over = True
        if not call.late:
            self._calls.remove(call)
            self._start()

    def _keep(self, sending: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(sending)
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)
        return task

    def _next(self) -> Sequence[Parcel]:
        """The first of those who wait, as far as one call can take them, and without those who are gone."""
        together: list[Parcel] = []
        charges, how = 0, TAKEN
        waiting, recall = self._waiting, self._recall()
        while waiting and len(together) < _GROUPS:
            parcel = waiting.popleft()
            if parcel.reply.done():
                continue
            if recall is not None and parcel.how.commit and (known := recall(parcel.written.asked)) is not None:
                parcel.hear(known)
                continue
            charges += parcel.written.weight
            if together and (charges > _CHARGES or parcel.how != how):
                waiting.appendleft(parcel)
                break
            how = parcel.how
            together.append(parcel)
        return together

    def _fail(self, error: StoreError) -> None:
        """Nobody waits any more."""
        while self._waiting:
            self._waiting.popleft().hear(error.again())

    def _watch(self) -> None:
        """See who waits too long, now and then while anybody waits.

        Who does hears of it the next time: what was in the socket by then is used.
        """
        self._give_up(self._looked)
        self._looked = self._clock.tick()
        if not self._turning:  # by now a call may be under way for long
            self._until = self._looked + self._timeout
            self._start()
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
                self._loop.call_later(LINGER, call.end)
                self._start()

    def _too_late(self) -> StoreError:
        return StoreError(f"no answer within {self._timeout} seconds")

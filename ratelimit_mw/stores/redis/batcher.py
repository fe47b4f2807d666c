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

from ratelimit_mw.core.errors import StoreError, StoreNotAsked
from ratelimit_mw.stores.layer import Lookup
from ratelimit_mw.stores.redis.deadline import ORPHAN_TIMEOUT, LoopClock
from ratelimit_mw.stores.redis.parcel import DEFAULT_MODE, PendingTake

_MAX_CALLS: Final = 2  # under way at most: client and server work at the same time
_ENOUGH: Final = 16  # groups for a call before the turn ends, or while another one is under way
_LONG: Final = 0.002  # seconds that a call is under way until the next one goes with fewer
_MAX_GROUPS: Final = 32  # in one call at most: with more, the one waits until the other is done
_MAX_CHARGES: Final = 128  # in one call at most, unless one group has more: a script is not interrupted
_MAX_WAITING: Final = 10_000  # requests that are not sent yet, at most
_REPLY_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used, even when the event loop was late


OnReplies = Callable[[Sequence[object] | StoreError | None], None]
"""Is told the reply to each group; or why there is none; or None: nothing was done, and all may be sent again."""


class _Call:
    """What is under way. When nobody waits for it any more, it is `late`, and another one may be sent.

    `cancel`: ends it. `over`: it has ended.
    """

    __slots__ = ("cancel", "late", "over", "takes", "until")

    def __init__(self, takes: Sequence[PendingTake], until: float) -> None:
        self.takes, self.until = takes, until
        self.late = self.over = False
        self.cancel: Callable[[], object] = bool

    def end(self) -> None:
        """End it, if it has not."""
        if not self.over:
            self.cancel()


def _no_lookup() -> None:
    return None


def _cannot_begin(_: Sequence[PendingTake], __: OnReplies) -> None:
    return None


def _unexpected(error: Exception) -> StoreError:
    return StoreError(f"{type(error).__name__}: {error}")


class Batcher:
    """The requests of one event loop.

    `ready` waits until something can be sent; `send` makes one call of groups and gives the reply of each. Both raise
    `StoreError`. `begin` makes one at once, without a task for it: it answers what ends the call, or None where it has
    to be waited until something can be sent. `timeout`: seconds that a request waits. `lookup`: what answers a take by
    the time that it is to be sent; None where nothing could.
    """

    def __init__(
        self,
        ready: Callable[[], Awaitable[None]],
        send: Callable[[Sequence[PendingTake]], Awaitable[Sequence[object]]],
        timeout: float,
        lookup: Callable[[], Lookup | None] = _no_lookup,
        begin: Callable[[Sequence[PendingTake], OnReplies], Callable[[], object] | None] = _cannot_begin,
    ) -> None:
        self._ready, self._send, self._timeout, self._recall, self._begin = ready, send, timeout, lookup, begin
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingTake] = deque()  # in the order of their deadlines
        self._senders: set[asyncio.Task[None]] = set()
        self._flush_scheduled = False  # the end of this turn sends something
        self._until = 0.0  # who comes in one turn waits until the same time
        self._due = 0  # calls that wait until something can be sent
        self._calls: list[_Call] = []
        self._clock = LoopClock()
        self._check_scheduled = False
        self._last_check = 0.0  # when it was last looked who waits too long, by the clock

    def reply(self, pending_take: PendingTake) -> "asyncio.Future[Any]":
        """To come: the reply to this group, or the `StoreError` that there is none. Who cancels it asks no more."""
        if len(self._waiting) >= _MAX_WAITING:
            raise StoreNotAsked(f"{_MAX_WAITING} requests wait for the store already")
        reply = pending_take.reply = self._loop.create_future()
        self._waiting.append(pending_take)
        if self._flush_scheduled:
            pending_take.until = self._until
            if len(self._waiting) >= _ENOUGH and self._may_send():
                self._send_some()
        else:
            pending_take.until = self._until = self._clock.now() + self._timeout
            self._start()
        if not self._check_scheduled:
            self._check_deadlines()
        return reply

    def close(self) -> None:
        """Whoever waits, waits in vain."""
        self._fail(StoreNotAsked("the store was closed"))
        for call in self._calls:
            for take in call.takes:
                take.receive(StoreNotAsked("the store was closed"))
        for sender in self._senders:
            sender.cancel()

    def _start(self) -> None:
        """Have what waits sent at the end of this turn, unless as much is under way as may be."""
        if not self._flush_scheduled and self._may_send():
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _may_send(self) -> bool:
        """Whether there are enough for whom no call is due, and one more may be under way."""
        one_will_do = not self._calls or self._until - self._calls[0].until > _LONG
        enough = 1 if one_will_do else _ENOUGH
        return len(self._waiting) >= self._due * _MAX_GROUPS + enough and self._due + len(self._calls) < _MAX_CALLS

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._may_send():
            self._send_some()
            self._start()

    def _send_some(self) -> None:
        """One call for those who wait longest, except those of whom `lookup` knows the answer by now."""
        batch = self._next_batch()
        if not batch:
            return
        call = self._start_call(batch)
        try:
            cancel = self._begin(batch, partial(self._on_replies, call))
        except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            self._finish(call, _unexpected(error))
            return
        if cancel is None:
            self._calls.remove(call)
            self._waiting.extendleft(reversed(batch))
            self._due += 1
            self._spawn(self._send_when_ready())
            return
        call.cancel = cancel

    def _on_replies(self, call: _Call, outcome: Sequence[object] | StoreError | None) -> None:
        if outcome is None:
            call.cancel = self._spawn(self._send_call(call)).cancel
        else:
            self._finish(call, outcome)

    async def _send_when_ready(self) -> None:
        try:
            await self._ready()
        except StoreError as error:
            self._fail(error)
        finally:
            self._due -= 1
        batch = self._next_batch()
        if batch:
            call = self._start_call(batch)
            task: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment]  # it is a task
            call.cancel = task.cancel
            await self._send_call(call)

    async def _send_call(self, call: _Call) -> None:
        try:
            outcome: Sequence[object] | StoreError = await self._send(call.takes)
        except StoreError as error:
            outcome = error
        except asyncio.CancelledError:  # nobody waits for it
            self._end(call)
            raise
        except Exception as error:  # noqa: BLE001  # as above
            outcome = _unexpected(error)
        self._finish(call, outcome)

    def _start_call(self, batch: Sequence[PendingTake]) -> _Call:
        call = _Call(batch, self._clock.now() + self._timeout)
        self._calls.append(call)
        return call

    def _finish(self, call: _Call, outcome: Sequence[object] | StoreError) -> None:
        if isinstance(outcome, StoreError):  # to each its own: one that is raised remembers where
            outcome = [outcome.copy() for _ in call.takes]
        for take, reply in zip(call.takes, outcome, strict=True):
            take.receive(reply)
        self._end(call)

    def _end(self, call: _Call) -> None:
        """Its place is free for another one."""
        call.over = True
        if not call.late:
            self._calls.remove(call)
            self._start()

    def _spawn(self, sending: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(sending)
        self._senders.add(task)
        task.add_done_callback(self._senders.discard)
        return task

    def _next_batch(self) -> Sequence[PendingTake]:
        """The first of those who wait, as far as one call can take them, and without those who are gone."""
        batch: list[PendingTake] = []
        charges, mode = 0, DEFAULT_MODE
        waiting, lookup = self._waiting, self._recall()
        while waiting and len(batch) < _MAX_GROUPS:
            pending_take = waiting.popleft()
            if pending_take.reply.done():
                continue
            if (
                lookup is not None
                and pending_take.mode.commit
                and (known := lookup(pending_take.encoded_group.original_charges)) is not None
            ):
                pending_take.receive(known)
                continue
            charges += pending_take.encoded_group.weight
            if batch and (charges > _MAX_CHARGES or pending_take.mode != mode):
                waiting.appendleft(pending_take)
                break
            mode = pending_take.mode
            batch.append(pending_take)
        return batch

    def _fail(self, error: StoreError) -> None:
        """Nobody waits any more."""
        while self._waiting:
            self._waiting.popleft().receive(error.copy())

    def _check_deadlines(self) -> None:
        """See who waits too long, now and then while anybody waits.

        Who does hears of it the next time: what was in the socket by then is used.
        """
        self._expire(self._last_check)
        self._last_check = self._clock.advance()
        if not self._flush_scheduled:  # by now a call may be under way for long
            self._until = self._last_check + self._timeout
            self._start()
        self._check_scheduled = bool(self._waiting or self._calls)
        if self._check_scheduled:
            self._loop.call_later(
                max(_REPLY_GRACE, self._clock.next_wait(self._first_deadline())), self._check_deadlines
            )

    def _first_deadline(self) -> float:
        firsts = [call.until for call in self._calls]
        firsts += [take.until for call in self._calls for take in call.takes if not take.reply.done()]
        return min([*firsts, *(take.until for take in list(self._waiting)[:1])])

    def _expire(self, now: float) -> None:
        waiting = self._waiting
        while waiting and waiting[0].until <= now:
            waiting.popleft().receive(self._timeout_error())
        for call in self._calls.copy():
            for take in call.takes:
                if take.until <= now:
                    take.receive(self._timeout_error())
            if call.until <= now:
                call.late = True
                self._calls.remove(call)
                self._loop.call_later(ORPHAN_TIMEOUT, call.end)
                self._start()

    def _timeout_error(self) -> StoreError:
        return StoreError(f"no answer within {self._timeout} seconds")

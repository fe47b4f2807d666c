"""Batches the requests of an event loop: many groups become one call to the server.

Requests of the same turn of the event loop are sent at its end, or earlier if there are enough: then the server works
during the rest of the turn. Requests that arrive during a call are sent when it is answered or slow, or as soon as
there are enough. The reason: a call costs both client and server as much as several groups do.
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

_MAX_CALLS: Final = 2  # in flight: client and server work at the same time
_MIN_BATCH: Final = 16  # groups that are sent before the turn ends, or while another call is in flight
_SLOW_CALL: Final = 0.002  # seconds of a call in flight, after which the next one may have fewer groups
_MAX_GROUPS: Final = 32  # in one call; with more, client and server would wait for each other
_MAX_CHARGES: Final = 128  # in one call, unless a single group has more: a script blocks the server
_MAX_WAITING: Final = 10_000  # requests that are not sent yet
_REPLY_GRACE: Final = 0.001  # seconds: even after a stall, a reply that is in the socket at the deadline is used


OnReplies = Callable[[Sequence[object] | StoreError | None], None]
"""Receives the reply to each group; or the error of the call; or None if nothing was done and all may be resent."""


def _do_nothing() -> None:
    return None


class _Call:
    """A call in flight.

    `late`: all its requests timed out, so another call may be sent. The late call stays open for `ORPHAN_TIMEOUT` at
    most; its reply is discarded, but its charges remain. `over`: it has ended. `cancel`: aborts it.
    """

    __slots__ = ("cancel", "late", "over", "takes", "until")

    def __init__(self, takes: Sequence[PendingTake], until: float) -> None:
        self.takes, self.until = takes, until
        self.late = self.over = False
        self.cancel: Callable[[], object] = _do_nothing

    def abort(self) -> None:
        """Abort the call unless it is over."""
        if not self.over:
            self.cancel()


def _no_lookup() -> None:
    return None


def _cannot_begin(_: Sequence[PendingTake], __: OnReplies) -> None:
    return None


def _unexpected(error: Exception) -> StoreError:
    return StoreError(f"{type(error).__name__}: {error}")


class Batcher:
    """Sends the requests of one event loop in batches.

    `ready` waits until something can be sent; `send` makes one call and returns the reply to each group. Both raise
    `StoreError`. `begin` makes a call without a task: it returns a function that aborts the call, or None if sending
    would have to wait. `timeout`: seconds that a request waits. `lookup` returns a `Lookup`,
    which can decide a take that waits without sending it, or None if there is nothing to look up.
    """

    def __init__(
        self,
        ready: Callable[[], Awaitable[None]],
        send: Callable[[Sequence[PendingTake]], Awaitable[Sequence[object]]],
        timeout: float,
        lookup: Callable[[], Lookup | None] = _no_lookup,
        begin: Callable[[Sequence[PendingTake], OnReplies], Callable[[], object] | None] = _cannot_begin,
    ) -> None:
        self._ready, self._send, self._timeout, self._lookup, self._begin = ready, send, timeout, lookup, begin
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[PendingTake] = deque()  # in the order of their deadlines
        self._senders: set[asyncio.Task[None]] = set()
        self._flush_scheduled = False  # for the end of this turn
        self._turn_deadline = 0.0  # deadline of the requests of this turn
        self._unready_calls = 0  # calls that wait for `ready`
        self._calls: list[_Call] = []
        self._clock = LoopClock()
        self._check_scheduled = False
        self._last_check = 0.0  # time of the last check of deadlines, by the clock

    def submit(self, pending_take: PendingTake) -> "asyncio.Future[Any]":
        """Enqueue a group and return a future of its reply. Cancel it to withdraw a request that is not sent yet.

        Raises `StoreNotAsked` if too many requests wait; the future raises `StoreError`.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise StoreNotAsked(f"{_MAX_WAITING} requests wait for the store already")
        reply = pending_take.reply = self._loop.create_future()
        self._waiting.append(pending_take)
        if self._flush_scheduled:
            pending_take.until = self._turn_deadline
            if len(self._waiting) >= _MIN_BATCH and self._may_send():
                self._send_batch()
        else:
            pending_take.until = self._turn_deadline = self._clock.now() + self._timeout
            self._start()
        if not self._check_scheduled:
            self._check_deadlines()
        return reply

    def close(self) -> None:
        """Fail all requests."""
        self._fail(StoreNotAsked("the store was closed"))
        for call in self._calls:
            for take in call.takes:
                take.resolve(StoreNotAsked("the store was closed"))
        for sender in self._senders:
            sender.cancel()

    def _start(self) -> None:
        """Schedule a flush for the end of this turn, if another call may be sent."""
        if not self._flush_scheduled and self._may_send():
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _may_send(self) -> bool:
        """Return whether to send another call now.

        Fewer than `_MAX_CALLS` must be in flight, and enough requests must wait beyond those that unready calls will
        take.
        """
        # both deadlines are start + timeout, so the difference is the age of the oldest call
        is_idle_or_slow = not self._calls or self._turn_deadline - self._calls[0].until > _SLOW_CALL
        needed = 1 if is_idle_or_slow else _MIN_BATCH
        return (
            len(self._waiting) >= self._unready_calls * _MAX_GROUPS + needed
            and self._unready_calls + len(self._calls) < _MAX_CALLS
        )

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._may_send():
            self._send_batch()
            self._start()

    def _send_batch(self) -> None:
        """Send one call with the requests that wait longest, except those that `lookup` can answer by now."""
        batch = self._next_batch()
        if not batch:
            return
        call = self._start_call(batch)
        try:
            cancel = self._begin(batch, partial(self._on_replies, call))
        except Exception as error:  # noqa: BLE001  # the waiting requests must receive any error
            self._finish(call, _unexpected(error))
            return
        if cancel is None:
            self._calls.remove(call)
            self._waiting.extendleft(reversed(batch))
            self._unready_calls += 1
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
            self._unready_calls -= 1
        batch = self._next_batch()
        if batch:
            call = self._start_call(batch)
            task: asyncio.Task[None] = asyncio.current_task()  # type: ignore[assignment]  # runs in a task
            call.cancel = task.cancel
            await self._send_call(call)

    async def _send_call(self, call: _Call) -> None:
        try:
            outcome: Sequence[object] | StoreError = await self._send(call.takes)
        except StoreError as error:
            outcome = error
        except asyncio.CancelledError:  # all its requests are gone, or the batcher was closed
            self._mark_over(call)
            raise
        except Exception as error:  # noqa: BLE001  # as above
            outcome = _unexpected(error)
        self._finish(call, outcome)

    def _start_call(self, batch: Sequence[PendingTake]) -> _Call:
        call = _Call(batch, self._clock.now() + self._timeout)
        self._calls.append(call)
        return call

    def _finish(self, call: _Call, outcome: Sequence[object] | StoreError) -> None:
        if isinstance(outcome, StoreError):  # a copy for each request: raising an error changes its traceback
            outcome = [outcome.copy() for _ in call.takes]
        for take, reply in zip(call.takes, outcome, strict=True):
            take.resolve(reply)
        self._mark_over(call)

    def _mark_over(self, call: _Call) -> None:
        """Mark a call as over and free its place for another one."""
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
        """Dequeue as many requests as one call can take. Drops canceled ones and answers those that `lookup` knows."""
        batch: list[PendingTake] = []
        charges, mode = 0, DEFAULT_MODE
        waiting, lookup = self._waiting, self._lookup()
        while waiting and len(batch) < _MAX_GROUPS:
            pending_take = waiting.popleft()
            if pending_take.reply.done():
                continue
            if (
                lookup is not None
                and pending_take.mode.commit
                and (known := lookup(pending_take.encoded_group.original_charges)) is not None
            ):
                pending_take.resolve(known)
                continue
            charges += pending_take.encoded_group.weight
            if batch and (charges > _MAX_CHARGES or pending_take.mode != mode):
                waiting.appendleft(pending_take)
                break
            mode = pending_take.mode
            batch.append(pending_take)
        return batch

    def _fail(self, error: StoreError) -> None:
        """Fail all requests that are not sent yet."""
        while self._waiting:
            self._waiting.popleft().resolve(error.copy())

    def _check_deadlines(self) -> None:
        """Expire overdue requests, and schedule the next check while requests wait.

        A request expires if it was overdue at the previous check already. The loop has read the sockets since then, so
        a reply that had arrived is used.
        """
        self._expire(self._last_check)
        self._last_check = self._clock.advance()
        if not self._flush_scheduled:  # a call in flight may be slow by now
            self._turn_deadline = self._last_check + self._timeout
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
            waiting.popleft().resolve(self._timeout_error())
        for call in self._calls.copy():
            for take in call.takes:
                if take.until <= now:
                    take.resolve(self._timeout_error())
            if call.until <= now:
                call.late = True
                self._calls.remove(call)
                self._loop.call_later(ORPHAN_TIMEOUT, call.abort)
                self._start()

    def _timeout_error(self) -> StoreError:
        return StoreError(f"no answer within {self._timeout} seconds")

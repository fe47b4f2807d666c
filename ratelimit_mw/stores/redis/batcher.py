"""Sends all groups of one turn of the event loop in few calls, because a call costs as much time as several groups.

When `_FIRST_GROUPS` groups of a turn wait, they are sent before its end, so that the server decides them while the app
handles the rest of the turn. Otherwise the app would be idle while the server decides a large batch.

Other groups are sent at the end of the turn, even while other calls are in flight, except in three cases:

- No connection is open. All groups wait until one is open, or until their deadlines.
- The user passed a redis-py client to the store, not one for a cluster. Such a client gets at most two calls in
  flight. The other groups wait for a reply.
- More than `_MAX_GROUPS_PER_TURN` groups are taken in one turn. The rest wait for the first reply, after which the deny
  cache may have their decisions.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from operator import attrgetter
from time import perf_counter
from typing import Any, Final

from msgspec import Struct

from ratelimit_mw.core.errors import StoreError, StoreNotQueried
from ratelimit_mw.metrics.recording import STORE_CALLS
from ratelimit_mw.stores.contract import SCRIPT_ERROR
from ratelimit_mw.stores.guarded import Guard
from ratelimit_mw.stores.redis.async_transport import AsyncTransport, Call
from ratelimit_mw.stores.redis.commands import DEFAULT_MODE, EncodedGroup, TakeMode
from ratelimit_mw.stores.redis.deadline import LATE_WORK_TIMEOUT, REPLY_GRACE, LoopClock
from ratelimit_mw.stores.redis.protocol import Command, RetryableReply
from ratelimit_mw.stores.redis.scripts import read_decisions_by_group

_MAX_GROUPS: Final = 32  # in one call; with more, client and server would wait for each other
_MAX_CHARGES: Final = 128  # in one call, because a script blocks the server; a single group may have more
_MAX_GROUPS_PER_TURN: Final = 64  # sent in one turn
_FIRST_GROUPS: Final = 12  # sent before the end of a turn
_MAX_WAITING: Final = 10_000  # requests without a reply

Outcome = Sequence[object] | StoreError


class PendingTake(Struct, eq=False, gc=False):
    """A group to take or peek, and the future of its decisions."""

    encoded_group: EncodedGroup
    mode: TakeMode
    reply: "asyncio.Future[Any]"
    deadline: float  # in seconds of a `LoopClock`, which ignores stalls of the event loop
    is_waiting: bool = True  # false once the batcher has set the result; still true if the request cancels `reply`


_group_of: Final[Callable[[PendingTake], EncodedGroup]] = attrgetter("encoded_group")
_keys_of: Final[Callable[[PendingTake], Sequence[bytes]]] = attrgetter("encoded_group.keys")


class Batcher:
    """Sends the takes of one event loop in batches, over `transport`.

    `command`: makes the command of a batch. `resend`: sends a batch again that the server did not process, and returns
    the outcome of each group. `timeout`: seconds that a request waits. `guard`: it may know the decisions on a
    take before the take is sent, because another request was refused in the meantime.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        command: Callable[[Sequence[EncodedGroup], TakeMode], Command],
        resend: Callable[[Sequence[EncodedGroup], TakeMode], Coroutine[Any, Any, Sequence[Outcome]]],
        timeout: float,
        guard: Guard,
    ) -> None:
        self.transport, self._command, self._resend = transport, command, resend
        self._timeout, self._guard = timeout, guard
        self._max_groups = 1 if transport.is_cluster else _MAX_GROUPS  # in a cluster, groups are in different slots
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PendingTake] = deque()  # not sent yet
        self._by_deadline: deque[PendingTake] = deque()
        self._waiting_count = 0
        self._flush_scheduled = False  # whether a flush is scheduled for the end of this turn
        self._turn_groups = 0  # sent in this turn
        self._turn_deadline = 0.0  # the deadline of the requests of this turn
        self._waiting_for_room: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._clock = LoopClock()
        self._check_scheduled = False
        self._last_check = 0.0  # time of the last check of deadlines, by the clock

    def submit(self, encoded_group: EncodedGroup, mode: TakeMode) -> "asyncio.Future[Any]":
        """Enqueue a group and return a future of its decisions. Cancel it to withdraw a request that is not sent yet.

        Raises `StoreNotQueried` if too many requests wait; the future raises `StoreError`.
        """
        if self._waiting_count >= _MAX_WAITING:
            raise StoreNotQueried(f"{_MAX_WAITING} requests wait for the store already")
        self._waiting_count += 1
        if not self._flush_scheduled:
            self._schedule_flush()
        reply = self._loop.create_future()
        take = PendingTake(encoded_group, mode, reply, self._turn_deadline)
        self._queue.append(take)
        self._by_deadline.append(take)
        if not self._check_scheduled:
            self._check_deadlines()
        if self._turn_groups == 0 and len(self._queue) >= _FIRST_GROUPS and (room := self.transport.room):
            self._send(room)
        return reply

    def close(self) -> None:
        """Fail all requests."""
        self._resolve(self._by_deadline, [StoreNotQueried("the store was closed") for _ in self._by_deadline])
        self._queue.clear()  # otherwise the end of a call in flight would send the rest, and connect again
        for task in self._tasks:
            task.cancel()

    def _schedule_flush(self) -> None:
        self._flush_scheduled = True
        self._turn_groups = 0
        self._turn_deadline = self._clock.now() + self._timeout
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send waiting requests, as many as the transport has room for. If it has none, wait for room in a task."""
        self._flush_scheduled = False
        if room := self.transport.room:
            self._send(room)
        elif self._queue and self._waiting_for_room is None:
            self._waiting_for_room = self._spawn(self._flush_when_ready())

    def _send(self, room: int) -> None:
        batches = self._next_batches(room)
        on_reply = self._on_reply if not STORE_CALLS.enabled else partial(self._count_reply, perf_counter())
        calls = []
        try:
            for batch in batches:
                groups = [*map(_group_of, batch)]
                command = self._command(groups, batch[0].mode)
                calls.append(Call(command, partial(on_reply, batch), groups[0].slot or 0))
            if calls:
                self.transport.send(calls)
        except Exception as error:  # noqa: BLE001  # the waiting requests must receive any error
            for batch in batches:
                self._finish(batch, StoreError(f"{type(error).__name__}: {error}"))

    async def _flush_when_ready(self) -> None:
        try:
            await self.transport.ready()
        except StoreError as error:
            if STORE_CALLS.enabled:
                STORE_CALLS.record("take", 0.0, error)
            queue = list(self._queue)
            self._queue.clear()
            self._finish(queue, error)
        finally:
            self._waiting_for_room = None
        self._flush()

    def _next_batches(self, room: int) -> list[list[PendingTake]]:
        """Dequeue requests for at most `room` calls. Drop canceled ones, and answer those that the guard knows."""
        batches: list[list[PendingTake]] = []
        batch: list[PendingTake] = []
        charges, mode = 0, DEFAULT_MODE
        queue, refusals, turn_groups = self._queue, self._guard.refusals, self._turn_groups
        while queue and turn_groups < _MAX_GROUPS_PER_TURN:
            take = queue.popleft()
            if take.reply.done():
                self._resolve((take,), (None,))
                continue
            group = take.encoded_group
            if refusals.by_key and take.mode.commit:
                known = refusals.find(group.original_charges, self._guard.clock())
                if known is not None:
                    self._resolve((take,), (known,))
                    continue
            charges += group.shape.weight
            is_full = charges > _MAX_CHARGES or take.mode != mode or len(batch) >= self._max_groups
            if not batch or is_full:
                if len(batches) >= room:
                    queue.appendleft(take)
                    break
                batch, charges, mode = [], group.shape.weight, take.mode
                batches.append(batch)
            batch.append(take)
            turn_groups += 1
        self._turn_groups = turn_groups
        return batches

    def _count_reply(self, started: float, batch: Sequence[PendingTake], reply: Any) -> None:
        if not isinstance(reply, RetryableReply):
            STORE_CALLS.record("take", perf_counter() - started, reply if isinstance(reply, StoreError) else None)
        self._on_reply(batch, reply)

    def _on_reply(self, batch: Sequence[PendingTake], reply: Any) -> None:
        outcome: Sequence[Outcome] | StoreError
        if isinstance(reply, RetryableReply) or (
            isinstance(reply, StoreError) and len(batch) > 1 and SCRIPT_ERROR in str(reply)
        ):
            self._spawn(self._send_again(batch))  # the server has not processed the batch
            return
        if isinstance(reply, StoreError):
            outcome = reply
        else:
            try:
                outcome = read_decisions_by_group(reply, [*map(len, map(_keys_of, batch))])
            except StoreError as error:
                outcome = error
        self._finish(batch, outcome)

    async def _send_again(self, batch: Sequence[PendingTake]) -> None:
        outcome: Sequence[Outcome] | StoreError
        try:
            async with asyncio.timeout(LATE_WORK_TIMEOUT + self._timeout):
                outcome = await self._resend([*map(_group_of, batch)], batch[0].mode)
        except StoreError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001  # as above
            outcome = StoreError(f"{type(error).__name__}: {error}")
        self._finish(batch, outcome)

    def _finish(self, batch: Sequence[PendingTake], outcome: Sequence[Outcome] | StoreError) -> None:
        if isinstance(outcome, StoreError):  # each request raises a copy, because raising changes an error's traceback
            outcome = [outcome.copy() for _ in batch]
        self._resolve(batch, outcome)
        if self._queue and not self._flush_scheduled:
            self._schedule_flush()

    def _resolve(self, takes: Collection[PendingTake], outcomes: Collection[Outcome | None]) -> None:
        """Set the results of the futures of requests, or the exception where the outcome is a `StoreError`."""
        for take, outcome in zip(takes, outcomes, strict=True):
            if not take.is_waiting:
                continue
            take.is_waiting = False
            self._waiting_count -= 1
            if take.reply.done():
                continue
            if isinstance(outcome, StoreError):
                take.reply.set_exception(outcome)
            else:
                take.reply.set_result(outcome)

    def _check_deadlines(self) -> None:
        """Fail overdue requests, and schedule the next check while requests wait.

        A request fails at the second check after its deadline, not at the first. The two checks are at least
        `REPLY_GRACE` apart, and the event loop reads the sockets in between. So a reply that has arrived is still used.
        """
        takes, is_late = self._by_deadline, False
        # here, `_last_check` still is the time of the previous check
        while takes and (not takes[0].is_waiting or takes[0].deadline <= self._last_check):
            take = takes.popleft()
            if take.is_waiting:
                is_late = True
                self._resolve((take,), (StoreError(f"no answer within {self._timeout} seconds"),))
        if is_late:
            self.transport.retire_late(self._timeout)
        self._last_check = self._clock.advance()
        self._check_scheduled = bool(takes)
        if takes:
            wait = max(REPLY_GRACE, self._clock.next_wait(takes[0].deadline))
            self._loop.call_later(wait, self._check_deadlines)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

"""A Redis store for asyncio. Takes go through a `Batcher`, which keeps their deadlines; others run in tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from ratelimit_mw.core.errors import StoreError, StoreNotAsked
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.layer import SCRIPT_ERROR, Lookup
from ratelimit_mw.stores.lifecycle import PerLoop
from ratelimit_mw.stores.redis.batcher import Batcher, OnReplies
from ratelimit_mw.stores.redis.commands import Command, RedisCommands, RetryableReply, Steps, T, adrive
from ratelimit_mw.stores.redis.deadline import ORPHAN_TIMEOUT, Deadline
from ratelimit_mw.stores.redis.parcel import DEFAULT_MODE, PendingTake, TakeMode
from ratelimit_mw.stores.redis.scripts import Codec, read_decisions, read_decisions_by_group

_REPLY_GRACE: Final = 0.001  # seconds: even after a stall, a reply that is in the socket at the deadline is used


class AsyncTransport(Protocol):
    """Sends commands to a server or a cluster, for asyncio."""

    is_cluster: bool  # whether a call reaches the keys of one hash slot only
    codec: Codec  # to use if the server supports it

    async def ready(self) -> None:
        """Wait until a command can probably be sent at once. Raises `StoreError`."""
        ...

    async def send(self, *command: Any) -> Any:
        """Return the reply. The caller limits the wait. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    def begin(self, command: Command, on_reply: Callable[[Any], None]) -> Callable[[], None] | None:
        """Send a command at once, without a coroutine.

        `on_reply` receives the reply, or the error that `send` would raise. Returns a function that aborts the call, or
        None if nothing was sent because it would have to wait.
        """
        ...

    async def close(self) -> None:
        """Close the connections of this event loop. The transport can be used again."""
        ...


class AsyncioStore(RedisCommands):
    """A Redis store for asyncio, without layers."""

    has_own_timeout: ClassVar[bool] = True  # callers need not limit the time of a call

    def __init__(
        self, transport: AsyncTransport, prefix: str, timeout: float, clock: Callable[[], float] | None
    ) -> None:
        super().__init__(prefix, timeout, clock, is_cluster=transport.is_cluster, codec=transport.codec)
        self._transport = transport
        self._calls: set[asyncio.Task[Any]] = set()
        self._last_loop: asyncio.AbstractEventLoop | None = None
        self._batchers = PerLoop(
            lambda: Batcher(transport.ready, self._send_together, timeout, self._get_lookup, self._begin)
        )
        self.lookup: Callable[[], Lookup | None] | None = None  # see `Batcher`

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the latest request; None before the first one."""
        return self._batchers.loop or self._last_loop

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.take`."""
        return await self.start_take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.peek`."""
        return await self.start_take(charges, commit=False)

    def start_take(self, original_charges: Sequence[Charge], *, commit: bool = True) -> Awaitable[Sequence[Decision]]:
        """Return an awaitable of the decisions of a take or a peek.

        Mostly it is a future, because a coroutine would cost each request more. Raises at once if charges are invalid.
        """
        if self.is_cluster:  # not batched: each slot takes its own call anyway
            return self._run(self._take(original_charges, commit=commit))
        if not original_charges:
            return _no_decisions()
        encoded_group = self._encoded_groups.get(id(original_charges)) or self._encode_group(original_charges)
        # without a configured clock the server's time counts
        mode = DEFAULT_MODE if commit and self._clock is None else TakeMode(self._now(), commit)
        answer = self._batchers.get().submit(PendingTake(encoded_group, mode))
        return answer if encoded_group.has_unique_buckets else _spread(encoded_group.group, answer)

    async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """See `RedisStore.settle`."""
        return await self._run(self._settle(charges))

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.reset`."""
        await self._run(self._reset(charges))

    async def aclose(self) -> None:
        """See `RedisStore.close`."""
        calls = {call for call in self._calls if call.get_loop() is asyncio.get_running_loop()}
        if calls:  # let refunds in progress complete
            await asyncio.wait(calls, timeout=self._timeout)
        for call in calls:
            call.cancel()
        batcher = self._batchers.pop()
        if batcher is not None:
            batcher.close()
        await self._transport.close()

    def _get_lookup(self) -> Lookup | None:
        return None if self.lookup is None else self.lookup()

    def _begin(self, pending_takes: Sequence[PendingTake], on_reply: OnReplies) -> Callable[[], None] | None:
        """Start what `_send_together` does, without a task. Returns None if sending would have to wait."""

        def on_server_reply(reply: Any) -> None:
            outcome: Sequence[Sequence[Decision]] | StoreError | None
            if isinstance(reply, RetryableReply) or (
                isinstance(reply, StoreError) and len(pending_takes) > 1 and SCRIPT_ERROR in str(reply)
            ):
                outcome = None  # nothing was done
            elif isinstance(reply, StoreError):
                outcome = reply
            else:
                try:
                    outcome = read_decisions_by_group(
                        reply, [len(pending_take.encoded_group.keys) for pending_take in pending_takes]
                    )
                except StoreError as error:
                    outcome = error
            on_reply(outcome)

        return self._transport.begin(next(self._take_together(pending_takes)), on_server_reply)

    async def _send_together(self, pending_takes: Sequence[PendingTake]) -> Sequence[Sequence[Decision] | StoreError]:
        """Return the decisions on each group from one call.

        If the script rejects an argument, each group is sent alone, so that only invalid ones fail.
        """
        try:
            reply = await adrive(self._take_together(pending_takes), self._send)
        except StoreError as error:
            if len(pending_takes) == 1 or SCRIPT_ERROR not in str(error):
                raise
            return [await self._take_alone(pending_take) for pending_take in pending_takes]
        return read_decisions_by_group(reply, [len(pending_take.encoded_group.keys) for pending_take in pending_takes])

    async def _take_alone(self, pending_take: PendingTake) -> Sequence[Decision] | StoreError:
        try:
            return read_decisions(
                await adrive(self._take_together([pending_take]), self._send), pending_take.encoded_group.group.charges
            )
        except StoreError as error:
            return error

    async def _run(self, steps: Steps[T]) -> T:
        """Run the steps in a separate task.

        So a request that is canceled or times out leaves no half-read reply behind.
        """
        self._last_loop = asyncio.get_running_loop()
        call = self._last_loop.create_task(self._run_to_end(steps))
        self._calls.add(call)
        call.add_done_callback(self._on_task_done)
        deadline = Deadline(self._timeout)
        while not call.done() and deadline.left > 0:
            since = time.monotonic()
            await asyncio.wait({call}, timeout=deadline.next_wait())
            deadline.record_wait(since)
        if not call.done():
            await asyncio.wait({call}, timeout=_REPLY_GRACE)
        if not call.done():
            raise StoreError(f"no answer within {self._timeout} seconds")
        if call.cancelled():
            raise StoreNotAsked("the store was closed")
        return call.result()

    def _on_task_done(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # marks it as retrieved; a request that still waits gets it too

    async def _run_to_end(self, steps: Steps[T]) -> T:
        try:
            async with asyncio.timeout(ORPHAN_TIMEOUT + self._timeout):
                return await adrive(steps, self._run_step)
        except TimeoutError as error:
            raise StoreError("no answer in time") from error

    async def _run_step(self, step: Any) -> Any:
        """Return the outcomes of steps that run concurrently, or the reply to one command."""
        if isinstance(step, list):
            return await asyncio.gather(*(self._run(steps) for steps in step), return_exceptions=True)
        return await self._transport.send(*step)

    def _send(self, command: Command) -> Awaitable[Any]:
        """Return the reply to a command, for steps that yield only commands."""
        return self._transport.send(*command)


async def _no_decisions() -> Sequence[Decision]:
    return []


async def _spread(group: Group, answer: Awaitable[Sequence[Decision]]) -> Sequence[Decision]:
    decisions = await answer
    # an Answer comes from memory, and has a decision for each original charge
    return decisions if isinstance(decisions, Answer) else group.spread(decisions)

"""A Redis store for asyncio. Takes go through a `Batcher`, which keeps their deadlines. Other calls run in tasks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, cast

from ratelimit_mw.core.errors import StoreError, StoreNotQueried
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores.contract import SCRIPT_ERROR
from ratelimit_mw.stores.guarded import Guard
from ratelimit_mw.stores.inventory import Refusal
from ratelimit_mw.stores.kept_overrides import KeptOverrides
from ratelimit_mw.stores.lifecycle import PerLoop
from ratelimit_mw.stores.live import Report
from ratelimit_mw.stores.redis.async_transport import AsyncTransport
from ratelimit_mw.stores.redis.batcher import Batcher, Outcome
from ratelimit_mw.stores.redis.commands import DEFAULT_MODE, EncodedGroup, RedisCommands, TakeMode
from ratelimit_mw.stores.redis.deadline import LATE_WORK_TIMEOUT, REPLY_GRACE, Deadline
from ratelimit_mw.stores.redis.inventory import add_refused
from ratelimit_mw.stores.redis.kept_overrides import read_overrides
from ratelimit_mw.stores.redis.live import add_live
from ratelimit_mw.stores.redis.protocol import Command, Part, T
from ratelimit_mw.stores.redis.scripts import read_decisions_by_group

_CANCEL_STEP: Final = 0.05  # seconds


class AsyncioStore(RedisCommands):
    """A Redis store for asyncio. `make_transport`: makes the transport of the running event loop.

    `guard`: that of the store around this one, for takes that wait to be sent.
    """

    has_own_timeout: ClassVar[bool] = True  # each call ends within `timeout`, so callers need none of their own

    def __init__(
        self,
        make_transport: Callable[[], AsyncTransport],
        prefix: str,
        timeout: float,
        clock: Callable[[], float] | None,
        guard: Guard,
        *,
        is_cluster: bool,
    ) -> None:
        super().__init__(prefix, timeout, clock, is_cluster=is_cluster)
        self._calls: set[asyncio.Task[Any]] = set()
        self._batchers = PerLoop(lambda: Batcher(make_transport(), self._take_command, self._resend, timeout, guard))

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of the latest request; None before the first one, and after a close."""
        return self._batchers.loop

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.take`."""
        return await self.start_take(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.peek`."""
        return await self.start_take(charges, commit=False)

    def start_take(
        self,
        original_charges: Sequence[Charge],
        commit: bool = True,  # noqa: FBT001, FBT002  # Python 3.11 calls a function with a keyword-only default slowly
    ) -> Awaitable[Sequence[Decision]]:
        """Return an awaitable of the decisions of a take or a peek.

        Mostly it is a future, because a coroutine would cost each request more. Raises at once if charges are invalid.
        """
        if not original_charges:
            return _no_decisions()
        encoded_group = self._encode_group(original_charges)
        if encoded_group.slot is None:
            return self._run(partial(self._take_unbatched, original_charges, commit=commit))
        # without a configured clock, the server's time is used
        mode = DEFAULT_MODE if commit and self._clock is None else TakeMode(self._now(), commit)
        reply = self._batchers.get().submit(encoded_group, mode)
        return reply if encoded_group.merged is None else _spread(encoded_group, reply)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.settle`."""
        await self._run(partial(self._settle, charges))

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.reset`."""
        await self._run(partial(self._reset, charges))

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        await self._run(lambda sender: add_refused(sender, self._prefix, counts, latest))

    async def aread_overrides(self, known: str) -> KeptOverrides | None:
        """See `OverrideKeeper.read_overrides`."""
        return await self._run(lambda sender: read_overrides(sender, self._prefix, known))

    async def aadd_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        await self._run(lambda sender: add_live(sender, self._prefix, reports))

    async def aclose(self) -> None:
        """See `RedisStore.close`."""
        calls = {call for call in list(self._calls) if call.get_loop() is asyncio.get_running_loop()}
        if calls:  # let refunds in progress complete
            await asyncio.wait(calls, timeout=self._timeout)
        for call in calls:
            call.cancel()
        batcher = self._batchers.pop()
        if batcher is not None:
            batcher.close()
            await batcher.transport.close()

    async def _resend(self, groups: Sequence[EncodedGroup], mode: TakeMode) -> Sequence[Outcome]:
        """Send these groups again, in one call, and return the outcome of each. Raises `StoreError`.

        If the script rejects an argument, each group is sent alone, so that only invalid ones fail.
        """
        try:
            reply = await self._take_together(groups, mode, self)
        except StoreError as error:
            if len(groups) > 1 and SCRIPT_ERROR in str(error):
                return [await self._resend_alone(group, mode) for group in groups]
            raise
        # outside of `try`: a reply that cannot be read must not make the groups be taken again
        return read_decisions_by_group(reply, [len(group.keys) for group in groups])

    async def _resend_alone(self, group: EncodedGroup, mode: TakeMode) -> Outcome:
        try:
            return (await self._resend([group], mode))[0]
        except StoreError as error:
            return error  # not raised, because groups that were sent before it may have been charged

    async def send(self, command: Command) -> Any:
        """See `Sender.send`."""
        return await self._batchers.get().transport.query(command)

    async def run_all(self, parts: Sequence[Part[T]]) -> list[T | Exception]:
        """See `Sender.run_all`."""
        return cast("list[T | Exception]", await asyncio.gather(*map(self._run, parts), return_exceptions=True))

    async def _run(self, part: Part[T]) -> T:
        """Run a part of a request, or all of it, in a separate task.

        So a request that is canceled or times out leaves no half-read reply behind.
        """
        loop, transport = asyncio.get_running_loop(), self._batchers.get().transport
        call = loop.create_task(part(self))
        self._calls.add(call)
        call.add_done_callback(self._on_task_done)
        deadline = Deadline(self._timeout)
        try:
            while not call.done() and deadline.left > 0:
                since = time.monotonic()
                await asyncio.wait({call}, timeout=deadline.next_wait())
                deadline.record_wait(since)
            if not call.done():
                await asyncio.wait({call}, timeout=REPLY_GRACE)
        finally:
            _cancel_later(loop, call, LATE_WORK_TIMEOUT)
        if not call.done():
            transport.retire_late(self._timeout)
            raise StoreError(f"no answer within {self._timeout} seconds")
        if call.cancelled():
            raise StoreNotQueried("the store was closed")
        return call.result()

    def _on_task_done(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # marks the exception as retrieved; a request that still waits gets it, too


def _cancel_later(loop: asyncio.AbstractEventLoop, call: asyncio.Task[Any], seconds: float) -> None:
    """Cancel a call whose request no longer waits, if it has not ended after `seconds`.

    Waits in steps, so that a stall of the loop uses up one step at most. Otherwise a stall would cancel a call before
    it sends its refunds.
    """
    if call.done():
        return
    if seconds <= 0:
        call.cancel()
    else:
        loop.call_later(_CANCEL_STEP, _cancel_later, loop, call, seconds - _CANCEL_STEP)


async def _no_decisions() -> Sequence[Decision]:
    return []


async def _spread(group: EncodedGroup, reply: Awaitable[Sequence[Decision]]) -> Sequence[Decision]:
    decisions = await reply
    # an Answer comes from the deny cache, and has a decision for each original charge
    return decisions if isinstance(decisions, Answer) else group.spread(decisions)

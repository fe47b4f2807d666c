"""A store for asyncio over a way to a server: who waits, and for how long."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from ratelimit_mw.errors import NotAsked, StoreError
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.stores.batching import Batches, Heard
from ratelimit_mw.stores.group import Group
from ratelimit_mw.stores.layer import WRONG, Recall
from ratelimit_mw.stores.loops import OfLoop
from ratelimit_mw.stores.parcel import TAKEN, How, Parcel
from ratelimit_mw.stores.patience import LINGER, Patience
from ratelimit_mw.stores.scripts import Codec, decisions, decisions_apart
from ratelimit_mw.stores.talk import Command, Meaning, Steps, T, Talk, adrive
from ratelimit_mw.verdict import Answer

_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used, even when the event loop was late


class AsyncLink(Protocol):
    """The way to a server, or to a cluster."""

    slots: bool  # whether keys live in the slots of a cluster
    codec: Codec  # what it can read, where the server knows it

    async def ready(self) -> None:
        """Wait until a command can be sent at once, as far as that is known. Raises `StoreError`."""
        ...

    async def send(self, *command: Any) -> Any:
        """The reply; the caller bounds the wait. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    def begin(self, command: Command, heard: Callable[[Any], None]) -> Callable[[], None] | None:
        """The same at once, without a coroutine: `heard` is called with the reply, or with what `send` would raise.

        Answers what ends it, or None where nothing can be sent at once; then nothing was.
        """
        ...

    async def close(self) -> None:
        """Close what was opened here, in this loop. It can be used again."""
        ...


class TaskStore(Talk):
    """The verbs, for asyncio."""

    ends_in_time: ClassVar[bool] = True  # nobody need watch over how long a call takes

    def __init__(self, link: AsyncLink, prefix: str, timeout: float, clock: Callable[[], float] | None) -> None:
        super().__init__(prefix, timeout, clock, slots=link.slots, codec=link.codec)
        self._link = link
        self._calls: set[asyncio.Task[Any]] = set()
        self._ran: asyncio.AbstractEventLoop | None = None
        self._batches = OfLoop(lambda: Batches(link.ready, self._send_together, timeout, self._recall, self._begin))
        self.recall: Callable[[], Recall | None] | None = None  # see `Batches`

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of whoever asked last; None where nobody did."""
        return self._batches.loop or self._ran

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.take`."""
        return await self.soon(charges)

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.peek`."""
        return await self.soon(charges, commit=False)

    def soon(self, asked: Sequence[Charge], *, commit: bool = True) -> Awaitable[Sequence[Decision]]:
        """To come: what a take answers, or a peek. Most often a future, as coroutines between would cost each request.

        Raises at once what is wrong with the charges.
        """
        if self.slots:  # each slot would be a call of its own anyway
            return self._run(self._take(asked, commit=commit))
        if not asked:
            return _nothing()
        written = self._known.get(id(asked)) or self._written(asked)
        how = TAKEN if commit and self._clock is None else How(self._now(), commit)
        answer = self._batches.get().reply(Parcel(written, how))
        return answer if written.alike else _spread(written.group, answer)

    async def asettle(self, charges: Sequence[Charge]) -> Sequence[Charge]:
        """See `RedisStore.settle`."""
        return await self._run(self._settle(charges))

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.reset`."""
        await self._run(self._reset(charges))

    async def aclose(self) -> None:
        """See `RedisStore.close`."""
        calls = {call for call in self._calls if call.get_loop() is asyncio.get_running_loop()}
        if calls:  # what is being given back need not be lost
            await asyncio.wait(calls, timeout=self._timeout)
        for call in calls:
            call.cancel()
        batches = self._batches.pop()
        if batches is not None:
            batches.close()
        await self._link.close()

    def _recall(self) -> Recall | None:
        return None if self.recall is None else self.recall()

    def _begin(self, parcels: Sequence[Parcel], heard: Heard) -> Callable[[], None] | None:
        """`_send_together` at once; None where it has to be waited for."""

        def answered(reply: Any) -> None:
            outcome: Sequence[Sequence[Decision]] | StoreError | None
            if isinstance(reply, Meaning) or (
                isinstance(reply, StoreError) and len(parcels) > 1 and WRONG in str(reply)
            ):
                outcome = None  # nothing was done
            elif isinstance(reply, StoreError):
                outcome = reply
            else:
                try:
                    outcome = decisions_apart(reply, [len(parcel.written.keys) for parcel in parcels])
                except StoreError as error:
                    outcome = error
            heard(outcome)

        return self._link.begin(next(self._take_together(parcels)), answered)

    async def _send_together(self, parcels: Sequence[Parcel]) -> Sequence[Sequence[Decision] | StoreError]:
        """The decisions on each of them, from one call; from one call for each, if what one of them says is wrong."""
        try:
            reply = await adrive(self._take_together(parcels), self._send)
        except StoreError as error:
            if len(parcels) == 1 or WRONG not in str(error):
                raise
            return [await self._alone(parcel) for parcel in parcels]
        return decisions_apart(reply, [len(parcel.written.keys) for parcel in parcels])

    async def _alone(self, parcel: Parcel) -> Sequence[Decision] | StoreError:
        try:
            return decisions(await adrive(self._take_together([parcel]), self._send), parcel.written.group.charges)
        except StoreError as error:
            return error

    async def _run(self, steps: Steps[T]) -> T:
        """Run the steps in a task of their own.

        A request that is cancelled, or out of time, leaves no half-read reply behind.
        """
        self._ran = asyncio.get_running_loop()
        call = self._ran.create_task(self._linger_over(steps))
        self._calls.add(call)
        call.add_done_callback(self._ended)
        patience = Patience(self._timeout)
        while not call.done() and patience.left > 0:
            since = time.monotonic()
            await asyncio.wait({call}, timeout=patience.slice())
            patience.spend(since)
        if not call.done():
            await asyncio.wait({call}, timeout=_GRACE)
        if not call.done():
            raise StoreError(f"no answer within {self._timeout} seconds")
        if call.cancelled():
            raise NotAsked("the store was closed")
        return call.result()

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()  # seen: if the request still waits it gets it too

    async def _linger_over(self, steps: Steps[T]) -> T:
        try:
            async with asyncio.timeout(LINGER + self._timeout):
                return await adrive(steps, self._ask)
        except TimeoutError as error:
            raise StoreError("no answer in time") from error

    async def _ask(self, step: Any) -> Any:
        """The outcomes of steps that go side by side, or the reply to one command."""
        if isinstance(step, list):
            return await asyncio.gather(*(self._run(steps) for steps in step), return_exceptions=True)
        return await self._link.send(*step)

    def _send(self, command: Command) -> Awaitable[Any]:
        """The reply to a command, of steps that have nothing else."""
        return self._link.send(*command)


async def _nothing() -> Sequence[Decision]:
    return []


async def _spread(group: Group, answer: Awaitable[Sequence[Decision]]) -> Sequence[Decision]:
    found = await answer
    return found if isinstance(found, Answer) else group.spread(found)  # from memory it is on what was asked

"""A store for asyncio over a way to a server: who waits, and for how long."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from ratelimit_mw.errors import StoreError
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.stores.patience import LINGER, Patience
from ratelimit_mw.stores.talk import Steps, T, Talk, adrive

_GRACE: Final = 0.001  # seconds: what is in the socket at the deadline is used, even when the event loop was late


class AsyncLink(Protocol):
    """The way to a server, or to a cluster."""

    slots: bool  # whether keys live in the slots of a cluster

    async def send(self, *command: Any) -> Any:
        """The reply; the caller bounds the wait. Raises `NoScript`, `NoCodec` or `StoreError`."""
        ...

    async def close(self) -> None:
        """Close what was opened here, in this loop. It can be used again."""
        ...


class TaskStore(Talk):
    """The verbs, for asyncio."""

    ends_in_time: ClassVar[bool] = True  # nobody need watch over how long a call takes

    def __init__(self, link: AsyncLink, prefix: str, timeout: float, clock: Callable[[], float] | None) -> None:
        super().__init__(prefix, timeout, clock, slots=link.slots)
        self._link = link
        self._calls: set[asyncio.Task[Any]] = set()

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.take`."""
        return await self._run(self._take(charges, commit=True))

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `RedisStore.peek`."""
        return await self._run(self._take(charges, commit=False))

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.settle`."""
        await self._run(self._settle(charges))

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `RedisStore.reset`."""
        await self._run(self._reset(charges))

    async def aclose(self) -> None:
        """See `RedisStore.close`."""
        for call in list(self._calls):
            if call.get_loop() is asyncio.get_running_loop():
                call.cancel()
        await self._link.close()

    async def _run(self, steps: Steps[T]) -> T:
        """Run the steps in a task of their own.

        A request that is cancelled, or out of time, leaves no half-read reply behind.
        """
        call = asyncio.get_running_loop().create_task(self._linger_over(steps))
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

"""Corrections that nobody waits for, under asyncio: what comes while one call is under way goes with the next one."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_mw.corrections import as_taken
from ratelimit_mw.limit import Charge
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores import AsyncStore

_CHARGES: Final = 128  # in one call at most: a script is not interrupted
_WAITING: Final = 10_000  # that are not sent yet, at most
NOT_SENT: Final = "a correction may not have reached the store, so the estimate stays charged: %s"


Told = Callable[[Sequence[Charge]], object]
"""Hears what corrections took, one charge for each of them; nothing where that is not known."""


def untold(_: Sequence[Charge]) -> None:
    """Nobody wants to know."""


class Corrections:
    """Those of one store and one event loop. `timeout`: seconds for a call."""

    def __init__(self, store: AsyncStore, timeout: float) -> None:
        self._store: Final = store
        self._timeout: Final = timeout
        self._waiting: deque[tuple[Sequence[Charge], Told]] = deque()
        self._many = 0  # charges that wait
        self._sender: asyncio.Task[None] | None = None

    def add(self, charges: Sequence[Charge], told: Told = untold) -> None:
        """Send these. Where 10,000 wait already they are not made: what was taken stays taken."""
        if self._many + len(charges) > _WAITING:
            warn_rarely("settle", NOT_SENT, f"{_WAITING} corrections wait already")
            told(())
            return
        self._waiting.append((charges, told))
        self._many += len(charges)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def done(self) -> None:
        """Wait until nothing is left to send, for no longer than a call may take."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=self._timeout)

    async def _send(self) -> None:
        try:
            while self._waiting:
                some = self._next()
                charges = [charge for group, _ in some for charge in group]
                taken: Sequence[Charge] = ()
                try:
                    async with asyncio.timeout(self._timeout):
                        taken = as_taken(charges, await self._store.asettle(charges))
                except Exception as error:  # noqa: BLE001  # whatever a store raises, no request waits for it
                    warn_rarely("settle", NOT_SENT, type(error).__name__)
                first = 0
                for group, told in some:
                    told(taken[first : first + len(group)])
                    first += len(group)
        finally:
            self._sender = None

    def _next(self) -> list[tuple[Sequence[Charge], Told]]:
        """What goes with one call: all that fits, and at least those of one request."""
        some = [self._waiting.popleft()]
        many = len(some[0][0])
        while self._waiting and many + len(self._waiting[0][0]) <= _CHARGES:
            some.append(self._waiting.popleft())
            many += len(some[-1][0])
        self._many -= many
        return some

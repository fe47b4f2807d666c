"""Corrections that nobody waits for, under asyncio: what comes while one call is under way goes with the next one."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from ratelimit_mw.limit import Charge
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.stores import AsyncStore

_CHARGES: Final = 128  # in one call at most: a script is not interrupted
_WAITING: Final = 10_000  # that are not sent yet, at most
NOT_SENT: Final = "what was taken is not known to be corrected: %s"


class Corrections:
    """Those of one store and one event loop. `timeout`: seconds for a call."""

    def __init__(self, store: AsyncStore, timeout: float) -> None:
        self._store: Final = store
        self._timeout: Final = timeout
        self._waiting: deque[Charge] = deque()
        self._sender: asyncio.Task[None] | None = None

    def add(self, charges: Sequence[Charge]) -> None:
        """Send these. Where 10,000 wait already they are not made: what was taken stays taken."""
        if len(self._waiting) + len(charges) > _WAITING:
            warn_rarely("settle", NOT_SENT, f"{_WAITING} corrections wait already")
            return
        self._waiting += charges
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def done(self) -> None:
        """Wait until nothing is left to send, for no longer than a call may take."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=self._timeout)

    async def _send(self) -> None:
        try:
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(_CHARGES, len(self._waiting)))]
                try:
                    async with asyncio.timeout(self._timeout):
                        await self._store.asettle(some)
                except Exception as error:  # noqa: BLE001  # whatever a store raises, no request waits for it
                    warn_rarely("settle", NOT_SENT, type(error).__name__)
        finally:
            self._sender = None

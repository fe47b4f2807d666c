"""Sends settlements in the background under asyncio. Those added during a call are batched into the next."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.engine.settlement import settled_charges
from ratelimit_mw.stores import AsyncStore

_MAX_CHARGES_PER_CALL: Final = 128  # per call, because nothing interrupts a script on the server
_MAX_QUEUED: Final = 10_000  # charges that are not sent yet
NOT_SENT: Final = "a settlement may not have reached the store, so the estimate stays charged: %s"


OnSettled = Callable[[Sequence[Charge]], object]
"""Receives one `Charge` per settlement, with the units it took; none if that is unknown."""


def discard_settled(_: Sequence[Charge]) -> None:
    """Ignore what settlements took."""


class SettlementQueue:
    """The settlements to send to one store from one event loop. `timeout`: seconds for a call."""

    def __init__(self, store: AsyncStore, timeout: float) -> None:
        self._store: Final = store
        self._timeout: Final = timeout
        self._queue: deque[tuple[Sequence[Charge], OnSettled]] = deque()
        self._charge_count = 0  # charges in the queue
        self._sender: asyncio.Task[None] | None = None

    def add(self, charges: Sequence[Charge], on_settled: OnSettled = discard_settled) -> None:
        """Queue these charges to be settled. Drops them, with a log line, if more than 10,000 would be queued."""
        if self._charge_count + len(charges) > _MAX_QUEUED:
            warn_throttled("settle", NOT_SENT, f"{_MAX_QUEUED} charges are queued already")
            on_settled(())
            return
        self._queue.append((charges, on_settled))
        self._charge_count += len(charges)
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send())

    async def drain(self) -> None:
        """Wait until the queue is sent, for at most `timeout` seconds."""
        if self._sender is not None:
            await asyncio.wait({self._sender}, timeout=self._timeout)

    async def _send(self) -> None:
        try:
            while self._queue:
                batch = self._next()
                charges = [charge for group, _ in batch for charge in group]
                settled: Sequence[Charge] = ()
                try:
                    async with asyncio.timeout(self._timeout):
                        settled = settled_charges(charges, await self._store.asettle(charges))
                except Exception as error:  # noqa: BLE001  # any error of the store; no request waits for this task
                    warn_throttled("settle", NOT_SENT, type(error).__name__)
                first = 0
                for group, on_settled in batch:
                    on_settled(settled[first : first + len(group)])
                    first += len(group)
        finally:
            self._sender = None

    def _next(self) -> list[tuple[Sequence[Charge], OnSettled]]:
        """Remove and return the batch for one call: all that fit, and at least those of one `add`."""
        batch = [self._queue.popleft()]
        charge_count = len(batch[0][0])
        while self._queue and charge_count + len(self._queue[0][0]) <= _MAX_CHARGES_PER_CALL:
            batch.append(self._queue.popleft())
            charge_count += len(batch[-1][0])
        self._charge_count -= charge_count
        return batch

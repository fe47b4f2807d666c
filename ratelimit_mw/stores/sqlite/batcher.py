"""Runs the calls of one turn of the event loop in one transaction, because its lock and commit take longer than a call.

A call that is alone runs at once. If several calls came in the last turn, a call waits for the end of its own turn.
While another process writes, all calls wait, and the event loop serves other requests. They do not wait in a thread: it
would compete with the event loop for the interpreter's lock, and keep the file locked until it gets that lock.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.stores.sqlite.database import Busy, Database
from ratelimit_mw.stores.sqlite.table import Call, StateTable, Work

_MAX_CALLS: Final = 32  # in one transaction, because other processes wait for its end
_TURNS: Final = 10  # turns of the event loop with a try for the write lock in each, before the loop may sleep
_PAUSE: Final = 0.001  # seconds between two later tries; the resolution of an event loop


class Batcher:
    """Runs the calls of one event loop on a table. `timeout`: seconds that a call waits for the file."""

    def __init__(self, loop: asyncio.AbstractEventLoop, table: StateTable, database: Database, timeout: float) -> None:
        self.loop: Final = loop
        self._table: Final = table
        self._database: Final = database
        self._timeout: Final = timeout
        self._queue: deque[tuple[Call, asyncio.Future[Any], float]] = deque()  # with deadlines, in monotonic seconds
        self._is_scheduled = False  # whether `_run_calls` is scheduled, for the end of this turn or another try
        self._is_crowded = False  # whether several calls came in the last turn that had calls
        self._tries = 0  # failed tries for the write lock since the last success

    def runs_at_once(self) -> bool:
        """Whether a call may run now: no other call waits or came in this turn. If so, the caller must run its call."""
        if self._is_scheduled or self._is_crowded:
            return False
        self._schedule()
        return True

    def submit(self, work: Work, charges: Sequence[Charge]) -> "asyncio.Future[Any]":
        """Add a call, and return the future of its result. Cancel the future to withdraw a call that has not run."""
        future = self.loop.create_future()
        self._queue.append((Call(work, charges), future, time.monotonic() + self._timeout))
        if not self._is_scheduled:
            self._schedule()
        return future

    async def drain(self) -> None:
        """Wait for all calls. Each of them ends at its deadline."""
        if futures := [future for _, future, _ in self._queue]:
            await asyncio.wait(futures)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self.loop.call_soon(self._run_calls)

    def _run_calls(self) -> None:
        """Run the waiting calls, at most as many as one transaction may have."""
        self._is_scheduled = False
        queue = self._queue
        calls = [queue.popleft() for _ in range(min(_MAX_CALLS, len(queue)))]
        calls = [one for one in calls if not one[1].done()]  # leaves out canceled calls
        self._is_crowded = len(calls) > 1
        try:
            if calls:
                self._run(calls)
        finally:
            if queue and not self._is_scheduled:
                self._schedule()

    def _run(self, calls: Sequence[tuple[Call, "asyncio.Future[Any]", float]]) -> None:
        try:
            results = self._database.run(self._table.run_together, [call for call, _, _ in calls], None)
        except Busy:
            self._try_later(calls)
            return
        except Exception as error:  # noqa: BLE001  # whatever an algorithm raises, its own call receives it
            if len(calls) == 1:
                _, future, _ = calls[0]
                future.set_exception(error)
            else:  # nothing was charged
                for one in reversed(calls):  # so that calls are put back in order if another process writes
                    self._run([one])
            return
        self._tries = 0
        for (_, future, _), result in zip(calls, results, strict=True):
            future.set_result(result)

    def _try_later(self, calls: Sequence[tuple[Call, "asyncio.Future[Any]", float]]) -> None:
        """Put calls back for another try. Fails those whose deadline has passed, because the last try was after it."""
        queue, now = self._queue, time.monotonic()
        queue.extendleft(reversed(calls))
        while queue and queue[0][2] <= now:
            _, future, _ = queue.popleft()
            if not future.done():
                future.set_exception(StoreError("no write lock in time: another process writes to the file"))
        self._tries += 1
        if not self._is_scheduled and queue:
            self._is_scheduled = True
            if self._tries <= _TURNS:
                self.loop.call_soon(self._run_calls)
            else:
                self.loop.call_later(_PAUSE, self._run_calls)

"""The store in a file, without a guard. Has the methods for threads and for asyncio."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from ratelimit_mw.core.errors import StoreError
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.inventory import KeyPage, NumberedRefusal, Refusal
from ratelimit_mw.stores.kept_overrides import KeptOverrides
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides, after_fork_in_child
from ratelimit_mw.stores.live import Live, Report, Wanted
from ratelimit_mw.stores.sqlite.batcher import Batcher
from ratelimit_mw.stores.sqlite.database import Busy, Database, FileUse
from ratelimit_mw.stores.sqlite.kept_overrides import read_changes, read_overrides, write_overrides
from ratelimit_mw.stores.sqlite.live import add_live, read_live
from ratelimit_mw.stores.sqlite.refused import add_refused, key_page, latest_refusals, most_refused
from ratelimit_mw.stores.sqlite.table import StateTable, Work


class FileStore(BaseStore):
    """Runs the methods of a store on a `StateTable`, for threads and for asyncio.

    `timeout`: seconds for a call, more than 0. In asyncio, calls run in the event loop. While another process writes, a
    `Batcher` tries again later. A thread of the store closes the file, and writes data that no request waits for.
    """

    has_own_timeout: ClassVar[bool] = True  # each call ends in time, so callers need no timeout of their own

    def __init__(
        self, path: Path, max_keys: int, timeout: float, clock: Callable[[], float] | None, use: FileUse
    ) -> None:
        self._timeout: Final = timeout
        self._configured_clock: Final = clock
        self._table: Final = StateTable(max_keys, clock)
        self._database: Final = Database(path, self._table.register, use)
        self._batcher: Batcher | None = None  # for the event loop of the latest call
        self._waiting_thread: ThreadPoolExecutor | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # the event loop of the latest call
        after_fork_in_child(self._forget_thread)
        REGISTRY.register(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """See `BaseStore`."""
        return self._loop

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Charge all limits if all admit, else none."""
        decisions: Sequence[Decision] = self._database.run(self._table.take, charges, self._timeout)
        return decisions

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """Return what `take` would return now, and charge nothing."""
        decisions: Sequence[Decision] = self._database.run(self._table.peek, charges, self._timeout)
        return decisions

    def settle(self, charges: Sequence[Charge]) -> None:
        """Correct earlier charges, all in one transaction. See `Store.settle`."""
        self._database.run(self._table.settle, charges, self._timeout)

    def reset(self, charges: Sequence[Charge]) -> None:
        """Forget these buckets."""
        self._database.run(self._table.reset, charges, self._timeout)

    def list_keys(self) -> Iterator[KeyPage]:
        """See `Inventory.list_keys`."""
        after, seen = b"", 0
        while True:
            page, after = self._query(
                lambda connection, place: key_page(connection, self._table.prefix.encode(), *place), (after, seen)
            )
            seen += len(page.keys)
            yield page
            if page.seen == 1.0:
                return

    def add_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        self._query(add_refused, (counts, latest))

    def most_refused(self, since: float) -> Mapping[str, int]:
        """See `Inventory.most_refused`."""
        found: Mapping[str, int] = self._query(most_refused, since)
        return found

    def latest_refusals(self, after: str | None, most: int) -> Sequence[NumberedRefusal]:
        """See `Inventory.latest_refusals`."""
        found: Sequence[NumberedRefusal] = self._query(latest_refusals, (after, most))
        return found

    def read_overrides(self, known: str) -> KeptOverrides | None:
        """See `OverrideKeeper.read_overrides`."""
        kept: KeptOverrides | None = self._query(read_overrides, (self._table.prefix, known))
        return kept

    def write_overrides(self, known: str, kept: KeptOverrides, change: bytes) -> bool:
        """See `OverrideKeeper.write_overrides`."""
        is_written: bool = self._query(write_overrides, (self._table.prefix, known, kept, change))
        return is_written

    def read_changes(self) -> Sequence[bytes]:
        """See `OverrideKeeper.read_changes`."""
        changes: Sequence[bytes] = self._query(read_changes, self._table.prefix)
        return changes

    def add_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        self._query(add_live, (self._table.prefix, reports))

    def read_live(self, wanted: Wanted) -> Live:
        """See `LiveKeeper.read_live`."""
        live: Live = self._query(read_live, (self._table.prefix, wanted))
        return live

    def _query(self, work: Callable[[Any, Any], Any], argument: Any) -> Any:
        return self._database.run(work, argument, self._timeout)

    def close(self) -> None:
        """Close the file. The store can be used again."""
        self._database.close()
        self._end_thread()

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `take`."""
        decisions: Sequence[Decision] = await self._run(self._table.take, self._table.take_within, charges)
        return decisions

    async def apeek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `peek`."""
        self._loop = asyncio.get_running_loop()
        try:
            decisions: Sequence[Decision] = self._database.run(self._table.peek, charges, None)
        except Busy:  # a thread of this process uses the file
            work = partial(self._peek_by, time.monotonic() + self._timeout, charges)
            decisions = await self._submit(work)
        return decisions

    async def asettle(self, charges: Sequence[Charge]) -> None:
        """See `settle`."""
        await self._run(self._table.settle, self._table.settle_within, charges)

    async def areset(self, charges: Sequence[Charge]) -> None:
        """See `reset`."""
        await self._run(self._table.reset, self._table.reset_within, charges)

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`. A thread of the store does it, because no request waits for it."""
        await self._submit(partial(self.add_refused, counts, latest))

    async def aread_overrides(self, known: str) -> KeptOverrides | None:
        """See `OverrideKeeper.read_overrides`. A thread of the store reads, because the set may be large."""
        kept: KeptOverrides | None = await self._submit(partial(self.read_overrides, known))
        return kept

    async def aadd_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`. A thread of the store does it, because no request waits for it."""
        await self._submit(partial(self.add_live, reports))

    async def aclose(self) -> None:
        """See `close`."""
        if self._batcher is not None and self._batcher.loop is asyncio.get_running_loop():
            await self._batcher.drain()
        with suppress(StoreError):  # the thread closes it later
            await self._submit(self._database.close)
        self._end_thread()

    async def _run(self, alone: Work, together: Work, charges: Sequence[Charge]) -> Any:
        """Run a call: `alone`, at once in its own transaction, or `together` with the other calls of its turn."""
        loop, batcher = asyncio.get_running_loop(), self._batcher
        if batcher is None or batcher.loop is not loop:
            batcher = self._batcher = Batcher(loop, self._table, self._database, self._timeout)
            self._loop = loop
        if batcher.runs_at_once():
            try:
                return self._database.run(alone, charges, None)
            except Busy:
                pass
        return await batcher.submit(together, charges)

    def _peek_by(self, deadline: float, charges: Sequence[Charge]) -> Sequence[Decision]:
        left = deadline - time.monotonic()
        if left <= 0:  # its caller no longer waits
            raise StoreError("no turn in time: other calls of this process wait for the file")
        decisions: Sequence[Decision] = self._database.run(self._table.peek, charges, left)
        return decisions

    async def _submit(self, call: Callable[[], Any]) -> Any:
        """Run a call in the store's thread. Raises `StoreError` if it does not end in time.

        A call that has not started in time, or whose caller was canceled, does not run.
        """
        thread = self._waiting_thread
        if thread is None:
            thread = self._waiting_thread = ThreadPoolExecutor(1, thread_name_prefix="ratelimit_mw sqlite")
        try:
            job = thread.submit(call)
        except RuntimeError as error:  # the system starts no more threads
            raise StoreError(f"cannot wait for the file: {error}") from error
        future = asyncio.wrap_future(job)
        try:
            await asyncio.wait((future,), timeout=self._timeout)
            if not future.done():
                raise StoreError(f"no answer within {self._timeout} seconds")
            return future.result()
        finally:
            job.cancel()
            future.cancel()

    def _end_thread(self) -> None:
        thread, self._waiting_thread = self._waiting_thread, None
        if thread is not None:
            thread.shutdown(wait=False)

    def _forget_thread(self) -> None:
        """Forget the parent's thread and loop, in a child process."""
        self._waiting_thread = None
        self._batcher = None

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:  # noqa: ARG002  # the prefix hides the states
        self._table.prefix = overrides.key_prefix
        if self._configured_clock is None:
            self._table.clock = overrides.wall
            self._table.room.tidies = overrides.wall is None

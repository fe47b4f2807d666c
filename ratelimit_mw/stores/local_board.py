"""Keeps in the memory of this process what the dashboard shows: for one process, without a shared store."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.inventory import KeyPage, NumberedRefusal, Refusal
from ratelimit_mw.stores.lifecycle import after_fork_in_child, fork_safe_lock
from ratelimit_mw.stores.live import Live, Report, Wanted
from ratelimit_mw.stores.sqlite import live, refused
from ratelimit_mw.stores.sqlite.files import PAGE_SIZE


class LocalBoard(BaseStore):
    """The tables of `stores.sqlite` that are not about buckets, in memory. Opened when they are first used."""

    suspends: ClassVar[bool] = False

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._connection: sqlite3.Connection | None = None
        after_fork_in_child(self.clear)

    def clear(self) -> None:
        """Forget everything. A forked child does, as the tables are its parent's."""
        self._connection = None

    def list_keys(self) -> Iterator[KeyPage]:
        """See `Inventory.list_keys`."""
        yield KeyPage([], 1.0)

    def add_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        self._run(refused.add_refused, (counts, latest))

    async def aadd_refused(self, counts: Mapping[str, int], latest: Sequence[Refusal]) -> None:
        """See `Inventory.add_refused`."""
        self.add_refused(counts, latest)

    def most_refused(self, since: float) -> Mapping[str, int]:
        """See `Inventory.most_refused`."""
        found: Mapping[str, int] = self._run(refused.most_refused, since)
        return found

    def latest_refusals(self, after: str | None, most: int) -> Sequence[NumberedRefusal]:
        """See `Inventory.latest_refusals`."""
        found: Sequence[NumberedRefusal] = self._run(refused.latest_refusals, (after, most))
        return found

    def add_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        self._run(live.add_live, ("", reports))

    async def aadd_live(self, reports: Sequence[Report]) -> None:
        """See `LiveKeeper.add_live`."""
        self.add_live(reports)

    def read_live(self, wanted: Wanted) -> Live:
        """See `LiveKeeper.read_live`."""
        found: Live = self._run(live.read_live, ("", wanted))
        return found

    def _run(self, work: Callable[[Any, Any], Any], argument: Any) -> Any:
        with self._lock:
            connection = self._connection
            if connection is None:
                connection = self._connection = sqlite3.connect(
                    ":memory:", isolation_level=None, check_same_thread=False
                )
                connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
                for statement in refused.SCHEMA:
                    connection.execute(statement)
            return work(connection, argument)

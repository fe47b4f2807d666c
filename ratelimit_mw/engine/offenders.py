"""Counts refusals by client in a bounded table, and sends the highest counts and the latest refusals to the store.

The table uses the Space-Saving algorithm (Metwally et al.). A new name inherits the highest count that was dropped. So
a flood of names that are refused once cannot displace a name that is refused often. Names are dropped in batches,
because finding the smallest count for each new name would take longer. A name is the key of a charge.
"""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.pulse import LoopPulse, ThreadPulse
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.inventory import KEPT_CLIENTS, MAX_METHOD, MAX_PATH, AsyncInventory, Inventory, Refusal
from ratelimit_mw.stores.lifecycle import after_fork_in_child, call_at_exit, fork_safe_lock

RequestLine = tuple[str, str]  # method and path
NO_LINE: Final[RequestLine] = ("", "")
INTERVAL: Final = 1.0  # seconds from the first refusal to the call of the store
_NOT_SENT: Final = "the store did not receive the latest refusals, which `top` and `tail` will not show: %s"


class OffenderTable:
    """Counts refusals by name. Holds at most `2 * size` names.

    A name with more than 1/size of all refusals is never dropped. `highest` returns the exact number of refusals of a
    name, unless the name was dropped and came again: then it returns less, but never more.
    """

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._counts: dict[str, int] = {}  # includes the count that a name inherited
        self._inherited: dict[str, int] = {}  # the count that a name inherited, if it is not 0
        self._floor = 0  # the highest count that was dropped

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, name: str) -> None:
        """Count a refusal."""
        counts = self._counts
        if name in counts:
            counts[name] += 1
            return
        if len(counts) >= 2 * self._size:
            self._trim()
            counts = self._counts
        counts[name] = self._floor + 1
        if self._floor:
            self._inherited[name] = self._floor

    def highest(self) -> dict[str, int]:
        """Return the names with the highest counts, at most `size`, and their refusals."""
        names = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[: self._size]
        return {name: self._counts[name] - self._inherited.get(name, 0) for name in names}

    def _trim(self) -> None:
        """Drop the names with the lowest counts; among equal counts, the names that came last."""
        ordered = sorted(self._counts.items(), key=itemgetter(1), reverse=True)
        self._floor = ordered[self._size][1]
        self._counts = dict(ordered[: self._size])
        self._inherited = {name: count for name, count in self._inherited.items() if name in self._counts}


class _Refusals:
    """The refusals that were not sent yet. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._size: Final = size
        self._lock = fork_safe_lock()
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        """Start empty. Also runs in a forked child, because its parent sends what was counted before."""
        self._table = OffenderTable(self._size)
        self._latest: deque[tuple[float, int, Verdict, RequestLine]] = deque(maxlen=min(self._size, KEPT_CLIENTS))

    @property
    def is_pending(self) -> bool:
        """Whether there are refusals to send."""
        return bool(self._table)

    def add(self, verdict: Verdict, line: RequestLine) -> None:
        """Count a refusal for the client of the binding limit. A refusal without a binding limit is not counted."""
        binding = verdict.binding
        if binding is not None:
            with self._lock:
                self._table.add(verdict.charges[binding].key)
                self._latest.append((time.time(), binding, verdict, line))

    def drain(self) -> tuple[Mapping[str, int], Sequence[Refusal]]:
        """Return the highest counts and the latest refusals, and start from zero."""
        with self._lock:
            table, latest = self._table, self._latest
            self._reset()
        return table.highest(), [_refusal(*one) for one in latest]


def _refusal(at: float, binding: int, verdict: Verdict, line: RequestLine) -> Refusal:
    charge, (method, path) = verdict.charges[binding], line
    return Refusal(
        charge.key, charge.limit.notation, at, verdict.retry_after, _plain(method[:MAX_METHOD]), _plain(path[:MAX_PATH])
    )


def _plain(text: str) -> str:
    """Return text that every store and every answer can encode."""
    return text.encode("utf-8", "replace").decode()


class ThreadReporter:
    """Counts refusals, and sends them to the store from a thread, which runs while there are any."""

    def __init__(self, store: Inventory, size: int) -> None:
        self._store: Final = store
        self._refusals: Final = _Refusals(size)
        self._calls_at_exit = False
        self._pulse: Final = ThreadPulse(self.flush, lambda: INTERVAL, "ratelimit_mw refused")

    def add(self, verdict: Verdict, line: RequestLine = NO_LINE) -> None:
        """Count a refused request. Never raises. `line`: its method and path."""
        self._refusals.add(verdict, line)
        if not self._pulse.is_running:
            if not self._calls_at_exit:
                self._calls_at_exit = True
                call_at_exit(self._flush_at_exit)
            self._pulse.start()

    def flush(self) -> bool:
        """Send the refusals now. Return whether there were any. Logs an error of the store."""
        counts, latest = self._refusals.drain()
        if counts:
            try:
                self._store.add_refused(counts, latest)
            except Exception as error:  # noqa: BLE001  # no request waits for this
                warn_throttled("remember_refused", _NOT_SENT, error_summary(error), code="RL-234")
        return bool(counts) or self._refusals.is_pending

    def _flush_at_exit(self) -> None:
        self.flush()


class LoopReporter:
    """Counts refusals, and sends them to the store from a task of the event loop that refused a request."""

    def __init__(self, store: AsyncInventory, size: int) -> None:
        self._store: Final = store
        self._refusals: Final = _Refusals(size)
        self._pulse: Final = LoopPulse(self.flush, lambda: INTERVAL)

    def add(self, verdict: Verdict, line: RequestLine = NO_LINE) -> None:
        """See `ThreadReporter`."""
        self._refusals.add(verdict, line)
        self._pulse.start()

    async def flush(self) -> bool:
        """Send the refusals now. Return False: the next refusal sets the timer. Logs an error of the store."""
        counts, latest = self._refusals.drain()
        if counts:
            try:
                await self._store.aadd_refused(counts, latest)
            except Exception as error:  # noqa: BLE001  # no request waits for this
                warn_throttled("remember_refused", _NOT_SENT, error_summary(error), code="RL-234")
        return False


RefusalReporter = ThreadReporter | LoopReporter


def reporter_for(store: BaseStore, size: int, *, is_async: bool) -> RefusalReporter | None:
    """Return the reporter that sends refusals to this store; None if the store cannot keep them."""
    if is_async:
        return None if store.async_inventory is None else LoopReporter(store.async_inventory, size)
    return None if store.inventory is None else ThreadReporter(store.inventory, size)

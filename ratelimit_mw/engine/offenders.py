"""Counts refusals by client in a bounded table, and sends the highest counts and the latest refusals to the store.

The table uses the Space-Saving algorithm (Metwally et al.). A new name inherits the highest count that was dropped. So
a flood of names that are refused once cannot displace a name that is refused often. Names are dropped in batches,
because finding the smallest count for each new name would take longer. A name is the key of a charge.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.core.memo import get_or_create
from ratelimit_mw.core.runtime import spawn_task
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.stores.contract import BaseStore
from ratelimit_mw.stores.inventory import KEPT_CLIENTS, AsyncInventory, Inventory, Refusal
from ratelimit_mw.stores.lifecycle import PerLoop, after_fork_in_child, call_at_exit, fork_safe_lock

INTERVAL: Final = 1.0  # seconds from the first refusal to the call of the store
_NOT_SENT: Final = "the store did not receive the latest refusals, which `top` and `tail` will not show: %s"
_NO_THREAD: Final = "no thread can be started to send refusals to the store: %s"


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
        self._latest: deque[tuple[float, int, Verdict]] = deque(maxlen=min(self._size, KEPT_CLIENTS))

    @property
    def is_pending(self) -> bool:
        """Whether there are refusals to send."""
        return bool(self._table)

    def add(self, verdict: Verdict) -> None:
        """Count a refusal for the client of the binding limit. A refusal without a binding limit is not counted."""
        binding = verdict.binding
        if binding is not None:
            with self._lock:
                self._table.add(verdict.charges[binding].key)
                self._latest.append((time.time(), binding, verdict))

    def drain(self) -> tuple[Mapping[str, int], Sequence[Refusal]]:
        """Return the highest counts and the latest refusals, and start from zero."""
        with self._lock:
            table, latest = self._table, self._latest
            self._reset()
        return table.highest(), [_refusal(*one) for one in latest]


def _refusal(at: float, binding: int, verdict: Verdict) -> Refusal:
    charge = verdict.charges[binding]
    return Refusal(charge.key, charge.limit.notation, at, verdict.retry_after)


class ThreadReporter:
    """Counts refusals, and sends them to the store from a thread, which runs while there are any."""

    def __init__(self, store: Inventory, size: int) -> None:
        self._store: Final = store
        self._refusals: Final = _Refusals(size)
        self._calls_at_exit = False
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        self.__dict__.pop("starting", None)
        self._is_running = False

    @property
    def _starting(self) -> threading.Lock:
        """Created on first use: gevent workers patch `threading` after the app is loaded and forked."""
        return get_or_create(self, "starting", threading.Lock)

    def add(self, verdict: Verdict) -> None:
        """Count a refused request. Never raises."""
        self._refusals.add(verdict)
        if not self._is_running:
            self._start()

    def flush(self) -> bool:
        """Send the refusals now. Return whether there were any. Logs an error of the store."""
        counts, latest = self._refusals.drain()
        if counts:
            try:
                self._store.add_refused(counts, latest)
            except Exception as error:  # noqa: BLE001  # no request waits for this
                warn_throttled("remember_refused", _NOT_SENT, error_summary(error), code="RL-234")
        return bool(counts)

    def _start(self) -> None:
        with self._starting:
            if self._is_running:
                return
            if not self._calls_at_exit:
                self._calls_at_exit = True
                call_at_exit(self._flush_at_exit)
            try:
                threading.Thread(target=self._run, name="ratelimit_mw refused", daemon=True).start()
                self._is_running = True
            except RuntimeError as error:
                warn_throttled("remember_refused thread", _NO_THREAD, error, code="RL-235")

    def _run(self) -> None:
        sent = True
        while sent:
            time.sleep(INTERVAL)
            sent = self.flush()
        self._is_running = False
        if self._refusals.is_pending:  # a request was refused after the flush, and saw that this thread still ran
            self._start()

    def _flush_at_exit(self) -> None:
        self.flush()


class LoopReporter:
    """Counts refusals, and sends them to the store from a task of the event loop that refused a request."""

    def __init__(self, store: AsyncInventory, size: int) -> None:
        self._store: Final = store
        self._refusals: Final = _Refusals(size)
        self._timers: Final = PerLoop(_Timer)

    def add(self, verdict: Verdict) -> None:
        """See `ThreadReporter`."""
        self._refusals.add(verdict)
        try:
            timer = self._timers.get()
        except RuntimeError:  # a thread without a loop; the next refusal in a loop sends this one, too
            return
        if not timer.is_set:
            timer.is_set = True
            asyncio.get_running_loop().call_later(INTERVAL, self._send, timer)

    async def flush(self) -> None:
        """Send the refusals now. Logs an error of the store."""
        counts, latest = self._refusals.drain()
        if counts:
            try:
                await self._store.aadd_refused(counts, latest)
            except Exception as error:  # noqa: BLE001  # no request waits for this
                warn_throttled("remember_refused", _NOT_SENT, error_summary(error), code="RL-234")

    def _send(self, timer: "_Timer") -> None:
        timer.is_set = False
        spawn_task(self.flush())


class _Timer:
    """Whether one event loop will send the refusals."""

    is_set = False


RefusalReporter = ThreadReporter | LoopReporter


def reporter_for(store: BaseStore, size: int, *, is_async: bool) -> RefusalReporter | None:
    """Return the reporter that sends refusals to this store; None if the store cannot keep them."""
    if is_async:
        return None if store.async_inventory is None else LoopReporter(store.async_inventory, size)
    return None if store.inventory is None else ThreadReporter(store.inventory, size)

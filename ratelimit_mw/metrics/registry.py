"""Keeps the counts of this process: a cell for each series. All gates and stores that count share it.

No lock is needed to add to a cell: between reading and writing an item of a list or a memoryview, CPython does not
switch threads. In a build without the global lock, counts can be lost.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sized
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Final, Protocol, Self
from weakref import WeakSet

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.forks import after_fork_in_child
from ratelimit_mw.core.log import warn, warn_throttled
from ratelimit_mw.metrics.families import (
    AT_WORK,
    AT_WORK_LIMIT,
    GUARDS,
    LATENCY_GOAL,
    LATENCY_REACHED,
    MICROSECONDS,
    OTHER,
    POLICY_INFO,
    REQUESTS,
    STORE_KEYS,
    STORE_OPEN,
    Family,
    Series,
    sample_name,
    with_other_labels,
)
from ratelimit_mw.metrics.folder import CAPACITY, FIRST_CELL, SPARE_CELL, CountFile, prepare, read_folder

MAX_SERIES: Final = 1000
RESERVED_SERIES: Final = 100  # for series without a rule, and for the rule `other`
_MAX_DIGESTS: Final = 10
_UPDATE_INTERVAL: Final = 1.0  # seconds
_TOO_MANY: Final = "metrics: %d series are the most that a process counts; further rules and limits count as %r"
_NOT_WRITTEN: Final = "cannot be written, so other processes do not see the counts of this one: %s"
_REMOVED: Final = "was removed, and is made again; counts of processes that have ended are lost"
_ENVIRONMENT: Final = "PROMETHEUS_MULTIPROC_DIR"
_SUBFOLDER: Final = "ratelimit_mw"


class KeepsStates(Protocol):
    """A store that may keep states in this process."""

    def count_states(self) -> int | None:
        """Return their number; None if they are elsewhere."""


class CountsAtWork(Protocol):
    """A guard that counts the requests at work."""

    limit: float
    reached: float  # seconds

    @property
    def at_work(self) -> Sized:
        """The requests at work."""

    @property
    def goal(self) -> float:
        """The latency goal in seconds."""


class Registry:
    """The counts of a process, in a list or in a file of `folder`.

    `each_second`: functions that are called once a second, while requests are counted. Never raise.

    `cells`: the counts. The first is not used. The second is for series beyond the maximum. `admitted`: for each rule,
    the cell of its requests that the store admitted, once there was one. So counting most requests takes one lookup in
    a dict. `folder`: None if only this process reads the counts.
    """

    def __init__(self) -> None:
        self.cells: list[int] | memoryview[int] = [0] * CAPACITY
        self.admitted: Final[dict[str, int]] = {}
        self.folder: Path | None = None
        self.each_second: Final[list[Callable[[], object]]] = []
        self._file: CountFile | None = None
        self._series: dict[Series, int] = {}
        self._lock = Lock()
        self._has_warned = False
        self._stores = WeakSet[KeepsStates]()
        self._guards = WeakSet[CountsAtWork]()
        self._policies = Counter[tuple[str, ...]]()  # how many gates have settings with these labels of POLICY_INFO
        self._open_stores: set[int] = set()
        self._update_due = 0.0  # monotonic seconds

    def open(self, folder: str | None) -> None:
        """From now on, keep the counts in a file of this folder; None: the folder that the environment names, if any.

        Raises `ConfigError` if the folder cannot be used, or if this process uses another one.
        """
        path = default_folder() if folder is None else Path(folder).absolute()
        if path is None or path == self.folder:
            return
        if self.folder is not None:
            raise ConfigError(
                f"metrics_folder: got {str(path)!r}, but this process keeps its counts in {str(self.folder)!r} "
                "already; use one folder for all apps of a process",
                code="RL-054",
            )
        prepare(path)
        with self._lock:
            self.folder = path
            self._open_file()

    def cell(self, family: Family, labels: tuple[str, ...], part: str = "") -> int:
        """Return the index of the cell of a series. If there are too many series, it is the cell of the rule `other`.

        `part`: see `sample_name`.
        """
        series = sample_name(family, part), labels
        index = self._series.get(series)
        if index is None:
            with self._lock:
                index = self._series.get(series) or self._add_series(series)
        return index

    def add(self, family: Family, labels: tuple[str, ...], amount: int = 1, part: str = "") -> None:
        """Add to the count of a series."""
        index = self.cell(family, labels, part)
        self.cells[index] += amount

    def count_admitted(self, rule: str) -> None:
        """Count a request that the store admitted."""
        index = self.admitted.get(rule)
        if index is None:
            index = self.admitted[rule] = self.cell(REQUESTS, (rule, "admitted", "store"))
        self.cells[index] += 1
        self.update()

    def set(self, family: Family, labels: tuple[str, ...], value: int) -> None:
        """Set a gauge."""
        index = self.cell(family, labels)
        self.cells[index] = value

    def count_states_of(self, store: KeepsStates) -> None:
        """Count the states of a store in memory, as long as it exists."""
        self._stores.add(store)

    def count_at_work_of(self, guard: CountsAtWork) -> None:
        """Show what is at work, and how long it takes, as long as the guard exists."""
        self._guards.add(guard)

    def update(self) -> None:
        """Set the number of states in memory and mend the file, unless that was done within the last second."""
        if monotonic() >= self._update_due:
            self._update()
            for call in self.each_second:
                call()

    def _update(self) -> None:
        self._update_due = monotonic() + _UPDATE_INTERVAL
        self.set(STORE_KEYS, (), sum(store.count_states() or 0 for store in list(self._stores)))
        if guards := list(self._guards):
            self.set(GUARDS, (), len(guards))
            self.set(AT_WORK, (), sum(len(guard.at_work) for guard in guards))
            self.set(AT_WORK_LIMIT, (), sum(math.floor(guard.limit) for guard in guards))
            self.set(LATENCY_GOAL, (), sum(round(guard.goal * MICROSECONDS) for guard in guards))
            self.set(LATENCY_REACHED, (), sum(round(guard.reached * MICROSECONDS) for guard in guards))
        with self._lock:
            if self._file is None or not self._file.exists():
                if self._file is not None:
                    warn_throttled(str(self._file.path), _REMOVED, code="RL-248")
                self._open_file()
            else:
                self._write_names()

    def set_open(self, store: int, *, is_open: bool) -> None:
        """Record whether the circuit breaker of a store is open. `store`: its `id`."""
        (self._open_stores.add if is_open else self._open_stores.discard)(store)
        self.set(STORE_OPEN, (), len(self._open_stores))

    def set_policy(self, policy: tuple[str, str], before: tuple[str, str] | None = None) -> None:
        """Record settings that are in force, up to ten of them. `policy`: the labels of `POLICY_INFO`.

        `before`: those that they replace, or the same with another `reload`.
        """
        with self._lock:
            in_force = self._policies
            if before is not None:
                in_force[before] -= 1
            in_force[policy] += 1
            known = [labels for name, labels in self._series if name == POLICY_INFO.name]
            unused = [labels for labels in known if not in_force[labels]]
            series = POLICY_INFO.name, policy
            if policy not in known and unused:
                self._rename((POLICY_INFO.name, unused.pop()), series)
            elif policy not in known and len(known) < _MAX_DIGESTS:
                self._add_series(series)
            for labels in [*unused, policy]:
                if (index := self._series.get((POLICY_INFO.name, labels))) is not None:
                    self.cells[index] = int(in_force[labels] > 0)

    def _rename(self, old: Series, new: Series) -> None:
        """Use the cell of a series that is 0 for another one."""
        index = self._series.pop(old)
        self.cells[index] = 0
        self._series[new] = index
        if self._file is not None:
            self._file.add_name(index, new)
            self._write_names()

    def own_counts(self) -> dict[Series, int]:
        """Return the counts of this process alone."""
        self._update()
        with self._lock:
            return {series: self.cells[index] for series, index in self._series.items() if index != SPARE_CELL}

    def counts(self) -> Mapping[Series, int]:
        """Return the counts of all processes of the folder, including those that have ended."""
        own = self.own_counts()
        if self.folder is None:
            return own
        total, names = read_folder(self.folder)
        if self._file is None or self._file.name not in names:  # this process has no file, or it was deleted
            total.update(own)
        return total

    def _add_series(self, series: Series) -> int:
        if len(self._series) >= MAX_SERIES - RESERVED_SERIES:
            other = with_other_labels(series)
            if other != series and not self._has_warned:
                self._has_warned = True
                warn(_TOO_MANY, MAX_SERIES, OTHER, code="RL-237")
            series = other
            if series in self._series:
                return self._series[series]
        index = FIRST_CELL + len(self._series)
        if index >= FIRST_CELL + MAX_SERIES:
            return SPARE_CELL
        self._series[series] = index
        if self._file is not None:
            self._file.add_name(index, series)
            self._write_names()
        return index

    def _write_names(self) -> None:
        if self._file is not None:
            try:
                self._file.write_names()
            except OSError as error:
                warn_throttled("metrics_folder", _NOT_WRITTEN, error, code="RL-236")

    def _open_file(self) -> None:
        """Move the counts to a new file of this process. If it cannot be written, they stay where they are."""
        if self.folder is None:
            return
        old, old_file, copied = self.cells, self._file, list(self.cells)
        try:
            self._file = CountFile(self.folder, copied, self._series)
        except OSError as error:  # the folder was usable at startup, and a request must not fail now
            warn_throttled("metrics_folder", _NOT_WRITTEN, error, code="RL-236")
            return
        self.cells = self._file.cells
        for index, count in enumerate(copied):  # what other threads have counted meanwhile
            self.cells[index] += old[index] - count
        if old_file is not None:
            old_file.abandon()

    def _start_child(self) -> None:
        """Start from zero after a fork, in a separate file, because the parent has the counts until now."""
        self._lock = Lock()
        kept = {index: self.cells[index] for (name, _), index in self._series.items() if name == POLICY_INFO.name}
        if self._file is not None:
            self._file.abandon()
            self._file = None
        self._open_stores = set()
        self.cells = [kept.get(index, 0) for index in range(CAPACITY)]
        self._open_file()

    def forget(self) -> Self:
        """Start from zero, without a folder. For tests."""
        if self._file is not None:
            self._file.abandon()
        self.admitted.clear()
        self._stores.clear()
        self._guards.clear()
        self.cells, self.folder, self._file = [0] * CAPACITY, None, None
        self._policies.clear()
        self._series, self._open_stores, self._has_warned, self._update_due = {}, set(), False, 0.0
        return self


def default_folder() -> Path | None:
    """Return the folder that prometheus_client's environment variable names, if it is set."""
    shared = os.environ.get(_ENVIRONMENT)
    return Path(shared).absolute() / _SUBFOLDER if shared else None


COUNTS: Final = Registry()

after_fork_in_child(COUNTS._start_child)  # noqa: SLF001  # the same module

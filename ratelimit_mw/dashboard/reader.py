"""Reads what the dashboard shows from the store: once a second, however many viewers there are."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from math import inf
from typing import Final

from msgspec import DecodeError, Struct, json

from ratelimit_mw.admin.override_set import OverrideSet, Record
from ratelimit_mw.admin.target import Target
from ratelimit_mw.core.errors import ConfigError, RateLimitError, StoreError
from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.engine.live import ProcessInfo, board_of
from ratelimit_mw.metrics.sample import ALL
from ratelimit_mw.rules.override_entries import Override
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.contract import BaseStore, declared
from ratelimit_mw.stores.inventory import NumberedRefusal
from ratelimit_mw.stores.lifecycle import fork_safe_lock
from ratelimit_mw.stores.live import BY_MINUTE, BY_SECOND, RINGS, Counts, Ring, Wanted
from ratelimit_mw.stores.url import open_existing

INTERVAL: Final = 1.0  # seconds between reads
SETTLED: Final = 0.25  # seconds after the end of a second, in which processes report it
_LATE: Final = 12  # slots that are read again, because a process may report late; and seconds, after an outage
_SHOWN_REFUSALS: Final = 60
_SETTINGS: Final = 20  # that are remembered
_SPANS: Final = (60, 600)  # seconds, in each span the most refused clients are always read
_ASKED_FOR: Final = 10.0  # seconds for which another span is read after a viewer chose it
_NOT_READ: Final = "the store did not answer, so the page shows what was read before: %s"

History = Mapping[int, Mapping[str, Counts]]
"""Counts by name and instant."""


class Snapshot(Struct, frozen=True):
    """What was read last.

    `at`: seconds since 1970, of the read. `away`: since when the store gives no answer. `rows`: the counts of each
    ring. `processes`: by when they were seen. `most_refused`: by the seconds of a span. `records`: the changes.
    `settings_since`: by digest, since when a process has had these settings.
    """

    at: float
    away: float | None
    rows: Mapping[str, History]
    processes: Sequence[tuple[int, ProcessInfo]]
    most_refused: Mapping[int, Mapping[str, int]]
    refusals: Sequence[NumberedRefusal]
    overrides: Sequence[Override]
    records: Sequence[Record]
    settings_since: Mapping[str, float] = {}

    @property
    def last_second(self) -> int:
        """The last second that all processes have reported."""
        return int(self.at - SETTLED) - 1

    @property
    def below(self) -> int:
        """The bound below which all clients are in the sample of all processes. See `metrics.sample`."""
        return min((info.below for _, info in self.processes), default=ALL)


class Reader:
    """Reads the store of some settings. Thread-safe. `reads`: the number of reads so far.

    A store in memory is that of another process, so its counts come from `metrics_folder`, or are those of this
    process.
    """

    def __init__(
        self,
        target: Target,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.reads = 0
        self._target: Final = target
        self._clock, self._monotonic = clock, monotonic
        self._lock: Final = fork_safe_lock()
        self._opened: Final = ExitStack()
        self._store: Store | None = None  # None if it cannot be opened, as a store in memory
        self._board: BaseStore | None = None
        self._is_open = False
        self._due = -inf
        self._snapshot: Snapshot | None = None
        self._rows: dict[str, dict[int, Mapping[str, Counts]]] = {ring.name: {} for ring in RINGS}
        self._read_to: dict[str, int] = {}
        self._holds_until = -inf  # then all processes have reported what they could not during an outage
        self._version: str | None = None
        self._changes: tuple[Sequence[Override], Sequence[Record]] = [], []
        self._asked: dict[int, float] = {}
        self._settings_since: dict[str, float] = {}

    def snapshot(self, span: int = _SPANS[-1]) -> Snapshot:
        """Return what was read in the last second. Reads now if that is due, or waits for the first read.

        `span`: seconds in which the wanted clients were refused.
        """
        if span not in _SPANS:
            if span not in self._asked:
                self._due = -inf
            self._asked[span] = self._monotonic()
        snapshot = self._snapshot
        if (snapshot is None or self._monotonic() >= self._due) and self._lock.acquire(blocking=snapshot is None):
            try:
                if self._snapshot is None or self._monotonic() >= self._due:
                    self._due = self._monotonic() + INTERVAL
                    self._snapshot = self._read(self._snapshot)
                snapshot = self._snapshot
            finally:
                self._lock.release()
        if snapshot is None:  # not so: the first read was waited for
            raise StoreError(_NOT_READ)
        return snapshot

    def forget_changes(self) -> None:
        """Read the overrides and all else again with the next call, because this process changed something."""
        self._version, self._due = None, -inf

    def close(self) -> None:
        """Close the store. It is opened again when it is needed."""
        with self._lock:
            self._is_open = False
            self._opened.close()

    def _open(self) -> None:
        settings = self._target.settings
        store = settings.store
        if isinstance(store, str) and not store.startswith("memory:"):
            store = open_existing(store, max(settings.store_timeout, INTERVAL))
            self._opened.callback(store.close)
        self._store = store if isinstance(store, Store) else None
        self._board = board_of(store, settings)
        self._is_open = True

    def _read(self, before: Snapshot | None) -> Snapshot:
        now, away = self._clock(), None
        self.reads += 1
        processes: Sequence[tuple[int, ProcessInfo]] = before.processes if before else []
        refusals: Sequence[NumberedRefusal] = before.refusals if before else []
        most: Mapping[int, Mapping[str, int]] = before.most_refused if before else {}
        try:
            if not self._is_open:
                self._open()
            processes = self._read_counts(now)
            refusals, most = self._read_refused(now)
            self._read_changes()
        except RateLimitError as error:
            away = before.away if before and before.away is not None else now
            self._holds_until = now + _LATE
            warn_throttled("dashboard store", _NOT_READ, error_summary(error), code="RL-256")
        rows = {name: dict(some) for name, some in self._rows.items()}
        return Snapshot(now, away, rows, processes, most, refusals, *self._changes, self._since(processes))

    def _since(self, processes: Sequence[tuple[int, ProcessInfo]]) -> Mapping[str, float]:
        """Return since when a process has had each of the latest settings, as far as this reader has seen."""
        since = dict(self._settings_since)
        for _, info in processes:
            if info.in_force:
                since[info.digest] = min(info.in_force, since.get(info.digest, inf))
        self._settings_since = dict(sorted(since.items(), key=lambda pair: pair[1])[-_SETTINGS:])
        return self._settings_since

    def _read_counts(self, now: float) -> Sequence[tuple[int, ProcessInfo]]:
        keeper = None if self._board is None else self._board.live_keeper
        if keeper is None:
            raise StoreError("the store keeps no counts that a thread could read")
        slots = {ring.name: self._unread(ring, int(now) // ring.unit) for ring in RINGS}
        live = keeper.read_live(Wanted(slots))
        for ring in RINGS:
            rows = self._rows[ring.name]
            rows.update(live.rows.get(ring.name, {}))
            oldest = int(now) // ring.unit - ring.size
            self._rows[ring.name] = {at: counts for at, counts in rows.items() if at > oldest}
            if now >= self._holds_until:
                self._read_to[ring.name] = int(now) // ring.unit
        return [(seen, info) for seen, text in live.processes if (info := _info(text)) is not None]

    def _unread(self, ring: Ring, now: int) -> range:
        """Return the instants of a ring to read."""
        read_to = self._read_to.get(ring.name, 0)
        late = _LATE if ring.unit == 1 else 1
        return range(max(now - ring.size + 1, read_to - late), now + 1)

    def _read_refused(self, now: float) -> tuple[Sequence[NumberedRefusal], Mapping[int, Mapping[str, int]]]:
        inventory = None if self._store is None else declared(self._store).inventory
        if inventory is None and self._board is not None:
            inventory = self._board.inventory
        if inventory is None or not self._target.settings.remember_refused:
            return [], {}
        recent = self._monotonic() - _ASKED_FOR
        spans = [*_SPANS, *(span for span, asked in self._asked.items() if asked >= recent)]
        most = {span: inventory.most_refused(now - span) for span in spans}
        return inventory.latest_refusals(None, _SHOWN_REFUSALS), most

    def _read_changes(self) -> None:
        keeper = None if self._store is None else declared(self._store).override_keeper
        if keeper is None:
            return
        kept = keeper.read_overrides("none" if self._version is None else self._version)
        if kept is not None:
            changes = OverrideSet(keeper, self._target.settings.key_secret)
            try:
                self._changes = changes.entries, changes.records
            except ConfigError as error:  # without the right MAC: processes ignore them, too
                warn_throttled("dashboard overrides", "%s", error_summary(error), code="RL-256")
                self._changes = [], changes.records
            self._version = kept.version


def _info(text: bytes) -> ProcessInfo | None:
    try:
        return json.decode(text, type=ProcessInfo)
    except DecodeError:  # of another version
        return None


def total(history: History, instants: Iterable[int]) -> Mapping[str, Counts]:
    """Return the sums of some instants, by name."""
    sums: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for at in instants:
        for name, counts in history.get(at, {}).items():
            for index, count in enumerate(counts):
                sums[name][index] += count
    return {name: (some[0], some[1], some[2]) for name, some in sums.items()}


def rows(history: History, instants: Iterable[int], unit: int, name: str | None = None) -> list[list[int]]:
    """Return a row for each instant: its time, admitted and refused, of one name or of all. Zeros included."""
    found = []
    for at in instants:
        counts = history.get(at, {})
        some = counts.values() if name is None else [counts.get(name, (0, 0, 0))]
        found.append([at * unit, sum(one[0] for one in some), sum(one[1] for one in some)])
    return found


RING_OF: Final = {BY_SECOND.unit: BY_SECOND, BY_MINUTE.unit: BY_MINUTE}

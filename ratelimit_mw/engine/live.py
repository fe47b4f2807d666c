"""Reports to the store, once a second, what this process counted: for the dashboard.

There is one reporter in a process, which reports to the store of the gate that was built last: the counts are those of
the process. A store that cannot keep them is replaced by a file in `metrics_folder`, or else by this process's memory.
"""

import asyncio
import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from threading import Lock
from typing import Any, Final
from weakref import ref

from msgspec import Struct, json

from ratelimit_mw.core.log import error_summary, warn_throttled
from ratelimit_mw.engine.pulse import LoopPulse, Pulse, ThreadPulse
from ratelimit_mw.metrics.families import (
    AT_WORK,
    AT_WORK_LIMIT,
    GUARDS,
    LATENCY_GOAL,
    LATENCY_REACHED,
    MICROSECONDS,
    OTHER,
    REQUESTS,
    STORE_OPEN,
    STORE_SECONDS,
    WAITING,
)
from ratelimit_mw.metrics.registry import COUNTS, default_folder
from ratelimit_mw.metrics.sample import SAMPLE
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.contract import BaseStore, declared
from ratelimit_mw.stores.lifecycle import after_fork_in_child, call_at_exit
from ratelimit_mw.stores.live import BY_MINUTE, BY_SECOND, CLIENTS, Counts, Report, Row, safe_name
from ratelimit_mw.stores.local_board import LocalBoard
from ratelimit_mw.stores.url import open_store

_DELAY: Final = 0.02  # seconds after the end of a second, in which its last requests are counted
_KEPT_REPORTS: Final = 60  # reports that are sent again when the store is back
_PER_CALL: Final = 10  # reports in one call
_PATIENCE, _PAUSE = 100, 0.01  # at the end, pauses of so many seconds for a call that is under way
_LATE: Final = 2.0  # seconds; an older report is of requests since the first one in it
_FILE: Final = "live.db"  # in `metrics_folder`
_FILE_TIMEOUT: Final = 1.0  # seconds; no request waits for this file
_NOT_SENT: Final = "the store did not receive the counts of the last second, which are sent again: %s"
_LOCAL_SOURCES: Final = frozenset({"local", "allowed_on_error", "denied_on_error"})  # decisions without the store


class AtWork(Struct):
    """The requests that are at work, and how many may be. `goal`, `reached`: seconds, see `engine.overload`."""

    now: int
    limit: int
    goal: float
    reached: float


class ProcessInfo(Struct):
    """How a process is. `since`, `at`: seconds since 1970. `away`: since when its store gives no answer.

    `without`: decisions of the last second that were made without the store. `calls`, `call_seconds`: of the store in
    that second; `bounds`: how many took at most each time, more than the one before. `waiting`: requests by rule.
    `at_work`: None without a latency goal. `below`: see `Sample`. `in_force`: since when these settings are in force.
    """

    id: str
    host: str
    pid: int
    since: float
    at: float
    digest: str
    away: float | None = None
    without: int = 0
    calls: int = 0
    call_seconds: float = 0.0
    waiting: Mapping[str, int] = {}
    at_work: AtWork | None = None
    below: int = 0
    bounds: Mapping[str, int] = {}
    in_force: float = 0.0


LOCAL_BOARD: Final = LocalBoard()


def board_of(store: object, settings: Settings) -> BaseStore:
    """Return the store that keeps what the dashboard shows: that of the settings, if it does, else a local one."""
    described = declared(store)
    if described.live_keeper is not None or described.async_live_keeper is not None:
        return described
    return local_board(settings)


def local_board(settings: Settings) -> BaseStore:
    """Return the file in `metrics_folder`, or else the memory of this process."""
    folder = default_folder() if settings.metrics_folder is None else Path(settings.metrics_folder).absolute()
    if folder is None:
        return LOCAL_BOARD
    folder.mkdir(parents=True, exist_ok=True)
    url = f"sqlite://{folder / _FILE}"
    if url not in _folders:
        _folders[url] = declared(open_store(url, _FILE_TIMEOUT))
    return _folders[url]


_folders: Final[dict[str, BaseStore]] = {}  # by URL: the gates of a process share a file


class LiveReporter:
    """Reports what this process counted since its last report. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock: Final = clock
        self._reset()
        after_fork_in_child(self._reset)
        COUNTS.each_second.append(self.wake)

    def _reset(self) -> None:
        """Start from zero. Also runs in a forked child, because its parent reports what was counted before."""
        self._lock = Lock()
        self._id = token_hex(8)
        self._since = self._last = self._in_force = self._clock()
        self._first: float | None = None  # when this process first counted since the last report
        self._number = 0
        self._away: float | None = None
        self._before: Mapping[Any, int] = {}
        self._unsent: deque[Report] = deque(maxlen=_KEPT_REPORTS)
        self._calls = 0  # of the store that are under way
        self._has_ended = False
        self._calls_at_exit = False

    _board: Callable[[], BaseStore | None] = staticmethod(lambda: None)
    _pulse: Pulse | None = None
    digest = ""

    def use(self, board: BaseStore, digest: str, *, is_async: bool) -> None:
        """Report to this store from now on, if it exists. `digest`: of the settings in force."""
        if digest != self.digest:
            self.digest, self._in_force = digest, self._clock()
        SAMPLE.start()
        if self._board() is board and isinstance(self._pulse, LoopPulse if is_async else ThreadPulse):
            return
        self._board = ref(board)
        wait = self._wait
        self._pulse = LoopPulse(self.aflush, wait) if is_async else ThreadPulse(self.flush, wait, "ratelimit_mw live")

    def forget(self) -> None:
        """Report to no store, and start from zero. For tests."""
        self._pulse, self._board = None, lambda: None
        self._reset()

    def wake(self) -> None:
        """Begin to report. Called once a second at most, while requests are counted."""
        if self._first is None:
            self._first = self._clock()
        if self._pulse is None:
            return
        self._has_ended = False
        if not self._calls_at_exit and isinstance(self._pulse, ThreadPulse):
            self._calls_at_exit = True
            call_at_exit(self.end)
        self._pulse.start()

    def flush(self) -> bool:
        """Report now. Return whether to go on. Logs an error of the store."""
        board = self._board()
        if board is None or board.live_keeper is None:
            return False
        with self._call():
            for reports in self._next_reports():
                try:
                    board.live_keeper.add_live(reports)
                except Exception as error:  # noqa: BLE001  # no request waits for this
                    return self._failed(error)
                self._sent(reports)
        return not self._has_ended

    async def aflush(self) -> bool:
        """Do the same under asyncio."""
        board = self._board()
        if board is None or board.async_live_keeper is None:
            return False
        with self._call():
            for reports in self._next_reports():
                try:
                    await board.async_live_keeper.aadd_live(reports)
                except Exception as error:  # noqa: BLE001  # no request waits for this
                    return self._failed(error)
                self._sent(reports)
        return not self._has_ended

    def end(self) -> None:
        """Report for the last time, after the report that is under way: the store would count that again later."""
        self._has_ended = True
        for _ in range(_PATIENCE):
            if not self._calls:
                break
            time.sleep(_PAUSE)
        if self._number:
            self.flush()

    async def aend(self) -> None:
        """Do the same under asyncio."""
        self._has_ended = True
        for _ in range(_PATIENCE):
            if not self._calls:
                break
            await asyncio.sleep(_PAUSE)
        if self._number:
            await self.aflush()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a report as under way, from the moment that it is made."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    def _wait(self) -> float:
        """Return the seconds until just after the end of this second."""
        return 1.0 - self._clock() % 1.0 + _DELAY

    def _failed(self, error: Exception) -> bool:
        if self._away is None:
            self._away = self._clock()
        warn_throttled("dashboard", _NOT_SENT, error_summary(error), code="RL-255")
        return not self._has_ended

    def _sent(self, reports: Sequence[Report]) -> None:
        self._away = None
        with self._lock:
            while self._unsent and self._unsent[0].number <= reports[-1].number:
                self._unsent.popleft()

    def _next_reports(self) -> Sequence[Sequence[Report]]:
        """Make a report, and return all that were not sent, in groups."""
        with self._lock:
            self._unsent.append(self._report())
            reports = list(self._unsent)
        return [reports[start : start + _PER_CALL] for start in range(0, len(reports), _PER_CALL)]

    def _report(self) -> Report:
        now, before, counts = self._clock(), self._before, COUNTS.own_counts()
        self._number += 1
        self._before = counts
        added = {series: count - before.get(series, 0) for series, count in counts.items()}
        if now - self._last > _LATE and self._first is not None:
            self._last = max(self._last, self._first)
        second = int((self._last + now) / 2)  # a late report counts where most of its requests were
        self._last, self._first = now, None
        sample = SAMPLE.drain()
        by_rule = _by_rule(added, sample.shadowed)
        rows = {}
        if by_rule:
            rows = {
                BY_SECOND.name: [Row(second, by_rule)],
                BY_MINUTE.name: [Row(second // BY_MINUTE.unit, by_rule)],
            }
        if sample.counts:
            clients = {safe_name(key): (*some, 0) for key, some in sample.counts.items()}
            rows[CLIENTS.name] = [Row(second, clients)]
        text = None if self._has_ended else json.encode(self._info(now, added, counts, sample.below))
        return Report(self._id, self._number, int(now), text, rows)

    def _info(self, now: float, added: Mapping[Any, int], counts: Mapping[Any, int], below: int) -> ProcessInfo:
        waiting = {labels[0]: count for (name, labels), count in counts.items() if name == WAITING.name and count > 0}
        without = sum(
            count for (name, labels), count in added.items() if name == REQUESTS.name and labels[2] in _LOCAL_SOURCES
        )
        bounds = Counter[str]()
        for (name, labels), count in added.items():
            if name == f"{STORE_SECONDS.name}_bucket" and count > 0:
                bounds[labels[-1]] += count
        seconds = sum(count for (name, _), count in added.items() if name == f"{STORE_SECONDS.name}_sum")
        if counts.get((STORE_OPEN.name, ())) and self._away is None:
            self._away = now
        return ProcessInfo(
            self._id,
            socket.gethostname(),
            os.getpid(),
            self._since,
            now,
            self.digest,
            self._away,
            without,
            bounds.total(),
            seconds / MICROSECONDS,
            waiting,
            _at_work(counts),
            below,
            bounds,
            self._in_force,
        )


def _at_work(counts: Mapping[Any, int]) -> AtWork | None:
    """Return what the guards of the latency goal count; None without a guard. Of several, goals are averaged."""
    number = counts.get((GUARDS.name, ()), 0)
    if not number:
        return None
    goal, reached = (counts.get((one.name, ()), 0) / MICROSECONDS / number for one in (LATENCY_GOAL, LATENCY_REACHED))
    return AtWork(counts.get((AT_WORK.name, ()), 0), counts.get((AT_WORK_LIMIT.name, ()), 0), goal, reached)


def _by_rule(added: Mapping[Any, int], shadowed: Counter[str]) -> Mapping[str, Counts]:
    """Return what was counted, by rule."""
    parts: tuple[Counter[str], Counter[str], Counter[str]] = Counter(), Counter(), shadowed
    for (name, labels), count in added.items():
        if count > 0 and name == REQUESTS.name:
            parts[labels[1] != "admitted"][labels[0]] += count
    rules = dict.fromkeys(rule for part in parts for rule, count in part.items() if count)
    return {safe_name(rule) or OTHER: (parts[0][rule], parts[1][rule], parts[2][rule]) for rule in rules}


LIVE: Final = LiveReporter()

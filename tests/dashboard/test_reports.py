"""Tests that a process reports what it counted once, to the right store, from threads and from asyncio."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from ratelimit_mw import StoreError, Verdict
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.live import LIVE, LOCAL_BOARD, LiveReporter, ProcessInfo, board_of
from ratelimit_mw.metrics.recording import STORE_CALLS, count_decision
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.metrics.sample import ALL, MOST, SAMPLE, ClientSample, checksum
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.live import BY_SECOND, RINGS, Report, Wanted
from ratelimit_mw.stores.local_board import LocalBoard
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.sqlite import SQLiteStore
from redis_servers import RedisServer
from web.plain_request import PlainRequest

pytestmark = [
    pytest.mark.one_redis,
    pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning"),
]

(FIVE,) = parse("5/minute using fixed_window")


class Board(LocalBoard):
    """Keeps what it receives. `error`: raised instead."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Sequence[Report]] = []
        self.error: Exception | None = None

    def add_live(self, reports: Sequence[Report]) -> None:
        self.calls.append(list(reports))
        if self.error is not None:
            raise self.error
        super().add_live(reports)


class Process:
    """A reporter with its board, and the time."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.02
        self.board = Board()
        self.reporter = LiveReporter(lambda: self.now)
        COUNTS.each_second.remove(self.reporter.wake)
        self.reporter.use(self.board, "c45ec6ea", is_async=False)

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.reporter.flush()

    def seconds(self) -> Any:
        wanted = range(1_800_000_000, 1_800_000_030)
        return self.board.read_live(Wanted({BY_SECOND.name: wanted})).rows[BY_SECOND.name]


@pytest.fixture
def process() -> Process:
    return Process()


def verdict(*, spent: bool = False) -> Verdict:
    store, charges = MemoryStore(), [Charge("{ip=192.0.2.7}:login", FIVE)]
    for _ in range(5 if spent else 0):
        store.take(charges)
    return verdict_of(charges, store.take(charges), "login")


def test_each_count_is_reported_once_in_the_second_in_which_it_was_counted(process: Process) -> None:
    count_decision(verdict())
    count_decision(verdict(spent=True))
    process.tick()
    process.tick()
    count_decision(verdict())
    process.tick()
    assert process.seconds() == {1_800_000_000: {"login": (1, 1, 0)}, 1_800_000_002: {"login": (1, 0, 0)}}


def test_a_late_report_counts_where_most_of_its_requests_were(process: Process) -> None:
    process.tick()
    count_decision(verdict())
    process.tick(1.6)  # the process was busy
    count_decision(verdict())
    process.tick(0.4)
    assert process.seconds() == {1_800_000_001: {"login": (1, 0, 0)}, 1_800_000_002: {"login": (1, 0, 0)}}


def test_the_first_report_is_dated_by_the_time_of_the_first_count(process: Process) -> None:
    process.now += 17.3
    count_decision(verdict())
    process.reporter._pulse = None  # begins no thread
    process.reporter.wake()
    process.tick(0.7)
    assert process.seconds() == {1_800_000_017: {"login": (1, 0, 0)}}


def test_blocked_requests_are_no_refusals_of_the_rule(process: Process) -> None:
    count_decision(verdict(spent=True))
    count_decision(Verdict(False, (), (), "login"))  # lacks the key
    count_decision(Verdict(False, (), (), "blocklist"))
    process.tick()
    assert process.seconds() == {1_800_000_000: {"login": (0, 2, 0), "blocklist": (0, 1, 0)}}


def test_a_shadow_limit_counts_for_its_own_rule_once_a_request(process: Process) -> None:
    charges = [Charge(f"{{a}}:{name}", FIVE, role="shadow") for name in ("search", "search", "other")]
    charges[1] = Charge("{b}:search", FIVE, role="shadow")
    store = MemoryStore()
    for _ in range(6):
        found = verdict_of(charges, store.take(charges), "default")
    count_decision(found)
    process.tick()
    assert process.seconds() == {1_800_000_000: {"default": (1, 0, 0), "search": (0, 0, 1), "other": (0, 0, 1)}}


@pytest.mark.promise(8)
def test_reports_that_the_store_did_not_receive_are_sent_again(process: Process) -> None:
    process.board.error = StoreError("no answer")
    count_decision(verdict())
    process.tick()
    process.tick()
    process.board.error = None
    count_decision(verdict())
    process.tick()
    assert process.seconds() == {1_800_000_000: {"login": (1, 0, 0)}, 1_800_000_002: {"login": (1, 0, 0)}}
    assert [[one.number for one in call] for call in process.board.calls] == [[1], [1, 2], [1, 2, 3]]
    process.tick()
    assert [one.number for one in process.board.calls[-1]] == [4]


@pytest.mark.promise(8)
def test_reports_are_kept_for_a_minute_and_sent_ten_at_a_time(process: Process) -> None:
    process.board.error = StoreError("no answer")
    for _ in range(70):
        process.tick()
    process.board.error = None
    process.board.calls.clear()
    process.tick()
    assert [one.number for call in process.board.calls for one in call] == list(range(12, 72))
    assert [len(call) for call in process.board.calls] == [10] * 6


def test_a_process_says_how_it_is(process: Process) -> None:
    count_decision(Verdict(True, (), (), "login", "allowed_on_error"))
    process.board.error = StoreError("no answer")
    process.tick()
    process.tick()
    process.board.error = None
    process.tick()
    text = process.board.calls[-1][-1].text
    assert text is not None
    info = json.decode(text, type=ProcessInfo)
    assert (info.digest, info.away, info.since) == ("c45ec6ea", 1_800_000_001.02, 1_800_000_000.02)
    assert info.in_force == 1_800_000_000.02
    first = process.board.calls[0][0].text
    assert first is not None
    assert json.decode(first, type=ProcessInfo).without == 1
    process.tick()
    last = process.board.calls[-1][-1].text
    assert last is not None
    assert json.decode(last, type=ProcessInfo).away is None


def test_a_process_says_since_when_it_has_its_settings_and_how_long_calls_took(process: Process) -> None:
    process.tick()
    for digest in ("0a1b2c3d", "0a1b2c3d"):
        process.reporter.use(process.board, digest, is_async=False)
        for seconds in (0.0004, 0.0005, 0.02, 7.0):
            STORE_CALLS.record("take", seconds)
        process.tick()
        text = process.board.calls[-1][-1].text
        assert text is not None
        info = json.decode(text, type=ProcessInfo)
        assert (info.digest, info.in_force) == ("0a1b2c3d", 1_800_000_001.02)
        assert (info.calls, info.bounds) == (4, {"0.0005": 2, "0.025": 1, "+Inf": 1})


def test_a_process_that_ends_takes_itself_away(process: Process) -> None:
    count_decision(verdict())
    process.tick()
    assert len(process.board.read_live(Wanted({})).processes) == 1
    count_decision(verdict())
    process.now += 0.5
    process.reporter.end()
    live = process.board.read_live(Wanted({}))
    assert live.processes == []
    assert process.seconds() == {1_800_000_000: {"login": (1, 0, 0)}, 1_800_000_001: {"login": (1, 0, 0)}}


def test_a_report_that_is_made_but_not_sent_at_the_end_is_counted_once(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go, make = threading.Event(), threading.Event(), process.reporter._next_reports

    def make_slowly() -> Any:
        reports = make()
        if not made.is_set():
            made.set()
            go.wait()
        return reports

    monkeypatch.setattr(process.reporter, "_next_reports", make_slowly)
    count_decision(Verdict(True, (), (), "search"))
    process.now += 1.0
    threads = [threading.Thread(target=process.reporter.flush), threading.Thread(target=process.reporter.end)]
    threads[0].start()
    made.wait()
    threads[1].start()
    threads[1].join(0.05)  # as long as it would take if it did not wait
    go.set()
    for thread in threads:
        thread.join()
    assert sum(counts[0] for row in process.seconds().values() for counts in row.values()) == 1


class SlowBoard(Board):
    """A board whose first call, under asyncio, writes when `go` is set."""

    go: asyncio.Event

    @property
    def async_live_keeper(self) -> Any:
        return self

    async def aadd_live(self, reports: Sequence[Report]) -> None:
        if not self.calls:
            self.calls.append([])
            await self.go.wait()
        self.add_live(reports)


def test_a_report_under_way_at_the_end_is_counted_once() -> None:
    """The last report removes the process from the store, which would count an earlier one again after it."""
    process = Process()
    process.board = board = SlowBoard()
    process.reporter.use(board, "c45ec6ea", is_async=True)

    async def run() -> None:
        board.go = asyncio.Event()
        count_decision(Verdict(True, (), (), "search"))
        process.now += 1.0
        first = asyncio.create_task(process.reporter.aflush())
        await asyncio.sleep(0)
        last = asyncio.create_task(process.reporter.aend())
        await asyncio.sleep(0.05)
        board.go.set()
        await asyncio.gather(first, last)

    asyncio.run(run())
    assert sum(counts[0] for row in process.seconds().values() for counts in row.values()) == 1


def test_a_child_reports_what_it_counts_itself(process: Process) -> None:
    process.tick()
    before = process.reporter._id  # as a fork does
    process.reporter._reset()
    process.tick()
    assert process.reporter._id != before
    assert len(process.board.read_live(Wanted({})).processes) == 2


def until(happened: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def admitted() -> int:
    now = int(time.time())
    wanted = Wanted({BY_SECOND.name: range(now - 100, now + 1)})
    keeper = LIVE._board()  # that of the gate
    assert keeper is not None
    assert keeper.live_keeper is not None
    rows = keeper.live_keeper.read_live(wanted).rows[BY_SECOND.name].values()
    return sum(counts[0] for row in rows for counts in row.values())


@pytest.mark.parametrize("kind", ["memory", "folder", "file", "server"])
def test_a_gate_for_threads_reports_by_itself(kind: str, tmp_path: Path, redis_servers: Any) -> None:
    gate = Gate(settings_of(kind, tmp_path, redis_servers))
    gate.admit(PlainRequest())
    until(lambda: admitted() == 1)
    gate.admit(PlainRequest())
    until(lambda: admitted() == 2)
    gate.close()


@pytest.mark.parametrize("kind", ["memory", "folder", "file"])
def test_a_gate_under_asyncio_reports_by_itself(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        gate = AsyncGate(settings_of(kind, tmp_path, {}))
        await gate.admit(PlainRequest())
        end = time.monotonic() + 60
        while admitted() != 1:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        await gate.admit(PlainRequest())
        await gate.close()
        assert admitted() == 2

    asyncio.run(run())


def settings_of(kind: str, folder: Path, servers: Any) -> Settings:
    store, folder_of_counts = "memory://", None
    if kind == "folder":
        folder_of_counts = str(folder / "counts")
    elif kind == "file":
        store = f"sqlite://{folder}/limits.db"
    elif kind == "server":
        server: RedisServer = next(iter(servers.values()))
        server.flush()
        store = server.url
    return Settings(limits="100/minute", store=store, store_timeout=5.0, metrics=True, metrics_folder=folder_of_counts)


def test_without_metrics_nothing_is_reported(tmp_path: Path) -> None:
    gate = Gate(Settings(limits="100/minute", store=f"sqlite://{tmp_path}/limits.db"))
    gate.admit(PlainRequest())
    assert LIVE._board() is None  # nobody set it
    assert SAMPLE.below == 0
    gate.close()


def test_a_store_in_memory_is_shared_by_the_folder(tmp_path: Path) -> None:
    alone, shared = Settings(limits="1/minute", metrics=True), settings_of("folder", tmp_path, {})
    assert board_of(MemoryStore(), alone) is LOCAL_BOARD
    board = board_of(MemoryStore(), shared)
    assert board is board_of(MemoryStore(), shared)
    store: Any = board
    assert store.path == tmp_path / "counts/live.db"
    file = SQLiteStore(tmp_path / "limits.db")
    assert board_of(file, shared) is file
    file.close()
    store.close()


def test_a_refusal_in_memory_is_remembered_with_its_request() -> None:
    gate = Gate(Settings(limits="1/hour", metrics=True, remember_refused=10, plain_keys=True))
    for _ in range(2):
        gate.admit(PlainRequest("/login\udc80" + "x" * 300, "POST"))
    gate.close()
    (found,) = LOCAL_BOARD.latest_refusals(None, 10)
    refusal = found.refusal
    assert (refusal.key, refusal.method) == ("{ip=192.0.2.1}:default", "POST")
    assert (refusal.path, len(refusal.path)) == ("/login?" + "x" * 193, 200)


def test_the_sample_has_all_requests_of_the_same_clients_in_each_process() -> None:
    samples = [ClientSample(), ClientSample()]
    keys = [f"{{ip=192.0.2.{number}}}:login" for number in range(400)]
    decided = verdict()
    for sample in samples:
        sample.start()
    for _ in range(50):
        for number, key in enumerate(keys):
            sample = samples[number % 2]
            if checksum(key) < sample.below:
                sample.add(key, decided)
        for sample in samples:
            found = sample.drain()
            assert len(found.counts) <= 8 * MOST
    below = max(found.below for found in (sample.drain() for sample in samples))
    assert 0 < below < ALL / 10
    assert below <= sorted(map(checksum, keys))[2 * MOST + 20]


def test_a_flood_of_clients_is_bounded_within_a_second() -> None:
    sample = ClientSample()
    sample.start()
    for number in range(10_000):
        key = f"{{{number}}}:login"
        if checksum(key) < sample.below:
            sample.add(key, verdict())
    assert len(sample.drain().counts) <= MOST


def test_each_ring_is_larger_than_what_is_shown() -> None:
    assert [ring.size * ring.unit for ring in RINGS] == [330, 86_700, 330]

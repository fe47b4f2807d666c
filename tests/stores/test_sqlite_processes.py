"""Tests processes that share a file, and processes that are killed or stopped during a take."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from profiles import PROOF
from stores.test_concurrency import QUOTAS

RUNNER = Path(__file__).with_name("sqlite_runner.py")
KILLING = 10 if PROOF else 1.8  # seconds
STOPS = 100 if PROOF else 10
STORE_TIMEOUT = 0.05  # seconds
MOST_CPU = 20_000  # microseconds

pytestmark = [pytest.mark.promise(3), pytest.mark.promise(8)]


def run(path: Path, task: str, *arguments: object) -> list[int]:
    command = [sys.executable, str(RUNNER), str(path), task, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return [int(number) for number in done.stdout.split()]


@pytest.mark.parametrize("task", ["shared", "awaited"])
def test_four_processes_share_each_quota_exactly(task: str, tmp_path: Path) -> None:
    assert run(tmp_path / "limits.db", task, *QUOTAS) == list(QUOTAS.values())


def test_killed_processes_lose_no_confirmed_charge(tmp_path: Path) -> None:
    answered, counted, kills = run(tmp_path / "limits.db", "killed", KILLING)
    assert answered > 0
    assert 0 <= counted - answered <= kills


def test_process_stopped_during_a_take_fails_only_calls_made_meanwhile(tmp_path: Path) -> None:
    failed, longest, counted = run(tmp_path / "limits.db", "stopped", STOPS, STORE_TIMEOUT)
    assert failed == STOPS
    assert longest <= MOST_CPU
    assert counted == 1 + 2 * STOPS  # the stopped process took its unit when it was resumed


TAKES_ON_DEMAND = """
import sys
from ratelimit_mw import Charge, FixedWindow, StoreError
from ratelimit_mw.stores.sqlite import SQLiteStore
store = SQLiteStore(sys.argv[1], timeout=5, deny_cache=0)
for line in sys.stdin:
    if line == "later\\n":
        store._store._database._look_at = 0.0  # as if a second had passed
        store.guard.clear()  # closes the circuit breaker
    try:
        print(store.take([Charge("k", FixedWindow(40, 3600))])[0].remaining, flush=True)
    except StoreError:
        print(-1, flush=True)
"""


class Taker:
    """A process that takes when it is told to."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._told, self._answers = process.stdin, process.stdout

    def take(self, when: str = "now") -> int:
        """Return the units that are left, or -1 for an error."""
        self._told.write(f"{when}\n")
        self._told.flush()
        return int(self._answers.readline())


@contextmanager
def taker(path: Path) -> Iterator[Taker]:
    command = [sys.executable, "-c", TAKES_ON_DEMAND, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Taker(process)


@pytest.mark.parametrize("endings", [("-wal", "-shm"), ("-wal",), ("-shm",)], ids="".join)
def test_processes_share_states_again_after_the_log_or_the_index_is_removed(
    tmp_path: Path, endings: tuple[str, ...]
) -> None:
    """A process that opens the file after the removal does not see what the others write to the removed files."""
    path = tmp_path / "limits.db"
    with ExitStack() as running:
        first, second = (running.enter_context(taker(path)) for _ in range(2))
        assert [first.take(), second.take()] == [39, 38]
        for ending in endings:
            Path(f"{path}{ending}").unlink()
        late = running.enter_context(taker(path))
        late.take()
        takers = (first, second, late)
        for _ in range(2):  # the first call may fail while another process still uses the removed files
            for one in takers:
                one.take("later")
        left = [one.take() for _ in range(2) for one in takers]
        assert left == [*range(left[0], left[0] - 6, -1)]
        assert left[0] >= 30

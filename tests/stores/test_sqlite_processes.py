"""Tests processes that share a file, and processes that are killed or stopped during a take."""

import subprocess
import sys
from pathlib import Path

import pytest

from profiles import PROOF
from stores.test_concurrency import QUOTAS

RUNNER = Path(__file__).with_name("sqlite_runner.py")
KILLING = 10 if PROOF else 1.8  # seconds
STOPS = 100 if PROOF else 10
STORE_TIMEOUT = 0.05  # seconds
MOST_CPU = 20_000  # microseconds

pytestmark = [pytest.mark.once, pytest.mark.promise(3), pytest.mark.promise(8)]


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

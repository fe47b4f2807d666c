"""The benchmark program: what it counts and says. Never how fast anything is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import ratelimit_mw

ROOT = Path(__file__).resolve().parents[1]
SMALL = ("--rounds", "2", "--calls", "20")
LIAR = """
import sys
from benchmarks import __main__ as program
from benchmarks.runner import Batch, Race

program.ROWS[:] = [Race(name="liar", what="", ours=lambda lab: lambda calls: Batch(1, calls - 1, 1))]
sys.exit(program.main(["--rounds", "1", "--calls", "5"]))
"""
WITHOUT_LIMITS = """
import sys
sys.modules["limits"] = None
from benchmarks.__main__ import main

sys.exit(main(["--only", "memory-token", "--rounds", "2", "--calls", "20"]))
"""


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # the package under test goes before the root, where a checkout of it lies beside `benchmarks`
    path = os.pathsep.join([str(Path(ratelimit_mw.__file__).parents[1]), str(ROOT)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def row(output: str, name: str) -> list[str]:
    (line,) = [line.split() for line in output.splitlines() if line.startswith(f"{name} ")]
    return line


def test_rows_without_a_server_count_what_they_say(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "benchmarks", "--only", "memory", "asgi", "wsgi", *SMALL, "--json", "it.json")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("memory-token", "memory-default", "asgi", "wsgi"):
        assert row(done.stdout, name)[-2:] == ["40", "0"]
    assert row(done.stdout, "memory-refused")[-2:] == ["0", "40"]
    assert "memory-token" in done.stderr  # the progress
    written = json.loads((tmp_path / "it.json").read_text())
    counts = {one["row"]: (one["admitted"], one["refused"], one["problems"]) for one in written["rows"]}
    assert counts["memory-token"] == (40, 0, [])
    assert counts["memory-refused"] == (0, 40, [])


def test_heading_names_versions_and_machine(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "benchmarks", "--only", "memory-token", *SMALL)
    for word in ("python ", "ratelimit-mw ", "limits ", "asgi-ratelimit ", "redis-py ", "redis-server ", " cores"):
        assert word in done.stdout


def test_wrong_counts_fail(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", LIAR)
    assert done.returncode == 1, done.stderr
    assert "WRONG: ours: 4 admitted and 1 refused, not 5 and 0" in done.stdout


def test_peer_that_is_not_installed_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", WITHOUT_LIMITS)
    assert done.returncode == 0, done.stderr
    assert "limits: not installed" in done.stdout
    assert row(done.stdout, "memory-token")[-2:] == ["40", "0"]


def test_row_without_its_server_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "benchmarks", "--only", "redis-sync-1", *SMALL, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "skipped, redis-server: not on PATH" in done.stdout


def test_unknown_row_is_an_error_that_names_the_rows(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "benchmarks", "--only", "memory-tokn")
    assert done.returncode == 2
    assert "memory-token" in done.stderr

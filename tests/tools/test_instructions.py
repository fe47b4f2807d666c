"""The program that counts instructions: one scenario, and what it says of targets and of missing programs."""

import json
import shutil
from pathlib import Path

import pytest

from benchmark_program import run


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not on the PATH: nothing counts instructions")
def test_instructions_are_counted_beside_their_target(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "benchmarks.instructions", "lists", "--json", "it.json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "it.json").read_text("utf-8"))["lists"]
    assert [*found] == ["ours, no lists", "ours, exempt and safelist"]
    for counts in found.values():
        assert 10_000 < counts["instructions"] < 1_000_000
        assert 1 <= counts["functions"] == int(counts["functions"])
        assert counts["functions"] < counts["bytecodes"]
    (verdict,) = [line for line in done.stdout.splitlines() if line.startswith("functions entered: an entry in exempt")]
    ratio = found["ours, exempt and safelist"]["functions"] / found["ours, no lists"]["functions"]
    assert f"{ratio:.3f} <= 1.35" in verdict
    assert verdict.split()[-1] == ("met" if ratio <= 1.35 else "missed")


@pytest.mark.parametrize("program", ["valgrind", "gcc"])
def test_a_missing_program_is_named(program: str, tmp_path: Path) -> None:
    for other in {"valgrind", "gcc"} - {program}:
        (tmp_path / other).symlink_to("/bin/true")
    done = run(tmp_path, "-m", "benchmarks.instructions", "lists", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"The counts of instructions are skipped, {program}: not on PATH (apt-get install valgrind gcc)\n"
    )


def test_an_unknown_scenario_is_an_error_that_names_the_others(tmp_path: Path) -> None:
    done = run(tmp_path, "-m", "benchmarks.instructions", "list")
    assert done.returncode == 2
    assert "there is no list; there are asgi, asgi-goal, asgi-3, " in done.stderr

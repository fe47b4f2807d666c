"""Tests that the benchmark of overload counts and draws. No test depends on speed."""

import json
from pathlib import Path

from benchmarks import overload

ROW = {"server": "uvicorn", "path": "/wait", "capacity": 400.0, "loads": [1.0, 2.0], "with": [1, 1], "without": [1, 0]}


def test_the_picture_has_a_line_with_a_goal_and_one_without(tmp_path: Path) -> None:
    """Drawn again from what `--json` wrote."""
    rows, drawn = tmp_path / "rows.json", tmp_path / "drawn.svg"
    rows.write_text(json.dumps([ROW]))
    overload.main(["--draw", str(rows), "--svg", str(drawn)])
    text = drawn.read_text()

    assert '<path class="with" d="M325.0 73.3L600.0 73.3"/>' in text
    assert '<path class="without" d="M325.0 73.3L600.0 346.0"/>' in text
    assert "load, as a part of 400 requests a second (uvicorn)" in text


def test_a_run_measures_with_a_goal_and_without(tmp_path: Path) -> None:
    """A smoke test: so few requests that each is answered, or that none comes."""
    rows = tmp_path / "rows.json"
    options = ["--servers", "uvicorn", "--paths", "/wait", "--loads", "0.05", "--seconds", "0.5", "--settling", "0"]
    overload.main([*options, "--json", str(rows)])
    (row,) = json.loads(rows.read_text())

    assert (row["server"], row["path"], row["capacity"], row["loads"]) == ("uvicorn", "/wait", 400.0, [0.05])
    assert len(row["with"]) == len(row["without"]) == 1

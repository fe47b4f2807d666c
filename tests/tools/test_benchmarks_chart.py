"""Tests that a chart is well-formed, has bars of the right lengths, and texts that state what the colors show."""

import json
from pathlib import Path
from shutil import copy
from typing import Any
from xml.etree import ElementTree as ET

from benchmark_program import ROOT, SMALL, run

FIGURES = ("docs/from_runs.py", "figures")
SVG = "{http://www.w3.org/2000/svg}"
BEGIN, END = 250.0, 630.0  # pixels; the ends of all axes


def line(row: str, value: float | None, target: float | None, **other: Any) -> dict[str, Any]:
    verdict = "" if value is None or target is None else "met"
    given = {"row": row, "unit": "x", "value": value, "half": None, "target": target, "at_least": False}
    return {**given, "verdict": verdict, **other}


def drawn(folder: Path, *rows: dict[str, Any]) -> ET.Element:
    versions = {"ratelimit-mw": "1.0 (installed)", "python": "3.11"}
    found = {"versions": versions, "machine": {"cpu": "A & B", "cores": "2"}, "rows": rows}
    (folder / "it.json").write_text(json.dumps(found), "utf-8")
    done = run(folder, "-m", "benchmarks.chart", "it.json", "it.svg")
    assert done.returncode == 0, done.stderr
    return ET.fromstring((folder / "it.svg").read_text("utf-8"))  # noqa: S314  # written by this package's program


def bars(svg: ET.Element) -> dict[str, ET.Element]:
    return {(bar.findtext(f"{SVG}title") or "").partition(":")[0]: bar for bar in svg.findall(f"{SVG}g")}


def length(bar: ET.Element) -> float:
    rect = bar.find(f"{SVG}rect")
    assert rect is not None
    assert float(rect.get("x", "")) == BEGIN
    return float(rect.get("width", ""))


def mark(bar: ET.Element, of: str = "target") -> tuple[float, float]:
    (found,) = [one for one in bar.findall(f"{SVG}line") if one.get("class") == of]
    return float(found.get("x1", "")), float(found.get("x2", ""))


def test_bars_and_marks_have_the_right_positions(tmp_path: Path) -> None:
    found = bars(drawn(tmp_path, line("a", 0.5, 0.25), line("b", 2.0, 1.0, half=[1.0, 2.0]), line("c", 0.2, 0.4)))
    assert [*found] == ["a", "b", "c"]
    assert [length(bar) for bar in found.values()] == [95.0, 380.0, 38.0]  # 2.0 is the longest: 380 pixels
    assert [mark(bar) for bar in found.values()] == [(297.5, 297.5), (440.0, 440.0), (326.0, 326.0)]
    assert mark(found["b"], "half") == (440.0, 630.0)


def test_each_direction_and_unit_has_its_own_axis(tmp_path: Path) -> None:
    more = {"at_least": True}
    rows = (
        line("sizes", 95.0, 190.0, unit="bytes"),
        line("cut", 40.0, 20.0, **more),
        line("half", 2.0, 1.0, **more),
        line("saved", 40.0, 20.0, unit="calls", **more),
        line("less", 0.5, 0.5),
    )
    found = bars(drawn(tmp_path, *rows))
    assert {name: length(bar) for name, bar in found.items()} == {
        "less": 190,
        "cut": 380,
        "half": 190,
        "saved": 190,
        "sizes": 190,
    }
    assert mark(found["cut"]) == (END, END)
    assert mark(found["sizes"]) == (END, END)


def test_rows_without_a_target_number_or_scale_are_not_drawn(tmp_path: Path) -> None:
    assert not bars(drawn(tmp_path, line("a", None, 0.5), line("b", 0.5, None), line("c", 2.0, 2.0, unit="admitted")))


def test_texts_state_what_the_colors_show(tmp_path: Path) -> None:
    svg = drawn(tmp_path, line("a", 0.5, 0.25, verdict="missed"), line("b", 3.0, 2.0, at_least=True))
    assert (svg.get("role"), svg.get("aria-labelledby")) == ("img", "title about")
    assert svg.findtext(f"{SVG}title") == "1 of 2 targets met"
    assert "A & B, 2 cores" in (svg.findtext(f"{SVG}desc") or "")
    told = [bar.findtext(f"{SVG}title") for bar in svg.findall(f"{SVG}g")]
    assert told == ["a: 0.50, target ≤ 0.25: missed", "b: 3.00, target ≥ 2.00: met"]
    assert [bar.findall(f"{SVG}text")[-1].text for bar in svg.findall(f"{SVG}g")] == [
        "0.50, target ≤ 0.25: missed",
        "3.00, target ≥ 2.00: met",
    ]


def test_run_draws_its_chart_and_the_json_gives_the_same_chart(tmp_path: Path) -> None:
    given = ("--only", "memory-token", "--json", "it.json", "--svg", "it.svg")
    done = run(tmp_path, "-m", "benchmarks", *given, *SMALL)
    assert done.returncode == 0, done.stderr
    assert "≤ 0.38" in (tmp_path / "it.svg").read_text("utf-8") or "limits: not installed" in done.stdout
    done = run(tmp_path, "-m", "benchmarks.chart", "it.json", "again.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "it.svg").read_bytes()
    found = json.loads((tmp_path / "it.json").read_text("utf-8"))
    assert str(ROOT) not in json.dumps(found)


def test_page_shows_the_figures_of_its_json_file() -> None:
    done = run(ROOT, *FIGURES, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_stale_page_is_detected_and_updated(tmp_path: Path) -> None:
    explanation = ("docs/explanation/performance.md", "docs/explanation/performance.json")
    pages = (*explanation, "benchmarks/README.md", "benchmarks/rows.svg")
    for name in pages:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    source = tmp_path / "docs/explanation/performance.json"
    found = json.loads(source.read_text("utf-8"))
    (one,) = [row for row in found["rows"] if row["row"] == "redis-node-async-3"]
    one["value"] *= 10
    source.write_text(json.dumps(found), "utf-8")
    there = ("--root", str(tmp_path))
    stale = run(ROOT, *FIGURES, "--check", *there)
    assert stale.returncode == 1, stale.stderr
    assert "-node = " in stale.stdout
    assert "python docs/from_runs.py figures" in stale.stdout
    assert run(ROOT, *FIGURES, *there).returncode == 0
    assert run(ROOT, *FIGURES, "--check", *there).returncode == 0

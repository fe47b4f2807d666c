"""Tests that the docs' table of faults names every test of a fault, and only tests that exist."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs/explanation/faults.md"
COLUMNS = 5
# All tests in these files are tests of faults. The table may also name tests of other files.
OF_FAULTS = [
    *sorted(set((TESTS / "faults").rglob("test_*.py")) - {Path(__file__).resolve()}),
    TESTS / "web/store_calls/test_faults.py",
    *(TESTS / f"stores/test_{name}.py" for name in ("redis_faults", "redis_errors", "redis_heals", "flushes")),
]


def rows() -> list[list[str]]:
    """Return the cells of each row."""
    matrix = PAGE.read_text("utf-8").partition("## The matrix")[2].partition("\n## ")[0]
    lines = [line for line in matrix.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines][1:]


def named(row: list[str]) -> list[str]:
    return re.findall(r"`([\w/]+\.py::test_\w+)`", row[-1])


def functions_of(path: Path) -> set[str]:
    functions = [node for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
    name = path.relative_to(TESTS).as_posix()
    return {f"{name}::{function.name}" for function in functions if function.name.startswith("test_")}


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row[0]))
def test_every_row_is_complete_and_names_existing_tests(row: list[str]) -> None:
    assert len(row) == COLUMNS
    assert all(row)
    assert named(row)
    for test in named(row):
        assert test in functions_of(TESTS / test.partition("::")[0])


def test_every_test_of_a_fault_has_a_row() -> None:
    listed = {test for row in rows() for test in named(row)}
    assert set().union(*map(functions_of, OF_FAULTS)) - listed == set()

"""Tests that the documentation has the numbers of replayed rows of each system."""

import re
from pathlib import Path

import pytest

from conformance.tables import TABLES, Table

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/reference/conformance.md"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.system)
def test_what_is_left_out_is_in_the_table_and_says_why(table: Table) -> None:
    assert table.left.keys() <= table.rows.keys()
    assert all(all(left) for left in table.left.values())
    assert min(table.rows.values()) > 0


def test_the_documentation_counts_the_same_rows() -> None:
    found = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found == [(table.system, str(table.replayed), str(table.left_out)) for table in TABLES]


def test_the_documentation_lists_what_is_left_out() -> None:
    """The page has an item for each system, with its cases and their reasons."""
    part = PAGE.read_text("utf-8").partition("## Left out")[2]
    items = dict(item.split(": ", 1) for item in " ".join(part.split()).split(" - ")[1:])
    assert list(items) == [table.system for table in TABLES if table.left]
    for table in TABLES:
        if table.left:
            assert re.findall(r"`(\w+)`(?= and|,)", items[table.system]) == list(table.left)
            assert all(left.why in items[table.system] for left in table.left.values())


def test_every_table_is_counted() -> None:
    assert len(TABLES) == len(list(HERE.glob("*.json")))

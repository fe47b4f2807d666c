"""Tests that the documentation has the numbers of replayed rows of each system."""

import re
from pathlib import Path

import pytest

from conformance.tables import TABLES, Table

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs/reference/conformance.md"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.system)
def test_left_out_cases_are_in_their_table_and_have_reasons(table: Table) -> None:
    assert table.left.keys() <= table.rows.keys()
    assert all(all(left) for left in table.left.values())
    assert min(table.rows.values()) > 0


def test_documentation_has_the_numbers_of_replayed_rows() -> None:
    found = re.findall(r"^\| (.+?) \| (\d+) \| (\d+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found == [(table.system, str(table.replayed), str(table.left_out)) for table in TABLES]


def test_documentation_lists_the_left_out_cases() -> None:
    """The page has an item for each system, with the cases and their reasons."""
    part = PAGE.read_text("utf-8").partition("## Left out")[2]
    items = dict(item.split(": ", 1) for item in " ".join(part.split()).split(" - ")[1:])
    assert list(items) == [table.system for table in TABLES if table.left]
    for table in TABLES:
        if table.left:
            assert re.findall(r"`(\w+)`(?= and|,)", items[table.system]) == list(table.left)
            assert all(left.why in items[table.system] for left in table.left.values())


def test_every_table_file_is_loaded() -> None:
    assert len(TABLES) == len(list(HERE.glob("*.json")))

"""The tables of docs/reference/settings.md match the types of the settings."""

import re
import subprocess
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from checking import python
from ratelimit_mw.settings.schema import STRUCTS, options_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "reference" / "settings.md"
TABLE = r"<!-- table {}: [^\n]*-->\n(.*?)<!-- end -->"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(str(DOCS / "from_code.py"), "settings", *arguments)


def test_page_matches_the_types() -> None:
    done = run("--check")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.mark.parametrize("table", STRUCTS)
def test_every_option_has_a_row(table: Any) -> None:
    found = re.search(TABLE.format(table.__name__), PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    assert re.findall(r"^\| `(\w+)` \|", found[1], re.MULTILINE) == [word.name for word in options_of(table)]
    assert {word.name for word in options_of(table)} == set(get_type_hints(table))


def test_check_of_a_stale_page_prints_the_difference_and_the_fix(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "reference" / "settings.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE.read_text("utf-8").replace("| `false` | decides", "| `true` | decides"), "utf-8")

    there = ("--root", str(tmp_path))
    stale = run("--check", *there)
    assert stale.returncode == 1
    assert "-| `shadow` | true or false | `true` | decides and reports" in stale.stdout
    assert "+| `shadow` | true or false | `false` | decides and reports" in stale.stdout
    assert "python docs/from_code.py settings" in stale.stdout
    assert run(*there).returncode == 0
    assert page.read_text("utf-8") == PAGE.read_text("utf-8")
    assert run("--check", *there).returncode == 0

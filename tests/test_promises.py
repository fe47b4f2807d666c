"""Every promise has tests that are marked with its number, and the page of promises lists these tests."""

import re
import subprocess
from pathlib import Path

import pytest

from checking import python

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "explanation" / "promises.md"
MARKED = """
import pytest

pytestmark = pytest.mark.promise({of_file})
ROWS = [pytest.param(1, marks=pytest.mark.promise(3)), pytest.param(2, marks=pytest.mark.promise(3)), 3]


@pytest.mark.promise(2)
@pytest.mark.parametrize("row", ROWS)
def test_one(row): ...


async def test_two(): ...


def helps(): ...


@pytest.mark.promise(2)
class TestThem:
    pytestmark = [pytest.mark.promise(4)]

    def test_three(self): ...
"""
FOUND = {1: 3, 2: 2, 3: 2, 4: 1}


def test_every_promise_has_a_test_and_a_reason() -> None:
    page = PAGE.read_text("utf-8")
    sections = re.findall(r"^## (\d+)\. (.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in sections] == list(range(1, 13))
    for number, text in sections:
        assert "\n**Why.** " in text
        (tests,) = re.findall(rf"<!-- tests {number}: [^\n]*-->\n\*\*Its tests\*\*: (\d+), in", text)
        assert int(tests) >= 1


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return python(str(DOCS / "from_code.py"), "promises", *arguments)


def test_page_matches_the_markers() -> None:
    done = run("--check")
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with a page of five promises, and two files of tests. Promise 5 has no tests."""
    (tmp_path / "docs" / "explanation").mkdir(parents=True)
    (tmp_path / "tests" / "web").mkdir(parents=True)
    lists = "".join(f"## {n}\n<!-- tests {n}: how -->\nstale\n<!-- end -->\n" for n in (1, 2, 3, 4, 5))
    (tmp_path / "docs" / "explanation" / "promises.md").write_text(lists, "utf-8")
    (tmp_path / "tests" / "test_some.py").write_text(MARKED.format(of_file=1), "utf-8")
    (tmp_path / "tests" / "web" / "test_more.py").write_text("def test_unmarked(): ...", "utf-8")
    return tmp_path


def test_script_counts_tests_by_their_markers(copy: Path) -> None:
    assert run("--root", str(copy)).returncode == 0
    page = (copy / "docs" / "explanation" / "promises.md").read_text("utf-8")
    listed = dict(re.findall(r"<!-- tests (\d): how -->\n(.*)\n<!-- end -->", page))
    wanted = {str(n): f"**Its tests**: {count}, in 1 file. `test_some.py` {count}" for n, count in FOUND.items()}
    assert listed == {**wanted, "5": "**Its tests**: 0, in 0 files. "}


def test_check_of_a_stale_page_prints_the_difference_and_the_fix(copy: Path) -> None:
    there = ("--root", str(copy))
    stale = run("--check", *there)
    assert stale.returncode == 1
    assert "-stale" in stale.stdout
    assert "+**Its tests**: 3, in 1 file. `test_some.py` 3" in stale.stdout
    assert "python docs/from_code.py promises" in stale.stdout
    assert run(*there).returncode == 0
    assert run("--check", *there).returncode == 0

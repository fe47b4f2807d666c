"""The lists of test files in tox.ini."""

from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOX = ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini", "utf-8")
LISTS = ["quick", "once", "faces", "redis", "faults"]


@pytest.mark.parametrize("name", LISTS)
def test_every_file_of_a_list_exists(name: str) -> None:
    named = [word for option in TOX[name] for word in TOX[name][option].split()]
    assert named
    assert [word for word in named if not (ROOT / word).exists()] == []


def test_the_readme_names_the_quick_run() -> None:
    assert "`python3 -m tox -e quick`" in (ROOT / "README.md").read_text("utf-8")
    assert "{[quick]tests}" in TOX["testenv:quick"]["commands"]

"""The test files that tox.ini names."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_every_named_file_exists() -> None:
    named = re.findall(r"tests/[\w/.]+", (ROOT / "tox.ini").read_text("utf-8"))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []

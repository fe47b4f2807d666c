"""Every promise has a test that is marked with its number."""

import ast
import re
from pathlib import Path

HERE = Path(__file__).resolve().parent


def promised() -> set[int]:
    """The numbers of all `promise` marks in the suite."""
    found = set()
    for path in HERE.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "promise":
                found |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return {number for number in found if isinstance(number, int)}


def test_every_promise_has_a_test() -> None:
    page = (HERE.parent / "docs/explanation/promises.md").read_text("utf-8")
    stated = {int(number) for number in re.findall(r"^(\d+)\. ", page, re.MULTILINE)}
    assert stated == set(range(1, 13))
    assert stated - promised() == set()

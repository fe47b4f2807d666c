"""The tests of explanation/promises.md, from the marks in the suite: `python docs/promises_tests.py` renews them.

With `--check` it changes nothing, shows what is stale, and returns 1 if anything is.
"""  # noqa: INP001  # no package

import ast
import difflib
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent
PAGE: Final = DOCS / "explanation" / "promises.md"
TESTS: Final = DOCS.parent / "tests"
RENEW: Final = "python docs/promises_tests.py"
_MARKED: Final = re.compile(r"(<!-- tests (\d+)[^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def marks(nodes: Sequence[ast.expr]) -> set[int]:
    """The numbers of the promises that decorators, or a `pytestmark`, name."""
    calls = [one for node in nodes for one in ast.walk(node) if isinstance(one, ast.Call)]
    return {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "promise"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    }


def held_by(path: Path) -> Counter[int]:
    """How many test functions of a file hold each promise, and rows of its tables that have a mark of their own."""
    return Counter(number for numbers in _tests(ast.parse(path.read_text("utf-8")).body, set()) for number in numbers)


def _tests(body: Sequence[ast.stmt], outer: set[int]) -> Iterator[set[int]]:
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            outer = outer | marks([node.value])
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) != "pytestmark":
            yield from [{number} for row in ast.walk(node.value) if (number := _row(row))]
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, outer | marks(node.decorator_list))
        elif isinstance(node, _Function) and node.name.startswith("test"):
            yield outer | marks(node.decorator_list)


def _row(node: ast.AST) -> int | None:
    """The promise of a `pytest.param(..., marks=...)`."""
    given = node.keywords if isinstance(node, ast.Call) else ()
    return next((number for one in given if one.arg == "marks" for number in marks([one.value])), None)


def suite() -> dict[str, Counter[int]]:
    """Each file of tests by its name in the suite."""
    return {path.relative_to(TESTS).as_posix(): held_by(path) for path in sorted(TESTS.rglob("test_*.py"))}


def renewed(text: str, found: dict[str, Counter[int]]) -> str:
    """The text of the page with new lists."""
    return _MARKED.sub(lambda match: f"{match[1]}{_list(int(match[2]), found)}\n{match[3]}", text)


def _list(number: int, found: dict[str, Counter[int]]) -> str:
    files = {name: counts[number] for name, counts in found.items() if counts[number]}
    named = ", ".join(f"`{name}` {count}" for name, count in files.items())
    return f"**Its tests**: {sum(files.values())}, in {len(files)} file{'s' if len(files) != 1 else ''}. {named}"


def main(arguments: Sequence[str]) -> int:
    """Renew the page; or with `--check` show by what it is stale. Returns the exit code."""
    before = PAGE.read_text("utf-8")
    after = renewed(before, suite())
    if "--check" not in arguments:
        PAGE.write_text(after, "utf-8")
        return 0
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "promises.md", "from the marks", lineterm="")
    if stale := list(lines):
        sys.stdout.write("\n".join([*stale, f"The page is stale. This renews it: {RENEW}", ""]))
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

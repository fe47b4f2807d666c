"""The package's docstrings, comments, messages and names follow the guide to prose in `docs/prose.py`."""

import ast
import io
import re
import runpy
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import ratelimit_mw

PACKAGE = Path(ratelimit_mw.__file__).parent
GUIDE = Path(__file__).resolve().parent.parent / "docs" / "prose.py"
RULED_OUT = runpy.run_path(str(GUIDE))["OWN"]
PARTICIPLE = re.compile(
    "_*(asked|found|given|heard|held|kept|known|said|seen|taken|told|which|who|whose|wrapped)", re.IGNORECASE
)
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def texts(source: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Yield the comments and strings of a file, with the number of their line."""
    if suffix == ".lua":
        yield from ((number, line.partition("--")[2]) for number, line in enumerate(source.splitlines(), 1))
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXTS:
            yield from enumerate(token.string.splitlines(), token.start[0])


def findings(source: str, suffix: str = ".py") -> list[str]:
    """Return the forbidden words with their lines, and the names that are only a participle or a pronoun."""
    found = [
        f"{number}: {match[0]}"
        for number, text in texts(source, suffix)
        for match in RULED_OUT.finditer(re.sub("`[^`]*`", "", text))
    ]
    if suffix == ".py":
        found += [
            f"{node.lineno}: {node.name}"
            for node in ast.walk(ast.parse(source))
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and PARTICIPLE.fullmatch(node.name)
        ]
    return found


def test_package_follows_the_prose_guide() -> None:
    files = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".py", ".lua")]
    assert {path.suffix for path in files} == {".py", ".lua"}
    found = {
        path.relative_to(PACKAGE).as_posix(): lines
        for path in files
        if (lines := findings(path.read_text("utf-8"), path.suffix))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Nobody is told of it."""', ["1: Nobody", "1: is told"]),
        ("x = 1\ny = 2  # who stands in for x", ["2: stands in"]),
        ('raise ValueError(f"found {1}, once more {2}")', ["1: once more"]),
        ("class Known: ...\n\n\ndef _found(): ...", ["1: Known", "4: _found"]),
        ("KNOWN = nobody = 1  # `nobody` is a name", []),
    ],
)
def test_findings_have_line_numbers(source: str, found: list[str]) -> None:
    assert findings(source) == found


def test_lua_comments_are_checked_but_not_lua_code() -> None:
    assert findings("local anew = 1 -- begins anew\nreturn anew", ".lua") == ["1: anew"]

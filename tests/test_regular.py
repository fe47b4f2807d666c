"""Every regular expression of the package takes linear time for every text."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ratelimit_mw
from ratelimit_mw.algorithms import notation
from ratelimit_mw.checks import endpoints
from ratelimit_mw.checks import routes as route_checks
from ratelimit_mw.http import hosts, path_index, paths, routes
from ratelimit_mw.http import networks as addresses
from ratelimit_mw.replay.formats import patterns as log_patterns
from ratelimit_mw.rules import deployment_checks as advice
from ratelimit_mw.settings import loading
from ratelimit_mw.stores.redis import failures
from regular import is_linear

PACKAGE = Path(ratelimit_mw.__file__).parent
CALLS = {"compile", "match", "fullmatch", "search", "sub", "findall", "finditer", "split"}
MADE = {  # modules that build patterns at run time, and examples of these; "a" and "b" represent escaped text
    path_index: [f"a{one}b" for one in path_index.CONVERTERS.values()],
    paths: [mistake for mistake, _ in paths._MISTAKES],
    advice: ["(?<![0-9A-Fa-f:.])a(?![0-9A-Fa-f.])"],
    failures: [pattern for pattern, *_ in failures._EXPLANATIONS],
    loading: [r"(\w+?)(?:_(a|b))?"],
    log_patterns: [],  # built from formats of logs, which test_formats.py tests
    endpoints: ["a|b"],  # texts of converters
    routes: [],  # built from the app's routes, which the app's router matches in the same way
}
MADE_IN = {module.__file__: patterns for module, patterns in MADE.items()}
BOUNDED = [  # never applied to a long text, as test_bounds_of_clients.py and test_notation.py show
    notation._RATE,  # 1,000 characters, of settings
    notation._IN_SECONDS,
    notation._THOUSANDS,
    path_index._WHOLE_FLOAT,  # 64 characters
    addresses._ADDRESS,  # 64 characters
    hosts._AUTHORITY,  # 300 characters
    route_checks._BELOW,  # templates of settings
]


def patterns() -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each pattern. Constants of its module are inserted into f-strings."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name, tree = path.relative_to(PACKAGE).as_posix(), ast.parse(path.read_text("utf-8"))
        constants = dict(constants_of(tree))
        bounded = [node.value for node in tree.body if isinstance(node, ast.Assign) and is_bounded(path, node)]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in {f"re.{call}" for call in CALLS}:
                continue
            if node in bounded:
                continue
            text = text_of(node.args[0], constants)
            assert text is not None or str(path) in MADE_IN, ast.unparse(node)
            for one in MADE_IN[str(path)] if text is None else [text]:
                yield f"{name}: {ast.unparse(node)}", one


def is_bounded(path: Path, node: ast.Assign) -> bool:
    """Return whether a module assigns one of `BOUNDED`."""
    modules = [module for module in sys.modules.values() if getattr(module, "__file__", None) == str(path)]
    return any(vars(module).get(named(node)) in BOUNDED for module in modules)


def constants_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and (text := text_of(node.value, {})) is not None:
            yield named(node), text


def named(node: ast.Assign) -> str:
    return ast.unparse(node.targets[0])


def text_of(node: ast.expr, constants: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return node.value if isinstance(node.value, str) else node.value.decode("latin-1")
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [
            text_of(part.value if isinstance(part, ast.FormattedValue) else part, constants) for part in node.values
        ]
        return None if None in parts else "".join(map(str, parts))
    return None


def test_every_pattern_is_linear() -> None:
    found = [*patterns()]
    assert found
    assert [place for place, pattern in found if not is_linear(pattern)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+",
        r"(a*)*b",
        r"(ab|a|b)*",
        r"(a|ab)(c|bcd)*d*",
        r"a*a*b",
        r"\s*,?\s*",
        r"(?:[^/]*/?)+",
        r"(?:/[^\n]*)+",
        r"[a-z]+[a-z0-9]*-[a-z]*[0-9]*[a-z]*",
        r"([0-9]+\.?)+",
        r"x(a{0,100})*",
        r".*=.*;.*",
    ],
)
def test_patterns_that_could_backtrack_are_detected(pattern: str) -> None:
    assert not is_linear(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"",
        r"a",
        r"[a-z]*",
        r"(?:/[^/\n]+)+",
        r"a*b*c*",
        r"a*+a",
        r"[ \t]*+(?:x=y)?[ \t]*+;",
        r"[0-9]{1,5}",
        r"x.*y",
        r"a+|a*b",
    ],
)
def test_linear_patterns_are_accepted(pattern: str) -> None:
    assert is_linear(pattern)

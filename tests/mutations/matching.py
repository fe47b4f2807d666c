"""Finds a fragment of Python in a source by its tokens. Ignores format, comments and docstrings."""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

TOKEN: Final = re.compile(
    r"""
    (?P<space> \s+ | \\\n | \#[^\n]* )
    | (?P<block> [bBfFrRuU]{0,2} (?: \"{3} (?:[^\\]|\\.)*? \"{3} | '{3} (?:[^\\]|\\.)*? '{3} ) )
    | [bBfFrRuU]{0,2} (?: "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | \w+
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_CLOSING: Final = (")", "]", "}")


class Token(NamedTuple):
    """A word, a string or one character of an operator, and its place in the text."""

    text: str
    start: int
    end: int


def replaced(text: str, old: str, new: str, span: tuple[int, int]) -> str:
    """Return the source with `old` replaced by `new`. Raises ValueError unless `old` occurs once in the span."""
    prose = docstrings(text)
    tokens = [token for token in _tokens(text) if token.start not in prose]
    tokens = [token for token in tokens if span[0] <= token.start and token.end <= span[1]]
    wanted = list(_tokens(old, blocks=False))
    words, sought = [token.text for token in tokens], [token.text for token in wanted]
    places = [at for at in range(len(words) - len(sought) + 1) if sought and words[at : at + len(sought)] == sought]
    if len(places) != 1:
        raise ValueError(f"{old!r} is there {len(places)} times, not once")
    found = tokens[places[0] : places[0] + len(sought)]
    shift = next(
        (
            _column(text, there.start) - _column(old, here.start)
            for here, there in zip(wanted, found, strict=True)
            if "\n" in old[: here.start] and _is_first_in_line(old, here) and _is_first_in_line(text, there)
        ),
        0,
    )
    return text[: found[0].start] + _shifted(_trimmed(old, new), shift) + text[found[-1].end :]


def span_of(text: str, name: str) -> tuple[int, int]:
    """Return the first and last offset of a function or class, named as in `Class.method`. Raises ValueError."""
    node: ast.AST = ast.parse(text)
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        named = [inner for inner in ast.walk(node) if isinstance(inner, kinds) and inner.name == part and inner != node]
        if len(named) != 1:
            raise ValueError(f"{name} is there {len(named)} times, not once")
        node = named[0]
    assert isinstance(node, kinds)
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *[decorator.lineno for decorator in node.decorator_list]])
    return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))


def _tokens(text: str, *, blocks: bool = True) -> Iterator[Token]:
    """Yield tokens without comments, white space and the comma before a closing bracket."""
    comma = None
    for match in TOKEN.finditer(text):
        if match["space"] or (match["block"] and not blocks):
            continue
        token = Token(match[0], *match.span())
        if comma and token.text not in _CLOSING:
            yield comma
        comma = token if token.text == "," else None
        if not comma:
            yield token
    if comma:
        yield comma


def docstrings(text: str) -> set[int]:
    """Return the offsets where docstrings begin."""
    lines = text.splitlines(keepends=True)
    strings = [
        node.body[0].value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and ast.get_docstring(node) is not None
        and isinstance(node.body[0], ast.Expr)
    ]
    return {sum(map(len, lines[: string.lineno - 1])) + string.col_offset for string in strings}


def _column(text: str, offset: int) -> int:
    return offset - (text.rfind("\n", 0, offset) + 1)


def _is_first_in_line(text: str, token: Token) -> bool:
    return not text[token.start - _column(text, token.start) : token.start].strip()


def _trimmed(old: str, new: str) -> str:
    """Return `new` without the white space that `old` begins and ends with, which no token covers."""
    before, after = old[: len(old) - len(old.lstrip())], old[len(old.rstrip()) :]
    return new.removeprefix(before).removesuffix(after)


def _shifted(text: str, by: int) -> str:
    """Return a text with all lines but the first indented by more or, if negative, less."""
    first, *lines = text.split("\n")
    lines = [" " * by + line if by > 0 else line[min(-by, len(line) - len(line.lstrip())) :] for line in lines]
    return "\n".join([first, *lines])

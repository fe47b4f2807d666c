"""The line of a TOML file that a problem is about: `tomllib` says none, so the text is scanned for headers and keys."""

import re
from collections.abc import Iterator
from typing import Final

_RULE: Final = re.compile(r"rules\[(\d+)\](?: \([^)]*\))?(?:\.|: )?")
_WORD: Final = re.compile(r"unknown setting `([^`]+)`|([A-Za-z_]+)")
_HEADER: Final = re.compile(r"\[(\[?)\s*([\w.]+)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"""["']?([\w-]+)["']?\s*[=.]""")
_STRINGS: Final = re.compile(r""""(?:\\.|[^"\\])*"|'[^']*'|#.*""")
_LONG: Final = ('"""', "'''")
_RULES: Final = "rules"
_Place = tuple[int | None, str]  # which rule, None at the top; and the word, empty for the rule itself


def line_of(text: str, problem: str) -> int | None:
    """The line that a problem of the settings in `text` is about; None where the scan does not find it."""
    lines = dict(reversed(list(_places(text))))  # of several the first
    rule = _RULE.match(problem)
    word = _WORD.match(problem, rule.end() if rule else 0)
    name = (word[1] or word[2]) if word else ""
    if rule is None:
        return lines.get((None, name))
    index = int(rule[1])
    return lines.get((index, name)) or lines.get((index, "")) or lines.get((None, _RULES))


def _places(text: str) -> Iterator[tuple[_Place, int]]:
    """What each line begins, outside of arrays and texts of several lines."""
    rule: int | None = None
    known, depth, quotes = -1, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        bare = line.strip()
        header = None if depth else _HEADER.fullmatch(bare)
        if header is not None:
            if header[1] and header[2] == _RULES:
                known += 1
                rule = known
                yield (rule, ""), number
            else:
                table, _, field = header[2].partition(".")
                rule = known if table == _RULES else None
                yield (rule, (field or table).partition(".")[0]), number
            continue
        if not depth and (key := _KEY.match(bare)):
            yield (rule, key[1]), number
        quotes = next((mark for mark in _LONG if bare.count(mark) % 2), "")
        rest = _STRINGS.sub("", bare)
        depth += sum(map(rest.count, "[{")) - sum(map(rest.count, "]}"))

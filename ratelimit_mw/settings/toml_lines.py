"""Finds the line of a TOML file that a problem is about.

`tomllib` keeps no line numbers, so the text is scanned for headers and keys.
"""

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
_Key = tuple[int | None, str]  # index of the rule, None for global settings; option, empty for the rule itself


def find_line(text: str, problem: str) -> int | None:
    """Return the number of the line in `text` that a problem is about; None if the scan does not find it."""
    numbers = dict(reversed(list(_keys_of_lines(text))))  # reversed, so that the first of equal keys wins
    rule = _RULE.match(problem)
    word = _WORD.match(problem, rule.end() if rule else 0)
    name = (word[1] or word[2]) if word else ""
    if rule is None:
        return numbers.get((None, name))
    index = int(rule[1])
    return numbers.get((index, name)) or numbers.get((index, "")) or numbers.get((None, _RULES))


def _keys_of_lines(text: str) -> Iterator[tuple[_Key, int]]:
    """Yield the key that each line begins, with its number. Lines inside arrays and long strings are skipped."""
    rule: int | None = None
    last_rule, depth, quotes = -1, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        stripped = line.strip()
        header = None if depth else _HEADER.fullmatch(stripped)
        if header is not None:
            if header[1] and header[2] == _RULES:
                last_rule += 1
                rule = last_rule
                yield (rule, ""), number
            else:
                table, _, field = header[2].partition(".")
                rule = last_rule if table == _RULES else None
                yield (rule, (field or table).partition(".")[0]), number
            continue
        if not depth and (key := _KEY.match(stripped)):
            yield (rule, key[1]), number
        quotes = next((mark for mark in _LONG if stripped.count(mark) % 2), "")
        unquoted = _STRINGS.sub("", stripped)
        depth += sum(map(unquoted.count, "[{")) - sum(map(unquoted.count, "]}"))

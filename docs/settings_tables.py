"""The tables of reference/settings.md, from the types of the settings: `python docs/settings_tables.py` renews them.

With `--check` it changes nothing, shows what is stale, and returns 1 if anything is.
"""  # noqa: INP001  # no package

import difflib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from ratelimit_mw.settings.schema import NAMED, STRUCTS, Option, alternatives, options_of

PAGE: Final = Path(__file__).resolve().parent / "reference" / "settings.md"
RENEW: Final = "python docs/settings_tables.py"
_MARKED: Final = re.compile(r"(<!-- table (\w+)[^\n]* -->\n).*?(<!-- end -->)", re.DOTALL)
_SECTIONS: Final = {  # where the page says more of a type that has a name
    "limits": "#limits",
    "key": "../how-to/keys.md",
    "member": "#in-a-member-of-a-list",
    "call": "#callables",
    "rule": "#in-a-rule",
    "item": "#in-a-limit",
    "header": "#in-a-member-of-a-list",
}
_PLAIN: Final[dict[Any, str]] = {str: "text", bool: "true or false", int: "whole number", float: "number"}


def renewed(text: str) -> str:
    """The text of the page with new tables."""
    tables = {table.__name__: table for table in STRUCTS}
    return _MARKED.sub(lambda found: f"{found[1]}\n{_table(tables[found[2]])}\n{found[3]}", text)


def _table(table: Any) -> str:
    rows = ["| name | type | default | meaning |", "|---|---|---|---|", *map(_row, options_of(table))]
    return "".join(f"{row}\n" for row in rows)


def _row(word: Option) -> str:
    required = word.required or word.meaning.startswith("required")
    default = "none" if word.default is None else f"`{json.dumps(word.default)}`"
    meaning = re.sub(r"^required[:,] ", "", word.meaning)
    cells = (f"`{word.name}`", _kind(word.kind), "required" if required else default, meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _kind(kind: Any) -> str:
    """A type in words."""
    if kind in NAMED:
        return _one_kind(kind)
    return " or ".join(_one_kind(one) for one in alternatives(kind))


def _one_kind(kind: Any, plural: str = "") -> str:
    if kind in NAMED:
        name = NAMED[kind]
        return f"[{name}{plural}]({_SECTIONS[name]})"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) is not None:
        (of,) = get_args(kind)
        return "list of " + " or ".join(_one_kind(one, "s") for one in ([of] if of in NAMED else alternatives(of)))
    return _PLAIN[kind] + plural


def main(arguments: Sequence[str]) -> int:
    """Renew the page; or with `--check` show by what it is stale. Returns the exit code."""
    before = PAGE.read_text("utf-8")
    after = renewed(before)
    if "--check" not in arguments:
        PAGE.write_text(after, "utf-8")
        return 0
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "settings.md", "from the types", lineterm="")
    if stale := list(lines):
        sys.stdout.write("\n".join([*stale, f"The page is stale. This renews it: {RENEW}", ""]))
    return bool(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

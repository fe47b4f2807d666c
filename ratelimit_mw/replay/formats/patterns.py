"""Formats that consist of one pattern, such as those of nginx's `log_format` and Apache's `LogFormat`.

A format is compiled to two regular expressions. The first one reads nearly all lines, and ends with the last value that
a replay needs. The second one reads the lines with escapes, and those whose request is not an HTTP request. Every
repeat in them is possessive, so any line takes linear time.
"""

import re
from collections.abc import Collection, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.replay.formats.base import LogFormat, ReadLines, Record, as_latin, request_from, request_of
from ratelimit_mw.replay.times import TimeParser

_NEEDED: Final = ("client", "user", "stamp", "request", "status")
_FORWARDED: Final = "header:x-forwarded-for"
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_CONTROLS: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "v": "\v", "f": "\f"}


class Literal(NamedTuple):
    """Text between the values of a line."""

    text: str


class Value(NamedTuple):
    """A value of a line. `name`: its kind; empty for a value that a replay does not need.

    Names are those in `base`, and `request`, `method`, `path`. `spaces`: how many spaces the value contains, e.g. in a
    time. `is_list`: whether it may be a list with commas and spaces.
    """

    name: str
    spaces: int = 0
    is_list: bool = False


Piece = Literal | Value


class PatternFormat(LogFormat):
    """A format that is a pattern. `parse_time`: parses its stamps. Raises `ConfigError` if lines cannot be read."""

    def __init__(
        self,
        name: str,
        pieces: Sequence[Piece],
        parse_time: TimeParser,
        *,
        logs_end: bool = False,
        duration_unit: float = 1_000_000,
    ) -> None:
        self.name = name
        self.time = parse_time
        self.logs_end = logs_end
        self.duration_unit = duration_unit
        names = [piece.name for piece in pieces if isinstance(piece, Value) and piece.name]
        if "client" not in names and _FORWARDED in names:  # a proxy in front that only forwards addresses
            pieces = [
                Value("client", is_list=True) if piece == Value(_FORWARDED, is_list=True) else piece for piece in pieces
            ]
            names[names.index(_FORWARDED)] = "client"
        _check(names)
        self._pieces: Final = pieces
        self._is_split: Final = "request" not in names
        self.has_user, self.has_status = "user" in names, "status" in names
        self.names = tuple(one for one in dict.fromkeys(names) if one not in (*_NEEDED, "method", "path"))
        self._compile()

    @property
    def expression(self) -> re.Pattern[str]:
        """The expression that reads nearly all lines."""
        return self._fast

    def keep(self, names: Collection[str]) -> None:
        """See `LogFormat.keep`."""
        self.names = tuple(one for one in self.names if one in names)
        self._compile()

    def _compile(self) -> None:
        order = [*_NEEDED, *self.names]
        if self._is_split:
            order[order.index("request")] = "method"
            order.append("path")
        self._fast = re.compile(_expression(self._pieces, order, fast=True))
        self._slow = re.compile(_expression(self._pieces, order, fast=False), re.DOTALL)
        self._values = itemgetter(*(f"v{index}" for index in range(len(order))))
        numbers = [self._fast.groupindex[f"v{index}"] for index in range(len(order))]
        in_order = numbers == list(range(1, len(order) + 1))
        self._fast_values = re.Match.groups if in_order else itemgetter(*numbers)  # `groups` takes half the time

    def read(self, lines: Sequence[str]) -> ReadLines:
        """See `LogFormat.read`."""
        match, values = self._fast.match, self._fast_values
        matches: list[Any] = [] if self._is_split else list(map(match, lines))
        if matches and all(matches):  # true for nearly all blocks, which take no step in Python
            return ReadLines(list(map(values, matches)), [])
        records: list[Record] = []
        unread: list[str] = []
        add = records.append
        if self._is_split:
            match = self._slow.match
        for line in lines:
            if (found := match(line)) is not None:
                add(values(found) if not self._is_split else self._joined(found))
            elif line and not line.isspace():
                if (found := self._slow.match(line)) is not None:
                    add(self._joined(found))
                else:
                    unread.append(line)
        return ReadLines(records, unread)

    def _joined(self, found: re.Match[str]) -> Record:
        values = [_unescaped(value) for value in self._values(found)]
        if self._is_split:
            path = values.pop()
            values[3] = request_from(values[3], path)
        else:
            values[3] = request_of(values[3])
        return tuple(values)


def _unescaped(text: str) -> str:
    r"""Undo the escapes that servers write into logs: `\x22`, `\"`, `\n`, `\u0022`."""
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    if found[2]:
        return as_latin(chr(int(found[2], 16)))
    return _CONTROLS.get(found[3], found[3])


def _check(names: Sequence[str]) -> None:
    given = {*names}
    missing = [
        what
        for what, ways in (
            ("the client's address ($remote_addr, %a)", ({"client"},)),
            ("the time ($time_local, %t)", ({"stamp"},)),
            ("the request ($request, %r)", ({"request"}, {"method", "path"})),
        )
        if not any(way <= given for way in ways)
    ]
    if missing:
        raise ConfigError(f"--format: the format lacks {' and '.join(missing)}, which a replay needs", code="RL-056")


def _expression(pieces: Sequence[Piece], order: Sequence[str], *, fast: bool) -> str:
    """Return the expression of a format. Each value of `order` is a group; one that the format lacks is empty."""
    parts: list[str] = []
    done: set[str] = set()
    last = max(index for index, piece in enumerate(pieces) if isinstance(piece, Value) and piece.name in order)
    for index, piece in enumerate(pieces[: last + 1]):
        if isinstance(piece, Literal):
            parts.append(re.escape(piece.text))
            continue
        before = pieces[index - 1] if index else Literal("")
        after = pieces[index + 1] if index + 1 < len(pieces) else Literal("")
        if isinstance(after, Value):
            raise ConfigError(
                "--format: two values of the format have nothing between them, so no line can be read", code="RL-056"
            )
        quoted = isinstance(before, Literal) and before.text.endswith('"') and after.text.startswith('"')
        text = _value(piece, after.text, quoted=quoted, fast=fast)
        if piece.name in order and piece.name not in done:
            done.add(piece.name)
            name = f"v{order.index(piece.name)}"
            if fast and piece.name == "request":
                parts.append(_fast_request(name, after.text, quoted=quoted))
            else:
                parts.append(f"(?P<{name}>{text})")
        else:
            parts.append(text)
    missing = "".join(f"(?P<v{index}>)" for index, one in enumerate(order) if one not in done)
    return missing + "".join(parts)


def _value(piece: Value, after: str, *, quoted: bool, fast: bool) -> str:
    """Return the expression of one value, which ends where the text after it begins."""
    if quoted:
        return r'[^"\\]*+' if fast else r'(?:[^"\\]|\\.)*+'
    if after.startswith(" ") and (spaced := _spaced(piece)):
        return spaced
    if not after:
        return r"\S*+"  # a line may continue, like the combined format after the common one
    return f"[^{re.escape(after[0])}]*+" if fast or len(after) == 1 else f"(?:(?!{re.escape(after)}).)*+"


def _spaced(piece: Value) -> str:
    """Return the expression of a value that contains spaces and ends with one; empty for any other value."""
    if piece.name == "request":
        return r"[^ ]++ [^ ]++ [^ ]++"
    if piece.is_list:
        return r"[^ ,]*+(?:, [^ ,]*+)*+"
    return "[^ ]*+" + " [^ ]*+" * piece.spaces if piece.spaces else ""


def _fast_request(name: str, after: str, *, quoted: bool) -> str:
    """Return the expression of a request, whose group is `METHOD /path`."""
    end = '"' if quoted or not after or after[0] == " " else re.escape(after[0])
    rest = "[^ ]*+ [^ ]++" if not quoted and after[:1] == " " else rf"[^{end}\\]*+"
    return rf"(?P<{name}>[A-Z]++ [^ {end}?\\]++){rest}"

"""The base class of log formats, which turn lines into records, and the functions that formats share."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

from ratelimit_mw.replay.times import TimeParser, duration_us

Record = tuple[Any, ...]
"""One request: client, user, stamp, request, status, and then a value for each name in `LogFormat.names`.

The stamp is the time in the form of the log. The request is `METHOD /path`, or empty if it is not an HTTP request. All
text is the log's bytes, decoded as latin-1; missing values are `-` or empty.
"""
CLIENT, USER, STAMP, REQUEST, STATUS = range(5)
FIRST_EXTRA: Final = 5
DURATION, HEADERS = "duration", "headers"  # names of values; other names are `header:x` and `cookie:x`

_METHOD: Final = re.compile(r"[A-Za-z]{1,32}")
_MAX_TARGET: Final = 65_536  # characters; longer ones are cut by every server


class ReadLines(NamedTuple):
    """The result of reading lines: records, and the lines that the format could not read."""

    records: list[Record]
    unread: list[str]


class LogFormat(ABC):
    """A format of a log.

    `names`: the names of a record's further values. `has_user`, `has_status`: whether the log has these. `logs_end`:
    whether the stamp is the end of a request. Its start is then earlier by its duration. `duration_unit`: the unit of
    its durations, in microseconds. `time`: returns the time of a stamp; None if it is not one.
    """

    name: str
    time: TimeParser
    names: Sequence[str] = ()
    has_user: bool = True
    has_status: bool = True
    logs_end: bool = False
    duration_unit: float = 1_000_000

    @abstractmethod
    def read(self, lines: Sequence[str]) -> ReadLines:
        """Read lines. Skips empty lines and comments. Does not raise, whatever the lines contain."""

    def learn(self, lines: Sequence[str]) -> None:  # noqa: B027  # most formats have the same values in every log
        """Learn from the first lines of a log which values it has."""

    def keep(self, names: Collection[str]) -> None:  # noqa: B027  # only some formats save time
        """From now on, leave out all further values except these, if that saves time."""

    def duration(self, record: Record) -> int:
        """Return how long a request took, in microseconds; 0 if the log does not tell."""
        if DURATION not in self.names:
            return 0
        return duration_us(record[FIRST_EXTRA + self.names.index(DURATION)], self.duration_unit) or 0

    def has_value(self, name: str) -> bool:
        """Return whether the log has a header or cookie, such as `header:x-api-key`."""
        return name in self.names or (name.startswith("header:") and HEADERS in self.names)


def request_of(text: str) -> str:
    """Return `METHOD /path` of a request line, without its query; empty if it is not an HTTP request."""
    parts = text.split(" ", 2)
    return request_from(parts[0], parts[1]) if len(parts) > 1 else ""


def request_from(method: str, target: str) -> str:
    """Return `METHOD /path` of a method and a target, without its query; empty if it is not an HTTP request."""
    if not _METHOD.fullmatch(method) or not target:
        return ""
    return f"{method.upper()} {target[:_MAX_TARGET].partition('?')[0]}"


def as_latin(text: str) -> str:
    """Return text in the form of a log's text: its bytes in UTF-8, decoded as latin-1."""
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")

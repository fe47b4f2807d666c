"""Reads logs in blocks of lines, and puts the records in the order in which the requests began."""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from copy import copy
from heapq import merge
from io import BufferedReader
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.replay.formats.base import DURATION, STAMP, LogFormat, Record
from ratelimit_mw.replay.times import LoggedTime, Period

STDIN: Final = "-"
_BLOCK: Final = 1 << 17  # bytes; a processor's cache has room for them and the objects made from them
_LONGEST_LINE: Final = 1 << 20  # characters; a longer line is unread
_MAGIC: Final = b"\x1f\x8b"  # the first bytes of a gzip file
_SHOWN: Final = 3  # unread lines
_SHOWN_LENGTH: Final = 200  # characters of each shown line
_REACH: Final = 100_000  # lines of all logs that are sorted together: about 50 MB

Progress = Callable[[int, int], object]  # receives the bytes read so far, and all of them


class Group(NamedTuple):
    """Records of one instant, or of one second if `is_whole`. `us`: microseconds since 1970."""

    us: int
    is_whole: bool
    records: list[Record]


class LogReader:
    """Reads the logs of one replay. `lines`, `unread`: the numbers of lines. `shown`: the first unread lines.

    `late`: the number of lines too far behind their place to be put in order. They get the time of the line before.
    `outside`: the first and the last time outside the period; None if all lines are in it.
    """

    def __init__(self, log: LogFormat, period: Period, progress: Progress | None = None) -> None:
        self.lines = 0
        self.unread = 0
        self.shown: list[str] = []
        self.late = 0
        self.outside: tuple[LoggedTime, LoggedTime] | None = None
        self._format: Final = log
        self._period: Final = period
        self._progress: Final = progress
        self._bytes = 0
        self._total = 0

    def groups(self, logs: Sequence[str | Path]) -> Iterator[Group]:
        """Yield all records in order, each second once. Raises `ConfigError` if a log cannot be opened or read."""
        self._total = sum(_size(log) for log in logs)
        with ExitStack() as stack:
            opened = [stack.enter_context(_opened(log)) for log in logs]
            reach = max(1, _REACH // len(opened))
            timed = [self._with_times(self._blocks(one)) for one in opened]
            if self._format.logs_end and DURATION in self._format.names:
                timed = [self._with_start_times(groups) for groups in timed]
            in_order = [_sort_within_reach(groups, reach) for groups in timed]
            yield from self._joined(merge(*in_order, key=itemgetter(0)) if len(in_order) > 1 else in_order[0])

    def _blocks(self, log: "_OpenLog") -> Iterator[list[str]]:
        rest, last = "", 0
        for block in log.blocks():
            self._bytes, last = self._bytes + log.position() - last, log.position()
            if self._progress is not None:
                self._progress(self._bytes, self._total)
            lines = (rest + block.decode("latin-1")).split("\n")
            rest = lines.pop()
            if len(rest) > _LONGEST_LINE:
                self._skip([rest])
                rest = ""  # the remainder of the line is unread, too
            yield lines
        if rest:
            yield [rest]

    def _with_times(self, blocks: Iterable[list[str]]) -> Iterator[Group]:
        log = copy(self._format)  # a copy, because columns may differ between files
        read, parse, contains = log.read, log.time, self._period.contains
        last: object = None
        time: LoggedTime | None = None
        for lines in blocks:
            records, unread = read(lines)
            if unread:
                self._skip(unread)
            for stamp, same in groupby(records, key=itemgetter(STAMP)):
                if stamp != last:
                    last, time = stamp, parse(stamp)
                found = list(same)
                if time is None:
                    self._skip(["  ".join(str(value) for value in record) for record in found])
                elif contains(time):
                    self.lines += len(found)
                    yield Group(time.us, time.is_whole, found)
                else:
                    earliest, latest = self.outside or (time, time)
                    self.outside = min(earliest, time), max(latest, time)

    def _with_start_times(self, groups: Iterator[Group]) -> Iterator[Group]:
        """Yield groups with the times at which their requests began. Groups of whole seconds are unchanged."""
        for group in groups:
            if group.is_whole:
                yield group
            else:
                for record in group.records:
                    yield Group(max(group.us - self._format.duration(record), 0), False, [record])

    def _joined(self, groups: Iterable[Group]) -> Iterator[Group]:
        """Join the groups of one second. A time that is earlier than the time before it is replaced by that."""
        waiting: Group | None = None
        for group in groups:
            if waiting is None:
                waiting = group
                continue
            is_late = group.us < waiting.us
            if is_late:
                self.late += len(group.records)
            if group.is_whole and waiting.is_whole and group.us <= waiting.us:
                waiting.records.extend(group.records)
            else:
                yield waiting
                waiting = group if not is_late else Group(waiting.us, group.is_whole, group.records)
        if waiting is not None:
            yield waiting

    def _skip(self, lines: Sequence[str]) -> None:
        self.lines += len(lines)
        self.unread += len(lines)
        room = _SHOWN - len(self.shown)
        self.shown += [printable(line) for line in lines[:room]]


def first_lines(logs: Sequence[str | Path]) -> list[str]:
    """Return lines from the first block of the first log that has any, to find their format."""
    for log in logs:
        if log == STDIN:
            buffer = sys.stdin.buffer
            block = buffer.peek(_BLOCK) if isinstance(buffer, BufferedReader) else b""
        else:
            with _opened(log) as opened:
                block = next(opened.blocks(), b"")
        if block.strip():
            lines = block.decode("latin-1").split("\n")
            return lines[:-1] if len(lines) > 1 else lines  # the last line may be incomplete
    return []


class _OpenLog:
    """An open log. Decompresses it if it is compressed with gzip."""

    def __init__(self, name: str, raw: IO[bytes]) -> None:
        self._name: Final = name
        self._raw: Final = raw

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._name != STDIN:
            self._raw.close()

    def blocks(self) -> Iterator[bytes]:
        try:
            start = self._raw.peek(len(_MAGIC)) if isinstance(self._raw, BufferedReader) else b""
            source: Any = gzip.GzipFile(fileobj=self._raw) if start.startswith(_MAGIC) else self._raw
            while block := source.read1(_BLOCK) if self._name == STDIN else source.read(_BLOCK):
                yield block
        except (OSError, EOFError, zlib.error) as error:
            raise ConfigError(f"{self._name}: cannot be read: {error}", code="RL-056") from None

    def position(self) -> int:
        """Return how many bytes of the file were read; 0 if that is unknown."""
        return 0 if self._name == STDIN else self._raw.tell()


def _opened(log: str | Path) -> _OpenLog:
    if log == STDIN:
        return _OpenLog(STDIN, sys.stdin.buffer)
    try:
        return _OpenLog(str(log), Path(log).open("rb"))
    except OSError as error:
        raise ConfigError(f"{log}: cannot be read: {error.strerror}", code="RL-056") from None


def _size(log: str | Path) -> int:
    try:
        return 0 if log == STDIN else Path(log).stat().st_size
    except OSError:
        return 0  # to open the log will report the reason


def _sort_within_reach(groups: Iterator[Group], reach: int) -> Iterator[Group]:
    """Sort groups that are at most `reach` lines from their places, and move others as near to theirs as possible."""
    waiting: list[Group] = []
    lines = 0
    for group in groups:
        waiting.append(group)
        lines += len(group.records)
        if lines >= 2 * reach:
            waiting.sort(key=itemgetter(0))
            count = 0
            for count, first in enumerate(waiting, 1):  # noqa: B007  # used after the loop
                lines -= len(first.records)
                yield first
                if lines <= reach:
                    break
            del waiting[:count]
    waiting.sort(key=itemgetter(0))
    yield from waiting


def printable(line: str) -> str:
    """Return a line of a log, cut, and without its control characters, on which a terminal would act."""
    text = line[:_SHOWN_LENGTH].encode("latin-1", "replace").decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)

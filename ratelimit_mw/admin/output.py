"""Writes the contents of a store to a terminal or as JSON. Clients choose parts of them, so they are not trusted."""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

from msgspec import to_builtins

from ratelimit_mw.admin.buckets import Bucket, split_key
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import Role
from ratelimit_mw.core.log import printable
from ratelimit_mw.core.validation import did_you_mean
from ratelimit_mw.stores.inventory import Refusal

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))  # seconds
_TABLE_ROWS: Final = 200  # rows that are aligned with each other, as a listing is written while it is read


class CommandParser(argparse.ArgumentParser):
    """A parser that proposes the closest command for a misspelled one."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit."""
        word, _, choices = message.partition("invalid choice: '")[2].partition("' (choose from ")
        hint = did_you_mean(word, choices.rstrip(")").replace("'", "").split(", ")) if choices else ""
        if word in ("off", "shadow", "on"):
            hint = f", did you mean 'switch {word}'?"
        elif word in ("set", "list", "clear"):
            hint = f", did you mean 'override {word}'?"
        super().error(f"{message}{hint}")


def write_line(line: str) -> None:
    """Write a line to stdout at once. Characters that its encoding lacks are escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def write_note(line: str) -> None:
    """Write a line to stderr, for a person who reads the output."""
    print(line, file=sys.stderr)


def confirmed(command: str, effect: str, show: Callable[[], object], question: str) -> bool:
    """Show what a command would change, and ask whether to do it. Raises `ConfigError` without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{command}: cannot ask for confirmation without a terminal; {effect}, add --yes", code="RL-051"
        )
    show()
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def json_text(value: Any) -> str:
    """Return a value as JSON, in printable ASCII on one line. Infinity, which JSON lacks, is null."""
    text = json.dumps(_finite(to_builtins(value)), ensure_ascii=True, allow_nan=False)
    return text.replace("\x7f", "\\u007f")  # the only control character that JSON does not escape


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return None if value == math.inf else value


def table(rows: Iterable[Sequence[str]], heading: Sequence[str] = ()) -> Iterator[str]:
    """Yield the lines of a table. All columns but the last are padded, to align 200 rows at a time.

    `heading`: the names of the columns, shown if there are rows.
    """
    some: list[Sequence[str]] = []
    for index, row in enumerate(rows):
        if heading and not index:
            some.append(heading)
        some.append([printable(cell) for cell in row])
        if len(some) >= _TABLE_ROWS:
            yield from _aligned(some)
            some = []
    yield from _aligned(some)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:<{width}}" for cell, width in zip(row[:-1], widths[:-1], strict=True)]
        yield "  ".join([*cells, row[-1]]).rstrip()


BUCKET_HEADING: Final = ("rule", "limit", "left", "key")
REFUSAL_HEADING: Final = f"{'time':<20}  rule  limit  retry  key"


def bucket_row(bucket: Bucket, name: str = "", of: str = "", role: Role = "limit") -> Sequence[str]:
    """Return the columns for a bucket. `name`: shown in place of its rule. `of`: follows the units that are left."""
    wait = "" if not bucket.retry_after else f", {retry(bucket.retry_after)}"
    if wait and role == "shadow":
        refuses = "never admit" if bucket.retry_after == math.inf else f"refuse for {duration(bucket.retry_after)}"
        wait = f", would {refuses} (shadow: admits)"
    return name or bucket.rule, bucket.limit, f"{bucket.remaining}{of} left{wait}", bucket.key


def refusal_row(refusal: Refusal) -> Sequence[str]:
    """Return the columns for a refusal."""
    identity, rule = split_key(refusal.key)
    return f"{_instant(refusal.at)}  {rule}  {refusal.limit}  {retry(refusal.retry_after)}", identity


def retry(seconds: float) -> str:
    """Return when a client may try again: `retry in 41 min`."""
    return "never passes" if seconds == math.inf else f"retry in {duration(seconds)}"


def duration(seconds: float) -> str:
    """Return a duration in its largest unit, rounded up: `41 min`."""
    whole = math.ceil(seconds)
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= size), _UNITS[-1])
    return f"{-(-whole // size)} {unit}"


def rest_until(at: float) -> str:
    """Return how long an instant is away, rounded up: `in 90 min`. A unit is used from two of it on."""
    whole = max(0, math.ceil(at - time.time()))
    size, unit = next(((size, unit) for size, unit in _UNITS if whole >= 2 * size), _UNITS[-1])
    return f"in {-(-whole // size)} {unit}"


def local_time(at: float) -> str:
    """Return an instant in local time, to the second, with the time zone."""
    try:
        return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (OverflowError, OSError, ValueError):  # a time that another program wrote
        return "unknown time"


def _instant(at: float) -> str:
    """Return an instant in UTC, to the second."""
    try:
        return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (OverflowError, OSError, ValueError):  # a time that another program wrote
        return "unknown time"

"""Rows of the processor time of replaying an access log against four rules, and of only matching its lines."""

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time_ns
from typing import Any, Final

from benchmarks.lab import Lab
from benchmarks.runner import Batch, Contender, Race, Row
from ratelimit_mw.replay import replay
from ratelimit_mw.replay.formats import format_of
from ratelimit_mw.replay.formats.patterns import PatternFormat

_PER_CLIENT: Final = 50  # lines
_PER_SECOND: Final = 130
_PATHS: Final = ("/", "/login", "/search", "/search", "/api/items", "/static/app.js", "/users/17")
_SETTINGS: Final[dict[str, Any]] = {  # no request is refused, so that each round counts all lines
    "limits": "1000/minute",
    "key": "ip",
    "rules": [
        {"name": "login", "path": "/login", "limits": "500/minute using fixed_window"},
        {"name": "search", "path": "/search", "limits": "1000/minute using gcra"},
        {"name": "users", "path": "/users/{id}", "limits": "1000/minute burst 500 using token_bucket"},
        {"name": "static", "path": "/static/{file:path}", "exempt": True},
    ],
}
_folder: Final = TemporaryDirectory(prefix="ratelimit_mw-replay-")


@cache
def _log(lines: int) -> Path:
    """Return the path of a combined log with so many lines, of clients with several requests each."""
    dice = random.Random(1)  # noqa: S311  # a log
    path = Path(_folder.name, f"{lines}.log")
    clients = max(1, lines // _PER_CLIENT)
    with path.open("w") as file:
        for index in range(lines):
            client, second = dice.randrange(clients), 1000 + index // _PER_SECOND
            moment = f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}"
            file.write(
                f"10.{client >> 16}.{client >> 8 & 255}.{client & 255} - - [24/Nov/2026:{moment} +0000] "
                f'"GET {dice.choice(_PATHS)}?page={dice.randrange(100)} HTTP/1.1" 200 {dice.randrange(9000)} '
                '"https://example.com/start" "Mozilla/5.0 (X11; Linux x86_64; rv:120.0) Gecko/20100101 Firefox/120.0"\n'
            )
    return path


def _ours(_: Lab) -> Contender:
    def run(lines: int) -> Batch:
        path = _log(lines)
        begun = process_time_ns()
        report = replay(_SETTINGS, path, format="combined")
        return Batch(process_time_ns() - begun, report.requests - report.refused, report.refused)

    return run


def _pattern(_: Lab) -> Contender:
    log = format_of("combined", {}, [])
    assert isinstance(log, PatternFormat)
    log.keep(())

    def run(lines: int) -> Batch:
        path, match = _log(lines), log.expression.match
        begun = process_time_ns()
        with path.open(encoding="latin-1", newline="\n") as file:
            read = sum(match(line) is not None for line in file)
        return Batch(process_time_ns() - begun, read, 0)

    return run


ROWS: Final[list[Row]] = [
    Race(
        name="replay",
        what="a replay against four rules / reading the log with the compiled pattern alone, processor time a line",
        ours=_ours,
        peer=_pattern,
        target=7.5,
        calls=200_000,
    ),
    Race(
        name="replay-lines",
        what="a line of a replay against four rules, processor time: 5 us are 200,000 lines a second",
        ours=_ours,
        target=5.0,
        calls=200_000,
    ),
]

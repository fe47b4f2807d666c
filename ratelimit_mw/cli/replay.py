"""`python -m ratelimit_mw replay`: replays access logs against a settings file."""

import argparse
import json
import os
import sys
from typing import Any, Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.log import capture_warnings, single_line
from ratelimit_mw.core.progress import ProgressBar
from ratelimit_mw.http.callables import import_from_working_folder
from ratelimit_mw.replay import replay
from ratelimit_mw.replay.formats import FORMATS
from ratelimit_mw.replay.html import html_report
from ratelimit_mw.replay.text import report_lines

_MAX_UNREAD: Final = 0.01  # share of unread lines; with more, the command fails
_FAILED: Final = 1


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    about = "replay access logs against a settings file: what would it have refused?"
    parser = commands.add_parser("replay", help=about, description=f"{about} Connects to no store.")
    parser.add_argument("file", help="the settings: a TOML file, or one that ends in .json")
    parser.add_argument("logs", nargs="+", metavar="log", help="access logs in any order, also .gz; - for stdin")
    parser.add_argument(
        "--format",
        help=f"{', '.join(FORMATS)}; or nginx's log_format or Apache's LogFormat; default: what reads the first lines",
    )
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME=PATH", help="of JSON: ip=.client.addr, time=.ts, ..."
    )
    parser.add_argument("--since", metavar="TIME", help="such as 2026-11-23T10:00; without a zone, in that of the log")
    parser.add_argument("--until", metavar="TIME", help="the end of the period, not in it")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="report this rule; may be repeated")
    parser.add_argument(
        "--assume",
        action="append",
        default=[],
        metavar="WHAT=VALUE",
        help="a value that the log lacks: header:x-api-key=ip",
    )
    parser.add_argument(
        "--as-logged",
        action="store_true",
        help="leave requests of a whole second at its beginning, instead of spreading them over it",
    )
    parser.add_argument("--suggest", action="store_true", help="suggest quotas at which honest clients end")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a report with charts")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report. Return 1 if more than a hundredth of the lines were unread, or none is in the period."""
    import_from_working_folder()
    bar = ProgressBar(lambda rate: f"{rate / 1e6:.1f} MB/s")
    try:
        with capture_warnings() as warnings:
            report = replay(
                args.file,
                *args.logs,
                format=args.format,
                fields=_fields(args.field),
                since=args.since,
                until=args.until,
                rules=args.rule,
                assume=args.assume,
                as_logged=args.as_logged,
                suggest=args.suggest,
                distributions=args.html is not None,
                jobs=args.jobs,
                on_progress=bar.show if bar.is_shown else None,
            )
    finally:
        bar.clear()
    if args.html is not None:
        try:
            _write_private(args.html, html_report(report))
        except OSError as error:
            raise ConfigError(f"--html {args.html}: cannot be written: {error.strerror}", code="RL-051") from None
    if args.json:
        print(json.dumps(report.as_json()))
    elif not report.empty_reason:
        print("\n".join(map(single_line, report_lines(report))))
        print("".join(f"  {line}\n" for line in warnings), end="")
    if report.empty_reason:
        print(f"ratelimit_mw: {report.empty_reason}", file=sys.stderr)
        return _FAILED
    return _FAILED if report.unread > _MAX_UNREAD * report.lines else 0


def _write_private(path: str, text: str) -> None:
    """Write a file. A new file can be read by this user only, because it contains addresses of clients."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _fields(texts: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals:
            raise ConfigError(f"--field: got {text!r:.100}, expected NAME=PATH such as ip=.remote_addr", code="RL-051")
        fields[name] = path
    return fields

"""The command line, `ratelimit-mw` or `python -m ratelimit_mw`. Each command is a module."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from ratelimit_mw.cli import check, demo, schema
from ratelimit_mw.core.errors import RateLimitError

_PIPE_CLOSED: Final = 141  # 128 + SIGPIPE, as a shell reports it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; by default, the one on the command line.

    Returns the exit code: that of the command, or 1 with the reason on stderr. If the reader of stdout has gone, such
    as `head`, it ends silently.
    """
    args = _parser().parse_args(arguments)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except RateLimitError as error:
        print(f"ratelimit_mw: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout again when it exits
        return _PIPE_CLOSED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ratelimit-mw", description="Rate limits for web apps.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('ratelimit-mw')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (demo, check, schema):
        command.add_to(commands)
    return parser

"""The commands of `python -m ratelimit_mw`: one file each, one line each in `_parser`."""

import argparse
import sys
from collections.abc import Sequence

from ratelimit_mw.commands import check, demo, schema
from ratelimit_mw.errors import RateLimitError


def main(arguments: Sequence[str]) -> int:
    """Run a command. Returns the exit code: 0, or 1 with the reason on stderr."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except RateLimitError as error:
        print(f"ratelimit_mw: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ratelimit_mw", description="Rate limits for web apps.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (demo, check, schema):
        command.add_to(commands)
    return parser

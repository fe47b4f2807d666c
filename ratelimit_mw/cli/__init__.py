"""The command line, `ratelimit-mw` or `python -m ratelimit_mw`.

The commands are `demo`, `check`, `schema`, `replay`, `serve`, `dashboard`, and those of `ratelimit_mw.admin`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from ratelimit_mw.admin.commands import add_commands
from ratelimit_mw.admin.output import CommandParser
from ratelimit_mw.admin.target import Target
from ratelimit_mw.cli import check, dashboard, demo, replay, serve
from ratelimit_mw.cli.apps import target_of_app
from ratelimit_mw.core.errors import ConfigError, RateLimitError
from ratelimit_mw.settings.schema import settings_schema

_PIPE_CLOSED: Final = 141  # 128 + SIGPIPE, as a shell reports it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; by default, the one on the command line.

    Returns the exit code of the command, or 1 with the reason on stderr. Ends silently if the reader of stdout has
    gone, as `head` does.
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
    parser = CommandParser(prog="ratelimit-mw", description="Rate limits for web apps.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('ratelimit-mw')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo.add_to(commands)
    check.add_to(commands)
    serve.add_to(commands)
    dashboard.add_to(commands)
    add_commands(commands, _target, has_file=True)
    replay.add_to(commands)
    about = "print the JSON Schema of a settings file, for editors"
    schema = commands.add_parser("schema", help=about, description=f"{about}: schema > ratelimit.schema.json")
    schema.set_defaults(run=_print_schema)
    return parser


def _target(args: argparse.Namespace) -> Target:
    if (args.file is None) == (args.app is None):
        raise ConfigError("expected either the file of the settings or --app MODULE:APP", code="RL-051")
    if args.app is None and args.app_dir is not None:
        raise ConfigError("--app-dir: present without --app, expected --app MODULE:APP beside it", code="RL-051")
    return Target.of(args.file) if args.app is None else target_of_app(args.app, args.app_dir)


def _print_schema(_: argparse.Namespace) -> int:
    print(json.dumps(settings_schema(), indent=2))
    return 0

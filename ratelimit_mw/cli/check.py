"""`python -m ratelimit_mw check`: checks a settings file, and explains which limits apply to a request."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from os import environ
from pathlib import Path
from typing import Any

from ratelimit_mw.cli.check_store import StoreReport
from ratelimit_mw.cli.explain import explain
from ratelimit_mw.cli.fake_request import EXAMPLE_IP, request_from_args
from ratelimit_mw.cli.recording import capture_warnings, single_line
from ratelimit_mw.core.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.http.on_refused import refusal_handler
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import from_environment, read_environment, read_file, with_location
from ratelimit_mw.settings.options import Options
from ratelimit_mw.stores.url import open_store


def add_to(commands: Any) -> None:
    """Add the command to the parser."""
    about = "find all mistakes in a settings file, and explain what applies to a request"
    parser = commands.add_parser("check", help=about, description=f"{about}; queries the store only with --store")
    parser.add_argument("file", help="a TOML file, or one that ends in .json")
    parser.add_argument("--wsgi", action="store_true", help="the app is a WSGI app, which cannot await")
    parser.add_argument(
        "--store",
        action="store_true",
        help="connect to the store; exit with 1 if it rejects this app, 2 if it is unreachable",
    )
    parser.add_argument("--request", metavar="'POST /login'", help="explain what applies to this request")
    parser.add_argument(
        "--ip", default=EXAMPLE_IP, help="address of the socket's peer; '' for none (default: %(default)s)"
    )
    parser.add_argument("--user", help="name of the logged-in user")
    parser.add_argument("--host", help="the same as --header 'Host: ...'")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print all mistakes, one per line, and return 1. Without any, print the warnings of the start and return 0.

    With `--store`, return the code of the `StoreReport`.
    """
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # `call:` often names a module there
    make_request = partial(request_from_args, args)
    if args.request is not None:
        make_request()  # report an invalid request before mistakes in the file
    mistakes = ErrorCollector()
    with capture_warnings() as warnings, mistakes.collect():
        settings = _settings_at_start(args.file, wsgi=args.wsgi)
    try:
        mistakes.raise_if_any()
    except ConfigError as error:
        print("\n".join(map(single_line, error.problems)))
        print(f"{args.file}: {_count(error.problems, 'mistake')}")
        return 1
    count = len(settings.parsed_rules())
    print(f"{args.file}: no mistakes; {count} rule{'s' * (count != 1)}, {_count(warnings, 'warning')}")
    if options := from_environment(environ, Options, {}):
        print("  from the environment:", ", ".join(f"RATELIMIT_MW_{name.upper()}" for name in options))
    print("".join(f"  {line}\n" for line in warnings), end="")
    if args.request is not None:
        print("\n".join(["", *explain(settings, make_request, warnings)]))
    if args.store:
        with capture_warnings():  # the report contains the warnings
            report = StoreReport(settings)
        print("\n".join(["", *map(single_line, report.describe())]))
        return report.code
    return 0


class _Gate(Gate):
    _probes_store = False


class _AsyncGate(AsyncGate):
    _probes_store = False


def _settings_at_start(file: str, *, wsgi: bool) -> Settings:
    """Load the settings and run all checks of a server's start that do not query the store.

    Raises a `ConfigError` that contains all mistakes, with the file in front.
    """
    mistakes = ErrorCollector()
    with mistakes.collect():
        settings = Settings.load(file)
    options, _ = read_environment(environ, Options, {})  # `Settings.load` reports mistakes in it
    mistakes.add(with_location(problem, Path(file), options) for problem in _problems_at_start(file))
    mistakes.raise_if_any()
    wsgi = wsgi or (settings.on_refused is not None and refusal_handler(settings.on_refused).kind == "wsgi")
    try:
        (_Gate if wsgi else _AsyncGate)(settings)  # opens no connection before the first request
    except ConfigError as error:
        raise ConfigError(*[with_location(problem, Path(file), options) for problem in error.problems]) from None
    return settings


def _problems_at_start(file: str) -> Sequence[str]:
    """Return the mistakes that `Settings` does not detect: in the store's URL and in `on_refused`."""
    args: dict[str, Any] = {}
    with suppress(ConfigError):
        args = read_file(Path(file)) | read_environment(environ, Options, {})[0]
    problems: list[str] = []
    try:
        if isinstance(url := args.get("store"), str):
            open_store(url, 1.0).close()
    except ConfigError as error:
        problems += error.problems
    try:
        if (call := args.get("on_refused")) is not None:
            with error_location("on_refused"):
                refusal_handler(call)
    except ConfigError as error:
        problems += error.problems
    return problems


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things) or 'no'} {name}{'s' * (len(things) != 1)}"

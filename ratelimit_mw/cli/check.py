"""`python -m ratelimit_mw check`: checks a settings file, and explains which limits apply to a request."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import environ
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, to_builtins

from ratelimit_mw.admin.target import DescribedRequest
from ratelimit_mw.checks.calendar_limits import findings_of_servers
from ratelimit_mw.cli.explain import explain
from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.core.log import capture_warnings, single_line
from ratelimit_mw.engine.base_gate import ASGI, WSGI
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.http.callables import import_from_working_folder
from ratelimit_mw.http.on_refused import refusal_handler
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.loading import read_environment, read_file, with_location
from ratelimit_mw.settings.options import Options
from ratelimit_mw.stores.url import inspect_store, inspect_store_file, open_store, open_unchecked, redacted_url

_EXAMPLE_IP: Final = "192.0.2.1"  # an address for documentation (RFC 5737), not used by any network
_REJECTED: Final = 1  # exit codes of --store
_UNREACHABLE: Final = 2
_KINDS: Final = {"server": "one server", "cluster": "node of a cluster", "sentinel": "master by Sentinel"}


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
    parser.add_argument("--ip", help=f"address of the socket's peer; '' for none (default: {_EXAMPLE_IP})")
    parser.add_argument("--user", help="name of the logged-in user")
    parser.add_argument("--host", help="the same as --header 'Host: ...'")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


class _Checked(Struct):
    """The result of the command. `explained`: the lines about `--request`. `inspected`: those of `--store`."""

    file: str
    mistakes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    rules: Sequence[str] = ()
    environment: Sequence[str] = ()
    store: str = ""
    explained: Sequence[str] = ()
    inspected: Sequence[str] = ()
    code: int = 0

    def lines(self) -> Iterator[str]:
        """Yield the lines for a person."""
        if self.mistakes:
            yield from map(single_line, self.mistakes)
            yield f"{self.file}: {_count(self.mistakes, 'mistake')}"
            return
        rules = f"{len(self.rules)} rule{'s' * (len(self.rules) != 1)}"
        yield f"{self.file}: no mistakes; {rules}, {_count(self.warnings, 'warning')}"
        if self.environment:
            yield f"  from the environment: {', '.join(self.environment)}"
        if self.store:
            yield f"  store: {single_line(self.store)}"
        yield from (f"  {single_line(line)}" for line in self.warnings)
        if self.explained:
            yield from ("", *self.explained)
        if self.inspected:
            yield from ("", *map(single_line, self.inspected))


def run(args: argparse.Namespace) -> int:
    """Print all mistakes, one per line, and return 1. Without mistakes, print the warnings of the start and return 0.

    With `--store`, return the code of `_inspect_store`.
    """
    checked = _check(args)
    print(json.dumps(to_builtins(checked)) if args.json else "\n".join(checked.lines()))
    return checked.code


def _check(args: argparse.Namespace) -> _Checked:
    import_from_working_folder()
    described = None
    parts = {"--ip": args.ip, "--user": args.user, "--host": args.host, "--header": args.header or None}
    if args.request is not None:  # report an invalid request before mistakes in the file
        ip = _EXAMPLE_IP if args.ip is None else args.ip
        described = DescribedRequest(args.request, ip, args.user, args.header, args.host)
    elif given := [option for option, value in parts.items() if value is not None]:
        raise ConfigError(f"{given[0]}: is a part of --request, such as --request 'POST /login'", code="RL-051")
    try:
        with capture_warnings() as warnings:
            settings = _settings_at_start(args.file, wsgi=args.wsgi)
    except ConfigError as error:
        return _Checked(args.file, mistakes=error.problems, code=1)
    place = ""
    try:
        place = inspect_store_file(settings.store) if isinstance(settings.store, str) else ""
    except ConfigError as error:  # not a mistake in the settings, because the app may run on another host
        warnings = [*warnings, *error.problems]
    checked = _Checked(
        args.file,
        warnings=warnings,
        rules=[rule.full_name for rule in settings.parsed_rules()],
        environment=[f"RATELIMIT_MW_{name.upper()}" for name in read_environment(environ, Options, {})[0]],
        store=place,
    )
    if described is not None:
        checked.explained = list(explain(settings, described.request, warnings))
    if args.store:
        with capture_warnings():  # the report contains the warnings
            checked.code, checked.inspected = _inspect_store(settings)
    return checked


def _settings_at_start(file: str, *, wsgi: bool) -> Settings:
    """Load the settings and run all checks of a server's start that do not query the store.

    Raises a `ConfigError` that contains all mistakes, with the file in front.
    """
    path, (env_values, _) = Path(file), read_environment(environ, Options, {})  # `Settings.load` reports its mistakes
    mistakes = ErrorCollector()
    with mistakes.collect():
        settings = Settings.load(path)
    with mistakes.collect(), _located(env_values, path):
        _check_for_start(path, env_values)
    mistakes.raise_if_any()
    handlers = [settings.on_refused, *(rule.on_refused for rule in settings.parsed_rules())]
    wsgi = wsgi or any(refusal_handler(one).kind == "wsgi" for one in handlers if one is not None)
    with _located(env_values, path):
        if wsgi:  # a `Gate` opens no connection before the first request
            Gate(settings, integration=WSGI._replace(probes_store=False))
        else:
            AsyncGate(settings, integration=ASGI._replace(probes_store=False))
    return settings


def _check_for_start(path: Path, env_values: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for mistakes that `Settings` does not detect: in the store's URL and in `on_refused`."""
    values: Mapping[str, Any] = {}
    with suppress(ConfigError):
        values = {**read_file(path), **env_values}
    mistakes = ErrorCollector()
    with mistakes.collect():
        if isinstance(url := values.get("store"), str):
            (open_unchecked(url, 1.0) or open_store(url, 1.0)).close()
    with mistakes.collect("on_refused"):
        if (call := values.get("on_refused")) is not None:
            refusal_handler(call)
    mistakes.raise_if_any()


@contextmanager
def _located(env_values: Mapping[str, Any], path: Path) -> Iterator[None]:
    """Prefix each problem of a ConfigError raised in the block with its variable, or with its file and line."""
    try:
        yield
    except ConfigError as error:
        problems = [with_location(problem, env_values, path) for problem in error.problems]
        raise ConfigError(*dict.fromkeys(problems)) from None


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things) or 'no'} {name}{'s' * (len(things) != 1)}"


def _inspect_store(settings: Settings) -> tuple[int, Sequence[str]]:
    """Connect to the store and describe it. Returns the exit code and the lines. May block for some seconds."""
    store = settings.store
    if not isinstance(store, str):
        raise ConfigError(f"store: got {type(store).__name__}, expected a store URL for --store", code="RL-040")
    rule_set = RuleSet(settings)
    inspection = inspect_store(
        store,
        rule_set.algorithms,
        settings.store_timeout,
        remembers_refused=settings.remember_refused > 0,
        counts=settings.metrics,
    )
    lines = [f"Store {redacted_url(store)}:"]
    if inspection is None:
        try:
            place = inspect_store_file(store) or "in the memory of each process: there is nothing to connect to"
        except ConfigError as error:
            return _REJECTED, [*lines, *(f"  rejects this app: {problem}" for problem in error.problems)]
        return 0, [*lines, f"  {place}"]
    on_calendar = findings_of_servers(rule_set.known_limits, inspection)
    for node in inspection.nodes:
        lines.append(f"  {node.label}")
        lines += [f"    {name:<8} {text}" for name, text in _node_rows(node, inspection.kind)]
    for title, texts in (
        ("rejects this app", inspection.mistakes),
        ("no answer", inspection.unreachable),
        ("warning", inspection.warnings),
        ("warning", [one.text.removeprefix("store: ") for one in on_calendar]),
    ):
        lines += [f"  {title}: {text}" for text in texts]
    if inspection.mistakes:
        return _REJECTED, lines
    if inspection.unreachable:
        return _UNREACHABLE, lines
    return 0, [*lines, "  works: a unit was taken and its bucket reset"]


def _node_rows(node: Any, kind: str) -> Iterator[tuple[str, str]]:
    if node.version is not None:
        yield "server", f"{node.server} {node.version}, {_KINDS[kind]}, mode {node.mode}, role {node.role}"
    if node.missing is not None:
        yield "rights", f"lacks {', '.join(node.missing)}" if node.missing else "all that the limits need"
    if node.latency is not None:
        yield "latency", f"{node.latency * 1000:.2f} ms, the median of five calls"
    if node.clock_offset is not None:
        yield "clock", f"{node.clock_offset:+.3f} s from this machine's"
    if node.maxmemory_policy is not None:
        bound = f"maxmemory {node.maxmemory}" if node.maxmemory else "no maxmemory"
        yield "memory", f"{bound}, policy {node.maxmemory_policy}"
    elif node.missing is not None:
        yield "memory", "unknown: the user may not run INFO"

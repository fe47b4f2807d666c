"""Runs a replay in this process, or in several processes that divide the clients."""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from heapq import nsmallest
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError, ErrorCollector, RateLimitError
from ratelimit_mw.core.limit import check_int
from ratelimit_mw.replay.assumptions import check, parse_assumptions
from ratelimit_mw.replay.formats import format_of
from ratelimit_mw.replay.formats.base import LogFormat
from ratelimit_mw.replay.reading import STDIN, LogReader, Progress, first_lines
from ratelimit_mw.replay.results import Offender, Report, RuleResult
from ratelimit_mw.replay.simulation import Simulation, Watch
from ratelimit_mw.replay.suggestions import distributions, suggest
from ratelimit_mw.replay.tallies import RefusedRequests, RuleTally, Tallies
from ratelimit_mw.replay.times import Period
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from ratelimit_mw.settings.loading import with_location

_MOST: Final = 10  # clients named for each rule
_MAX_JOBS: Final = 64
_NO_AGENTS: Final = "the log has no user agents, so --suggest cannot tell an office behind one address from an attack"


class Job(Struct, frozen=True, kw_only=True):
    """A replay, and the part of it that one process does. The fields are the arguments of `replay.replay`."""

    settings: Any
    logs: Sequence[str | Path]
    format: str | None
    fields: Mapping[str, str]
    period: Period
    assume: Sequence[str]
    as_logged: bool
    rules: Sequence[str]
    suggest: bool
    distributions: bool
    part: tuple[int, int] = (0, 1)


class _Part(Struct):
    tallies: Tallies
    reader: LogReader
    log: LogFormat
    notes: list[str]
    rules: RuleSet
    spread: bool


def run(job: Job, jobs: int, watch: Watch | None = None, progress: Progress | None = None) -> Report:
    """Run a replay in `jobs` processes. Raises `ConfigError` for all mistakes in its arguments and settings."""
    check_int("--jobs", jobs, 1)
    if jobs > _MAX_JOBS:
        raise ConfigError(f"--jobs: got {jobs}, expected at most {_MAX_JOBS}", code="RL-051")
    _check_logs(job.logs)
    if jobs > 1:
        _check_parts(job, watch)
    parts = [replace(job, part=(number, jobs)) for number in range(jobs)]
    context = get_context("spawn")  # because a fork of a process with threads may never end
    helpers = []
    try:
        for one in parts[1:]:
            here, there = context.Pipe(duplex=False)
            process = context.Process(target=_run_in_process, args=(one, there), daemon=True)
            process.start()
            there.close()
            helpers.append((process, here))
        first = _run_part(parts[0], watch, progress)
        for _, here in helpers:
            try:
                found = here.recv()
            except EOFError:
                raise RateLimitError("--jobs: a process of the replay has ended early") from None
            if isinstance(found, Exception):
                raise found
            first.tallies.add(found)
    finally:
        for process, here in helpers:
            here.close()
            process.terminate()
            process.join()
    return _report(job, first)


def _run_in_process(job: Job, connection: Connection) -> None:
    """Run one part, and send its counts to the process that waits for them."""
    try:
        connection.send(_run_part(job, None, None).tallies)
    except RateLimitError as error:
        connection.send(error)


def _run_part(job: Job, watch: Watch | None, progress: Progress | None) -> _Part:
    settings, assumed = _settings_of(job.settings), parse_assumptions(job.assume)
    log = format_of(job.format, job.fields, first_lines(job.logs))
    keeps_times = job.suggest or job.distributions
    simulation = Simulation(settings, log, assumed, keeps_times=keeps_times, part=job.part, watch=watch)
    known = list(simulation.tallies.rules)
    if unknown := [name for name in job.rules if name not in known]:
        raise ConfigError(f"--rule: got {', '.join(unknown)}, expected one of {', '.join(known)}", code="RL-051")
    try:
        notes, needed = check(settings, simulation.rules, log, assumed)
    except ConfigError as error:
        if not isinstance(job.settings, (str, Path)):
            raise
        file, from_variables = Path(job.settings), settings.from_environment
        raise ConfigError(*[with_location(problem, from_variables, file) for problem in error.problems]) from None
    if job.suggest and not log.has_value("header:user-agent"):
        notes.append(_NO_AGENTS)
    log.keep(needed)
    reader = LogReader(log, job.period, progress)
    replay = simulation.replay
    spread = False
    with _without_collector() if watch is None else nullcontext():
        for group in reader.groups(job.logs):
            if group.is_whole:
                spread = True
                if job.as_logged:
                    group = group._replace(is_whole=False)  # noqa: PLW2901  # the same group
            replay(group)
    return _Part(simulation.finish(), reader, log, notes, simulation.rules, spread)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch the garbage collector off: a replay makes no cycles, and a collection visits all remembered clients."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _settings_of(value: Any) -> Settings:
    """Return the settings that `value` is or contains, or that the file with this path contains."""
    return Settings.load(value) if isinstance(value, (str, Path)) else Settings.of(value, {})


def _check_logs(logs: Sequence[str | Path]) -> None:
    if not logs:
        raise ConfigError("logs: expected at least one file, or - for standard input", code="RL-051")
    seen: set[str | Path] = set()
    for log in logs:
        if (place := log if log == STDIN else Path(log).resolve()) in seen:
            raise ConfigError(f"logs: {log} is given twice, so each of its requests would count twice", code="RL-051")
        seen.add(place)


def _check_parts(job: Job, watch: Watch | None) -> None:
    """Raise `ConfigError` if clients cannot be divided among processes, because a bucket belongs to several of them."""
    settings = _settings_of(job.settings)
    if STDIN in job.logs:
        raise ConfigError("--jobs: standard input can be read by one process only; expected files", code="RL-051")
    if watch is not None:
        raise ConfigError("on_decision: it is called in this process only; expected jobs=1", code="RL-051")
    app, *of_rules, default = RuleSet(settings).limit_sets
    # the limits that can apply to a request in addition to those of another rule
    beside = [one for one in (app, *of_rules) if one.rule is None or not one.rule.is_final]
    everywhere = {key.text for limit_set in beside for key in limit_set.keys}
    mistakes = ErrorCollector()
    with mistakes.collect("app_limits"):
        _check_divisible(app, everywhere)
    for index, limit_set in enumerate(of_rules):
        with mistakes.collect(f"rules[{index}] ({limit_set.name})"):
            _check_divisible(limit_set, everywhere)
    with mistakes.collect("limits"):
        _check_divisible(default, everywhere)
    mistakes.raise_if_any()


def _check_divisible(limit_set: LimitSet, everywhere: Collection[str]) -> None:
    """Raise `ConfigError` if a request can charge buckets of these limits that other processes charge, too.

    `everywhere`: the keys of limits that apply in addition to those of other rules.
    """
    keys = {key.text: key for key in limit_set.keys}
    for text, key in keys.items():
        if key.is_shared:
            raise ConfigError(f"the key {text!r} spans clients, which --jobs divides; use one job", code="RL-051")
        if key.callables:
            raise ConfigError(f"the key {text!r} is a callable, by which --jobs cannot divide clients", code="RL-051")
    if keys and len(keys.keys() | set(everywhere)) > 1:
        named = ", ".join(sorted(keys.keys() | set(everywhere)))
        raise ConfigError(f"a request has buckets of several keys ({named}), so use one job", code="RL-051")
    if limit_set.may_delay:
        raise ConfigError("all clients share the capacity for delayed requests; use one job", code="RL-051")
    if limit_set.fixed_limits is None:
        raise ConfigError("limits by tier or callable cannot be divided among jobs; use one job", code="RL-051")


def _report(job: Job, part: _Part) -> Report:
    tallies, reader = part.tallies, part.reader
    results = [_result(row) for row in tallies.rules.values() if not job.rules or row.name in job.rules]
    order = list(tallies.rules)
    populations = {
        name: dict(sorted(population.items()))
        for name, population in sorted(
            tallies.populations.items(), key=lambda item: (order.index(item[0].rule), item[0])
        )
        if not job.rules or name.rule in job.rules
    }
    return Report(
        lines=reader.lines,
        unread=reader.unread,
        late=reader.late,
        empty_reason=_empty_reason(reader),
        shown=reader.shown,
        requests=tallies.requests,
        refused=tallies.refused,
        rules=results,
        suggested=suggest(populations) if job.suggest else (),
        first=None if tallies.first is None else tallies.first / 1e6,
        last=None if tallies.last is None else tallies.last / 1e6,
        notes=[*part.notes, *_notes(job, part)],
        peaks=distributions(populations) if job.distributions else (),
    )


def _result(row: RuleTally) -> RuleResult:
    most = nsmallest(_MOST, row.clients.items(), key=lambda item: (-item[1], item[0]))
    return RuleResult(
        row.name,
        row.requests,
        row.refused,
        len(row.clients),
        [_offender(client, refused, row.details.get(client)) for client, refused in most],
        row.is_shadow,
        dict(sorted((minute, tuple(counts)) for minute, counts in row.minutes.items())),
    )


def _offender(client: str, refused: int, found: RefusedRequests | None) -> Offender:
    if found is None:
        return Offender(client, refused)
    statuses = dict(sorted(found.statuses.items(), key=lambda item: (-item[1], item[0])))
    path = min(found.paths, key=lambda path: (-found.paths[path], path), default="")
    return Offender(client, refused, found.first / 1e6, found.last / 1e6, statuses, path, len(found.agents))


def _empty_reason(reader: LogReader) -> str:
    """Return why no line was replayed, if all are outside the period."""
    if reader.outside is None or reader.lines > reader.unread:
        return ""
    first, last = reader.outside
    return f"--since, --until: no line is in this period; the log has lines from {first} to {last}"


def _notes(job: Job, part: _Part) -> list[str]:
    tallies = part.tallies
    notes: list[str] = []
    if part.spread and job.as_logged:
        notes.append("the log has whole seconds: all requests of a second are at its beginning (--as-logged)")
    elif part.spread:
        notes.append("the log has whole seconds: the lines of one second are spread over it (--as-logged: not)")
    if tallies.skipped:
        notes.append(f"lines without a request of HTTP, which are left out: {tallies.skipped:,}")
    if tallies.unlimited:
        notes.append(f"requests that are exempt, or of clients on the safelist: {tallies.unlimited:,}")
    if tallies.logged_refusals:
        notes.append(f"requests that were answered with 429 already, some of them retries: {tallies.logged_refusals:,}")
    if tallies.preflights and not part.log.has_value("header:access-control-request-method"):
        notes.append("the log does not tell preflights from other OPTIONS requests; they count as the latter")
    if tallies.nameless:
        notes.append(f"clients without an address in the log, to which missing_key applies: {tallies.nameless:,}")
    if part.reader.late:
        notes.append(
            f"lines too far out of order to be sorted, which count at the time of the line before: {part.reader.late:,}"
        )
    if any(limit_set.has_slots for limit_set in part.rules.limit_sets):
        notes.append("a request that finds no free slot is refused at once: waiting in a queue is not replayed")
    return notes

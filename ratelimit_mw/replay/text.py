"""The report of a replay as text for a terminal."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from ratelimit_mw.replay.results import Described, Report, RuleResult, Suggestion
from ratelimit_mw.replay.suggestions import WINDOWS

_NAMED: Final = 3  # clients in a row
_LONGEST: Final = 60  # characters of a path
_OFFICES: Final = "clients above may be offices; safelist these for another replay"


def report_lines(report: Report) -> Iterator[str]:
    """Yield the lines of the report."""
    yield header(report)
    yield total(report)
    yield from (f"  {note}" for note in report.notes)
    yield from (f"  unread: {line}" for line in report.shown)
    yield ""
    yield from _aligned(
        [("rule", "requests", "refused", "", "clients", "most refused"), *map(_rule_row, report.rules)], "<>>>><"
    )
    if report.suggested:
        yield ""
        heading = ("suggested", "window", "peak of clients: half / 99 % / all", "a clear gap?")
        yield from _aligned([heading, *suggestion_rows(report)], "<<<<")
        if recommended := list(recommended_rows(report)):
            yield ""
            yield from _aligned([("recommended", "the line for the settings"), *recommended], "<<")
            yield from _table_of("refused", "client, with these lines", victim_rows(report))
        yield from _table_of("honest", "may be an office", office_rows(report))


def total(report: Report) -> str:
    """Return a line that tells how much was refused."""
    share = percent(report.refused, report.requests)
    return f"{number(report.refused)} of {number(report.requests)} requests refused, {share}"


def header(report: Report) -> str:
    """Return a line that tells how much was read."""
    length = 0.0 if report.first is None or report.last is None else report.last - report.first
    return f"{number(report.lines)} lines, {duration(length)}, {number(report.unread)} unread"


def suggestion_rows(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """Yield the columns of each suggestion."""
    for name, one in _named(report):
        peaks = " / ".join(number(peak) for peak in (one.half, one.most, one.all))
        yield name, WINDOWS[round(one.window)], peaks, _gap(one)


def recommended_rows(report: Report) -> Iterator[tuple[str, str]]:
    """Yield the columns of each suggestion with the widest gap: its rule, and the line to paste."""
    yield from ((name, one.line) for name, one in _named(report) if one.recommended)


def victim_rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield rule, client and description of the clients that the recommended limits would refuse."""
    for name, one in _named(report):
        for victim in one.victims if one.recommended else ():
            yield name, f"{victim.client} {number(victim.number)}", _description(victim)


def office_rows(report: Report) -> Iterator[tuple[str, str, str]]:
    """Yield rule, client and description of the clients that look like many users behind one address."""
    found = {(name, office.client): office for name, one in _named(report) for office in one.offices}
    for (name, client), office in found.items():
        yield name, client, _description(office)


def _description(one: Described) -> str:
    agents = _count(one.agents, "user agent") if one.agents else "no user agent"
    times = f"{moment(one.first)} to {moment(one.last)}"
    return f"{agents}, {_count(one.paths, 'path')}, mostly {one.path[:_LONGEST]}, {times}"


def _count(value: int, noun: str) -> str:
    return f"{number(value)} {noun}" if value == 1 else f"{number(value)} {noun}s"


def _table_of(heading: str, client: str, rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    if found := list(rows):
        yield ""
        yield from _aligned([(heading, client, "what it sent"), *found], "<<<")


def moment(time: float) -> str:
    """Return a time in UTC, without its year."""
    return datetime.fromtimestamp(time, UTC).strftime("%m-%d %H:%M:%S")


def _named(report: Report) -> Iterator[tuple[str, Suggestion]]:
    """Yield each suggestion with the name of its rule, and its key if the rule has several."""
    several_keys = {
        one.rule
        for one in report.suggested
        for other in report.suggested
        if one.rule == other.rule and one.key != other.key
    }
    for one in report.suggested:
        yield f"{one.rule} ({one.key})" if one.rule in several_keys else one.rule, one


def _gap(one: Suggestion) -> str:
    if one.quota is None:
        return f"no: {_OFFICES if one.offices else 'this window does not tell clients apart'}"
    share = percent(one.refused, one.requests)
    return (
        f"{one.gap:.1f}x above {number(one.honest)}: {one.limit} touches {number(one.touched)} of "
        f"{number(one.clients)} clients, {share} of requests"
    )


def _rule_row(rule: RuleResult) -> tuple[str, ...]:
    named = ", ".join(f"{one.client} {number(one.refused)}" for one in rule.most[:_NAMED])
    name = f"{rule.rule} (shadow)" if rule.shadow else rule.rule
    share = percent(rule.refused, rule.requests)
    return name, number(rule.requests), number(rule.refused), share, number(rule.clients), named


def number(value: int) -> str:
    """Return a whole number with commas."""
    return f"{value:,}"


def percent(part: int, whole: int) -> str:
    """Return a share; below 0.1 %, with enough digits to differ from 0."""
    share = 100 * part / whole if whole else 0.0
    return f"{share:.1f} %" if share >= 0.1 or not share else f"{share:.2g} %"  # noqa: PLR2004  # of a percent


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    rest, parts = round(seconds), []
    for size, name in units:
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"


def _aligned(rows: Sequence[Sequence[str]], sides: str) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(sides))]
    for row in rows:
        cells = [f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)]
        yield "  ".join(cells).rstrip()

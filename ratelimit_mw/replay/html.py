"""The HTML report of a replay: one file, which loads nothing else."""

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import repeat
from typing import Any, Final

from ratelimit_mw.replay.results import Offender, Peaks, Report, RuleResult
from ratelimit_mw.replay.text import (
    duration,
    header,
    moment,
    number,
    office_rows,
    percent,
    recommended_rows,
    suggestion_rows,
    total,
    victim_rows,
)

_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440)  # minutes between the points of a chart
_POINTS: Final = 9000  # points of all charts together, so that the report of a day has less than 250 kB
_CHARTS: Final = 30  # rules with charts; those with the most refusals
_BINS_PER_DOUBLING: Final = 4
_NAMED: Final = 4  # statuses of a client
_LONGEST_PATH: Final = 60  # characters
_DIFFER: Final = (
    "Clients above the quota in any window: {}. Clients refused: {}; the algorithm does not count every window exactly."
)
_NARROW: Final = 2  # the number of columns for which any window has room

Cell = tuple[str, str]  # the text and the CSS classes of a cell


def html_report(report: Report) -> str:
    """Return the report as an HTML page. Its content security policy allows its own scripts and styles only."""
    charted = sorted((rule for rule in report.rules if rule.requests), key=lambda rule: (-rule.refused, -rule.requests))
    charted = [rule for rule in report.rules if rule in charted[:_CHARTS]]
    peaks = [one for one in report.peaks if any(one.rule == rule.rule for rule in charted)]
    scripts = [_asset("uplot/uPlot.iife.min.js"), _asset("report.js")]
    styles = [_asset("uplot/uPlot.min.css"), _asset("report.css")]
    policy = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; base-uri 'none'; "
        "form-action 'none'"
    )
    body = "\n".join([*_summary(report), *_rules(report), *_sections(charted, peaks), *_suggested(report), *_footer()])
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>Replay of an access log</title>",
            *(f"<style>{style}</style>" for style in styles),
            "</head>",
            f"<body>\n{body}",
            f'<script type="application/json" id="data">{_data(report, charted, peaks)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        ]
    )


def _asset(name: str) -> str:
    return files("ratelimit_mw.replay").joinpath("assets", *name.split("/")).read_text("utf-8")


def _hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)


def _data(report: Report, rules: Sequence[RuleResult], peaks: Sequence[Peaks]) -> str:
    """Return the data of the charts. No text in it can end its element."""
    step, start, length = _time_axis(report, len(rules))
    data: dict[str, Any] = {
        "step": step * 60,
        "rules": [
            {
                "start": start * 60,
                "requests": _series(rule.minutes, start, step, length, 0),
                "refused": _series(rule.minutes, start, step, length, 1),
            }
            for rule in rules
        ],
        "every": duration(step * 60),
        "peaks": [{"quota": one.quota, "bins": bins(one.counts), "unit": _unit(one)} for one in peaks],
    }
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _time_axis(report: Report, charts: int) -> tuple[int, int, int]:
    """Return the minutes between points, the first minute, and how many points there are."""
    minutes = [minute for rule in report.rules for minute in rule.minutes]
    if not minutes:
        return 1, 0, 1
    first, last = min(minutes), max(minutes)
    fitting = [step for step in _STEPS if ((last - first) // step + 1) * max(1, charts) <= _POINTS]
    step = fitting[0] if fitting else -(-(last - first + 1) * charts // _POINTS)
    first -= first % step
    return step, first, (last - first) // step + 1


def _series(minutes: Mapping[int, Sequence[int]], start: int, step: int, length: int, which: int) -> list[int]:
    series = [0] * length
    for minute, counts in minutes.items():
        series[(minute - start) // step] += counts[which]
    return series


def bins(counts: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return bins of peaks, as (first peak, last peak, number of clients). The bins widen with the peaks."""
    found: list[tuple[int, int, int]] = []
    low, largest = 1, max(counts, default=0)
    while low <= largest:
        high = max(low, int(low * 2 ** (1 / _BINS_PER_DOUBLING)))
        found.append((low, high, sum(clients for peak, clients in counts.items() if low <= peak <= high)))
        low = high + 1
    return found


def _summary(report: Report) -> Iterator[str]:
    yield "<header><h1>What these limits would have refused</h1>"
    yield f'<p class="total">{escape(total(report))}</p>'
    if report.first is not None and report.last is not None:
        start, end = (
            datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S") for time in (report.first, report.last)
        )
        yield f'<p class="soft">{start} to {end} UTC</p>'
    yield f"<p>{escape(header(report))}</p>"
    notes = [
        *report.notes,
        "the clients of the log had other limits, or none: with these they might have sent other requests",
        *(f"unread: {line}" for line in report.shown),
    ]
    yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul></header>"


def _rules(report: Report) -> Iterator[str]:
    yield "<h2>Rules</h2>"
    rows = [
        [
            (rule.rule + (" (shadow)" if rule.shadow else ""), "name"),
            (number(rule.requests), "number"),
            (number(rule.refused), "number refused" if rule.refused else "number"),
            (percent(rule.refused, rule.requests), "number"),
            (number(rule.clients), "number"),
        ]
        for rule in report.rules
    ]
    yield _table(
        [
            ("rule", ""),
            ("requests", "number"),
            ("refused", "number"),
            ("share", "number"),
            ("clients touched", "number"),
        ],
        rows,
    )


def _sections(rules: Sequence[RuleResult], peaks: Sequence[Peaks]) -> Iterator[str]:
    for index, rule in enumerate(rules):
        own = [(place, one) for place, one in enumerate(peaks) if one.rule == rule.rule]
        yield f"<section><h2>{escape(rule.rule)}</h2>"
        yield f'<div class="charts{" two" if own else ""}">'
        yield f'<div class="chart"><h3>Requests, admitted and refused</h3><div data-chart="time-{index}"></div></div>'
        for place, one in own:
            title = f"Peaks of the clients in {duration(one.window)}; {one.limit}, key {one.key}"
            yield f'<div class="chart"><h3>{escape(title)}</h3><div data-chart="peaks-{place}"></div>'
            if len(own) == 1 and one.above != rule.clients:
                yield f'<p class="soft">{escape(_DIFFER.format(number(one.above), number(rule.clients)))}</p>'
            yield "</div>"
        yield "</div>"
        if rule.most:
            yield "<h3>Most refused</h3>"
            yield _table(
                [
                    ("client", ""),
                    ("refused", "number"),
                    ("when, UTC", ""),
                    ("most often", ""),
                    ("statuses", ""),
                    ("agents", "number"),
                ],
                map(_offender_row, rule.most),
            )
        yield "</section>"


def _offender_row(one: Offender) -> list[Cell]:
    statuses = ", ".join(f"{status or '-'} {number(count)}" for status, count in list(one.statuses.items())[:_NAMED])
    path = one.path if len(one.path) <= _LONGEST_PATH else f"{one.path[:_LONGEST_PATH]}..."
    return [
        (one.client, "name"),
        (number(one.refused), "number refused"),
        (f"{moment(one.first)} to {moment(one.last)}", "wrap"),
        (path, "name"),
        (statuses, "wrap"),
        (number(one.agents) if one.agents else "-", "number"),
    ]


def _unit(one: Peaks) -> str:
    return f"{'requests' if one.cost == 1 else 'units'} of a client in {duration(one.window)}"


def _suggested(report: Report) -> Iterator[str]:
    if not report.suggested:
        return
    yield "<h2>Suggestions</h2>"
    yield (
        '<p class="soft">The quota at which honest clients end: the widest gap among the largest hundredth of the '
        "peaks, or a wide one among the largest quarter. The clients and requests are those that a second run with "
        "this quota refused.</p>"
    )
    rows = [
        [(text, "name" if index in (0, 3) else "") for index, text in enumerate(row)] for row in suggestion_rows(report)
    ]
    yield _table([(name, "") for name in ("rule", "window", "peak: half / 99 % / all", "a clear gap?")], rows)
    lines = [f"# {name}\n{line}" for name, line in recommended_rows(report)]
    if lines:
        yield f"<h3>Recommended</h3><pre>{escape(chr(10).join(lines))}</pre>"
    for title, found in (
        ("Clients that these would refuse", victim_rows(report)),
        ("Clients that may be offices, and count as honest", office_rows(report)),
    ):
        if described := [[(text, "name") for text in row] for row in found]:
            yield f"<h3>{title}</h3>"
            yield _table([("rule", ""), ("client", ""), ("user agents, paths and times", "")], described)


def _footer() -> Iterator[str]:
    yield "<footer>Made by ratelimit_mw. Charts: uPlot, MIT license, Copyright (c) 2022 Leon Sorokin.</footer>"


def _table(columns: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a table. A narrow window shows each row as a card if there are more than two columns."""
    head = "".join(_cell("th", cell) for cell in columns)
    names = [f' data-name="{name}"' for name, _ in columns]
    body = "".join(f"<tr>{''.join(map(_cell, repeat('td'), row, names))}</tr>" for row in rows)
    kind = "table cards" if len(columns) > _NARROW else "table"
    return f'<div class="{kind}"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(tag: str, cell: Cell, more: str = "") -> str:
    text, kind = cell
    classes = f' class="{kind}"' if kind else ""
    return f"<{tag}{classes}{more}>{escape(text)}</{tag}>"

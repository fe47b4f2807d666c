"""Draws the chart of a run: `python -m benchmarks.chart FILE.json OUT.svg` reads what `--json` wrote.

It has a bar for each row with a target. A bar is as long as the median, with a mark at the target.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

_NAMES, _AXIS, _WIDTH = 250, 380, 900  # pixels: where bars begin, their maximum length, and the width of the chart
_STEP, _BAR, _GAP, _TOP = 22, 12, 46, 84  # pixels: from bar to bar, of a bar, of a group's title, of the chart's title
_MOST: Final = 4.0  # the maximum of an axis; a longer bar is cut, and the text beside it has the number
_STYLE: Final = """
text { font: 13px system-ui, sans-serif; fill: #1f2328 }
.title { font-size: 16px; font-weight: 600 } .group { font-weight: 600 }
.page { fill: #ffffff } .one { stroke: #8c959f; stroke-dasharray: 3 3 }
.met { fill: #2f6fb7 } .missed { fill: #c4560d } .target { stroke: #1f2328; stroke-width: 2 }
.half { stroke: #8c959f; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .met { fill: #6cb0f5 } .missed { fill: #f0914a }
  .target { stroke: #e6edf3 }
}
"""
_UNITS: Final = {"x": "", "us": " us", "bytes": " bytes", "calls": " calls", "admitted": " admitted"}
_GROUPS: Final = (
    "Time, over that of the other: less is better",
    "Number, over that of the other, or over its target: more is better",
    "Sizes, counts and times, over their target: less is better",
)


class _Bar(NamedTuple):
    group: int  # of _GROUPS
    name: str
    value: float  # on the axis of the group
    target: float
    half: tuple[float, float] | None
    verdict: str
    told: str  # the number as in the table, with its target


def chart(found: Mapping[str, Any]) -> str:
    """Return an SVG of the rows that have a target and a value."""
    bars = sorted(map(_bar, filter(_shown, found["rows"])), key=lambda bar: bar.group)
    parts: list[str] = []
    y = _TOP
    for group, each in groupby(bars, key=lambda bar: bar.group):
        drawn = [*each]
        most = min(_MOST, max(1.0, *(max(bar.value, bar.target) for bar in drawn)))
        parts.append(f'<text class="group" x="10" y="{y + 16}">{_GROUPS[group]}</text>')
        y += 28
        parts += _scale(y, len(drawn), most)
        for bar in drawn:
            parts += _drawn(bar, y, _AXIS / most)
            y += _STEP
        y += _GAP - 28
    return _page(parts, y, len(bars), sum(bar.verdict == "met" for bar in bars), found)


def _shown(row: Mapping[str, Any]) -> bool:
    return row["target"] is not None and row["value"] is not None and row["unit"] != "admitted"


def _bar(row: Mapping[str, Any]) -> _Bar:
    ratio = row["unit"] == "x"
    by = 1.0 if ratio else row["target"]
    sign = "≥" if row["at_least"] else "≤"
    return _Bar(
        group=1 if row["at_least"] else 0 if ratio else 2,
        name=row["row"],
        value=row["value"] / by,
        target=row["target"] / by,
        half=(row["half"][0] / by, row["half"][1] / by) if row["half"] else None,
        verdict=row["verdict"],
        told=f"{row['value']:.2f}{_UNITS[row['unit']]}, target {sign} {row['target']:.2f}: {row['verdict']}",
    )


def _scale(y: int, bars: int, most: float) -> Iterable[str]:
    """Draw a line at 1, across all bars of the group."""
    x = _NAMES + _AXIS / most
    yield f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4}" y2="{y + bars * _STEP}"/>'
    yield f'<text x="{x:.1f}" y="{y - 8}" text-anchor="middle">1</text>'


def _drawn(bar: _Bar, y: int, scale: float) -> Iterable[str]:
    def at(value: float) -> float:
        return _NAMES + min(value * scale, _AXIS)

    middle = y + _BAR / 2
    yield f"<g><title>{escape(f'{bar.name}: {bar.told}')}</title>"
    yield f'<text x="{_NAMES - 8}" y="{y + 11}" text-anchor="end">{escape(bar.name)}</text>'
    width = at(bar.value) - _NAMES
    yield f'<rect class="{bar.verdict}" x="{_NAMES}" y="{y}" width="{width:.1f}" height="{_BAR}"/>'
    if bar.half:
        low, high = map(at, bar.half)
        yield f'<line class="half" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
    mark = at(bar.target)
    yield f'<line class="target" x1="{mark:.1f}" x2="{mark:.1f}" y1="{y - 3}" y2="{y + _BAR + 3}"/>'
    yield f'<text x="{_NAMES + _AXIS + 12}" y="{y + 11}">{escape(bar.told)}</text></g>'


def _page(parts: Iterable[str], height: int, bars: int, met: int, found: Mapping[str, Any]) -> str:
    title = f"{met} of {bars} targets met"
    about = f"ratelimit-mw {found['versions']['ratelimit-mw']}, Python {found['versions']['python']}"
    where = f"{found['machine']['cpu']}, {found['machine']['cores']} cores"
    legend = "Bar: median of the rounds. Thin line: the middle half of them. Upright mark: the target."
    described = (f"{about}; {where}", legend)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title about">',
            f'<title id="title">{title}</title>',
            f'<desc id="about">{escape(". ".join(described))}</desc>',
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{height}"/>',
            f'<text class="title" x="10" y="24">{title}</text>',
            *[f'<text x="10" y="{46 + 18 * n}">{escape(line)}</text>' for n, line in enumerate(described)],
            *parts,
            "</svg>\n",
        ]
    )


def main(arguments: Sequence[str]) -> None:
    """Read the JSON file and write the SVG file."""
    source, target = map(Path, arguments)
    target.write_text(chart(json.loads(source.read_text("utf-8"))), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

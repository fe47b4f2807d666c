"""Formats the table for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.line import Line

_HEAD: Final = ("row", "what", "median", "middle half", "min..max", "target", "admitted", "refused")
_TEXT: Final = 2  # columns of text; the rest are numbers, aligned right
_UNITS: Final = {"x": "", "us": " us", "calls": " calls", "bytes": " bytes", "admitted": " admitted"}


def heading(about: Mapping[str, Any]) -> str:
    """Return lines about the versions, the machine and the compared commit."""
    machine = about["machine"]
    shown = [
        ", ".join(f"{name} {version}" for name, version in about["versions"].items()),
        f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {about['rounds']} rounds",
        *([f"against {about['against']}"] if "against" in about else []),
    ]
    return "\n".join(shown)


def table(lines: Sequence[Line], ours: str = "ours", peer: str = "peer") -> str:
    """Return a line per row, followed by its notes and problems. `ours`, `peer`: the names of these columns."""
    head = (*_HEAD[:_TEXT], f"{ours} us", f"{peer} us", *_HEAD[_TEXT:])
    cells = [head, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    shown = [_joined(cells[0], widths), "  ".join("-" * width for width in widths)]
    for line, row in zip(lines, cells[1:], strict=True):
        shown.append(_joined(row, widths))
        shown += [f"    {note}" for note in line.notes]
        shown += [f"    WRONG: {problem}" for problem in line.problems]
    return "\n".join(shown)


def _cells(line: Line) -> tuple[str, ...]:
    unit = _UNITS[line.unit]
    all_of_them = (min(line.values), max(line.values)) if len(line.values) > 1 else None
    return (
        line.row,
        line.what,
        _number(line.ours),
        _number(line.peer),
        _number(line.value) + unit if line.value is not None else "-",
        _spread(line.half),
        _spread(all_of_them),
        f"{line.goal} {line.verdict}".strip() or "-",
        f"{line.admitted:,}",
        f"{line.refused:,}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _spread(ends: tuple[float, float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.2f}..{ends[1]:.2f}"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = [
        cell.ljust(width) if column < _TEXT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(shown).rstrip()

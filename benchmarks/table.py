"""The table on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Final

from benchmarks.line import Line

_HEAD: Final = ("row", "what", "ours us", "peer us", "median", "min..max", "target", "admitted", "refused")
_TEXT: Final = 2  # columns of words; the rest are numbers and stand on the right
_UNITS: Final = {"x": "", "us": " us", "calls": " calls", "bytes": " bytes"}


def heading(versions: Mapping[str, str], machine: Mapping[str, str], rounds: int) -> str:
    """What it was measured with, and on."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{found}\n{machine['cpu']}, {machine['cores']} cores, {machine['system']}; {rounds} rounds"


def table(lines: Sequence[Line]) -> str:
    """One line per row, and below it what is missing or wrong."""
    cells = [_HEAD, *(_cells(line) for line in lines)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(_HEAD))]
    shown = [_joined(cells[0], widths), "  ".join("-" * width for width in widths)]
    for line, row in zip(lines, cells[1:], strict=True):
        shown.append(_joined(row, widths))
        shown += [f"    {note}" for note in line.notes]
        shown += [f"    WRONG: {problem}" for problem in line.problems]
    return "\n".join(shown)


def _cells(line: Line) -> tuple[str, ...]:
    unit, spread = _UNITS[line.unit], ""
    if len(line.values) > 1:
        spread = f"{min(line.values):.2f}..{max(line.values):.2f}"
    return (
        line.row,
        line.what,
        _number(line.ours),
        _number(line.peer),
        _number(line.value) + unit if line.value is not None else "-",
        spread or "-",
        "-" if line.target is None else f"{line.target:.2f} {line.verdict}".rstrip(),
        f"{line.admitted:,}",
        f"{line.refused:,}",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _joined(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown = [
        cell.ljust(width) if column < _TEXT else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "  ".join(shown).rstrip()

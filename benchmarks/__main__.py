"""The program: which rows, how many rounds, and where the numbers go. A run of all rows counts instructions first.

Exit code 1 when a row counted something else than its scenario says, 0 otherwise: speed never fails it.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import against, results, trees
from benchmarks.chart import chart
from benchmarks.lab import Lab
from benchmarks.line import Line
from benchmarks.machine import machine, versions
from benchmarks.rows import ROWS
from benchmarks.runner import Row
from benchmarks.table import heading, table

_ROUNDS = 50  # of a few milliseconds each: more than one hiccup of the machine


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 0 if all counts were right, 1 otherwise."""
    parser = _parser()
    given = parser.parse_args(arguments)
    about: dict[str, Any] = {"versions": versions(), "machine": machine(), "rounds": given.rounds}
    rows, names = ROWS, ("ours", "peer")
    before = None
    if given.update and given.against:
        parser.error("--update: it does not go with --against, which has other rows")
    if given.update:
        try:
            before = results.read(given.update, about)
        except results.OtherRun as error:
            parser.error(f"--update {given.update}: {error}")
    _count_instructions(given)
    with ExitStack() as closing:
        if given.against:
            try:
                peer = closing.enter_context(trees.at(given.against))
            except trees.NoTree as error:
                parser.error(f"--against {given.against}: {error}")
            ours = closing.enter_context(trees.here())
            rows, names = against.races(ours, peer), (ours.name, peer.name)
            about["against"] = peer.title
        lines: list[Line] = []
        for measured in _measured(_chosen(rows, given.only, parser), given):
            lines += measured
            if before is not None:  # after each row, so that an interrupted run keeps what it has measured
                results.write(given.update, results.updated(before, results.results(about, lines)))
    print(heading(about))
    print()
    print(table(lines, *names))
    found = results.results(about, lines)
    if given.json:
        results.write(given.json, found)
    if given.svg:
        given.svg.write_text(chart(found), "utf-8")
    return 1 if any(line.problems for line in lines) else 0


def _count_instructions(given: argparse.Namespace) -> None:
    """Print them before the rows, if all rows are measured."""
    if not (given.only or given.update or given.against):
        subprocess.run([sys.executable, "-m", "benchmarks.instructions"], check=True)
        print()


def _chosen(rows: Sequence[Row], only: Sequence[str], parser: argparse.ArgumentParser) -> list[Row]:
    for name in only:
        if not any(_meant(row, name) for row in rows):
            parser.error(f"--only {name}: no such row; there are {', '.join(row.name for row in rows)}")
    return [row for row in rows if not only or any(_meant(row, name) for name in only)]


def _measured(rows: Sequence[Row], given: argparse.Namespace) -> Iterator[Sequence[Line]]:
    with Lab(given.rounds, given.calls, sys.stderr) as lab:
        for index, row in enumerate(rows, 1):
            lab.begin(f"[{index}/{len(rows)}] {row.name}: {row.what}")
            yield row.run(lab)
        lab.end()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="a row, or all that start alike: memory, redis-evalsha"
    )
    parser.add_argument("--rounds", type=_positive, default=_ROUNDS, help="turns of each contender (%(default)s)")
    parser.add_argument("--calls", type=_positive, help="calls in a turn, instead of what each row finds enough")
    parser.add_argument("--against", metavar="COMMIT", help="this package against the one of a commit; other rows")
    files = parser.add_mutually_exclusive_group()
    files.add_argument("--json", type=Path, metavar="FILE", help="write everything here too, round by round")
    files.add_argument("--update", type=Path, metavar="FILE", help="replace the measured rows in a file of --json")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the rows that have a target")
    return parser


def _meant(row: Row, name: str) -> bool:
    return row.name == name or row.name.startswith(f"{name}-")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"got {text}, expected at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())

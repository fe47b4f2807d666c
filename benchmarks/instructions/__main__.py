"""Counts the instructions that a limit adds to a request, and prints them beside the targets.

It needs valgrind with its headers and gcc; scenarios with Redis also need a redis-server. Peers that are not installed
are left out. All scenarios take about 8 minutes.
"""

import argparse
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.instructions.callgrind import Callgrind, Counts
from benchmarks.instructions.scenarios import SCENARIOS
from benchmarks.instructions.targets import verdicts
from benchmarks.lab import Missing
from benchmarks.redis_server import RedisServer

_COLUMNS: Final = ("functions", "bytecodes", "allocs", "data refs", "L1i miss", "L1d miss", "L2 miss")
_PEERLESS: Final = ("ours", "floor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print. Returns 0, also if a target is missed, or if a program is missing that counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts here too")
    parser.add_argument("--cache", action="store_true", help="simulate a cache of 32 KiB and 1 MiB, too")
    parser.add_argument(
        "--where", metavar="CONTENDER", help="print the instructions of each function, of one scenario: ours, floor"
    )
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.scenarios if name not in SCENARIOS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    if given.where and len(given.scenarios) != 1:
        parser.error("--where: name one scenario")
    names = given.scenarios or [*SCENARIOS]
    with ExitStack() as closing:
        folder = Path(closing.enter_context(TemporaryDirectory(prefix="ratelimit-mw-bench-")))
        redis = ""
        if any(SCENARIOS[name].uses_redis for name in names):
            try:
                redis = closing.enter_context(RedisServer()).url
            except FileNotFoundError:
                print("Scenarios with Redis are skipped, redis-server: not on PATH")
        try:
            callgrind = Callgrind(folder, redis, cache=given.cache)
        except Missing as missing:
            print(f"The counts of instructions are skipped, {missing}")
            return 0
        names = [name for name in names if redis or not SCENARIOS[name].uses_redis]
        if given.where:
            for function, cost, calls in callgrind.where(names[0], given.where):
                print(f"{cost:9.0f}  x{calls:<5.1f} {'/'.join(function.rsplit('/', 3)[1:])}")
            return 0
        found = _counted(callgrind, names)
    print()
    for target, ratio in verdicts(found):
        verdict = "met" if ratio <= target.most else "missed"
        print(f"{target.what:55} {ratio:7.3f} <= {target.most:<5} {verdict}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


def _counted(callgrind: Callgrind, names: Sequence[str]) -> dict[str, dict[str, Counts]]:
    """Print a table, row by row. Returns what each contender adds to a request, by scenario."""
    print(f"Python {platform.python_version()}; what a limit adds to a request\n")
    print(f"{'scenario':12} {'contender':28} {'instructions':>12} {'/floor':>7} {'/best peer':>10}", end="")
    print("".join(f" {column:>9}" for column in _COLUMNS))
    found: dict[str, dict[str, Counts]] = {}
    for name in names:
        counted, traced = callgrind.counted(name), callgrind.traced(name)
        each = {contender: counts | traced[contender] for contender, counts in counted.items()}
        bare = each.pop("bare")
        found[name] = rows = {
            contender: {column: count - bare[column] for column, count in counts.items()}
            for contender, counts in each.items()
        }
        for contender in rows:
            print(_row(name, contender, rows), flush=True)
        print(f"{name:12} {'(app without a limit)':28} {bare['instructions']:12,.0f}", flush=True)
    return found


def _row(name: str, contender: str, rows: Mapping[str, Counts]) -> str:
    counts = rows[contender]
    floor = rows.get(contender.replace("ours", "floor"), rows.get("floor"))
    peers = [one["instructions"] for other, one in rows.items() if not other.startswith(_PEERLESS)]
    over_floor = f"{counts['instructions'] / floor['instructions']:7.2f}" if floor else f"{'-':>7}"
    over_peer = f"{counts['instructions'] / min(peers):10.2f}" if peers else f"{'-':>10}"
    cells = "".join(f" {counts[column]:9,.0f}" if column in counts else f" {'-':>9}" for column in _COLUMNS)
    return f"{name:12} {contender:28} {counts['instructions']:12,.0f} {over_floor} {over_peer}{cells}"


if __name__ == "__main__":
    sys.exit(main())

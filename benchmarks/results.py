"""The file with the results of a run, as JSON."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.line import Line, as_data


class OtherRun(Exception):
    """New rows cannot join the rows of a file. The message says why."""


def write(file: Path, found: Mapping[str, Any]) -> None:
    """Write the results."""
    file.write_text(json.dumps(found, indent=1) + "\n")


def results(about: Mapping[str, Any], lines: Sequence[Line]) -> dict[str, Any]:
    """Return the results of a run. `about`: its machine, versions and rounds."""
    return {**about, "rows": [as_data(line) for line in lines]}


def read(file: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results in a file. Raises `OtherRun` if another machine or other versions made them."""
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        before = {**found["machine"], **found["versions"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise OtherRun(f"not a file that --json wrote: {error}") from None
    now = {**about["machine"], **about["versions"]}
    if changed := [f"{name} {before.get(name)}" for name in now | before if before.get(name) != now.get(name)]:
        raise OtherRun(f"measured with {', '.join(changed)}, so its rows do not compare with new ones; use --json")
    return found


def updated(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return `before` with the rows of `now` in place of their earlier results. A new row follows the row before it."""
    rows = list(before["rows"])
    place = len(rows)
    for row in now["rows"]:
        known = [(one["row"], one["what"]) for one in rows]  # several rows may have one name
        if (row["row"], row["what"]) in known:
            place = known.index((row["row"], row["what"]))
            rows[place] = row
        else:
            place += 1
            rows.insert(place, row)
    rounds = [int(number) for each in (before, now) for number in re.findall(r"\d+", str(each["rounds"]))]
    fewest, most = min(rounds), max(rounds)
    return {**before, "rounds": most if fewest == most else f"{fewest} to {most}", "rows": rows}

"""What Python decides on the requests of the page that draws the algorithms: `python docs/algorithm_answers.py`.

With `--check` it changes nothing, and returns 1 if the file is stale.
"""  # noqa: INP001  # no package

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.core.limit import Limit

PATH: Final = Path(__file__).resolve().parent / "_static/algorithms-answers.js"
RENEW: Final = "python docs/algorithm_answers.py"
SECOND: Final = 1_000_000
DRAWN: Final = (  # those of algorithms.js
    "fixed_window",
    "sliding_window_counter",
    "sliding_window_log",
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "smooth",
)
BURSTS: Final = ("token_bucket", "gcra", "leaky_bucket")
SHOWN: Final = {  # traffic, by name: the instants in seconds
    "bursts": [0.4 * burst + 8 * pause for pause in range(4) for burst in range(7)],
    "steady, twice the rate": list(range(30)),
    "a rush at the end of a window": [0.0, *(9.0 + 0.2 * number for number in range(5))]
    + [10.2 + 0.2 * number for number in range(5)]
    + [20.0 + 0.4 * number for number in range(8)],
    "too fast all the time": [0.4 * number for number in range(75)],
}


def scenario(name: str, limit: tuple[int, int, int], instants: Sequence[int], *, shown: bool) -> dict[str, Any]:
    """One traffic, and the answers of each algorithm: admitted, units left, microseconds to wait."""
    quota, window, burst = limit
    return {
        "name": name,
        "shown": shown,
        "limit": {"quota": quota, "window": window, "burst": burst},
        "instants": instants,
        "answers": {kind: answers(limit_of(kind, *limit), instants) for kind in DRAWN},
    }


def limit_of(kind: str, quota: int, window: int, burst: int) -> Limit:
    """The limit of this algorithm; `burst` counts where there is one."""
    options: dict[str, Any] = {"burst": burst} if kind in BURSTS else {}
    return ALGORITHMS[kind](quota, window / SECOND, **options)


def answers(limit: Limit, instants: Sequence[int]) -> list[list[Any]]:
    """The decisions on one unit at each instant."""
    state, found = None, []
    for now in instants:
        decision, state = limit.decide(state, now, 1, None)
        found.append([decision.allowed, decision.remaining, round(decision.retry_after * SECOND)])
    return found


def text() -> str:
    """The file."""
    usual = (5, 10 * SECOND, 5)
    rows = [
        scenario(name, usual, [round(instant * SECOND) for instant in instants], shown=True)
        for name, instants in SHOWN.items()
    ]
    random = Random(1)  # noqa: S311  # the same traffic each time
    for number in range(8):
        limit = (random.randint(1, 9), random.randint(1, 20) * SECOND, random.randint(1, 9))
        instants = sorted(random.randrange(30 * SECOND) for _ in range(30))
        rows.append(scenario(f"random {number}", limit, instants, shown=False))
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    return f"// Made by `{RENEW}`.\nglobalThis.ratelimitAnswers = [\n{lines}\n];\n"


def main(arguments: Sequence[str]) -> int:
    """Write the file, or with `--check` compare it. Returns the exit code."""
    if "--check" not in arguments:
        PATH.write_text(text(), "utf-8")
        return 0
    if stale := PATH.read_text("utf-8") != text():
        sys.stdout.write(f"{PATH.name} is stale. This renews it: {RENEW}\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

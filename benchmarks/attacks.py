"""The attacks of tests/attacks, played against ours and others: `python -m benchmarks.attacks` writes attacks.md.

All servers are real and on loopback; the clock is theirs. What is counted is exact, so nothing is repeated.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))  # which has the attacks and the servers

from attacks.attack import Attack, Seen  # in tests/attacks
from attacks.table import ATTACKS
from benchmarks.attacks_page import page
from benchmarks.libraries import LIBRARIES, Library

PAGE: Final = Path(__file__).resolve().parent / "attacks.md"


def played(library: Library, attacks: Sequence[Attack]) -> Sequence[Seen | None]:
    """Return the responses to each attack: None if the library lacks the route, empty if it is not installed."""
    if find_spec(library.module) is None:
        return ()
    with library.served() as target:
        return [None if attack.route in target.lacks else attack.play(target) for attack in attacks]


def main(arguments: Sequence[str]) -> int:
    """Run the attacks and write the page. Returns 1 if this package did not hold, 0 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("--output", type=Path, default=PAGE, help="%(default)s")
    parser.add_argument("--only", default="", metavar="PATTERN", help="attacks whose name this is found in")
    given = parser.parse_args(arguments)
    attacks = [attack for attack in ATTACKS if re.search(given.only, attack.name)]
    results = []
    for library in LIBRARIES:
        sys.stderr.write(f"{library.name}\n")
        results.append(played(library, attacks))
    given.output.write_text(page(LIBRARIES, attacks, results), "utf-8")
    ours = zip(attacks, results[0], strict=True)
    wrong = [attack.name for attack, seen in ours if seen is None or not attack.held(seen)]
    sys.stderr.write("".join(f"NOT HELD: {name}\n" for name in wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

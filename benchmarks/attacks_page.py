"""Makes the page with the results of the attacks."""

import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from attacks.attack import Attack, Seen  # in tests/attacks; `benchmarks.attacks` has put tests on the path
from benchmarks.libraries import Library

_TEXT: Final = """# Attacks

Made by `python -m benchmarks.attacks` (in the environment of `tox -e bench`), which plays the attacks of
`tests/attacks` against a real server of each. What must hold is ours to say: the promises of [this
project](../docs/explanation/promises.md), which others may never have made.

Python {python}; {versions}.

Each app has the same routes and limits by client address: 3 logins an hour, 3 requests an hour to `/items/{{id}}`, 5
an hour to what has no limit of its own, `/health` exempt, 3 an hour per API key on `/keyed`, and 10 units an hour on
`/spend`, whose cost the client names. All count in memory. Others are set up as their own documentation begins:

{notes}

Ours behind the proxy has `trusted_proxies = ["127.0.0.1"]`. With a number there, `trusted_proxies = 1`, it believes
whoever connects, as ProxyFix does, and "past the proxy" would not hold: [proxies](../docs/how-to/proxies.md) says so.

A cell says whether what must hold did, and how often which status was answered. A 500 is no pass; it is an error that
a client can cause. 414 and 431 are the server's own, before the limiter is asked.

Held, of the attacks that a library has a place for: {counted}.

{table}
"""


def cell(attack: Attack, seen: Seen | None) -> str:
    """Return the text of a cell, such as `held (3x200 3x429)`."""
    if seen is None:
        return "has no such thing"
    return f"{'held' if attack.held(seen) else '**not held**'} ({seen})"


def page(libraries: Sequence[Library], attacks: Sequence[Attack], results: Sequence[Sequence[Seen | None]]) -> str:
    """Return the whole page. `results`: for each library, the responses to each attack."""
    names = [library.name for library in libraries]
    rows = []
    for index, attack in enumerate(attacks):
        words = [attack.name, attack.known, attack.sends, attack.holds]
        rows.append([*words, *(cell(attack, seen[index]) if seen else "not installed" for seen in results)])
    table = [["attack", "known from", "what is sent", "what must hold", *names], ["---"] * (4 + len(names)), *rows]
    lines = ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in table]
    counted = ", ".join(f"{name} {_count(attacks, found)}" for name, found in zip(names, results, strict=True) if found)
    used = sorted({package for library in libraries for package in library.packages})
    return _TEXT.format(
        python=".".join(map(str, sys.version_info[:3])),
        versions=", ".join(f"{package} {_version(package)}" for package in used),
        notes="\n".join(f"- {library.name}: {library.note}." for library in libraries if library.note),
        counted=counted,
        table="\n".join(lines),
    )


def _count(attacks: Sequence[Attack], found: Sequence[Seen | None]) -> str:
    held = [attack.held(seen) for attack, seen in zip(attacks, found, strict=True) if seen is not None]
    return f"{sum(held)} of {len(held)}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

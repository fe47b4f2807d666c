"""Compares the package in this checkout with the package of a commit, using the same contenders for both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.ours.rules import MANY
from benchmarks.remote import remote
from benchmarks.rows.served import ServedByTrees
from benchmarks.runner import Race, Row
from benchmarks.trees import Tree


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A race between two trees that are not known yet. Contenders are written as `module:name`."""

    name: str
    what: str
    contender: str
    floor: str | None = None
    target: float | None = None
    calls: int = 5000
    admits: bool = True

    def between(self, ours: Tree, peer: Tree) -> Race:
        """Return the race of `ours` over `peer`."""
        return Race(
            name=self.name,
            what=self.what,
            ours=remote(ours, self.contender),
            peer=remote(peer, self.contender),
            floor=remote(ours, self.floor) if self.floor else None,
            target=self.target,
            calls=self.calls,
            admits=self.admits,
        )


PAIRS: Final[Sequence[Pair]] = [
    Pair(name="memory-default", what="one take, default algorithm", contender="benchmarks.ours.memory:default"),
    Pair(name="memory-token", what="one take, token bucket", contender="benchmarks.ours.memory:token"),
    Pair(
        name="memory-refused",
        what="refused, token bucket",
        contender="benchmarks.ours.memory:refused",
        admits=False,
    ),
    Pair(
        name="asgi-added",
        what="added to an ASGI request, headers on",
        contender="benchmarks.ours.asgi:limited",
        floor="benchmarks.ours.asgi:floor",
        target=1.1,
    ),
    Pair(
        name="wsgi-added",
        what="added to a WSGI request, headers on",
        contender="benchmarks.ours.wsgi:limited",
        floor="benchmarks.ours.wsgi:floor",
    ),
    Pair(
        name="rules-added",
        what=f"added to an ASGI request under {MANY} rules",
        contender="benchmarks.ours.rules:many",
        floor="benchmarks.ours.rules:floor",
        calls=1000,
    ),
]


def races(ours: Tree, peer: Tree) -> list[Row]:
    """Return all races between these trees."""
    return [
        *(pair.between(ours, peer) for pair in PAIRS),
        ServedByTrees(name="served-memory", redis=False, ours=ours, peer=peer),
        ServedByTrees(name="served-redis", redis=True, ours=ours, peer=peer),
    ]

"""The two kinds of row: a race, whose number is a time of every round, and a count, which is made once.

Contenders take turns (A B C A B C ...), so that what slows the machine slows all of them, and each round gives a ratio
of its own.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, Protocol

from benchmarks.lab import Lab, Missing
from benchmarks.line import Line, Unit


class Batch(NamedTuple):
    """One turn."""

    nanoseconds: int
    admitted: int
    refused: int


Contender = Callable[[int], Batch]  # makes that many calls
Setup = Callable[[Lab], Contender]  # raises Missing


class Row(Protocol):
    """A named row of the table."""

    @property
    def name(self) -> str:
        """What `--only` takes."""

    @property
    def what(self) -> str:
        """What is measured, and against what."""

    def run(self, lab: Lab) -> Sequence[Line]:
        """Measure it."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """Time per call of ours over time per call of the peer; without a peer, microseconds.

    `floor`: the same work without either; its time is taken off both, so that only what they add is compared.
    `peer_floor`: the peer's work without it, where that is done by another app than ours.
    `at_least`: the ratio is of calls per second instead, and more of them are better.
    """

    name: str
    what: str
    ours: Setup
    peer: Setup | None = None
    floor: Setup | None = None
    peer_floor: Setup | None = None
    target: float | None = None
    at_least: bool = False
    calls: int = 5000
    admits: bool = True  # all calls are admitted; False: all are refused

    def run(self, lab: Lab) -> Sequence[Line]:
        """One line; without numbers when what ours needs is missing."""
        calls = lab.calls or self.calls
        contenders: dict[str, Contender] = {}
        notes: list[str] = []
        setups = {"floor": self.floor, "peer's floor": self.peer_floor, "ours": self.ours, "peer": self.peer}
        for name, setup in setups.items():
            if setup is None:
                continue
            try:
                contenders[name] = setup(lab)
            except Missing as missing:
                notes.append(str(missing))
                if not name.startswith("peer"):
                    return [self._skipped(missing)]
        return [self._line(turns(lab, contenders, calls, lab.rounds), calls, notes)]

    def _skipped(self, missing: Missing) -> Line:
        return Line(
            row=self.name,
            what=self.what,
            unit="x" if self.peer else "us",
            target=self.target,
            at_least=self.at_least,
            notes=(f"skipped, {missing}",),
        )

    def _line(self, turns: Mapping[str, Sequence[Batch]], calls: int, notes: Sequence[str]) -> Line:
        nothing = [0] * len(turns["ours"])
        bare = {name: [batch.nanoseconds for batch in batches] for name, batches in turns.items()}
        floor = bare.get("floor", nothing)
        floors = {"peer": bare.get("peer's floor", floor)}
        added = {
            name: [time - less for time, less in zip(times, floors.get(name, floor), strict=True)]
            for name, times in bare.items()
        }
        each = {name: median(times) / calls / 1000 for name, times in added.items()}
        if "peer" in turns:
            over, under = ("peer", "ours") if self.at_least else ("ours", "peer")
            # at least a nanosecond: in a tiny batch the floor may take as long as the peer
            values = [above / max(below, 1) for above, below in zip(added[over], added[under], strict=True)]
        else:
            values = [] if self.peer else [ours / calls / 1000 for ours in added["ours"]]
        return Line(
            row=self.name,
            what=self.what,
            unit="x" if self.peer else "us",
            values=tuple(values),
            ours=each["ours"],
            peer=each.get("peer"),
            target=self.target,
            at_least=self.at_least,
            admitted=sum(batch.admitted for batch in turns["ours"]),
            refused=sum(batch.refused for batch in turns["ours"]),
            notes=tuple(notes),
            problems=tuple(self._problems(turns, calls)),
        )

    def _problems(self, turns: Mapping[str, Sequence[Batch]], calls: int) -> list[str]:
        right = (calls, 0) if self.admits else (0, calls)
        return [
            f"{name}: {batch.admitted} admitted and {batch.refused} refused, not {right[0]} and {right[1]}"
            for name, batches in turns.items()
            for batch in batches
            if (batch.admitted, batch.refused) != right
        ]


class Counted(NamedTuple):
    """What a count found."""

    counted: int
    admitted: int
    refused: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Count:
    """How much of something there is per call, all of which are admitted, or refused where `admits` is False.

    `total`: how much there is of it in all calls together. `exact`: anything but the target is a problem.
    `at_least`: more of it is better.
    """

    name: str
    what: str
    count: Callable[[Lab, int], Counted]
    unit: Unit = "calls"
    target: float | None = None
    at_least: bool = False
    exact: bool = False
    total: bool = False
    calls: int = 500
    admits: bool = True

    def run(self, lab: Lab) -> Sequence[Line]:
        """One line; without numbers when something is missing."""
        calls = lab.calls or self.calls
        about = Line(row=self.name, what=self.what, unit=self.unit, target=self.target, at_least=self.at_least)
        try:
            found = self.count(lab, calls)
        except Missing as missing:
            return [replace(about, notes=(f"skipped, {missing}",))]
        value = found.counted / (1 if self.total else calls)
        return [
            replace(
                about,
                values=(value,),
                admitted=found.admitted,
                refused=found.refused,
                notes=found.notes,
                problems=tuple(self._problems(value, found, calls)),
            )
        ]

    def _problems(self, value: float, found: Counted, calls: int) -> list[str]:
        right = (calls, 0) if self.admits else (0, calls)
        problems = [f"{value} per call, not {self.target}"] if self.exact and value != self.target else []
        if (found.admitted, found.refused) != right:
            problems.append(f"{found.admitted} admitted and {found.refused} refused, not {right[0]} and {right[1]}")
        return problems


def turns(lab: Lab, contenders: Mapping[str, Contender], calls: int, rounds: int) -> dict[str, list[Batch]]:
    """The batches of each contender, one per round; a first round that warms up is not among them."""
    batches: dict[str, list[Batch]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender(calls)
    for done in range(rounds):
        lab.turn(done, rounds)
        for name, contender in contenders.items():
            gc.collect()  # nobody pays for the garbage of another; it stays switched on, so everybody pays for his own
            batches[name].append(contender(calls))
    return batches

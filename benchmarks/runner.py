"""The two kinds of rows: a race, which measures times in several rounds, and a count, which is made once.

Contenders take turns (A B C A B C ...), so that a slow machine slows all of them. Each round has its own ratio.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple, Protocol

from benchmarks.lab import Lab, Missing
from benchmarks.line import Line, Unit


class Batch(NamedTuple):
    """The time and the counts of one turn."""

    nanoseconds: int
    admitted: int
    refused: int


Contender = Callable[[int], Batch]  # makes that many calls
Setup = Callable[[Lab], Contender]  # raises Missing


class Row(Protocol):
    """A named row of the table."""

    @property
    def name(self) -> str:
        """The name for `--only`."""

    @property
    def what(self) -> str:
        """What is measured, and with what it is compared."""

    def run(self, lab: Lab) -> Sequence[Line]:
        """Measure, and return the lines of the table."""


@dataclass(frozen=True, kw_only=True)
class Race:
    """A row of the time per call of `ours` over that of `peer`. Without a peer, it is in microseconds.

    `floor`: the same work without a limiter. Its time is subtracted from both, so that only the added time is compared.
    `peer_floor`: the same for the peer, if the peer's app is a different one.
    `at_least`: the ratio is of calls per second instead, and more is better.
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
        """Return one line, without numbers if `ours` or `floor` needs something that is missing."""
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
            # at least a nanosecond, because in a tiny batch the floor may take as long as the peer
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
    """The result of a count."""

    counted: int
    admitted: int
    refused: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Count:
    """A row of how much of something there is per call. All calls are admitted, or refused if `admits` is False.

    `total`: the number is that of all calls together. `exact`: any number but the target is a problem.
    `at_least`: more is better.
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
        """Return one line, without numbers if something is missing."""
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
    """Return the batches of each contender, one per round, without a first round that warms up."""
    batches: dict[str, list[Batch]] = {name: [] for name in contenders}
    for contender in contenders.values():
        contender(calls)
    for done in range(rounds):
        lab.turn(done, rounds)
        for name, contender in contenders.items():
            gc.collect()  # no contender collects another one's garbage; it collects its own, as gc stays enabled
            batches[name].append(contender(calls))
    return batches

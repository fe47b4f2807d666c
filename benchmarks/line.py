"""What a measured row says."""

from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any, Literal

# ratio, microseconds per call, commands per request, bytes per key, requests that passed
Unit = Literal["x", "us", "calls", "bytes", "admitted"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table."""

    row: str
    what: str
    unit: Unit = "x"
    values: tuple[float, ...] = ()  # one per round; none when there was nothing to compare with
    ours: float | None = None  # microseconds per call, median of the rounds
    peer: float | None = None
    target: float | None = None  # the most that `value` may be
    at_least: bool = False  # more is better: the least that it may be
    admitted: int = 0  # of ours; every other contender's counts are the same, or `problems` says so
    refused: int = 0
    notes: tuple[str, ...] = ()  # what is missing, and why
    problems: tuple[str, ...] = ()  # what was counted and should not have been

    @property
    def value(self) -> float | None:
        """The median of the rounds."""
        return median(self.values) if self.values else None

    @property
    def half(self) -> tuple[float, float] | None:
        """Between these is the middle half of the rounds: what a hiccup of the machine does not reach."""
        if len(self.values) <= 1:
            return None
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing where there is no target or no value."""
        if self.value is None or self.target is None:
            return ""
        met = self.value >= self.target if self.at_least else self.value <= self.target
        return "met" if met else "missed"

    @property
    def goal(self) -> str:
        """The target, with the side of it that is good; nothing where there is none."""
        if self.target is None:
            return ""
        return f"{'>=' if self.at_least else '<='} {self.target:.2f}"


def as_data(line: Line) -> dict[str, Any]:
    """The line for JSON."""
    return {**asdict(line), "value": line.value, "half": line.half, "verdict": line.verdict}

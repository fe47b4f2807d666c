"""The results of a measured row."""

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
    values: tuple[float, ...] = ()  # one per round; empty if there was nothing to compare with
    ours: float | None = None  # microseconds per call, median of the rounds
    peer: float | None = None
    target: float | None = None  # the maximum of `value`
    at_least: bool = False  # whether more is better and the target is the minimum
    admitted: int = 0  # by `ours`; the other contenders have the same counts, or `problems` says so
    refused: int = 0
    notes: tuple[str, ...] = ()  # what is missing, and why
    problems: tuple[str, ...] = ()  # wrong counts

    @property
    def value(self) -> float | None:
        """The median of the rounds; None without rounds."""
        return median(self.values) if self.values else None

    @property
    def half(self) -> tuple[float, float] | None:
        """The quartiles of the rounds. The half between them excludes hiccups of the machine."""
        if len(self.values) <= 1:
            return None
        low, _, high = quantiles(self.values, n=4, method="inclusive")
        return low, high

    @property
    def verdict(self) -> str:
        """`met` or `missed`; empty without a target or a value."""
        if self.value is None or self.target is None:
            return ""
        met = self.value >= self.target if self.at_least else self.value <= self.target
        return "met" if met else "missed"

    @property
    def goal(self) -> str:
        """The target with `>=` or `<=`; empty without a target."""
        if self.target is None:
            return ""
        return f"{'>=' if self.at_least else '<='} {self.target:.2f}"


def as_data(line: Line) -> dict[str, Any]:
    """Return the line as a dict for JSON."""
    return {**asdict(line), "value": line.value, "half": line.half, "verdict": line.verdict}

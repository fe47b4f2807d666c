"""A model of waiting for a turn, in exact fractions and from the design alone: the time and outcome of each request."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import NamedTuple


class Ask(NamedTuple):
    """A request for a turn, in microseconds. `leaves`: how long it waits before it gives up; None for no limit."""

    at: int
    cost: int = 1
    timeout: int | None = None
    leaves: int | None = None


class Outcome(NamedTuple):
    """The outcome of a request, and when: `turn`, `refused` or `left`."""

    what: str
    at: int


@dataclass
class _Waiter:
    drained: int  # the instant at which all units taken so far, including its own, have drained
    due: int


class Bucket:
    """A bucket of `burst` units. One unit drains every `interval` microseconds."""

    def __init__(self, burst: int, interval: int) -> None:
        self.burst, self.interval = burst, interval
        self._level, self._at = Fraction(0), 0

    def ask(self, now: int, cost: int, timeout: int | None) -> _Waiter | None:
        """Take units, and return the turn. Returns None and takes nothing if the turn would not come in time."""
        self._drain(now)
        over = self._level + cost - self.burst
        if cost > self.burst or (timeout is not None and over * self.interval > timeout):
            return None
        self._level += cost
        delay = max(0, ceil(over * self.interval))
        return _Waiter(now + ceil(self._level * self.interval), now + delay)

    def leave(self, now: int, cost: int, waiter: _Waiter) -> None:
        """Refund the units that have not drained, except those behind which later requests wait."""
        self._drain(now)
        undrained = Fraction(waiter.drained - now, self.interval)
        back = min(Fraction(cost), undrained)
        if self._level > self.burst:
            back -= max(Fraction(0), self._level - undrained)
        self._level -= max(Fraction(0), min(back, self._level))

    def _drain(self, now: int) -> None:
        self._level = max(Fraction(0), self._level - Fraction(now - self._at, self.interval))
        self._at = now


def outcomes(bucket: Bucket, asks: list[Ask]) -> list[Outcome] | None:
    """Return the outcome of each request, in order. None if a turn comes at the very instant the request gives up."""
    found: dict[int, Outcome] = {}
    leaving: list[tuple[int, int, _Waiter]] = []
    for number, ask in enumerate(asks):
        leaving.sort(key=lambda one: one[:2])
        while leaving and leaving[0][0] < ask.at:
            _leave(bucket, asks, leaving.pop(0), found)
        waiter = bucket.ask(ask.at, ask.cost, ask.timeout)
        if waiter is None:
            found[number] = Outcome("refused", ask.at)
            continue
        found[number] = Outcome("turn", waiter.due)
        if ask.leaves is not None and waiter.due > ask.at:
            if ask.at + ask.leaves == waiter.due:
                return None
            if ask.at + ask.leaves < waiter.due:
                leaving.append((ask.at + ask.leaves, number, waiter))
    for one in sorted(leaving, key=lambda one: one[:2]):
        _leave(bucket, asks, one, found)
    return [found[number] for number in range(len(asks))]


def _leave(bucket: Bucket, asks: list[Ask], one: tuple[int, int, _Waiter], found: dict[int, Outcome]) -> None:
    at, number, waiter = one
    bucket.leave(at, asks[number].cost, waiter)
    found[number] = Outcome("left", at)

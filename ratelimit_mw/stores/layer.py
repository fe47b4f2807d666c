"""What stands between a store and those who take from it. `layered` runs layers, each has a file of its own."""

from collections.abc import Callable, Sequence
from typing import Protocol

from ratelimit_mw.limit import Charge, Decision

Clock = Callable[[], float]
"""Seconds. What the store goes by, if it was told a clock; else time is monotonic."""


class Layer(Protocol):
    """No I/O, and time is an argument, in seconds.

    Several threads may call at once. Of each group that `before` lets through, the layer hears once: `after` or
    `failed`. Who takes is told what `before` answers or raises; then those further in are not asked.
    """

    def before(self, charges: Sequence[Charge], now: float) -> Sequence[Decision] | None:
        """The answer, if the store need not be asked. It may be asked again while the group waits to be sent."""
        ...

    def after(self, charges: Sequence[Charge], decisions: Sequence[Decision], began: float, clock: Clock) -> None:
        """What the store answered; it decided between `began` and now, which `clock` says to who wants to know."""
        ...

    def failed(self, charges: Sequence[Charge], error: BaseException, now: float) -> None:
        """It did not answer. The error is no `Exception` where who asked was cancelled."""
        ...

    def forget(self, charges: Sequence[Charge], now: float) -> None:
        """These buckets were corrected: what was known of them until now may not be so."""
        ...

    def clear(self) -> None:
        """All buckets are others now."""
        ...

    def start_over(self) -> None:
        """As `clear`, in a child process: no thread that held a lock is here."""
        ...

"""What stands between a store and those who take from it. `layered` runs layers, each has a file of its own."""

from collections.abc import Callable, Sequence

from ratelimit_mw.core.events import StoreEvent
from ratelimit_mw.core.limit import Charge, Decision

Clock = Callable[[], float]
"""Seconds. What the store goes by, if it was told a clock; else time is monotonic."""

Lookup = Callable[[Sequence[Charge]], Sequence[Decision] | None]
"""The decisions on a group that are known without the store; None if the store has to be asked."""

SCRIPT_ERROR = "ratelimit_mw: "  # errors of our scripts about their arguments begin with it; nothing was written then

Listener = Callable[[StoreEvent], None]
"""Hears of what happens to the store, at once, in the thread or task of a request. It does not raise."""


class Layer:
    """One that does nothing: what a layer does not care for it leaves as it is here.

    No I/O, and time is an argument, in seconds. Several threads may call at once. Of each group that `before_take` lets
    through, the layer hears once: `after_take` or `on_failure`. Who takes is told what `before_take` answers or raises;
    then those further in are not asked.
    """

    @property
    def has_entries(self) -> bool:
        """Whether `before_take` could answer anybody now."""
        return False

    def before_take(self, charges: Sequence[Charge], now: float) -> Sequence[Decision] | None:  # noqa: ARG002
        """The answer, if the store need not be asked. Raises `StoreError` where it shall not be asked."""
        return None

    def before_peek(self, now: float) -> None:
        """Raises `StoreError` where the store shall not be asked how things stand. No more is heard of it."""

    def after_take(
        self, charges: Sequence[Charge], decisions: Sequence[Decision], started_at: float, clock: Clock
    ) -> None:
        """What the store answered; it decided between `started_at` and now, which `clock` says to who wants to know."""

    def on_failure(self, charges: Sequence[Charge], error: BaseException, started_at: float, now: float) -> None:
        """It did not answer. The error is no `Exception` where who asked was cancelled."""

    def invalidate(self, charges: Sequence[Charge], now: float) -> None:
        """These buckets were corrected: what was known of them until now may not be so."""

    def subscribe(self, listener: Listener) -> bool:  # noqa: ARG002
        """Tell this one what happens to the store, once though it listens already. Whether there is one who tells."""
        return False

    def clear(self) -> None:
        """All buckets are others now, and so may be the time."""

    def reset_after_fork(self) -> None:
        """As `clear`, in a child process: no thread that held a lock is here."""

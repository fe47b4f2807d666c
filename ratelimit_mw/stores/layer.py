"""The interface of a layer, which is placed between a store and its callers. `layered_store` runs the layers."""

from collections.abc import Callable, Sequence

from ratelimit_mw.core.events import StoreEvent
from ratelimit_mw.core.limit import Charge, Decision

Clock = Callable[[], float]
"""Returns seconds: the clock configured for the store, or else monotonic time."""

Lookup = Callable[[Sequence[Charge]], Sequence[Decision] | None]
"""Returns the decisions on a group that are known without the store; None if the store must be queried."""

SCRIPT_ERROR = "ratelimit_mw: "  # start of the error if a Lua script rejects its arguments; then nothing was written

Listener = Callable[[StoreEvent], None]
"""Receives store events synchronously, in the thread or task of a request. Must not raise."""


class Layer:
    """Base class with no-op hooks.

    Hooks must be thread-safe and do no I/O; time is passed in, in seconds. If `before_take` returns decisions or
    raises, inner layers and the store are skipped, and no layer gets another hook for this take. If all layers return
    None, the store is called. Then each layer gets exactly one of `after_take` and `on_failure`, even if a batcher has
    found decisions in a layer in the meantime (`LayeredStore.find_lookup`).
    """

    @property
    def has_entries(self) -> bool:
        """Whether `before_take` could return decisions now."""
        return False

    def before_take(self, charges: Sequence[Charge], now: float) -> Sequence[Decision] | None:  # noqa: ARG002
        """Return the decisions if they are known without the store. Raise `StoreError` if it must not be queried."""
        return None

    def before_peek(self, now: float) -> None:
        """Raise `StoreError` if the store must not be queried. No other hook follows a peek."""

    def after_take(
        self, charges: Sequence[Charge], decisions: Sequence[Decision], started_at: float, clock: Clock
    ) -> None:
        """Process the decisions, which the store made between `started_at` and the present time of `clock`."""

    def on_failure(self, charges: Sequence[Charge], error: BaseException, started_at: float, now: float) -> None:
        """Process a failed take. `error` is not an `Exception` if the request was canceled."""

    def invalidate(self, charges: Sequence[Charge], now: float) -> None:
        """Drop what is known about these buckets, which were settled or reset."""

    def subscribe(self, listener: Listener) -> bool:  # noqa: ARG002
        """Send store events to `listener`. A second call has no effect. Return whether this layer sends events."""
        return False

    def clear(self) -> None:
        """Drop everything, because this is a forked child, or all buckets and possibly the clock were replaced."""

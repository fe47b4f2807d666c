"""A store that records its calls."""

from collections.abc import Callable, Sequence

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.stores.memory import MemoryStore

Call = tuple[str, tuple[Charge, ...]]


class RecordingStore(MemoryStore):
    """A `MemoryStore` that records every call in `calls`, as (verb, charges).

    The verbs are `take`, `peek`, `settle` and `reset`, for threads and asyncio alike. If `error` is set, each call
    raises it.
    """

    def __init__(self, *, max_keys: int = 1_000_000, clock: Callable[[], float] | None = None) -> None:
        super().__init__(max_keys=max_keys, clock=clock)
        self.calls: list[Call] = []
        self.error: Exception | None = None

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `MemoryStore.take`."""
        self._record("take", charges)
        return super().take(charges)

    def peek(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        """See `MemoryStore.peek`."""
        self._record("peek", charges)
        return super().peek(charges)

    def settle(self, charges: Sequence[Charge]) -> Sequence[Charge] | None:
        """See `MemoryStore.settle`."""
        self._record("settle", charges)
        return super().settle(charges)

    def reset(self, charges: Sequence[Charge]) -> None:
        """See `MemoryStore.reset`."""
        self._record("reset", charges)
        super().reset(charges)

    def _record(self, verb: str, charges: Sequence[Charge]) -> None:
        self.calls.append((verb, tuple(charges)))
        if self.error is not None:
            raise self.error

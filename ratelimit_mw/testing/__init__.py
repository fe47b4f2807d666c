"""Tools for tests: control of the time of all stores, a manual clock, and a store that records its calls."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from secrets import token_hex

from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, check_seconds
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides
from ratelimit_mw.stores.memory import MemoryStore

__all__ = ["Clock", "Control", "RecordingStore", "freeze"]

Call = tuple[str, tuple[Charge, ...]]


class Clock:
    """A clock that moves only when set: `clock = Clock(); store = MemoryStore(clock=clock); clock.advance(1.5)`.

    It counts seconds, from `start`. Assign `now` to set it, forward or back.
    """

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    def advance(self, by: float) -> None:
        """Move forward by `by` seconds, 0 or more. Raises `ConfigError` for anything else."""
        # whole microseconds, as in the algorithms: a sum of floats would drift
        self.now = round(self.now * 1e6 + check_seconds("by", by) * 1e6) / 1e6


class Control:
    """Controls all stores of this process, including those that are created during the test.

    It applies to every `MemoryStore`, `SQLiteStore`, `RedisStore` and `AsyncRedisStore`. A store with a `clock` of its
    own keeps that clock. Get a `Control` from the fixture `ratelimit` or from `freeze`. Its methods raise
    `RuntimeError` when its test is over.
    """

    def __init__(self) -> None:
        self._clocks: tuple[Clock, Clock] | None = None  # for stores in memory, and for stores on servers
        self._overrides = StoreOverrides(key_prefix=_new_key_prefix())

    def freeze(self) -> None:
        """Stop the time at the present instant, so that earlier charges still count."""
        self._check()
        if self._clocks is None:
            # rounded down to microseconds, as in stores, so that time does not jump ahead
            monotonic, wall = (Clock(ns // 1000 / MICROSECONDS) for ns in (time.monotonic_ns(), time.time_ns()))
            self._clocks = monotonic, wall
            self._apply(self._overrides._replace(monotonic=monotonic, wall=wall), empty=False)

    def advance(self, by: float) -> None:
        """Move forward by `by` seconds, 0 or more. Running time is stopped first.

        Raises `ConfigError` for anything else.
        """
        self.freeze()
        for clock in self._clocks or ():
            clock.advance(by)

    def reset(self) -> None:
        """Forget all states, so that all keys have their whole quota. The time does not change."""
        self._check()
        self._apply(self._overrides._replace(key_prefix=_new_key_prefix()), empty=True)

    def _check(self) -> None:
        if REGISTRY.overrides is not self._overrides:
            raise RuntimeError("the test that controlled the stores is over")

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        self._overrides = overrides
        REGISTRY.apply(overrides, empty=empty)


@contextmanager
def control(*, empty: bool) -> Iterator[Control]:
    """Control all stores until the end of the block. Raises `RuntimeError` if they are controlled already.

    `empty`: forget all states in this process first. States on a server are not changed: in the block, stores use keys
    with a random prefix on a server, which expire.
    """
    if REGISTRY.overrides != StoreOverrides():
        raise RuntimeError("the stores are controlled already, by freeze() or the fixture ratelimit: use that one")
    controller = Control()
    REGISTRY.apply(controller._overrides, empty=empty)  # noqa: SLF001  # created above
    try:
        yield controller
    finally:
        # dropped, because states from a clock that ran ahead would lock clients out
        REGISTRY.apply(StoreOverrides(), empty=True)


@contextmanager
def freeze() -> Iterator[Control]:
    """Stop the time of all stores of this process until the end of the block.

    `with freeze() as clock: clock.advance(60)`. `Control` describes the methods of `clock`, and the stores that it
    controls. States in memory are kept at the start of the block, and forgotten at its end. Stores on a server start
    empty, and return to their previous states at the end. Raises `RuntimeError` inside another such block.
    """
    with control(empty=False) as controller:
        controller.freeze()
        yield controller


def _new_key_prefix() -> str:
    return f"test-{token_hex(8)}:"


class RecordingStore(MemoryStore):
    """A `MemoryStore` that records every call in `calls`, as (name of the method, charges).

    The names are `take`, `peek`, `settle` and `reset`, both for threads and for asyncio. If `error` is set, each call
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

    def settle(self, charges: Sequence[Charge]) -> None:
        """See `MemoryStore.settle`."""
        self._record("settle", charges)
        super().settle(charges)

    def reset(self, charges: Sequence[Charge]) -> None:
        """See `MemoryStore.reset`."""
        self._record("reset", charges)
        super().reset(charges)

    def _record(self, verb: str, charges: Sequence[Charge]) -> None:
        self.calls.append((verb, tuple(charges)))
        if self.error is not None:
            raise self.error

"""The time of an app's stores in a test's hands, however the app was built."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

from ratelimit_mw.core.limit import MICROSECONDS
from ratelimit_mw.stores.lifecycle import REGISTRY, StoreOverrides
from ratelimit_mw.testing.clock import Clock


class Control:
    """What a test says to the stores of its process: those there are, and those that are made while it lasts.

    They are every `MemoryStore`, `RedisStore` and `AsyncRedisStore`. One that was given a `clock` goes by that alone.
    The fixture `ratelimit` is one, and `freeze` gives one. Its methods raise `RuntimeError` once its test is over.
    """

    def __init__(self) -> None:
        self._clocks: tuple[Clock, Clock] | None = None  # of memory, and of servers
        self._overrides = StoreOverrides(key_prefix=_new_key_prefix())

    def freeze(self) -> None:
        """Stop the time. It stands where it is now, so that what was counted before still counts."""
        self._check()
        if self._clocks is None:
            # rounded down to microseconds, as the stores do it: time stops where it is, and not ahead
            monotonic, wall = (Clock(ns // 1000 / MICROSECONDS) for ns in (time.monotonic_ns(), time.time_ns()))
            self._clocks = monotonic, wall
            self._apply(self._overrides._replace(monotonic=monotonic, wall=wall), empty=False)

    def advance(self, by: float) -> None:
        """Move on by so many seconds, 0 or more; time that runs is stopped first.

        Raises `ConfigError` for anything else.
        """
        self.freeze()
        for clock in self._clocks or ():
            clock.advance(by)

    def reset(self) -> None:
        """Forget everything: all keys have their whole quota. Time goes on, or stands, as it did."""
        self._check()
        self._apply(self._overrides._replace(key_prefix=_new_key_prefix()), empty=True)

    def _check(self) -> None:
        if REGISTRY.overrides is not self._overrides:
            raise RuntimeError("the test that had the stores in hand is over")

    def _apply(self, overrides: StoreOverrides, *, empty: bool) -> None:
        self._overrides = overrides
        REGISTRY.apply(overrides, empty=empty)


@contextmanager
def control(*, empty: bool) -> Iterator[Control]:
    """Have the stores in hand until the end of the block. Raises `RuntimeError` where someone has them already.

    `empty`: states in this process are forgotten first. A server's are left alone: meanwhile its stores have keys of
    their own there, which nobody else meets, and which expire.
    """
    if REGISTRY.overrides != StoreOverrides():
        raise RuntimeError("the stores are in hand already, by a freeze() or the fixture ratelimit: use that one")
    controller = Control()
    REGISTRY.apply(controller._overrides, empty=empty)  # noqa: SLF001  # it is made here
    try:
        yield controller
    finally:
        # states of a time that ran ahead would lock clients out, so none is kept
        REGISTRY.apply(StoreOverrides(), empty=True)


@contextmanager
def freeze() -> Iterator[Control]:
    """Stop the time of all stores of this process until the end of the block.

    `with freeze() as clock: clock.advance(60)`. States in memory are kept at first and forgotten in the
    end; stores on a server begin empty, and find what they had when it is over. For all that `clock` can do, and for
    which stores, see `Control`. Raises `RuntimeError` inside another one.
    """
    with control(empty=False) as controller:
        controller.freeze()
        yield controller


def _new_key_prefix() -> str:
    return f"test-{token_hex(8)}:"

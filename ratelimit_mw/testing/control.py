"""The time of an app's stores in a test's hands, however the app was built."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from secrets import token_hex

from ratelimit_mw.limit import MICROSECONDS
from ratelimit_mw.stores.live import STORES, Stage
from ratelimit_mw.testing.clock import Clock


class Control:
    """What a test says to the stores of its process: those there are, and those that are made while it lasts.

    They are every `MemoryStore`, `RedisStore` and `AsyncRedisStore`. One that was given a `clock` goes by that alone.
    The fixture `ratelimit` is one, and `freeze` gives one. Its methods raise `RuntimeError` once its test is over.
    """

    def __init__(self) -> None:
        self._clocks: tuple[Clock, Clock] | None = None  # of memory, and of servers
        self._stage = Stage(room=_room())

    def freeze(self) -> None:
        """Stop the time. It stands where it is now, so that what was counted before still counts."""
        self._check()
        if self._clocks is None:
            # rounded down to microseconds, as the stores do it: time stops where it is, and not ahead
            steady, wall = (Clock(ns // 1000 / MICROSECONDS) for ns in (time.monotonic_ns(), time.time_ns()))
            self._clocks = steady, wall
            self._enter(self._stage._replace(steady=steady, wall=wall), empty=False)

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
        self._enter(self._stage._replace(room=_room()), empty=True)

    def _check(self) -> None:
        if STORES.stage is not self._stage:
            raise RuntimeError("the test that had the stores in hand is over")

    def _enter(self, stage: Stage, *, empty: bool) -> None:
        self._stage = stage
        STORES.enter(stage, empty=empty)


@contextmanager
def control(*, empty: bool) -> Iterator[Control]:
    """Have the stores in hand until the end of the block. Raises `RuntimeError` where someone has them already.

    `empty`: states in this process are forgotten first. A server's are left alone: meanwhile its stores have keys of
    their own there, which nobody else meets, and which expire.
    """
    if STORES.stage != Stage():
        raise RuntimeError("the stores are in hand already, by a freeze() or the fixture ratelimit: use that one")
    held = Control()
    STORES.enter(held._stage, empty=empty)  # noqa: SLF001  # it is made here
    try:
        yield held
    finally:
        # states of a time that ran ahead would lock clients out, so none is kept
        STORES.enter(Stage(), empty=True)


@contextmanager
def freeze() -> Iterator[Control]:
    """Stop the time of all stores of this process until the end of the block.

    `with freeze() as clock: clock.advance(60)`. States in memory are kept at first and forgotten in the
    end; stores on a server begin empty, and find what they had when it is over. For all that `clock` can do, and for
    which stores, see `Control`. Raises `RuntimeError` inside another one.
    """
    with control(empty=False) as held:
        held.freeze()
        yield held


def _room() -> str:
    return f"test-{token_hex(8)}:"

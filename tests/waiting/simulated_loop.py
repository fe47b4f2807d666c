"""An event loop with simulated time: instead of sleeping it moves its time to the next timer."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ToldLoop(asyncio.SelectorEventLoop):
    """Time stops while a callback is ready, and otherwise jumps to the next timer.

    `now` is in whole microseconds, as in stores, so that loop and stores have the same time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000_000_000  # microseconds
        self._clock_resolution = 1e-7  # seconds; a timer that is due within it is run
        selector: Any = self._selector  # type: ignore[attr-defined]  # an attribute of CPython's loop
        self._real_select = selector.select
        selector.select = self._select

    def time(self) -> float:
        return self.now / 1e6

    def _select(self, timeout: float | None) -> Any:
        if timeout is None:
            return self._real_select(None)
        if timeout > 0:
            self.now += max(1, round(timeout * 1e6))
        return self._real_select(0)


def run_told(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new loop with simulated time."""
    with asyncio.Runner(loop_factory=ToldLoop) as runner:
        return runner.run(work)

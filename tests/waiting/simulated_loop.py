"""An event loop whose time is told: nobody sleeps, and what is to happen later happens at once, at its own instant."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ToldLoop(asyncio.SelectorEventLoop):
    """Time stands still while there is something to do, and else goes on to the next instant something waits for.

    Whole microseconds, as in stores: `now` is the time of both.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000_000_000  # microseconds
        self._clock_resolution = 1e-7  # seconds: of a timer that is due in less, the time has come
        selector: Any = self._selector  # type: ignore[attr-defined]  # of the loop that CPython has
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
    """Run it in a loop of its own, and in no time."""
    with asyncio.Runner(loop_factory=ToldLoop) as runner:
        return runner.run(work)

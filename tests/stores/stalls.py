"""Simulates an event loop that stalls, without waiting."""

import asyncio
from collections.abc import Coroutine
from typing import Any

STALL = 2.0  # seconds; longer than a connection may take to open


class StalledLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be advanced, as by a stall."""

    ahead = 0.0  # seconds

    def time(self) -> float:
        """Return the time of the base class plus `ahead`."""
        return super().time() + self.ahead


def run_stalled(work: Coroutine[Any, Any, Any], turn: int) -> Any:
    """Run a coroutine in an event loop that stalls once, in turn number `turn`."""
    loop = StalledLoop()

    def stall_in(turns: int) -> None:
        if turns:
            loop.call_soon(stall_in, turns - 1)
        else:
            loop.ahead = STALL

    async def stalled() -> Any:
        stall_in(turn)
        return await work

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(stalled())

"""Rows of 10,000 tasks that wait for one limit: their pace, and the cost of each beyond a bare `asyncio.sleep`."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.lab import Lab
from benchmarks.line import Line
from benchmarks.runner import Batch, Row, turns
from ratelimit_mw import AsyncLimiter

_TASKS: Final = 10_000
_RATE: Final = 10_000  # turns per second
_LIMIT: Final = f"{_RATE}/second burst 1 using gcra"
_ROUNDS: Final = 11  # at most, because a round lasts a second per contender

Wait = Callable[[int], Awaitable[object]]  # called with the number of the task


@dataclass
class _Crowd:
    """Tasks that wait concurrently. `took`: for each round, the seconds from the first turn to the last."""

    lab: Lab
    begin: Callable[[], Wait]
    took: list[float] = field(default_factory=list)

    def __call__(self, tasks: int) -> Batch:
        """Run the tasks and measure processor time, which excludes sleeping."""
        return self.lab.wait(self._run(tasks))

    async def _run(self, tasks: int) -> Batch:
        wait, went = self.begin(), list[float]()

        async def one(number: int) -> None:
            await wait(number)
            went.append(time.perf_counter())

        began = time.process_time_ns()
        await asyncio.gather(*[one(number) for number in range(tasks)])
        spent = time.process_time_ns() - began
        self.took.append(went[-1] - went[0])
        return Batch(spent, len(went), tasks - len(went))


def _sleeps() -> Wait:
    return lambda number: asyncio.sleep(number / _RATE)


def _acquires() -> Wait:
    limiter = AsyncLimiter()
    return lambda _: limiter.acquire(_LIMIT, "key")


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Rows of the processor time per task, and of how long all tasks took over how long they should."""

    name: str = "waiting"
    what: str = "processor time of a task that waits for its turn, beyond a bare asyncio.sleep"

    def run(self, lab: Lab) -> Sequence[Line]:
        """Return two lines."""
        tasks, rounds = lab.calls or _TASKS, min(lab.rounds, _ROUNDS)
        ours = _Crowd(lab, _acquires)
        batches = turns(lab, {"bare": _Crowd(lab, _sleeps), "ours": ours}, tasks, rounds)
        each = [
            (mine.nanoseconds - bare.nanoseconds) / tasks / 1000 for bare, mine in zip(*batches.values(), strict=True)
        ]
        admitted = sum(batch.admitted for batch in batches["ours"])
        should = (tasks - 1) / _RATE
        pace = [took / should for took in ours.took[-rounds:]]
        about = f"{tasks:,} tasks, {_RATE:,} turns/s"
        return [
            Line(
                row=self.name,
                what=f"{self.what}; {about}",
                unit="us",
                values=tuple(each),
                target=5.0,
                admitted=admitted,
            ),
            Line(
                row=f"{self.name}-pace",
                what=f"from the first turn to the last / as long as they should take; {about}",
                values=tuple(pace),
                target=1.01,
                admitted=admitted,
            ),
        ]


ROWS: Final[Sequence[Row]] = [Waiting()]

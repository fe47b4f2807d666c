"""Simulates a service under load, with the guard of the latency goal in front of it. Time is simulated, seeds fixed.

Two models of a service: 20 workers that take 50 ms for a request, and an event loop that needs 3 ms of its processor
and 50 ms of waiting. Clients come at random instants (Poisson), and leave after a second; the service does not notice.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

from ratelimit_mw.engine.overload import OverloadGuard, Ticket
from ratelimit_mw.settings.features import SHARES, Priority

GOAL = 0.25  # seconds
PATIENCE = 1.0  # seconds
MIX: dict[Priority, float] = {"critical": 0.2, "normal": 0.5, "low": 0.3}


class Model(NamedTuple):
    """`servers` work at once for `busy` seconds on average, then each request waits for `idle` seconds elsewhere."""

    servers: int
    busy: float
    idle: float

    @property
    def capacity(self) -> float:
        """Requests per second."""
        return self.servers / self.busy


WORKERS, LOOP = Model(20, 0.05, 0.0), Model(1, 0.003, 0.05)


class Outcome(NamedTuple):
    """`goodput`: answers within the patience of a client, as a part of the capacity. `latencies`: of all, sorted."""

    goodput: float
    latencies: list[float]
    came: Counter[Priority]
    in_time: Counter[Priority]
    shed: int

    def latency(self, part: float) -> float:
        """Return a percentile of the latencies, in seconds."""
        return self.latencies[int(len(self.latencies) * part)]

    def served(self, priority: Priority) -> float:
        """Return the part of the requests with this priority that were answered in time."""
        return self.in_time[priority] / self.came[priority]


class Simulation:
    """One run. `slow(now)`: a factor on the time that a server takes. `goal`: None for no guard."""

    def __init__(
        self,
        model: Model,
        *,
        seed: int = 1,
        goal: float | None = GOAL,
        mixed: bool = False,
        slow: Callable[[float], float] = lambda _: 1.0,
    ) -> None:
        self.now = 0.0
        self._model, self._slow, self._random = model, slow, random.Random(seed)  # noqa: S311  # no secret
        self.guard = None if goal is None else OverloadGuard(goal, 4, 500, clock=lambda: self.now)
        self._priorities: list[Priority] = list(MIX) if mixed else ["normal"]
        self._weights = [*MIX.values()] if mixed else [1.0]
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = count()
        self._queue: deque[tuple[float, Priority, Ticket | None]] = deque()
        self._free = model.servers
        self.latencies: list[float] = []
        self.came, self.in_time = Counter[Priority](), Counter[Priority]()
        self.shed = 0

    def run(self, load: float, seconds: float) -> Outcome:
        """Simulate so many seconds of traffic, at `load` times the capacity."""
        for arrival in self._arrivals(load * self._model.capacity, seconds):
            self._run_until(arrival)
            self._arrive(arrival)
        self._run_until(seconds)
        goodput = self.in_time.total() / (self._model.capacity * seconds)
        return Outcome(goodput, sorted(self.latencies), self.came, self.in_time, self.shed)

    def _arrivals(self, rate: float, seconds: float) -> Iterator[float]:
        now = self._random.expovariate(rate)
        while now < seconds:
            yield now
            now += self._random.expovariate(rate)

    def _run_until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, happen, request = heapq.heappop(self._events)
            happen(request)
        self.now = end

    def _arrive(self, now: float) -> None:
        (priority,) = self._random.choices(self._priorities, self._weights)
        self.came[priority] += 1
        ticket = None
        if self.guard is not None:
            ticket = Ticket(self.guard)
            if not self.guard.enter(SHARES[priority], ticket):
                self.shed += 1
                return
        self._queue.append((now, priority, ticket))
        self._serve()

    def _serve(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            # of three exponential parts: nine of ten take less than 1.77 times the average
            busy = self._random.gammavariate(3, self._model.busy / 3) * self._slow(self.now)
            heapq.heappush(self._events, (self.now + busy, next(self._order), self._processed, self._queue.popleft()))

    def _processed(self, request: Any) -> None:
        self._free += 1
        self._serve()
        heapq.heappush(self._events, (self.now + self._model.idle, next(self._order), self._answered, request))

    def _answered(self, request: Any) -> None:
        arrived, priority, ticket = request
        latency = self.now - arrived
        self.latencies.append(latency)
        self.in_time[priority] += latency <= PATIENCE
        if self.guard is not None:
            self.guard.answered(ticket)

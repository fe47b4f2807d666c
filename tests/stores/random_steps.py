"""Random steps for stores that must agree: charges of all roles, settlements, resets, and clock changes."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Literal

from msgspec.structs import replace

from algorithms.strategies import ZONES
from ratelimit_mw import (
    CalendarWindow,
    Charge,
    Concurrency,
    Decision,
    LeakyBucket,
    Limit,
    SlidingWindowCounter,
    SlidingWindowLog,
    Smooth,
)
from ratelimit_mw.algorithms import SCRIPTED
from ratelimit_mw.algorithms.ban import Ban
from ratelimit_mw.algorithms.bucket import BucketLimit, DelayableLimit
from ratelimit_mw.algorithms.calendar_periods import PERIODS
from ratelimit_mw.core.limit import Role
from ratelimit_mw.testing import Clock
from stores.model_store import bucket_of

Verb = Literal["take", "peek", "settle", "reset"]
KEYS = ("{a}:rule", "{b}:rule", "{ünï}:rule")
WINDOWS = (0.005, 1, 2, 10, 11, 60, 3600, 24 * 3600)  # seconds
QUOTAS = (1, 2, 3, 5, 7, 10, 100, 999_999_937, 10**9)


class RandomSteps:
    """Generates steps over three limits of one algorithm, and a fourth limit of any algorithm."""

    def __init__(
        self,
        algorithm: str,
        seed: int,
        *,
        both_ways: bool = True,
        others: Mapping[str, type[Limit]] = SCRIPTED,
        apart: bool = False,
    ) -> None:
        """`others`: algorithms of the fourth limit. `apart`: whether no two limits share a bucket at different rates.

        `both_ways`: whether the clock also steps back.
        """
        self._random = Random(seed)  # noqa: S311  # tests need no secrets
        self._others = list(others)
        self._both_ways = both_ways
        self.clock = Clock()
        choice = self._random.choice
        self._idle: list[dict[str, Any]] = [  # options of `smooth`: with a warm-up, and without
            {"warmup": choice((4, 4, 3.75, 60, 3600)), "cold_factor": choice((1, 2, 3, 3, 10))},
            {"max_burst": choice((0, 1.0, 1.0, 2.5, 100))},
        ]
        self._limits = [self._limit(algorithm) for _ in range(3)] + [self._limit("any")]
        if apart:
            self._limits = [replace(limit, name=f"limit-{number}") for number, limit in enumerate(self._limits)]
        self._given: deque[tuple[Charge, Decision]] = deque(maxlen=12)

    def next(self) -> tuple[Verb, list[Charge]]:
        """Move the clock, and return the verb and the charges of the next step."""
        self._move_clock()
        chance = self._random.random()
        if chance < 0.15 and self._given:
            return "settle", [self._correction() for _ in range(self._random.randint(1, 2))]
        if chance < 0.17:
            return "reset", [self._charge() for _ in range(self._random.randint(1, 2))]
        return ("take" if chance < 0.85 else "peek"), self._group()

    def heard(self, charges: Sequence[Charge], decisions: Sequence[Decision]) -> None:
        """Record the decisions of a take. Later steps settle its charges, or advance the clock by its waits."""
        self._given.extend(zip(charges, decisions, strict=True))

    def _limit(self, algorithm: str) -> Limit:
        choice = self._random.choice
        quota, window, name = choice(QUOTAS), choice(WINDOWS), choice((None, None, "named"))
        kind = SCRIPTED[choice(self._others) if algorithm == "any" else algorithm]
        options: dict[str, Any] = {"name": name}
        if issubclass(kind, BucketLimit):
            options |= {"burst": choice((None, 1, 3, 5)), "max_delay": window * choice((0, 0, 0.1, 1))}
        if kind is LeakyBucket:
            options["at_once"] = choice((None, None, 0, 1))
        if kind is Smooth:
            options |= self._smooth(window)
        if kind is SlidingWindowCounter:
            options |= {"buckets": choice((1, 1, 2, 3, 7)), "strict": choice((False, True))}
        if kind is CalendarWindow:
            return CalendarWindow(quota, choice(PERIODS), zone=choice(ZONES), name=name)
        if kind is SlidingWindowLog:
            quota = min(quota, 1500)  # above the most units of one charge
        if kind is Ban:
            quota, options["ban"] = min(quota, 100), choice(WINDOWS)
        if kind is Concurrency:
            quota, options["retry"] = min(quota, 1500), choice((1.0, 0.5, 7))
        return kind(quota, window, **options)

    def _smooth(self, window: float) -> dict[str, Any]:
        """Return one of two sets of options, so that some limits share a bucket at different rates."""
        return {**self._random.choice(self._idle), "max_delay": window * self._random.choice((0, 0, 0.1, 1))}

    def _move_clock(self) -> None:
        forward = [0, 0, 0.000001, self._random.random() * 0.1, self._random.random() * 3, self._random.random() * 30]
        if self._given:
            _, last = self._random.choice(self._given)
            waits = [wait for wait in (last.retry_after, last.next_after, last.reset_after) if 0 < wait < math.inf]
            forward += [*waits, *[wait - 0.000001 for wait in waits]]
        self.clock.advance(self._random.choice(forward))
        if self._both_ways and self._random.random() < 0.05:
            self.clock.now -= self._random.choice((0.000001, 0.5, 7.25, 100, 100_000))

    def _group(self) -> list[Charge]:
        charges: list[Charge] = []
        for _ in range(self._random.choice((1, 1, 2, 3, 5))):
            charge = self._charge()
            twin = next((other for other in charges if bucket_of(other) == bucket_of(charge)), charge)
            charges.append(Charge(twin.key, twin.limit, charge.cost, twin.max_delay, twin.role))
        return charges

    def _charge(self) -> Charge:
        limit = self._random.choice(self._limits)
        few = self._random.choice((0, 1, 1, 1, 2, 5))
        part = limit.most // self._random.choice((1, 2, 3))
        cost = self._random.choice((few, few, few, part, limit.most + 1))
        delay = self._random.choice((None, None, 0.0, limit.window / 3)) if isinstance(limit, DelayableLimit) else None
        role: Role = self._random.choice(("limit", "limit", "limit", "limit", "shadow", "penalty"))
        return Charge(self._random.choice(KEYS), limit, cost, delay, role)

    def _correction(self) -> Charge:
        charge, decision = self._random.choice(self._given)
        most = charge.limit.most
        delta = self._random.choice((-charge.cost, -charge.cost, -1, 0, 1, 3, -most, most, 3 * most))
        return Charge(charge.key, charge.limit, delta, at=decision.at)

"""What a request that may wait for a slot asks the store, and when. No I/O: the gates do what the steps say.

While the request waits, its penalties are asked with a cost of 0: a ban refuses it, and nothing counts as a refusal but
the last answer.
"""

import math
import time
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.policy import Match, Plan, conclude
from ratelimit_mw.queues import Bucket, Place, Queues, Wish
from ratelimit_mw.verdict import Verdict


class Take(Struct, frozen=True):
    """Take this. To be answered with the verdict."""

    asked: Plan


class Peek(Struct, frozen=True):
    """Look at this. To be answered with the decisions."""

    asked: Plan


class Pause(Struct, frozen=True):
    """Sleep for so many seconds, or until the request is woken."""

    seconds: float


Step = Take | Peek | Pause
Steps = Generator[Step, Any, Verdict | None]


def wish_of(asked: Plan, who: Callable[[], Sequence[str]]) -> Wish | None:
    """What a request may wait for; None where it waits for nothing. `who`: see `Wish`."""
    buckets: dict[Bucket, int] = {}
    shared, longest = set[Bucket](), math.inf
    for charge, line in zip(asked.charges, asked.lines, strict=True):
        if line.queue:
            bucket = bucket_of(charge)
            buckets[bucket] = min(line.queue, buckets.get(bucket, line.queue))
            longest = min(longest, line.queue_timeout)
            if line.key.is_shared:
                shared.add(bucket)
    return Wish(buckets, longest, who() if shared else (), frozenset(shared)) if buckets else None


class Turns:
    """How one request waits. `wake`: see `Queues.join`. `steps` end with the verdict; closed early, they leave."""

    def __init__(
        self,
        queues: Queues,
        match: Match,
        asked: Plan,
        wish: Wish,
        wake: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queues: Final = queues
        self._match: Final = match
        self._asked: Final = asked
        self._looked: Final = _uncounted(asked)
        self._wish: Final = wish
        self._wake: Final = wake
        self._clock: Final = clock

    def steps(self) -> Steps:
        """Ask, and wait where nothing but slots refuses. Nobody who waits already is overtaken."""
        given = self._queues.given
        if self._queues.busy(self._wish.buckets):
            decisions = yield Peek(self._looked)
            verdict: Verdict | None = conclude(self._match, self._looked, decisions)
        else:
            verdict = yield Take(self._looked)
            if verdict is None or verdict.allowed:
                return self._admitted(verdict)
        full = self._full(verdict)
        if full is None:
            return (yield from self._counted(verdict))
        place = self._queues.join(self._wish, full, self._wake, given)
        if place is None:
            return (yield from self._without(full or tuple(self._wish.buckets)))
        return (yield from self._in_line(place))

    def _in_line(self, place: Place) -> Steps:
        until = self._clock() + self._wish.longest
        none_left: tuple[Bucket, ...] = ()
        try:
            while True:
                if place.turn:
                    verdict: Verdict | None = yield Take(self._looked)
                    if verdict is None or verdict.allowed:
                        none_left = self._none_left(verdict)
                        return self._admitted(verdict)
                    full = self._full(verdict)
                    if full is None:
                        break
                    self._queues.looked(place, full)
                rest = until - self._clock()
                if rest <= 0:
                    full = tuple(place.full or self._wish.buckets)
                    break
                yield Pause(min(rest, self._queues.pause(place)))
        finally:
            self._queues.leave(place, none_left)
        return (yield from (self._counted(verdict) if full is None else self._without(full)))

    def _admitted(self, verdict: Verdict | None) -> Verdict | None:
        if verdict is None or verdict.charges is not self._looked.charges:
            return verdict
        return replace(verdict, charges=self._asked.charges)

    def _counted(self, verdict: Verdict | None) -> Steps:
        """The verdict on a request that something else than slots refuses: what was looked at is counted now."""
        if verdict is not None and any(
            charge.role == "penalty" and decision.allowed
            for charge, decision in zip(self._looked.charges, verdict.decisions, strict=False)
        ):
            verdict = yield Take(self._asked)
        return verdict

    def _without(self, barred: Collection[Bucket]) -> Steps:
        """The verdict on a request that waits no more: as if no slot of these were free, whatever was given back."""
        charges = [
            replace(charge, cost=charge.limit.quota + 1) if bucket_of(charge) in barred else charge
            for charge in self._asked.charges
        ]
        verdict: Verdict | None = yield Take(replace(self._asked, charges=charges))
        if verdict is None or len(verdict.decisions) != len(charges):
            return verdict
        decisions = [
            _none_free(charge, one) if bucket_of(charge) in barred else one
            for charge, one in zip(charges, verdict.decisions, strict=True)
        ]
        return replace(verdict, charges=self._asked.charges, decisions=decisions)

    def _full(self, verdict: Verdict | None) -> tuple[Bucket, ...] | None:
        """The buckets whose slots are all taken, where nothing else refuses; else None."""
        if verdict is None or len(verdict.decisions) != len(self._asked.lines):
            return None
        full: dict[Bucket, None] = {}
        for charge, line, one in zip(self._looked.charges, self._asked.lines, verdict.decisions, strict=True):
            if one.allowed or line.shadow:
                continue
            if not line.queue or charge.cost > one.limit:
                return None
            full[bucket_of(charge)] = None
        return tuple(full)

    def _none_left(self, verdict: Verdict | None) -> tuple[Bucket, ...]:
        if verdict is None or len(verdict.decisions) != len(self._looked.charges):
            return ()
        pairs = zip(self._looked.charges, verdict.decisions, strict=True)
        return tuple(
            bucket for charge, one in pairs if (bucket := bucket_of(charge)) in self._wish.buckets and not one.remaining
        )


def bucket_of(charge: Charge) -> Bucket:
    """What a request waits for."""
    return charge.key, charge.limit.bucket


def _uncounted(asked: Plan) -> Plan:
    """The same without counting a refusal."""
    if not any(charge.role == "penalty" for charge in asked.charges):
        return asked
    charges = [replace(charge, cost=0) if charge.role == "penalty" else charge for charge in asked.charges]
    return replace(asked, charges=tuple(charges))


def _none_free(charge: Charge, decision: Decision) -> Decision:
    retry = charge.limit.longest_wait
    return replace(decision, allowed=False, remaining=0, retry_after=retry, next_after=retry, reset_after=retry)

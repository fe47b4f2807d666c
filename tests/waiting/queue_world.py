"""A simulation of a process whose requests wait for slots, and of the store that it shares with other processes."""

import math
from collections.abc import Coroutine, Generator
from dataclasses import dataclass, field
from types import coroutine
from typing import Any

from ratelimit_mw import Charge, Concurrency, MemoryStore, Verdict
from ratelimit_mw.engine.slot_queue import Queues, SlotBucket
from ratelimit_mw.engine.slot_wait import SlotWait, buckets_of, slot_demand
from ratelimit_mw.rules.plan import Match, Plan, conclude, make_plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.group import stored_bucket
from ratelimit_mw.testing import Clock
from web.plain_request import PlainRequest

PATIENCE = 1000.0  # seconds that a request waits
LIFETIME = 100_000.0  # seconds; so long that no slot expires although none is renewed
MOST_TURNS = 1000  # of all requests together, at one instant


@dataclass(eq=False)
class Asked:
    """A request. `due`: when it continues unless it is woken earlier. `calls`: its calls of the store's methods."""

    number: int
    match: Match
    asked: Plan
    way: Coroutine[float, None, Verdict | None] | None = None
    due: float = -math.inf
    over: bool = False
    verdict: Verdict | None = None
    calls: list[str] = field(default_factory=list)

    def wake(self) -> None:
        """Let the request continue at once."""
        self.due = -math.inf

    @coroutine
    def wait(self, seconds: float) -> Generator[float, None, None]:
        """Suspend the request, and yield to the world the seconds that it sleeps."""
        yield seconds

    @property
    def buckets(self) -> set[SlotBucket]:
        return {stored_bucket(charge) for charge in self.slots}

    @property
    def slots(self) -> list[Charge]:
        return [charge for charge in self.asked.charges if charge.limit.is_concurrency]

    @property
    def allowed(self) -> bool | None:
        return None if self.verdict is None else self.verdict.allowed


class World:
    """The process and the store, in simulated time. After each event every request continues as far as it can.

    `overtaken`: pairs of requests, the first of which was admitted although the second, an older one, could have been.
    """

    def __init__(self, own: int, shared: int, **options: Any) -> None:
        self.clock = Clock()
        self.store = MemoryStore(clock=self.clock)
        every = [{"limit": Concurrency(shared, LIFETIME), "key": "all"}] if shared else []
        given = {"limits": [], "concurrent": own, "key": "ip", "queue": 1000, "queue_timeout": PATIENCE, **options}
        self.rules = RuleSet(Settings(app_limits=every, slot_lifetime=LIFETIME, **given))
        self.queues = Queues(self.clock)
        self.waiting: list[Asked] = []
        self.at_work: list[Asked] = []
        self.overtaken: list[tuple[int, int]] = []
        self._number = 0

    def arrives(self, client: str) -> Asked:
        request = PlainRequest(client=client)
        match = self.rules.match(request, ())
        assert match is not None
        asked = make_plan(match, request, {})
        wish = slot_demand(asked, lambda: [client])
        assert wish is not None
        self._number += 1
        one = Asked(self._number, match, asked)

        async def take(taken: Plan) -> Verdict | None:
            return self._take(one, taken)

        async def peek(peeked: Plan) -> Verdict | None:
            one.calls.append("peek")
            return conclude(match, peeked, self.store.peek(peeked.charges))

        def fail(error: Exception) -> Verdict:
            raise error

        one.way = SlotWait(self.queues, asked, wish, one, take, peek, fail, self.clock).verdict()
        self.waiting.append(one)
        self._settle()
        return one

    def goes_away(self, one: Asked) -> None:
        """Cancel a request that waits."""
        assert one.way is not None
        one.way.close()
        self.waiting.remove(one)
        self._settle()

    def ends(self, one: Asked, *, elsewhere: bool = False) -> None:
        """End a request, and release its slots. `elsewhere`: as in another process, so this process is not notified."""
        self.at_work.remove(one)
        assert one.verdict is not None
        pairs = zip(one.asked.charges, one.verdict.decisions, strict=True)
        held = [(charge, decision.at) for charge, decision in pairs if charge.limit.is_concurrency]
        self.store.settle([Charge(charge.key, charge.limit, -charge.cost, at=at) for charge, at in held])
        if not elsewhere:
            self.queues.wake([bucket for charge, _ in held for bucket in buckets_of(charge)])
        self._settle()

    def passes(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while (due := min((one.due for one in self.waiting), default=math.inf)) <= end:
            self.clock.now = due
            self._settle()
        self.clock.now = end

    def could_go(self, one: Asked) -> bool:
        return all(decision.allowed for decision in self.store.peek(one.slots))

    def _looks_full(self, one: Asked) -> bool:
        """Whether another process freed a slot that the request needs, and this process has not noticed yet."""
        waited = [self.queues._by_bucket.get(bucket) for bucket in one.buckets]
        return any(found is not None and found.full for found in waited)

    def _settle(self) -> None:
        for _ in range(MOST_TURNS):
            if not (due := [one for one in self.waiting if one.due <= self.clock.now]):
                return
            self._goes_on(due[self._number * 7 % len(due)])  # in an order that does not depend on their age
        raise AssertionError("requests try again without end")

    def _goes_on(self, one: Asked) -> None:
        assert one.way is not None
        try:
            one.due = self.clock.now + one.way.send(None)
        except StopIteration as end:
            one.over, one.verdict = True, end.value
            self.waiting.remove(one)
            if one.allowed:
                self.at_work.append(one)

    def _take(self, one: Asked, taken: Plan) -> Verdict:
        one.calls.append("take")
        older = [other for other in self.waiting if other.number < one.number and other.buckets & one.buckets]
        could = [other.number for other in older if self.could_go(other) and not self._looks_full(other)]
        verdict = conclude(one.match, taken, self.store.take(taken.charges))
        self.overtaken += [(one.number, number) for number in could if verdict.allowed]
        return verdict

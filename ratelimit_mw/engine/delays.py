"""Bounds how many requests a gate delays at once. If no capacity is left, a request that needs a delay is refused.

Nothing sleeps here. `engine.flow.Flow.decide` reserves the capacity; `Flow._delay` sleeps and then frees it.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.stores.lifecycle import after_fork_in_child, fork_safe_lock


class Delayed:
    """The number of delayed requests of a gate, in all and by key. It outlives reloads."""

    def __init__(self) -> None:
        self.lock: Final = fork_safe_lock()
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        """Forget all of them. Also runs after a fork, because the child has none of the delayed threads."""
        self.count = 0
        self.by_key = Counter[str]()


class DelayCapacity:
    """Counts the delayed requests of a gate. It allows `capacity` in all, and half of that per key, but at least 1.

    Thread-safe. `delayed`: those that count, if not only its own. The argument `keys` of its methods: the keys of one
    request.
    """

    def __init__(self, capacity: int, delayed: Delayed | None = None) -> None:
        self._capacity: Final = capacity
        self._max_per_key: Final = max(1, capacity // 2)
        self._delayed: Final = Delayed() if delayed is None else delayed

    def refusing_if_full(self, plan: Plan, keys: Sequence[str]) -> Plan:
        """Return the plan. If no capacity is left, return a plan that refuses the request instead of delaying it."""
        if self._has_capacity(keys):
            return plan
        return replace(plan, charges=[_without_max_delay(charge) for charge in plan.charges])

    def enter(self, keys: Sequence[str]) -> bool:
        """Reserve capacity. Return whether there was any."""
        with self._delayed.lock:
            if not self._has_capacity(keys):
                return False
            self._delayed.count += 1
            self._used_by_key.update(keys)
            return True

    def leave(self, keys: Sequence[str]) -> None:
        """Free the capacity that `enter` reserved."""
        with self._delayed.lock:
            self._delayed.count -= 1
            for key in keys:
                self._used_by_key[key] -= 1
                if not self._used_by_key[key]:
                    del self._used_by_key[key]

    @property
    def _free(self) -> int:
        return self._capacity - self._delayed.count

    @property
    def _used_by_key(self) -> Counter[str]:
        return self._delayed.by_key

    def _has_capacity(self, keys: Sequence[str]) -> bool:
        return self._free > 0 and all(self._used_by_key[key] < self._max_per_key for key in keys)


def refused_for_capacity(verdict: Verdict) -> Verdict:
    """Return the refusal of an admitted request for which no capacity was left. The caller refunds its units."""
    pairs = zip(verdict.charges, verdict.decisions, strict=True)
    return replace(
        verdict, allowed=False, decisions=[_refused_without_delay(charge, decision) for charge, decision in pairs]
    )


def _without_max_delay(charge: Charge) -> Charge:
    return replace(charge, max_delay=0.0) if charge.effective_max_delay_us and charge.role != "shadow" else charge


def _refused_without_delay(charge: Charge, decision: Decision) -> Decision:
    if charge.role == "shadow":
        return decision
    if decision.delay:  # a retry is admitted once the delay is over, because the units before it have drained by then
        return replace(decision, allowed=False, retry_after=decision.delay, delay=0.0)
    return replace(decision, remaining=min(decision.limit, decision.remaining + charge.cost))

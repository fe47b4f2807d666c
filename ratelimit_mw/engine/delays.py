"""Requests that are held back until their turn: how many at one time, and what becomes of one more."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.core.verdict import Verdict, refunds_for
from ratelimit_mw.engine.settlement import PendingSettlement
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.stores.lifecycle import after_fork_in_child, fork_safe_lock


class DelayCapacity:
    """The places of a process where requests are held back: `capacity` in all, and for each key half of them.

    One key has at least one place. Several threads may call at once. `keys`: the keys of a request.
    """

    def __init__(self, capacity: int) -> None:
        self._lock: Final = fork_safe_lock()
        self._capacity: Final = capacity
        self._max_per_key: Final = max(1, capacity // 2)
        after_fork_in_child(self._reset)
        self._reset()

    def _reset(self) -> None:
        """Free all places, also in a child process, where no thread leaves the place that it had."""
        self._free = self._capacity
        self._used_by_key = Counter[str]()

    def without_delay_if_full(self, plan: Plan, keys: Sequence[str]) -> Plan:
        """What to ask the store for a request: without a place for it, whether it may pass without being held back."""
        if self._has_capacity(keys):
            return plan
        return replace(plan, charges=[_without_max_delay(charge) for charge in plan.charges])

    def enter(self, keys: Sequence[str]) -> bool:
        """Take a place. Whether there was one."""
        with self._lock:
            if not self._has_capacity(keys):
                return False
            self._free -= 1
            self._used_by_key.update(keys)
            return True

    def leave(self, keys: Sequence[str]) -> None:
        """Free the place."""
        with self._lock:
            self._free += 1
            for key in keys:
                self._used_by_key[key] -= 1
                if not self._used_by_key[key]:
                    del self._used_by_key[key]

    def _has_capacity(self, keys: Sequence[str]) -> bool:
        return self._free > 0 and all(self._used_by_key[key] < self._max_per_key for key in keys)


def refused_for_capacity(verdict: Verdict) -> Verdict:
    """The verdict on a request for which there is no place after all: as without waiting. Nothing is taken for it."""
    pairs = zip(verdict.charges, verdict.decisions, strict=True)
    return replace(
        verdict, allowed=False, decisions=[_refused_without_delay(charge, decision) for charge, decision in pairs]
    )


def pending_refund(gate: object, verdict: Verdict) -> PendingSettlement:
    """What a gate took for a request, as corrections that give it back."""
    return PendingSettlement(gate, verdict.source, refunds_for(verdict))


def _without_max_delay(charge: Charge) -> Charge:
    return replace(charge, max_delay=0.0) if charge.effective_max_delay_us and charge.role != "shadow" else charge


def _refused_without_delay(charge: Charge, decision: Decision) -> Decision:
    if charge.role == "shadow":
        return decision
    if decision.delay:  # by then what is before it has drained
        return replace(decision, allowed=False, retry_after=decision.delay, delay=0.0)
    return replace(decision, remaining=min(decision.limit, decision.remaining + charge.cost))

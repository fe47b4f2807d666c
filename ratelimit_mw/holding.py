"""Requests that are held back until their turn: how many at one time, and what becomes of one more."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.corrections import Taken
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.policy import Plan
from ratelimit_mw.stores.forks import lock, start_over_in_child
from ratelimit_mw.verdict import Verdict, given_back


class Room:
    """The places of a process where requests are held back: `places` in all, and for each key half of them.

    One key has at least one place. Several threads may call at once. `who`: the keys of a request.
    """

    def __init__(self, places: int) -> None:
        self._lock: Final = lock()
        self._places: Final = places
        self._most: Final = max(1, places // 2)
        start_over_in_child(self._start_over)
        self._start_over()

    def _start_over(self) -> None:
        """Free all places, also in a child process, where no thread leaves the place that it had."""
        self._free = self._places
        self._held = Counter[str]()

    def asked(self, plan: Plan, who: Sequence[str]) -> Plan:
        """What to ask the store for a request: without a place for it, whether it may pass without being held back."""
        if self._has_place(who):
            return plan
        return replace(plan, charges=[_at_once(charge) for charge in plan.charges])

    def enter(self, who: Sequence[str]) -> bool:
        """Take a place. Whether there was one."""
        with self._lock:
            if not self._has_place(who):
                return False
            self._free -= 1
            self._held.update(who)
            return True

    def leave(self, who: Sequence[str]) -> None:
        """Free the place."""
        with self._lock:
            self._free += 1
            for key in who:
                self._held[key] -= 1
                if not self._held[key]:
                    del self._held[key]

    def _has_place(self, who: Sequence[str]) -> bool:
        return self._free > 0 and all(self._held[key] < self._most for key in who)


def turned_away(verdict: Verdict) -> Verdict:
    """The verdict on a request for which there is no place after all: as without waiting. Nothing is taken for it."""
    pairs = zip(verdict.charges, verdict.decisions, strict=True)
    return replace(verdict, allowed=False, decisions=[_without_turn(charge, decision) for charge, decision in pairs])


def taken_by(gate: object, verdict: Verdict) -> Taken:
    """What a gate took for a request, as corrections that give it back."""
    return Taken(gate, verdict.source, given_back(verdict))


def _at_once(charge: Charge) -> Charge:
    return replace(charge, max_delay=0.0) if charge.patience_us and charge.role != "shadow" else charge


def _without_turn(charge: Charge, decision: Decision) -> Decision:
    if charge.role == "shadow":
        return decision
    if decision.delay:  # by then what is before it has drained
        return replace(decision, allowed=False, retry_after=decision.delay, delay=0.0)
    return replace(decision, remaining=min(decision.limit, decision.remaining + charge.cost))

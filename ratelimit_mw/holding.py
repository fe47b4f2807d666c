"""Requests that are held back until their turn: how many at one time, and what becomes of one more."""

from threading import Lock
from typing import Final

from msgspec.structs import replace

from ratelimit_mw.corrections import Taken
from ratelimit_mw.limit import Charge, Decision
from ratelimit_mw.outcome import given_back
from ratelimit_mw.policy import Plan
from ratelimit_mw.verdict import Verdict


class Room:
    """Where a process keeps the requests that it holds back: up to `places` of them. Several threads may come."""

    def __init__(self, places: int) -> None:
        self._lock: Final = Lock()
        self._free = places

    def asked(self, plan: Plan) -> Plan:
        """What the store is asked of a request: while no place is free, whether it may pass without being held back."""
        if self._free > 0:
            return plan
        return replace(plan, charges=[_at_once(charge) for charge in plan.charges])

    def enter(self) -> bool:
        """Whether there is a place, which is taken then."""
        with self._lock:
            if self._free <= 0:
                return False
            self._free -= 1
            return True

    def leave(self) -> None:
        """It is free for another one."""
        with self._lock:
            self._free += 1


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

"""What a request is corrected by once its true cost is known. Pure: no store, no clock, no I/O."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ratelimit_mw.limit import Charge
from ratelimit_mw.verdict import Policy, Source, Verdict

Bucket = tuple[str, str, str]
Step = tuple[Any, Verdict]  # a gate, and what it found


class Taken(NamedTuple):
    """What is to be corrected in one place: a gate, which of its stores, and the corrections."""

    gate: Any
    source: Source
    charges: Sequence[Charge]


class Paid(NamedTuple):
    """One bucket of a request, and all that was taken from it. `charge`: the last one."""

    gate: Any
    source: Source
    charge: Charge
    cost: int
    at: int
    policy: Policy


def bucket_of(charge: Charge) -> Bucket:
    """What tells the buckets of a request's charges apart; what a shadow counted was not held to it."""
    return charge.key, charge.limit.bucket, charge.role


def paid(steps: Sequence[Step]) -> dict[Bucket, Paid]:
    """What the steps took from each bucket that can be settled, in order. A ban counts refusals, and has no cost."""
    found: dict[Bucket, Paid] = {}
    for gate, verdict in steps:
        if not verdict.allowed or not verdict.decisions:
            continue
        shadows = all(
            one.allowed
            for charge, one in zip(verdict.charges, verdict.decisions, strict=True)
            if charge.role == "shadow"
        )  # else none of them was charged
        for charge, decision, policy in zip(verdict.charges, verdict.decisions, verdict.policies, strict=True):
            if charge.role == "penalty" or (charge.role == "shadow" and not shadows) or not policy.settles:
                continue
            bucket = bucket_of(charge)
            before = found[bucket].cost if bucket in found else 0
            found[bucket] = Paid(gate, verdict.source, charge, before + charge.cost, decision.at, policy)
    return found


def corrections(
    steps: Sequence[Step], actual_of: Callable[[Policy], int | None], done: dict[Bucket, int]
) -> Sequence[Taken]:
    """The corrections after which the true cost is charged; none where nothing changes.

    `actual_of`: the true cost as a limit counts it; None leaves what was taken. `done`: by bucket, how much it was
    corrected before; these corrections are added to it.
    """
    found: dict[tuple[int, Source], Taken] = {}
    for bucket, one in paid(steps).items():
        actual = actual_of(one.policy)
        if actual is None:
            continue
        before = done.get(bucket, 0)
        delta = actual - one.cost - before
        if delta:
            done[bucket] = before + delta
            charge = Charge(one.charge.key, one.charge.limit, delta, role=one.charge.role, at=one.at)
            own = found.setdefault((id(one.gate), one.source), Taken(one.gate, one.source, []))
            found[id(one.gate), one.source] = own._replace(charges=[*own.charges, charge])
    return list(found.values())

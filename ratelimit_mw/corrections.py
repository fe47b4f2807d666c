"""What a request is corrected by once its true cost is known. Pure: no store, no clock, no I/O."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ratelimit_mw.limit import Bucket, Charge, bucket_of
from ratelimit_mw.response import Policy
from ratelimit_mw.stores.group import in_parts
from ratelimit_mw.verdict import Source, Verdict

Step = tuple[Any, Verdict]  # a gate, and what it found


class Taken(NamedTuple):
    """What is to be corrected in one place: a gate, which of its stores, and the corrections."""

    gate: Any
    source: Source
    charges: Sequence[Charge]


class Paid(NamedTuple):
    """One bucket of a request, and what was taken from it. `charge`: the last one. `parts`: units, and their `at`."""

    gate: Any
    source: Source
    charge: Charge
    parts: Sequence[tuple[int, int]]
    policy: Policy


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
            before = found[bucket].parts if bucket in found else ()
            found[bucket] = Paid(gate, verdict.source, charge, [*before, (charge.cost, decision.at)], policy)
    return found


class Account:
    """What is charged for one request in one bucket: its charges and what later words added, the last one at the end.

    A lower word gives back what was taken last, each part as of when it was taken, and never more than was.
    """

    __slots__ = ("_heard", "_parts", "_said")

    def __init__(self) -> None:
        self._heard = 0  # charges of the request that are among the parts
        self._parts: list[tuple[int, int]] = []  # units, and the `at` with which they can be given back
        self._said = 0  # what the request costs, as far as was said: what was forgiven is part of it

    def hear(self, parts: Sequence[tuple[int, int]]) -> None:
        """These charges were taken, of which it may know the first ones."""
        new = parts[self._heard :]
        self._heard += len(new)
        self._parts += new
        self._said += sum(units for units, _ in new)

    def due(self, actual: int, charge: Charge) -> list[Charge]:
        """What is to be corrected after which the true cost is charged. `charge`: one of this bucket."""
        if actual > self._said:
            units, self._said = actual - self._said, actual
            parts = in_parts(units, charge.limit)  # each is known, and can be given back, by itself
            return [Charge(charge.key, charge.limit, part, role=charge.role, at=self._parts[-1][1]) for part in parts]
        surplus = sum(units for units, _ in self._parts) - actual
        back: list[Charge] = []
        while surplus > 0:
            self._said = actual
            units, at = self._parts.pop()
            less = min(units, surplus)
            surplus -= less
            if less < units or not self._parts:
                self._parts.append((units - less, charge.limit.moved(at, -less)))
            if less:
                back.append(Charge(charge.key, charge.limit, -less, role=charge.role, at=at))
        return back

    def took(self, taken: Charge) -> None:
        """A correction took that."""
        if taken.cost > 0 and taken.at is not None:
            self._parts.append((taken.cost, taken.at))


def corrections(
    steps: Sequence[Step], actual_of: Callable[[Policy], int | None], accounts: dict[Bucket, Account]
) -> Sequence[Taken]:
    """The corrections after which the true cost is charged; none where nothing changes.

    `actual_of`: the true cost as a limit counts it; None leaves what was taken. `accounts`: of this request.
    """
    found: dict[tuple[int, Source], Taken] = {}
    for bucket, one in paid(steps).items():
        account = accounts.setdefault(bucket, Account())
        account.hear(one.parts)
        actual = actual_of(one.policy)
        if actual is not None and (due := account.due(actual, one.charge)):
            own = found.setdefault((id(one.gate), one.source), Taken(one.gate, one.source, []))
            found[id(one.gate), one.source] = own._replace(charges=[*own.charges, *due])
    return list(found.values())


def as_taken(charges: Sequence[Charge], answer: Sequence[Charge] | None) -> Sequence[Charge]:
    """What corrections took, one for each, as the store answered; else as if it had been taken with the request."""
    if answer is not None and len(answer) == len(charges):
        return answer
    return [replace(one, at=one.limit.moved(one.at or 0, one.cost)) if one.cost > 0 else one for one in charges]

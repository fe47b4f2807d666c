"""What a request is corrected by once its true cost is known. Pure: no store, no clock, no I/O."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from ratelimit_mw.core.limit import Bucket, Charge, bucket_of
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.http.response import Policy
from ratelimit_mw.stores.group import in_parts
from ratelimit_mw.stores.lifecycle import fork_safe_lock

GateVerdict = tuple[Any, Verdict]  # a gate, and what it found


class PendingSettlement(NamedTuple):
    """What is to be corrected in one place: a gate, which of its stores, and the corrections."""

    gate: Any
    source: Source
    charges: Sequence[Charge]


class ChargedBucket(NamedTuple):
    """One bucket of a request, and what was taken from it. `charge`: the last one. `parts`: units, and their `at`."""

    gate: Any
    source: Source
    charge: Charge
    parts: Sequence[tuple[int, int]]
    policy: Policy


def charged_buckets(gate_verdicts: Sequence[GateVerdict]) -> dict[Bucket, ChargedBucket]:
    """What the steps took from each bucket that can be settled, in order. A ban counts refusals, and has no cost."""
    found: dict[Bucket, ChargedBucket] = {}
    for gate, verdict in gate_verdicts:
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
            found[bucket] = ChargedBucket(gate, verdict.source, charge, [*before, (charge.cost, decision.at)], policy)
    return found


class BucketAccount:
    """What is charged for one request in one bucket: its charges and what later words added, the last one at the end.

    A lower word gives back what was taken last, each part as of when it was taken, and never more than was.
    """

    __slots__ = ("_actual", "_parts", "_recorded")

    def __init__(self) -> None:
        self._recorded = 0  # charges of the request that are among the parts
        self._parts: list[tuple[int, int]] = []  # units, and the `at` with which they can be given back
        self._actual = 0  # what the request costs, as far as was said: what was forgiven is part of it

    def record_charges(self, parts: Sequence[tuple[int, int]]) -> None:
        """These charges were taken, of which it may know the first ones."""
        new = parts[self._recorded :]
        self._recorded += len(new)
        self._parts += new
        self._actual += sum(units for units, _ in new)

    def settlements_for(self, actual: int, charge: Charge) -> list[Charge]:
        """What is to be corrected after which the true cost is charged. `charge`: one of this bucket."""
        if actual > self._actual:
            units, self._actual = actual - self._actual, actual
            parts = in_parts(units, charge.limit)  # each is known, and can be given back, by itself
            return [Charge(charge.key, charge.limit, part, role=charge.role, at=self._parts[-1][1]) for part in parts]
        surplus = sum(units for units, _ in self._parts) - actual
        refunds: list[Charge] = []
        while surplus > 0:
            self._actual = actual
            units, at = self._parts.pop()
            refunded = min(units, surplus)
            surplus -= refunded
            if refunded < units or not self._parts:
                self._parts.append((units - refunded, charge.limit.shift_at(at, -refunded)))
            if refunded:
                refunds.append(Charge(charge.key, charge.limit, -refunded, role=charge.role, at=at))
        return refunds

    def record_settlement(self, taken: Charge) -> None:
        """A correction took that."""
        if taken.cost > 0 and taken.at is not None:
            self._parts.append((taken.cost, taken.at))


def settlements(
    gate_verdicts: Sequence[GateVerdict],
    actual_of: Callable[[Policy], int | None],
    accounts: dict[Bucket, BucketAccount],
) -> Sequence[PendingSettlement]:
    """The corrections after which the true cost is charged; none where nothing changes.

    `actual_of`: the true cost as a limit counts it; None leaves what was taken. `accounts`: of this request.
    """
    found: dict[tuple[int, Source], PendingSettlement] = {}
    for bucket, one in charged_buckets(gate_verdicts).items():
        account = accounts.setdefault(bucket, BucketAccount())
        account.record_charges(one.parts)
        actual = actual_of(one.policy)
        if actual is not None and (due := account.settlements_for(actual, one.charge)):
            pending = found.setdefault((id(one.gate), one.source), PendingSettlement(one.gate, one.source, []))
            found[id(one.gate), one.source] = pending._replace(charges=[*pending.charges, *due])
    return list(found.values())


def settled_charges(charges: Sequence[Charge], answer: Sequence[Charge] | None) -> Sequence[Charge]:
    """What corrections took, one for each, as the store answered; else as if it had been taken with the request."""
    if answer is not None and len(answer) == len(charges):
        return answer
    return [replace(one, at=one.limit.shift_at(one.at or 0, one.cost)) if one.cost > 0 else one for one in charges]


ActualOf = Callable[[Policy], int | None]

_lock: Final = fork_safe_lock()  # an app may say it from several threads, and a store may answer in one


class SettlementLog:
    """The accounts of one request. What to give back is known when the store has said what it took.

    So while a correction is under way a further word waits, and goes when that is done, if no other one came.
    """

    __slots__ = ("_accounts", "_in_flight", "_next")

    def __init__(self) -> None:
        self._accounts: dict[Bucket, BucketAccount] = {}
        self._in_flight = 0
        self._next: tuple[Sequence[GateVerdict], ActualOf, Any] | None = None

    def settle(self, gate_verdicts: Sequence[GateVerdict], actual_of: ActualOf, loop: Any) -> None:
        """See `RateLimitState.settle_each`. `gate_verdicts`: what was taken for the request by now."""
        with _lock:
            if self._in_flight:
                self._next = (gate_verdicts, actual_of, loop)
                return
            due = settlements(gate_verdicts, actual_of, self._accounts)
            self._in_flight = len(due)
        for one in due:
            one.gate.settle(one.source, one.charges, loop, partial(self._on_settled, one))

    def _on_settled(self, sent: PendingSettlement, settled: Sequence[Charge]) -> None:
        """What was taken by corrections that were sent, one for each; nothing where that is not known."""
        with _lock:
            for charge, own in zip(sent.charges, settled, strict=False):
                self._accounts[bucket_of(charge)].record_settlement(own)
            self._in_flight -= 1
            next_settlement = None if self._in_flight else self._next
            if next_settlement is not None:
                self._next = None
        if next_settlement is not None:
            self.settle(*next_settlement)

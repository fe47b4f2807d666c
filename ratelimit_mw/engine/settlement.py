"""Corrects the charges of a request to its true cost. No clock and no I/O: gates call the store."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from ratelimit_mw.core.limit import Bucket, Charge, bucket_of
from ratelimit_mw.core.verdict import Source, Verdict
from ratelimit_mw.http.response import Policy
from ratelimit_mw.stores.group import in_parts
from ratelimit_mw.stores.lifecycle import fork_safe_lock

GateVerdict = tuple[Any, Verdict]  # a gate, and its verdict on the request


class PendingSettlement(NamedTuple):
    """The settlements that one gate sends to one of its stores."""

    gate: Any
    source: Source
    charges: Sequence[Charge]


class ChargedBucket(NamedTuple):
    """The charges of a request in one bucket. `charge`: the last one. `parts`: the units of each, and their `at`."""

    gate: Any
    source: Source
    charge: Charge
    parts: Sequence[tuple[int, int]]
    policy: Policy


def charged_buckets(gate_verdicts: Sequence[GateVerdict]) -> dict[Bucket, ChargedBucket]:
    """Return what the gates took from each bucket that can be settled, in order. Skips bans: they have no cost."""
    buckets: dict[Bucket, ChargedBucket] = {}
    for gate, verdict in gate_verdicts:
        if not verdict.allowed or not verdict.decisions:
            continue
        shadows = all(
            one.allowed
            for charge, one in zip(verdict.charges, verdict.decisions, strict=True)
            if charge.role == "shadow"
        )  # otherwise no shadow was charged
        for charge, decision, policy in zip(verdict.charges, verdict.decisions, verdict.policies, strict=True):
            if charge.role == "penalty" or (charge.role == "shadow" and not shadows) or not policy.settles:
                continue
            bucket = bucket_of(charge)
            earlier_parts = buckets[bucket].parts if bucket in buckets else ()
            buckets[bucket] = ChargedBucket(
                gate, verdict.source, charge, [*earlier_parts, (charge.cost, decision.at)], policy
            )
    return buckets


class BucketAccount:
    """The account of one request in one bucket: its charges, then the units that settlements added.

    A lower cost refunds the units taken last, each part at the instant it was taken, and never more than were taken.
    """

    __slots__ = ("_actual", "_parts", "_recorded")

    def __init__(self) -> None:
        self._recorded = 0  # how many charges of the request are among the parts
        self._parts: list[tuple[int, int]] = []  # units, and the `at` to refund them with
        self._actual = 0  # the cost settled so far, with units beyond the debt cap

    def record_charges(self, parts: Sequence[tuple[int, int]]) -> None:
        """Record the charges of the request. `parts`: all of them so far; those recorded before are skipped."""
        new = parts[self._recorded :]
        self._recorded += len(new)
        self._parts += new
        self._actual += sum(units for units, _ in new)

    def settlements_for(self, actual: int, charge: Charge) -> list[Charge]:
        """Return the settlements that bring the charges to the cost `actual`. `charge`: one of this bucket."""
        if actual > self._actual:
            units, self._actual = actual - self._actual, actual
            parts = in_parts(units, charge.limit)  # each is recorded and can be refunded alone
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
        """Record what a settlement took."""
        if taken.cost > 0 and taken.at is not None:
            self._parts.append((taken.cost, taken.at))


def settlements(
    gate_verdicts: Sequence[GateVerdict],
    actual_of: Callable[[Policy], int | None],
    accounts: dict[Bucket, BucketAccount],
) -> Sequence[PendingSettlement]:
    """Return the settlements that bring all charges of a request to its true cost; empty if nothing changes.

    `actual_of`: the true cost under a policy; None keeps the estimate. `accounts`: those of this request.
    """
    by_store: dict[tuple[int, Source], PendingSettlement] = {}
    for bucket, one in charged_buckets(gate_verdicts).items():
        account = accounts.setdefault(bucket, BucketAccount())
        account.record_charges(one.parts)
        actual = actual_of(one.policy)
        if actual is not None and (due := account.settlements_for(actual, one.charge)):
            pending = by_store.setdefault((id(one.gate), one.source), PendingSettlement(one.gate, one.source, []))
            by_store[id(one.gate), one.source] = pending._replace(charges=[*pending.charges, *due])
    return list(by_store.values())


def settled_charges(charges: Sequence[Charge], reply: Sequence[Charge] | None) -> Sequence[Charge]:
    """Return one `Charge` per settlement, with the units it took, as the store replied.

    Without such a reply, assume that the units were taken at the instant of the request's own charge.
    """
    if reply is not None and len(reply) == len(charges):
        return reply
    return [replace(one, at=one.limit.shift_at(one.at or 0, one.cost)) if one.cost > 0 else one for one in charges]


ActualOf = Callable[[Policy], int | None]

_lock: Final = fork_safe_lock()  # an app may settle, and a store may reply, in several threads


class RequestSettlements:
    """Serializes the settlements of one request.

    The units to refund are known only after the store has replied to the last settlement. If `settle` is called while
    settlements are in flight, the latest call is sent after them; earlier ones are dropped.
    """

    __slots__ = ("_accounts", "_in_flight", "_next")

    def __init__(self) -> None:
        self._accounts: dict[Bucket, BucketAccount] = {}
        self._in_flight = 0
        self._next: tuple[Sequence[GateVerdict], ActualOf, Any] | None = None

    def settle(self, gate_verdicts: Sequence[GateVerdict], actual_of: ActualOf, loop: Any) -> None:
        """Settle the request; see `RateLimitState.settle_each`. `gate_verdicts`: what was taken for it so far."""
        with _lock:
            if self._in_flight:
                self._next = (gate_verdicts, actual_of, loop)
                return
            due = settlements(gate_verdicts, actual_of, self._accounts)
            self._in_flight = len(due)
        for one in due:
            one.gate.settle(one.source, one.charges, loop, partial(self._on_settled, one))

    def _on_settled(self, sent: PendingSettlement, settled: Sequence[Charge]) -> None:
        """Record one `Charge` per settlement, with the units it took; none if unknown. Then send the next call."""
        with _lock:
            for charge, taken in zip(sent.charges, settled, strict=False):
                self._accounts[bucket_of(charge)].record_settlement(taken)
            self._in_flight -= 1
            next_settlement = None if self._in_flight else self._next
            if next_settlement is not None:
                self._next = None
        if next_settlement is not None:
            self.settle(*next_settlement)

"""What is known of a request so far, for the app and for whoever of us stands further in."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.limit import Charge
from ratelimit_mw.verdict import Source, Verdict

Bucket = tuple[str, str, str]


class Taken(NamedTuple):
    """What one of us has taken for a request, as corrections that give it back."""

    gate: Any
    source: Source
    charges: Sequence[Charge]


class Outcome(Struct, gc=False):
    """What the app finds in its request.

    `verdict`: on all that was charged for the request; where several of us stand around the app, they add to it. None
    when nothing was. `gate`: the outermost one's. `shown`: the outermost puts all of it into the answer's headers.
    `message`: the same of the last message of a websocket, where these are limited. `steps`: who found what, where
    there were several. `following`: who waits for the end of the response, where anybody does.
    """

    verdict: Verdict | None
    gate: Any = None
    shown: bool = False
    message: "Outcome | None" = None
    steps: list[tuple[Any, Verdict]] | None = None
    following: Any = None

    @property
    def charged(self) -> Sequence[Charge]:
        """All that was charged for this request so far."""
        return self.verdict.charges if self.verdict is not None and self.verdict.decisions else ()

    def add(self, verdict: Verdict, gate: Any) -> None:
        """What one further in found: it answers, and all charges stand side by side."""
        if self.steps is None:
            self.steps = [] if self.verdict is None else [(self.gate, self.verdict)]
        self.steps.append((gate, verdict))
        self.verdict = verdict if self.verdict is None else _both(self.verdict, verdict)

    def forget(self) -> Sequence[Taken]:
        """All that was taken, which is to be given back: the request is refused further in. Nothing was charged now."""
        steps = [(self.gate, self.verdict)] if self.steps is None else self.steps
        self.verdict, self.steps = None, []
        found = [Taken(gate, one.source, _back(one)) for gate, one in steps if one is not None and one.allowed]
        return [taken for taken in found if taken.charges]


def bucket_of(charge: Charge) -> Bucket:
    """What tells the buckets of a request's charges apart; what a shadow counted was not held to it."""
    return charge.key, charge.limit.bucket, charge.role


def _back(verdict: Verdict) -> Sequence[Charge]:
    pairs = list(zip(verdict.charges, verdict.decisions, strict=False))  # on an error there are no decisions
    shadows = all(one.allowed for charge, one in pairs if charge.role == "shadow")  # else none of them was charged
    taken = [pair for pair in pairs if pair[0].cost and (pair[0].role == "limit" or shadows)]
    return [replace(charge, cost=-charge.cost, at=one.at) for charge, one in taken if charge.role != "penalty"]


def _both(outer: Verdict, own: Verdict) -> Verdict:
    """`own`, and the charges of `outer` behind; of one bucket that both charged, how it stands now."""
    charges, decisions, policies = list(own.charges[: len(own.decisions)]), [*own.decisions], [*own.policies]
    places = {bucket_of(charge): index for index, charge in enumerate(charges)}
    for charge, decision, policy in zip(outer.charges, outer.decisions, outer.policies, strict=False):
        index = places.get(bucket_of(charge))
        if index is None:
            charges.append(charge)
            decisions.append(decision)
            policies.append(policy)
        else:
            charges[index] = replace(charges[index], cost=charges[index].cost + charge.cost)
    return replace(own, charges=charges, decisions=decisions, policies=policies)

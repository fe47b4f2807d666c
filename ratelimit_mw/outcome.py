"""What is known of a request so far, for the app and for whoever of us stands further in."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.limit import Charge
from ratelimit_mw.verdict import Verdict

Bucket = tuple[str, str, str]


class Outcome(Struct, gc=False):
    """What the app finds in its request.

    `verdict`: on all that was charged for the request; where several of us stand around the app, they add to it. None
    when nothing was. `gate`: the outermost one's. `shown`: the outermost puts all of it into the answer's headers.
    `message`: the same of the last message of a websocket, where these are limited.
    """

    verdict: Verdict | None
    gate: Any = None
    shown: bool = False
    message: "Outcome | None" = None

    @property
    def charged(self) -> Sequence[Charge]:
        """All that was charged for this request so far."""
        return self.verdict.charges if self.verdict is not None and self.verdict.decisions else ()

    def add(self, verdict: Verdict) -> None:
        """What one further in found: it answers, and all charges stand side by side."""
        self.verdict = verdict if self.verdict is None else _both(self.verdict, verdict)


def bucket_of(charge: Charge) -> Bucket:
    """What tells the buckets of a request's charges apart; what a shadow counted was not held to it."""
    return charge.key, charge.limit.bucket, charge.role


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

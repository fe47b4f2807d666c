"""What is known of a request so far, for the app and for whoever of us stands further in."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.corrections import Step
from ratelimit_mw.ledger import Ledger
from ratelimit_mw.limit import EXACT, Charge, bucket_of
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.response import Policy
from ratelimit_mw.stores.forks import lock
from ratelimit_mw.verdict import Verdict

_opening: Final = lock()  # of a ledger: an app may say it from several threads


class Outcome(Struct, gc=False):
    """What the app finds in its request.

    `verdict`: on all that was charged for the request; where several of us stand around the app, they add to it. None
    when nothing was. `gate`: the outermost one's. `shown`: the outermost puts all of it into the answer's headers.
    `message`: the same of the last message of a websocket, where these are limited. `steps`: who found what, where
    there were several. `following`: who waits for the end of the response, where anybody does.
    `said`: the true cost, as the app said it. `ledger`: what was corrected so far.
    """

    verdict: Verdict | None
    gate: Any = None
    shown: bool = False
    message: "Outcome | None" = None
    steps: list[tuple[Any, Verdict]] | None = None
    following: Any = None
    said: int | None = None
    ledger: Ledger | None = None

    @property
    def charged(self) -> Sequence[Charge]:
        """All that was charged for this request so far."""
        return [charge for _, one in self.found if one.allowed and one.decisions for charge in one.charges]

    @property
    def wait(self) -> float:
        """Seconds until the steps that admitted this request can admit it again; what they charged stays charged.

        Exact for a cost of 1. A slot is free again once this request has ended.
        """
        return max(
            (
                decision.next_after
                for _, verdict in self.found
                if verdict.allowed
                for charge, decision in zip(verdict.charges, verdict.decisions, strict=False)
                if charge.role == "limit" and decision.remaining < charge.cost and not charge.limit.held
            ),
            default=0.0,
        )

    def add(self, verdict: Verdict, gate: Any) -> None:
        """What one further in found: it answers, and all charges stand side by side."""
        if self.steps is None:
            if self.verdict is None and gate is self.gate:  # most often there is one of us, and no list of them
                self.verdict = verdict
                return
            self.steps = [] if self.verdict is None else [(self.gate, self.verdict)]
        self.steps.append((gate, verdict))
        self.verdict = verdict if self.verdict is None else _both(self.verdict, verdict)

    def begin_anew(self, outer: "Outcome | None") -> None:
        """Start over for the next message. `outer`: what a middleware further out found for the same message."""
        self.verdict, self.steps, self.said, self.ledger = None, None, None, None
        if outer is not None and outer.verdict is not None:
            self.verdict, self.steps = outer.verdict, [*outer.found]

    @property
    def found(self) -> Sequence[Step]:
        """Who found what."""
        if self.steps is not None:
            return self.steps
        return [] if self.verdict is None else [(self.gate, self.verdict)]

    def settle(self, actual: int) -> None:
        """Say what this request really costs, in units; what was taken for it until now was an estimate.

        Every limit that the request was charged to is corrected by the difference, but for those with
        `settle = false`. Said again, the last word counts: what an earlier one added is given back as far as it still
        counts, from when it was added. Where rules wait for the response anyway the last one is sent after it, else
        each at once: under asyncio in a task of its own. More than fits is debt, of one quota at most. Never
        raises: what is no whole number from 0 is logged, and the estimate stays charged; so it does where the store
        fails.
        """
        if type(actual) is not int or actual < 0:
            warn_rarely("settle", "found %s, no whole number from 0: the estimate stays charged", type(actual).__name__)
            return
        self.said = said = min(actual, EXACT - 1)
        if self.following is not None:
            self.following.settles()
        else:
            self.correct(lambda _: said)

    def correct(self, actual_of: Callable[[Policy], int | None], loop: Any = None) -> None:
        """Have what was taken corrected, so that the true cost is charged. See `corrections`.

        `loop`: where it is to be awaited, if there is something to await and no loop runs here.
        """
        with _opening:
            if self.ledger is None:
                self.ledger = Ledger()
            ledger = self.ledger
        ledger.correct(self.found, actual_of, loop)


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

"""What is known of a request so far, for the app and for whoever of us stands further in."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, bucket_of
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.settlement import GateVerdict, SettlementLog
from ratelimit_mw.http.response import Policy
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_log_lock: Final = fork_safe_lock()  # of a ledger: an app may say it from several threads


class RateLimitState(Struct, gc=False):
    """What the app finds in its request.

    `verdict`: on all that was charged for the request; where several of us stand around the app, they add to it. None
    when nothing was. `gate`: the outermost one's. `headers_shown`: the outermost puts all of it into the headers.
    `message`: the same of the last message of a websocket, where these are limited. `entries`: who found what, where
    there were several. `tracker`: who waits for the end of the response, where anybody does.
    `actual_cost`: the true cost, as the app said it. `settlement_log`: what was corrected so far.
    """

    verdict: Verdict | None
    gate: Any = None
    headers_shown: bool = False
    message: "RateLimitState | None" = None
    entries: list[tuple[Any, Verdict]] | None = None
    tracker: Any = None
    actual_cost: int | None = None
    settlement_log: SettlementLog | None = None

    @property
    def charged(self) -> Sequence[Charge]:
        """All that was charged for this request so far."""
        return [charge for _, one in self.decisions_by_gate if one.allowed and one.decisions for charge in one.charges]

    @property
    def wait(self) -> float:
        """Seconds until the steps that admitted this request can admit it again; what they charged stays charged.

        Exact for a cost of 1. A slot is free again once this request has ended.
        """
        return max(
            (
                decision.next_after
                for _, verdict in self.decisions_by_gate
                if verdict.allowed
                for charge, decision in zip(verdict.charges, verdict.decisions, strict=False)
                if charge.role == "limit" and decision.remaining < charge.cost and not charge.limit.is_concurrency
            ),
            default=0.0,
        )

    def record(self, verdict: Verdict, gate: Any) -> None:
        """What one further in found: it answers, and all charges stand side by side."""
        if self.entries is None:
            if self.verdict is None and gate is self.gate:  # most often there is one of us, and no list of them
                self.verdict = verdict
                return
            self.entries = [] if self.verdict is None else [(self.gate, self.verdict)]
        self.entries.append((gate, verdict))
        self.verdict = verdict if self.verdict is None else _merged(self.verdict, verdict)

    def reset(self, outer: "RateLimitState | None") -> None:
        """Start over for the next message. `outer`: what a middleware further out found for the same message."""
        self.verdict, self.entries, self.actual_cost, self.settlement_log = None, None, None, None
        if outer is not None and outer.verdict is not None:
            self.verdict, self.entries = outer.verdict, [*outer.decisions_by_gate]

    @property
    def decisions_by_gate(self) -> Sequence[GateVerdict]:
        """Who found what."""
        if self.entries is not None:
            return self.entries
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
            warn_throttled(
                "settle", "got %s, no whole number from 0: the estimate stays charged", type(actual).__name__
            )
            return
        self.actual_cost = actual_cost = min(actual, MAX_EXACT_INT - 1)
        if self.tracker is not None:
            self.tracker.settle_at_end()
        else:
            self.settle_each(lambda _: actual_cost)

    def settle_each(self, actual_of: Callable[[Policy], int | None], loop: Any = None) -> None:
        """Have what was taken corrected, so that the true cost is charged. See `corrections`.

        `loop`: where it is to be awaited, if there is something to await and no loop runs here.
        """
        with _log_lock:
            if self.settlement_log is None:
                self.settlement_log = SettlementLog()
            settlement_log = self.settlement_log
        settlement_log.settle(self.decisions_by_gate, actual_of, loop)


def _merged(outer: Verdict, own: Verdict) -> Verdict:
    """`own`, and the charges of `outer` behind; of one bucket that both charged, how it stands now."""
    charges, decisions, policies = list(own.charges[: len(own.decisions)]), [*own.decisions], [*own.policies]
    positions = {bucket_of(charge): index for index, charge in enumerate(charges)}
    for charge, decision, policy in zip(outer.charges, outer.decisions, outer.policies, strict=False):
        index = positions.get(bucket_of(charge))
        if index is None:
            charges.append(charge)
            decisions.append(decision)
            policies.append(policy)
        else:
            charges[index] = replace(charges[index], cost=charges[index].cost + charge.cost)
    return replace(own, charges=charges, decisions=decisions, policies=policies)

"""The rate limit state of a request, for the app and for inner middleware."""

from collections.abc import Callable, Sequence
from typing import Any, Final
from weakref import ReferenceType

from msgspec import Struct, field
from msgspec.structs import replace

from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, RequestBucket, request_bucket
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.settlement import Corrected, GateVerdict, settlements
from ratelimit_mw.http.callables import whole_units
from ratelimit_mw.http.response import Policy
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_lock: Final = fork_safe_lock()  # an app may call settle() from several threads


class Extras(Struct, gc=False):
    """The part of a `RateLimitState` that few requests need.

    `message`: the state of a websocket's last message, if messages are limited. `tracker`: a weak reference to what
    tracks the response to its end, if a rule needs that. `actual_cost`: the true cost that the app passed to
    `settle()`. `corrected`: what settlements have changed in each bucket so far.

    Neither class may have a strong reference to a request or a tracker: the garbage collector does not look into
    classes with `gc=False`, so it could not free a cycle with one of these.
    """

    message: "RateLimitState | None" = None
    tracker: "ReferenceType[Any] | None" = None
    actual_cost: int | None = None
    corrected: dict[RequestBucket, Corrected] = field(default_factory=dict)


class RateLimitState(Struct, gc=False):
    """The rate limit state that the app finds in its request.

    `verdict`: covers all charges of the request, to which each middleware adds its own; None without charges. `gate`:
    the outermost gate. `headers_claimed`: whether a middleware adds the headers to the response; inner middleware then
    does not. `entries`: the verdict of each gate, if there are several. `in_app`: whether the app runs, and the
    middleware will call `app_returned` when it has returned. `extras`: see `ensure_extras`; an object of its own,
    because each field of this class takes time in every request.
    """

    verdict: Verdict | None
    gate: Any = None
    headers_claimed: bool = False
    in_app: bool = False
    entries: list[tuple[Any, Verdict]] | None = None
    extras: Extras | None = None

    @property
    def remaining(self) -> int | None:
        """The number of units that are left; None if nothing limits the request, as with `enabled = false`."""
        return None if self.verdict is None else self.verdict.remaining

    @property
    def message(self) -> "RateLimitState | None":
        """The state of a websocket's last message; None if messages are not limited."""
        return None if self.extras is None else self.extras.message

    @property
    def tracker(self) -> Any:
        """The `ResponseTracker` of the request; None if no rule needs one, or if its response is gone."""
        reference = None if self.extras is None else self.extras.tracker
        return None if reference is None else reference()

    @property
    def actual_cost(self) -> int | None:
        """The true cost that the app passed to `settle()`; None if it did not call it."""
        return None if self.extras is None else self.extras.actual_cost

    @property
    def admitted_charges(self) -> Sequence[Charge]:
        """All charges on which admitting gates have decided, including uncharged ones, such as penalties."""
        return [charge for _, one in self.verdicts_by_gate if one.allowed and one.decisions for charge in one.charges]

    @property
    def wait(self) -> float:
        """Seconds until the gates that admitted this request could admit it again.

        Exact for a cost of 1. For a higher cost it may be too short: it is the wait for one more unit, and the request
        may need several. Slots do not count, because they are free when this request has ended.
        """
        return max(
            (
                decision.next_after
                for _, verdict in self.verdicts_by_gate
                if verdict.allowed
                for charge, decision in zip(verdict.charges, verdict.decisions, strict=False)
                if charge.role == "limit" and decision.remaining < charge.cost and not charge.limit.is_concurrency
            ),
            default=0.0,
        )

    def record(self, verdict: Verdict, gate: Any) -> None:
        """Add the verdict of an inner gate. `self.verdict` becomes it, together with the charges of the outer gates."""
        if self.entries is None:
            if self.verdict is None and gate is self.gate:  # fast path: a single gate needs no list
                self.verdict = verdict
                return
            self.entries = [] if self.verdict is None else [(self.gate, self.verdict)]
        self.entries.append((gate, verdict))
        self.verdict = verdict if self.verdict is None else _merged(self.verdict, verdict)

    def reset(self, outer: "RateLimitState | None") -> None:
        """Reset the state for the next message. `outer`: the state of the same message in an outer middleware."""
        self.verdict, self.entries, self.extras = None, None, None
        if outer is not None and outer.verdict is not None:
            self.verdict, self.entries = outer.verdict, [*outer.verdicts_by_gate]

    @property
    def verdicts_by_gate(self) -> Sequence[GateVerdict]:
        """Each gate with its verdict."""
        if self.entries is not None:
            return self.entries
        return [] if self.verdict is None else [(self.gate, self.verdict)]

    def settle(self, actual: float) -> None:
        """Replace the estimated cost of this request by its true cost, in units; fractions are rounded up.

        The difference is charged or refunded in every limit that the request was charged to, except those with `settle
        = false`. The correction is sent when the app has returned or, if a rule tracks the response, when the response
        has ended. Until then each call replaces the one before. Later calls are sent at once: a higher value charges
        units, and the first lower value refunds units of the estimate. Units that have expired are not refunded. Units
        that do not fit become debt, at most one quota. Never raises. An invalid value is logged. If the value is
        invalid or the store fails, the estimate stays charged.
        """
        units = whole_units(actual)
        if type(units) is not int or units < 0:
            warn_throttled(
                "settle",
                "got %s, expected a finite number, 0 or more: the estimate stays charged",
                type(actual).__name__,
                code="RL-222",
            )
            return
        extras = self.ensure_extras()
        extras.actual_cost = min(units, MAX_EXACT_INT - 1)
        tracker = self.tracker
        if tracker is not None:
            tracker.settle_at_end()
        elif not self.in_app:
            self.settle_at_actual_cost()

    def app_returned(self) -> None:
        """Settle at the cost that the app passed to `settle()`, now that it has returned.

        For a tracked response, the tracker does this instead. The order matters: this method clears `in_app`, then
        reads `extras`; a thread in `settle()` writes `extras`, then reads `in_app`. So at least one of both settles.
        """
        in_app, self.in_app = self.in_app, False
        if in_app and self.extras is not None:
            self.settle_at_actual_cost()

    def ensure_extras(self) -> Extras:
        """Return `extras`, and create it if it is None."""
        with _lock:
            if self.extras is None:
                self.extras = Extras()
            return self.extras

    def settle_at_actual_cost(self) -> None:
        """Settle each limit at the cost that the app passed to `settle()`. Without such a call, nothing happens."""
        actual_cost = self.actual_cost
        if actual_cost is not None:
            self.settle_each(lambda _: actual_cost)

    def settle_each(self, actual_of: Callable[[Policy], int | None], loop: Any = None) -> None:
        """Settle each limit at the cost that `actual_of` returns for its policy. See `engine.settlement.settlements`.

        `loop`: the event loop for a store that must be awaited, if no loop runs in this thread.
        """
        extras = self.ensure_extras()
        with _lock:
            due = settlements(self.verdicts_by_gate, actual_of, extras.corrected)
        for gate, source, charges in due:
            gate.settle(source, charges, loop)


def _merged(outer: Verdict, inner: Verdict) -> Verdict:
    """Return `inner` followed by the charges of `outer`. A bucket that both charged has the decision of `inner`."""
    charges, decisions, policies = list(inner.charges[: len(inner.decisions)]), [*inner.decisions], [*inner.policies]
    positions = {request_bucket(charge): index for index, charge in enumerate(charges)}
    for charge, decision, policy in zip(outer.charges, outer.decisions, outer.policies, strict=False):
        index = positions.get(request_bucket(charge))
        if index is None:
            charges.append(charge)
            decisions.append(decision)
            policies.append(policy)
        else:
            charges[index] = replace(charges[index], cost=charges[index].cost + charge.cost)
    return replace(inner, charges=charges, decisions=decisions, policies=policies)

"""The rate limit state of a request, for the app and for inner middleware."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final
from weakref import ReferenceType

from msgspec import Struct, field
from msgspec.structs import replace

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, RequestBucket, request_bucket
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.verdict import CHARGE, RateLimited, RefusedCharge, Verdict
from ratelimit_mw.engine.settlement import Corrected, GateVerdict, settlements
from ratelimit_mw.http.callables import whole_units
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.http.response import policies_of
from ratelimit_mw.stores.lifecycle import fork_safe_lock

_lock: Final = fork_safe_lock()  # an app may call settle() from several threads


class Extras(Struct, gc=False):
    """The part of a `RateLimitState` that few requests need.

    `message`: the state of a websocket's last message, if messages are limited. `tracker`: a weak reference to what
    tracks the response to its end, if a rule needs that. `actual_cost`: the true cost that the app passed to
    `settle()` for all limits. `actual_costs`: the same by the name of a limit. `corrected`: what settlements have
    changed in each bucket so far.

    Neither class may have a strong reference to a request or a tracker: the garbage collector does not look into
    classes with `gc=False`, so it could not free a cycle with one of these.
    """

    message: "RateLimitState | None" = None
    tracker: "ReferenceType[Any] | None" = None
    actual_cost: int | None = None
    actual_costs: Mapping[str, int] = {}
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
    def is_refused(self) -> bool:
        """Whether a gate refused the request. A refused charge does not count, because the app may go on."""
        return self.verdict is not None and not self.verdict.allowed and self.verdict.rule != CHARGE

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
    def is_settled(self) -> bool:
        """Whether the app called `settle()`."""
        return self.extras is not None and (self.extras.actual_cost is not None or bool(self.extras.actual_costs))

    def actual_cost_of(self, policy: Policy) -> int | None:
        """Return the true cost of a limit that the app passed to `settle()`; None if it passed none for this limit."""
        extras = self.extras
        return None if extras is None else extras.actual_costs.get(policy.name, extras.actual_cost)

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

    def record_refused_charge(self, verdict: Verdict, gate: Any) -> None:
        """Add a refused charge of the app, in place of the one before: a websocket may make any number."""
        self.entries = [(one, admitted) for one, admitted in self.verdicts_by_gate if admitted.allowed]
        verdicts = [admitted for _, admitted in self.entries]
        self.verdict = reduce(_merged, verdicts) if verdicts else None
        self.record(verdict, gate)

    def refusal_of(self, error: RateLimited, gate: Any) -> Verdict:
        """Return the verdict of an error that the app let pass, and record it if it is not of a charge."""
        refusals = [one for _, one in self.verdicts_by_gate if not one.allowed]
        if isinstance(error, RefusedCharge) and refusals:  # of `raise_unhandled`: with the charges of the outer gates
            return next((one for one in refusals if one is error.verdict), refusals[-1])
        # the verdict of a `Limiter` has no policies, and headers find a policy by the position of its charge
        verdict = replace(error.verdict, policies=policies_of(error.verdict))
        self.record(verdict, gate)
        return verdict

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

    def settle(self, actual: float | Mapping[str, float]) -> None:
        """Replace the estimated cost of this request by its true cost, in units; fractions are rounded up.

        `actual`: the cost in every limit that the request was charged to, except those with `settle = false`; or, by
        the name of a limit, the cost in this limit: a limit without a name here keeps what was passed before, else the
        estimate.

        The difference is charged or refunded. The correction is sent when the app has returned or, if a rule tracks the
        response, when the response has ended. Until then each call replaces the one before. Later calls are sent at
        once: a higher value charges units, and the first lower value refunds units of the estimate. Units that have
        expired are not refunded. Units that do not fit become debt, at most one quota. An invalid value is logged. If
        the value is invalid or the store fails, the estimate stays charged. Raises `ConfigError` for a name that no
        limit of the settings and of the request has.
        """
        by_name = actual if isinstance(actual, Mapping) else None
        if by_name is not None:
            self._check_names(by_name)
        costs = {name: _valid_cost(value) for name, value in ({"": actual} if by_name is None else by_name).items()}
        valid = {name: cost for name, cost in costs.items() if cost is not None}
        if not valid:
            return
        extras = self.ensure_extras()
        if by_name is None:
            extras.actual_cost, extras.actual_costs = valid[""], {}
        else:
            extras.actual_costs = {**extras.actual_costs, **valid}
        tracker = self.tracker
        if tracker is not None:
            tracker.settle_at_end()
        elif not self.in_app:
            self.settle_at_actual_cost()

    def charge(self, limits: Any, *, key: str | tuple[str, ...], cost: int = 1, raises: bool = True) -> Any:
        """Charge `cost` units of the app's own limits for `key`, all or nothing, and return the verdict.

        Under ASGI, `await` it; in the thread of a sync endpoint, and under WSGI, it returns the verdict itself.
        `limits`, `key`: as in `Limiter.hit`; without a `key_secret`, the buckets are the same. A `max_delay` delays the
        call. If the store fails, `on_store_error` of the settings decides. `cost=0` looks only.

        Raises `RateLimited` if the charge is refused, unless `raises` is False. The middleware answers the request as
        one that it refused itself, if the app lets this error pass, also if a framework makes a 500 of it; not after
        the response has begun. What the request was charged before stays charged. Raises `ConfigError` for invalid
        limits, keys and costs.
        """
        gate = self.gate or self.verdicts_by_gate[0][0]
        return gate.charge(limits, key, cost, self if raises else None)

    def _check_names(self, names: Iterable[str]) -> None:
        """Raise `ConfigError` for names of no limit that is settled.

        Names of limits that do not apply to this request are valid: a tier or an override may have chosen other limits.
        """
        settled = {policy.name for _, one in self.verdicts_by_gate for policy in one.policies if policy.settles}
        unknown = [name for name in names if name not in settled]
        if not unknown:
            return
        gates = [self.gate, *(gate for gate, _ in self.verdicts_by_gate)]
        for gate in gates:
            if gate is not None:
                settled |= gate.rule_set.settled_names
                if gate.rule_set.has_dynamic_limits:  # which may have any names
                    return
        if unknown := [name for name in unknown if name not in settled]:
            raise ConfigError(
                f"settle: got {unknown[0]!r:.100}, expected the names of limits that are settled: "
                f"{', '.join(sorted(settled)) or 'there are none'}",
                code="RL-077",
            )

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
        if self.is_settled:
            self.settle_each(self.actual_cost_of)

    def settle_each(self, actual_of: Callable[[Policy], int | None], loop: Any = None) -> None:
        """Settle each limit at the cost that `actual_of` returns for its policy. See `engine.settlement.settlements`.

        `loop`: the event loop for a store that must be awaited, if no loop runs in this thread.
        """
        extras = self.ensure_extras()
        with _lock:
            due = settlements(self.verdicts_by_gate, actual_of, extras.corrected)
        for gate, source, charges in due:
            gate.settle(source, charges, loop)


def _valid_cost(value: object) -> int | None:
    """Return a cost that the app passed to `settle()`. If it is invalid, log it and return None."""
    units = whole_units(value)
    if type(units) is int and units >= 0:
        return min(units, MAX_EXACT_INT - 1)
    warn_throttled(
        "settle",
        "got %s, expected a finite number, 0 or more: the estimate stays charged",
        type(value).__name__,
        code="RL-222",
    )
    return None


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

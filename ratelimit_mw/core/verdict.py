"""The verdict on a whole request."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.errors import RateLimitError, StoreError
from ratelimit_mw.core.limit import Charge, Decision

CHARGE: Final = "charge"  # the rule of a verdict on units that the app itself charges, in a handler

Source = Literal["store", "remembered", "local", "allowed_on_error", "denied_on_error", "lease", "latency_goal"]
"""Where a verdict comes from.

`store`: the configured store. Also the value if nothing had to decide, e.g. for a refusal by the blocklist.
`remembered`: the deny cache. `lease`: units that the store charged in advance. `local`: the fallback store in this
process, because the store failed. `allowed_on_error`, `denied_on_error`: the setting `on_store_error`, because the
store failed. `denied_on_error` also if a callable of limits failed, and no default limits replaced its result.
`latency_goal`: refused because the app is too slow, before any charge."""


class Answer(list[Decision]):
    """Decisions that a layer over the store made without calling the store. They do not show whether the store works.

    `source`: "remembered" (deny cache) or "lease". Decisions of the store itself are in a plain sequence.
    """

    __slots__ = ("source",)

    def __init__(self, decisions: Iterable[Decision], source: Source) -> None:
        super().__init__(decisions)
        self.source: Source = source


class Verdict(Struct, frozen=True, gc=False):
    """The result for a whole request: all decisions, and the numbers of the charge that binds.

    If the request is refused, the refusing charge with the longest wait binds. If it is admitted, the charge with the
    smallest `remaining / limit` binds, then the one with the longest `next_after`. Ties go to the first charge. Shadow
    charges never bind. If no charge binds (no limits, or `source` is `allowed_on_error`, `denied_on_error` or
    `latency_goal`), limit and remaining are 0 and all times 0.0. A verdict is true if the request is admitted: `if not
    limiter.hit(...)`.
    """

    allowed: bool
    charges: Sequence[Charge]
    decisions: Sequence[Decision]
    rule: str | None = None  # the rule that ended the search; the limit of another one may bind
    source: Source = "store"
    policies: Sequence[Any] = ()  # one per charge if the middleware decided

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def binding(self) -> int | None:
        """Index of the binding charge in `charges` and `decisions`; None without one. Computed on each access."""
        if len(self.decisions) == 1:  # fast path
            return 0 if self.charges[0].role != "shadow" else None
        if not self.allowed:
            return self.binding_of(self.refusing)
        charges = self.charges[: len(self.decisions)]
        return self.binding_of([index for index, charge in enumerate(charges) if charge.role != "shadow"])

    @property
    def refusing(self) -> Sequence[int]:
        """Indices of the charges that refuse; empty if the request is admitted.

        Includes a penalty whose ban starts with this refusal. The penalty's decision still has `allowed` true, because
        the ban refuses only later requests.
        """
        if self.allowed:
            return ()
        pairs = enumerate(zip(self.charges, self.decisions, strict=False))  # no decisions after a store error
        return [
            index
            for index, (charge, decision) in pairs
            if charge.role != "shadow" and (not decision.allowed or self._starts_ban(index))
        ]

    def _starts_ban(self, index: int) -> bool:
        """Whether this refusal took the last unit of a penalty, which starts the penalty's ban."""
        decision = self.decisions[index]
        return self.charges[index].role == "penalty" and decision.allowed and not decision.remaining

    def _wait(self, index: int) -> float:
        """Return the wait of this charge of a refused request, in seconds: its `retry_after`, with one exception.

        If this refusal starts a penalty's ban, the wait is the penalty's `next_after`, the time until the ban ends. The
        penalty's own `retry_after` is 0.0: the ban did not refuse this request, it refuses the next one.
        """
        decision = self.decisions[index]
        return decision.next_after if self._starts_ban(index) else decision.retry_after

    def binding_of(self, candidates: Sequence[int]) -> int | None:
        """Return the index in `candidates` of the charge that binds; the first of equals, None without candidates."""
        best, smallest = None, (math.inf, math.inf)
        for index in candidates:
            order = self._binding_order(index)
            if best is None or order < smallest:
                best, smallest = index, order
        return best

    def _binding_order(self, index: int) -> tuple[float, float]:
        """Return the sort key of a charge. The candidate with the smallest sort key binds."""
        decision = self.decisions[index]
        if not self.allowed:
            # Headers also compare charges that admit. Those that refuse or start a ban come first, then longer waits.
            return float(decision.allowed and not self._starts_ban(index)), -self._wait(index)
        return decision.remaining / (decision.limit or 1), -decision.next_after

    @property
    def _binding_decision(self) -> Decision:
        return _NO_DECISION if self.binding is None else self.decisions[self.binding]

    @property
    def limit_name(self) -> str | None:
        """Name of the limit that binds, as headers show it; None without one, or if no middleware decided."""
        binding = self.binding if self.policies else None
        return None if binding is None else str(self.policies[binding].name)

    @property
    def limit(self) -> int:
        """Number of units from which `remaining` counts down."""
        return self._binding_decision.limit

    @property
    def remaining(self) -> int:
        """Whole units left."""
        return self._binding_decision.remaining

    @property
    def retry_after(self) -> float:
        """Seconds until the refused request would be admitted if no other is; 0.0 if admitted, inf for never."""
        binding = None if self.allowed else self.binding
        return 0.0 if binding is None else self._wait(binding)

    @property
    def next_after(self) -> float:
        """Seconds until `remaining + 1` units could pass."""
        return self._binding_decision.next_after

    @property
    def reset_after(self) -> float:
        """Seconds until the full quota is available again."""
        return self._binding_decision.reset_after

    @property
    def delay(self) -> float:
        """Seconds to delay the admitted request: the longest delay of its charges, except shadows."""
        if not self.allowed:
            return 0.0
        if len(self.decisions) == 1:
            return self.decisions[0].delay if self.charges[0].role != "shadow" else 0.0
        pairs = zip(self.charges, self.decisions, strict=False)  # no decisions after a store error
        return max((decision.delay for charge, decision in pairs if charge.role != "shadow"), default=0.0)


_NO_DECISION = Decision(True, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


def verdict_of(
    charges: Sequence[Charge],
    decisions: Sequence[Decision],
    rule: str | None = None,
    source: Source = "store",
    policies: Sequence[Any] = (),
) -> Verdict:
    """Return the verdict on a group, which is refused if any charge except a shadow refuses.

    The source of an `Answer` replaces `source`. Raises `StoreError` unless there is one decision per charge.
    """
    if len(decisions) != len(charges):
        raise StoreError(f"the store returned {len(decisions)} decisions on {len(charges)} charges")
    allowed = True
    for decision in decisions:
        if not decision.allowed:
            pairs = zip(charges, decisions, strict=True)
            allowed = all(one.allowed or charge.role == "shadow" for charge, one in pairs)
            break
    if type(decisions) is Answer:
        source = decisions.source
    return Verdict(allowed, charges, decisions, rule, source, policies)


def refunds_for(verdict: Verdict, actual: int = 0) -> Sequence[Charge]:
    """Return the charges that correct what an admitting verdict took to `actual` units; by default a full refund."""
    pairs = list(zip(verdict.charges, verdict.decisions, strict=False))  # no decisions after a store error
    # if one shadow refuses, no shadow was charged
    shadows = all(one.allowed for charge, one in pairs if charge.role == "shadow")
    charged_pairs = [pair for pair in pairs if pair[0].cost != actual and (pair[0].role == "limit" or shadows)]
    return [
        replace(charge, cost=actual - charge.cost, at=one.at)
        for charge, one in charged_pairs
        if charge.role != "penalty"
    ]


class RateLimited(RateLimitError):
    """A refused call. `verdict` contains the refusing limits and the wait."""

    def __init__(self, verdict: Verdict) -> None:
        never = math.isinf(verdict.retry_after)
        super().__init__(
            f"rate limited: {'waiting does not help' if never else f'retry after {verdict.retry_after} seconds'}"
        )
        self.verdict = verdict

    def __reduce__(self) -> tuple[type["RateLimited"], tuple[Verdict]]:
        """Support pickling, so that worker processes can raise it."""
        return type(self), (self.verdict,)


class RefusedCharge(RateLimited):
    """A refused charge of an app's own limits, see `RateLimitState.charge`. The integrations respond to it."""


def refusal_in(error: "RateLimited | ExceptionGroup[Exception]") -> RateLimited:
    """Return the refusal that an app raised. In a group, as of a framework's tasks, it is the only error.

    Raises any other group.
    """
    inner: Exception = error
    while isinstance(inner, ExceptionGroup) and len(inner.exceptions) == 1:
        inner = inner.exceptions[0]
    if not isinstance(inner, RateLimited):
        raise error
    return inner

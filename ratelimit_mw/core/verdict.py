"""The answer to a whole request."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.errors import RateLimitError, StoreError
from ratelimit_mw.core.limit import Charge, Decision

Source = Literal["store", "remembered", "local", "allowed_on_error", "denied_on_error", "lease"]


class Answer(list[Decision]):
    """Decisions that say where they come from, where that is not the state itself.

    `source`: what the verdict on them says.
    """

    __slots__ = ("source",)

    def __init__(self, decisions: Iterable[Decision], source: Source) -> None:
        super().__init__(decisions)
        self.source: Source = source


class Verdict(Struct, frozen=True, gc=False):
    """The answer to the whole request: every decision, and of the one that binds, its numbers.

    Refused, the longest `retry_after` among those that refuse binds; admitted, the smallest `remaining / limit`, then
    the longest `next_after`; ties go by the order of the charges. Shadow charges bind nothing. Without a charge that
    binds (no limits, or `source` is `allowed_on_error` or `denied_on_error`) limit and remaining are 0 and all times
    0.0.
    """

    allowed: bool
    charges: Sequence[Charge]
    decisions: Sequence[Decision]
    rule: str | None = None
    source: Source = "store"
    policies: Sequence[Any] = ()  # one per charge when the request came through the middleware

    @property
    def binding(self) -> int | None:
        """Which charge binds, as an index into `charges` and `decisions`. Worked out when asked for."""
        if len(self.decisions) == 1:
            return 0 if self.charges[0].role != "shadow" else None
        if not self.allowed:
            return self.binding_of(self.refusing)
        charges = self.charges[: len(self.decisions)]
        return self.binding_of([index for index, charge in enumerate(charges) if charge.role != "shadow"])

    @property
    def refusing(self) -> Sequence[int]:
        """Which charges refuse, as indices; none where the request is admitted.

        A ban that begins with this refusal is one of them: it has room for no other.
        """
        if self.allowed:
            return ()
        pairs = enumerate(zip(self.charges, self.decisions, strict=False))  # on an error there are no decisions
        return [
            index
            for index, (charge, decision) in pairs
            if charge.role != "shadow" and (not decision.allowed or self._starts_ban(index))
        ]

    def _starts_ban(self, index: int) -> bool:
        decision = self.decisions[index]
        return self.charges[index].role == "penalty" and decision.allowed and not decision.remaining

    def _wait(self, index: int) -> float:
        """Seconds until this charge of a refused request would pass."""
        decision = self.decisions[index]
        return decision.next_after if self._starts_ban(index) else decision.retry_after

    def binding_of(self, candidates: Sequence[int]) -> int | None:
        """Which of some charges binds: of equals the first."""
        best, smallest = None, (math.inf, math.inf)
        for index in candidates:
            slack = self._slack(index)
            if best is None or slack < smallest:
                best, smallest = index, slack
        return best

    def _slack(self, index: int) -> tuple[float, float]:
        decision = self.decisions[index]
        if not self.allowed:  # what refuses goes before what has room
            return float(decision.allowed and not self._starts_ban(index)), -self._wait(index)
        return decision.remaining / (decision.limit or 1), -decision.next_after

    @property
    def _binding_decision(self) -> Decision:
        return _NO_DECISION if self.binding is None else self.decisions[self.binding]

    @property
    def limit(self) -> int:
        """What `remaining` counts down from, units."""
        return self._binding_decision.limit

    @property
    def remaining(self) -> int:
        """Whole units left."""
        return self._binding_decision.remaining

    @property
    def retry_after(self) -> float:
        """Seconds until the same request, alone, is admitted; 0.0 when it was; inf when it never can."""
        binding = None if self.allowed else self.binding
        return 0.0 if binding is None else self._wait(binding)

    @property
    def next_after(self) -> float:
        """Seconds until one unit more than `remaining` could pass."""
        return self._binding_decision.next_after

    @property
    def reset_after(self) -> float:
        """Seconds until the quota is whole again."""
        return self._binding_decision.reset_after

    @property
    def delay(self) -> float:
        """Seconds the admitted request is to be held back: the longest of all that bind."""
        if not self.allowed:
            return 0.0
        if len(self.decisions) == 1:
            return self.decisions[0].delay if self.charges[0].role != "shadow" else 0.0
        pairs = zip(self.charges, self.decisions, strict=False)  # on an error there are charges and no decisions
        return max((decision.delay for charge, decision in pairs if charge.role != "shadow"), default=0.0)


_NO_DECISION = Decision(True, 0, 0, 0.0, 0.0, 0.0, 0.0, 0)


def verdict_of(
    charges: Sequence[Charge],
    decisions: Sequence[Decision],
    rule: str | None = None,
    source: Source = "store",
    policies: Sequence[Any] = (),
) -> Verdict:
    """The verdict on a group: refused when a charge that is not a shadow refuses.

    Decisions in an `Answer` name the source themselves.

    Raises `StoreError` when there is not one decision per charge.
    """
    if len(decisions) != len(charges):
        raise StoreError(f"the store gave {len(decisions)} decisions on {len(charges)} charges")
    allowed = True
    for decision in decisions:
        if not decision.allowed:
            pairs = zip(charges, decisions, strict=True)
            allowed = all(one.allowed or charge.role == "shadow" for charge, one in pairs)
            break
    if type(decisions) is Answer:
        source = decisions.source
    return Verdict(allowed, charges, decisions, rule, source, policies)


def refunds_for(verdict: Verdict) -> Sequence[Charge]:
    """The charges that give back everything that an admitting verdict took."""
    pairs = list(zip(verdict.charges, verdict.decisions, strict=False))  # on an error there are no decisions
    shadows = all(one.allowed for charge, one in pairs if charge.role == "shadow")  # else none of them was charged
    charged_pairs = [pair for pair in pairs if pair[0].cost and (pair[0].role == "limit" or shadows)]
    return [replace(charge, cost=-charge.cost, at=one.at) for charge, one in charged_pairs if charge.role != "penalty"]


class RateLimited(RateLimitError):
    """A call was refused. `verdict` says by what and for how long."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"rate limited: retry after {verdict.retry_after} seconds")
        self.verdict = verdict

    def __reduce__(self) -> tuple[type["RateLimited"], tuple[Verdict]]:
        """So that it comes back whole from another process, where jobs run."""
        return type(self), (self.verdict,)

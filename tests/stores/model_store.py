"""A minimal store: a dict, the functions of the algorithms, and the rules for groups of charges."""

from collections.abc import Callable, Sequence

from ratelimit_mw import Charge, Decision
from ratelimit_mw.core.limit import State

Bucket = tuple[str, str]


def bucket_of(charge: Charge) -> Bucket:
    return charge.key, charge.limit.bucket


class ModelStore:
    """A store in memory that never evicts. The algorithms handle expired states. `clock`: returns seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.states: dict[Bucket, State] = {}

    def take(self, charges: Sequence[Charge]) -> list[Decision]:
        return self._answer(charges, commit=True)

    def peek(self, charges: Sequence[Charge]) -> list[Decision]:
        return self._answer(charges, commit=False)

    def settle(self, charges: Sequence[Charge]) -> None:
        for charge in charges:
            now, bucket = self._now(), bucket_of(charge)
            at = now if charge.at is None else charge.at
            self.states[bucket] = charge.limit.settle(self.states.get(bucket), now, charge.cost, at)

    def reset(self, charges: Sequence[Charge]) -> None:
        for charge in charges:
            self.states.pop(bucket_of(charge), None)

    def close(self) -> None:
        self.states.clear()

    def _now(self) -> int:
        return round(self._clock() * 1_000_000)

    def _answer(self, charges: Sequence[Charge], *, commit: bool) -> list[Decision]:
        looks = {bucket_of(charge): self._look(charge, charges) for charge in charges}
        refusing = {charge.role for charge in charges if not looks[bucket_of(charge)][0].allowed}
        admitted = not refusing & {"limit", "penalty"}
        refused = {
            charge.key[: charge.key.find("}")]
            for charge in charges
            if charge.role == "limit" and not looks[bucket_of(charge)][0].allowed
        }

        def charged(charge: Charge) -> bool:
            if charge.role == "penalty":
                costs = any(other.cost for other in charges if bucket_of(other) == bucket_of(charge))
                return costs and "penalty" not in refusing and charge.key[: charge.key.find("}")] in refused
            return admitted and (charge.role == "limit" or "shadow" not in refusing)

        decisions = []
        for charge in charges:
            decision, state = looks[bucket_of(charge)]
            if decision.allowed and not charged(charge):
                before = self.states.get(bucket_of(charge))
                decisions.append(charge.limit.decide(before, self._now(), 0, None)[0])
            else:
                decisions.append(decision)
                looks[bucket_of(charge)] = decision, state
        if commit:
            for charge in charges:
                decision, state = looks[bucket_of(charge)]
                if charged(charge) or not decision.allowed:
                    self.states[bucket_of(charge)] = state
        return decisions

    def _look(self, charge: Charge, charges: Sequence[Charge]) -> tuple[Decision, State]:
        cost = sum(other.cost for other in charges if bucket_of(other) == bucket_of(charge))
        if charge.role == "penalty" and not cost:
            cost = 1  # a ban refuses charges without cost, too
        delay = None if charge.max_delay is None else round(charge.max_delay * 1_000_000)
        return charge.limit.decide(self.states.get(bucket_of(charge)), self._now(), cost, delay)

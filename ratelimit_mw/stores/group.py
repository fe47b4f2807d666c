"""Decides groups of charges: which of them share a bucket, which are charged in the end, and the states to write."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Decision, Limit, PlainGroup, State


def stored_bucket(charge: Charge) -> tuple[str, str]:
    """Return the pair that identifies the bucket of a charge in a store: its key, and the bucket id of its limit."""
    return charge.key, charge.limit.bucket


def hash_tag(key: str) -> str:
    """Return the text in the last braces of a key, which identifies the client; "" without braces. As in take.lua."""
    _, opened, rest = key.rpartition("{")
    tags, closed, rest = rest.partition("}")
    return tags if opened and closed and "}" not in rest else ""


def is_plain(charges: Sequence[Charge]) -> bool:
    """Return whether these charges can be a `PlainGroup`."""
    for charge in charges:
        if charge.role != "limit" or charge.cost < 0 or charge.max_delay is not None or charge.limit.uses_wall_time:
            return False
    return len(charges) == 1 or len(set(map(stored_bucket, charges))) == len(charges)


def cost_to_decide(charge: Charge) -> int:
    """Return the cost at which a charge is decided: its own, but 1 for a penalty of cost 0.

    A cost of 0 is always admitted. So a penalty of cost 0 could not refuse during its ban.
    """
    return 1 if charge.role == "penalty" and not charge.cost else charge.cost


class Group:
    """Charges, merged to one per bucket. `spread` maps their decisions back to the original charges."""

    __slots__ = ("_positions", "charges")

    def __init__(self, charges: Sequence[Charge]) -> None:
        self.charges = charges
        self._positions: list[int] | None = None  # indices in `charges` by original charge; None if nothing was merged
        if type(charges) is PlainGroup or (len(charges) == 1 and charges[0].cost >= 0):
            return
        # there are fewer buckets than charges if a bucket repeats or a cost is negative
        if len({(charge.key, charge.limit.bucket) for charge in charges if charge.cost >= 0}) != len(charges):
            self._merge_duplicates()

    def _merge_duplicates(self) -> None:
        positions: dict[tuple[str, str], int] = {}
        merged: list[Charge] = []
        for index, charge in enumerate(self.charges):
            if charge.cost < 0:
                raise ConfigError(
                    f"charges[{index}]: cost {charge.cost}: only settle accepts a negative cost", code="RL-045"
                )
            position = positions.setdefault((charge.key, charge.limit.bucket), len(merged))
            if position == len(merged):
                merged.append(charge)
            else:
                merged[position] = _sum(merged[position], charge, index)
        self._positions = [positions[charge.key, charge.limit.bucket] for charge in self.charges]
        self.charges = merged

    def spread(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Return one decision per original charge."""
        return decisions if self._positions is None else [decisions[position] for position in self._positions]


def can_be_summed(first: Charge, second: Charge) -> bool:
    """Whether two charges of one bucket can be merged."""
    one, other = (
        (charge.role, charge.effective_max_delay_us, charge.limit.numbers, charge.limit.keep)
        for charge in (first, second)
    )
    return one == other


def _sum(first: Charge, second: Charge, index: int) -> Charge:
    if not can_be_summed(first, second):
        raise ConfigError(
            f"charges[{index}]: the same bucket appears twice in one take with a different role, max_delay, at_once "
            "or rate; give one of the limits a name",
            code="RL-018",
        )
    return Charge(first.key, first.limit, first.cost + second.cost, first.max_delay, first.role)


def committed(charges: Sequence[Charge], decisions: Sequence[Decision]) -> list[bool]:
    """Return for each charge of a group whether it is charged. Limits are charged all together or not at all.

    A shadow never refuses. It is charged if the request is admitted and all shadows admit. A penalty refuses during its
    ban. It is charged if a limit with the same identity (`hash_tag`) refused, and no penalty of the group did. So if
    other clients have used up a shared limit, no client is banned for that. A penalty of cost 0 refuses in the same
    way, but counts nothing.
    """
    refusing = {charge.role for charge, decision in zip(charges, decisions, strict=True) if not decision.allowed}
    admitted = not refusing & {"limit", "penalty"}
    by_role = {"limit": admitted, "shadow": admitted and "shadow" not in refusing, "penalty": False}
    charged = [by_role[charge.role] for charge in charges]
    if "limit" in refusing and "penalty" not in refusing and any(charge.role == "penalty" for charge in charges):
        tags = [hash_tag(charge.key) for charge in charges]
        refused = {
            tags[index]
            for index, charge in enumerate(charges)
            if charge.role == "limit" and not decisions[index].allowed
        }
        return [
            charge.cost > 0 and tags[index] in refused if charge.role == "penalty" else charged[index]
            for index, charge in enumerate(charges)
        ]
    return charged


class Outcome(NamedTuple):
    """The outcome of a group. `states`: the new state of each charge's bucket; the given object if it is unchanged.

    `charged`: whether each charge counts. `refused`: whether a limit or a penalty refuses.
    """

    decisions: Sequence[Decision]
    states: Sequence[State]
    charged: Sequence[bool]
    refused: bool


def decide_group(
    charges: Sequence[Charge],
    states: Sequence[State],
    now: int,
    buckets: Sequence[Hashable] = (),
    times: Sequence[int] = (),
) -> Outcome:
    """Decide merged charges on the states of their buckets, at one time in microseconds. Pure.

    A charge that admits but does not count shows its bucket without it. A store writes `Outcome.states` in order, or
    none of them for a peek.

    `times`: the time by the clock of each charge, for a store whose `now` does not count from 1970; empty: it does.

    `buckets`: identifies the bucket of each charge, for a full store, where new keys share one; empty if each charge
    has its own. Whether a charge is admitted depends on the earlier charges of its bucket. What the bucket keeps, and
    what an admitted charge shows, includes only those of them that count.
    """
    decisions, news, refused = [], [], False
    times = times or [now] * len(charges)
    latest: dict[Hashable, State] = {}
    for index, charge in enumerate(charges):
        old = latest.get(buckets[index], states[index]) if buckets else states[index]
        decision, new = charge.limit.decide(old, times[index], cost_to_decide(charge), charge.max_delay_us)
        decisions.append(decision)
        news.append(new)
        if not decision.allowed and charge.role != "shadow":
            refused = True
        if buckets:
            latest[buckets[index]] = new
    charged = committed(charges, decisions)
    is_shared = len(latest) < len(buckets)
    if is_shared or not all(charged):
        latest.clear()
        for index, charge in enumerate(charges):
            old = latest.get(buckets[index], states[index]) if is_shared else states[index]
            if decisions[index].allowed and not charged[index]:
                decisions[index], news[index] = charge.limit.decide(old, times[index], 0, None)[0], old
            elif is_shared:
                decision, new = charge.limit.decide(old, times[index], cost_to_decide(charge), charge.max_delay_us)
                if charged[index]:
                    decisions[index], news[index] = decision, new
                else:  # alone it might be admitted
                    news[index] = old if decision.allowed else new
            if is_shared:
                latest[buckets[index]] = news[index]
    return Outcome(decisions, news, charged, refused)


def in_parts(units: int, limit: Limit) -> list[int]:
    """Split the units of a settlement into parts of at most `max_settle_units`. All parts have the sign of `units`.

    Units beyond two quotas (a full window and the debt) have no effect. The last part contains them as well, so it may
    exceed `max_settle_units`.
    """
    most = limit.max_settle_units
    if -most <= units <= most:
        return [units]
    full_parts, rest = divmod(max(most, units_that_count(abs(units), limit)), most)
    parts = [most] * full_parts + [rest] * (rest > 0)
    parts[-1] += abs(units) - sum(parts)
    return parts if units > 0 else [-part for part in parts]


def units_that_count(units: int, limit: Limit) -> int:
    """Cap units at the number that has an effect: two quotas, if the limit records each unit."""
    return units if limit.max_settle_units >= MAX_EXACT_INT else max(-2 * limit.quota, min(units, 2 * limit.quota))

"""The rules of a group of charges: which belong to one bucket, and which of them are charged in the end."""

from collections.abc import Sequence
from typing import Final

from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.limit import MAX_EXACT_INT, Charge, Decision, Limit

UNCOLLECTED: Final = "%d units go beyond a debt of one quota, and are not charged"


def hash_tag(key: str) -> str:
    """Whose a key is: what its last braces hold; all keys without are one's. As in take.lua."""
    _, opened, rest = key.rpartition("{")
    tags, closed, rest = rest.partition("}")
    return tags if opened and closed and "}" not in rest else ""


def settled_charge(charge: Charge, units: int, decision: Decision) -> Charge:
    """What a correction took: so many units, of a bucket that stands like that after it."""
    return Charge(charge.key, charge.limit, max(0, units), role=charge.role, at=decision.at)


def cost_to_decide(charge: Charge) -> int:
    """The cost with which a store looks at a charge of a take: a penalty refuses during its ban whatever it costs."""
    return 1 if charge.role == "penalty" and not charge.cost else charge.cost


class Group:
    """Charges with one bucket each. `spread` gives the decisions back in the order of the charges that were asked."""

    __slots__ = ("_positions", "charges")

    def __init__(self, charges: Sequence[Charge]) -> None:
        self.charges = charges
        self._positions: list[int] | None = None  # of each that was asked, among these; None where all have their own
        if len({(charge.key, charge.limit.bucket) for charge in charges if charge.cost >= 0}) != len(charges):
            self._merge_duplicates()

    def _merge_duplicates(self) -> None:
        positions: dict[tuple[str, str], int] = {}
        merged: list[Charge] = []
        for index, charge in enumerate(self.charges):
            if charge.cost < 0:
                raise ConfigError(f"charges[{index}]: cost {charge.cost}: only settle gives back")
            position = positions.setdefault((charge.key, charge.limit.bucket), len(merged))
            if position == len(merged):
                merged.append(charge)
            else:
                merged[position] = _sum(merged[position], charge, index)
        self._positions = [positions[charge.key, charge.limit.bucket] for charge in self.charges]
        self.charges = merged

    def spread(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """One decision per charge that was asked."""
        return decisions if self._positions is None else [decisions[position] for position in self._positions]


def can_be_summed(first: Charge, second: Charge) -> bool:
    """Whether two charges of one bucket can be asked as one."""
    one, other = ((charge.role, charge.effective_max_delay_us, charge.limit.numbers) for charge in (first, second))
    return one == other


def _sum(first: Charge, second: Charge, index: int) -> Charge:
    if not can_be_summed(first, second):
        raise ConfigError(
            f"charges[{index}]: the same bucket stands twice in one take with another role, max_delay, at_once or "
            "rate; give one of the limits a name"
        )
    return Charge(first.key, first.limit, first.cost + second.cost, first.max_delay, first.role)


def committed(charges: Sequence[Charge], decisions: Sequence[Decision]) -> list[bool]:
    """Which charges of a group are charged: all limits or none.

    A shadow never refuses; it is charged if the request is admitted and all shadows admit. A penalty refuses while
    its ban lasts; it is charged exactly when a limit of its own identity refused and no penalty did: what others used
    up of a limit that is shared bans nobody. A penalty of cost 0 refuses in the same way and counts nothing.
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


def in_parts(units: int, limit: Limit) -> list[int]:
    """Split a correction into the units of each step that the limit settles it in; below 0 all parts are.

    More than two quotas never count, a full window and the debt: the last part has all that is beyond them.
    """
    most = limit.max_settle_units
    if -most <= units <= most:
        return [units]
    full_parts, rest = divmod(max(most, units_that_count(abs(units), limit)), most)
    parts = [most] * full_parts + [rest] * (rest > 0)
    parts[-1] += abs(units) - sum(parts)
    return parts if units > 0 else [-part for part in parts]


def units_that_count(units: int, limit: Limit) -> int:
    """So many of these units as can make a difference to a limit that writes down each unit."""
    return units if limit.max_settle_units >= MAX_EXACT_INT else max(-2 * limit.quota, min(units, 2 * limit.quota))

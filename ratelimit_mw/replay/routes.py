"""Routes: the requests of a replay that match the same combination of rules."""

from collections.abc import Sequence
from typing import Final

from ratelimit_mw.replay.client_plans import ClientPlan
from ratelimit_mw.replay.tallies import RuleTally
from ratelimit_mw.rules.plan import Match

Caller = str | tuple[str, str]  # a client, and its user if there is one


class Route:
    """The requests that match one combination of rules. `seen`: how many came since they were last added up."""

    __slots__ = ("entries", "is_simple", "match", "row", "rows", "rule", "seen")

    def __init__(self, match: Match | None, rows: Sequence[RuleTally]) -> None:
        self.match = match
        self.rule = "" if match is None else match.rule
        self.rows = rows
        self.row: RuleTally | None = None  # the row of the limit, if there is a single one
        self.seen = 0
        self.entries: dict[Caller, ClientPlan] = {}
        self.is_simple = match is None or not (
            match.plan_cache is None or match.callables or match.settles or match.has_slots or match.may_delay
        )


class SharedPlan(dict[Caller, ClientPlan]):
    """The plans of a route, if all clients have the same plan."""

    def __init__(self, client_plan: ClientPlan) -> None:
        super().__init__()
        self._client_plan: Final = client_plan

    def __missing__(self, _: Caller) -> ClientPlan:
        return self._client_plan

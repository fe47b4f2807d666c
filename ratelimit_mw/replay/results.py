"""The results of a replay."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, to_builtins


class Offender(Struct, frozen=True):
    """A client and how many of its requests a rule refused.

    The rest tells an office behind one address from an attack. `first`, `last`: times of refused requests, in seconds
    since 1970. `statuses`: of the first 500 refused requests, how many had each status in the log. `path`: the most
    frequent one of them. `agents`: how many user agents they had, at most 50; 0 if the log has none.
    """

    client: str
    refused: int
    first: float = 0.0
    last: float = 0.0
    statuses: Mapping[str, int] = {}
    path: str = ""
    agents: int = 0


class RuleResult(Struct, frozen=True):
    """The results of one rule.

    `requests`: how many requests met the rule. `refused`: how many of them its limits refused or, if `shadow`, would
    have refused. `clients`: how many clients had a refusal. `most`: the clients with the most refusals.
    """

    rule: str
    requests: int
    refused: int
    clients: int
    most: Sequence[Offender]
    shadow: bool = False
    minutes: Mapping[int, Sequence[int]] = {}  # requests and refusals of each minute since 1970

    @property
    def share(self) -> float:
        """The share of the requests that was refused."""
        return self.refused / self.requests if self.requests else 0.0


class Described(Struct, frozen=True):
    """A client, and what tells an office behind one address from an attack.

    `number`: its refused requests, or its peak. `agents`, `paths`: how many user agents and paths its requests had, at
    most 50; no agents if the log has none. `path`: the most frequent one. `first`, `last`: times of its requests, in
    seconds since 1970.
    """

    client: str
    number: int
    agents: int
    paths: int
    path: str
    first: float
    last: float


class Suggestion(Struct, frozen=True):
    """The peaks of a rule's clients in one window, and the quota that divides honest clients from others, if any.

    `window`: seconds. `half`, `most`, `all`: the peak that half, 99 % and all of the clients do not exceed. `gap`: the
    widest relative gap among the largest hundredth of the peaks. `honest`: the peak below that gap. `quota`, `limit`:
    the suggested limit; None if the window does not tell the clients apart. `touched`, `refused`: how many of the
    `clients` and `requests` this limit refused in a second run. `recommended`: whether its gap is the widest one of the
    rule and key. `victims`: the clients with the most of these refusals. `offices`: clients that count as honest,
    because they may be many users behind one address, and their peaks; without them, the quota would be lower.
    """

    rule: str
    key: str
    window: float
    half: int
    most: int
    all: int
    gap: float
    honest: int
    clients: int
    requests: int
    quota: int | None = None
    limit: str | None = None
    touched: int = 0
    refused: int = 0
    recommended: bool = False
    victims: Sequence[Described] = ()
    offices: Sequence[Described] = ()

    @property
    def line(self) -> str:
        """A line for the rule in the settings file."""
        return f'limits = "{self.limit}"  # touches {self.touched:,} of {self.clients:,} clients'


class Peaks(Struct, frozen=True):
    """The distribution of the peaks of a rule's clients: the most units that each took in any window of one limit.

    `limit`: its notation. `counts`: how many clients have each peak. `cost`: the units of a request.
    """

    rule: str
    key: str
    limit: str
    quota: int
    window: float
    counts: Mapping[int, int]
    cost: int = 1

    @property
    def above(self) -> int:
        """How many clients took more than the quota in any window."""
        return sum(clients for peak, clients in self.counts.items() if peak > self.quota)


class Report(Struct, frozen=True, kw_only=True):
    """The requests of a log that settings would have refused.

    `lines`: the number of lines in the period, including the `unread` ones. `shown`: the first unread lines. `late`:
    the number of lines too far out of order to be sorted, which count at the time of the line before. `requests`,
    `refused`: the numbers for all rules together. `first`, `last`: seconds since 1970; None for an empty log. `notes`:
    remarks on the figures. `peaks`: only for an HTML report. `empty_reason`: why there are no lines, if the log
    has some; else empty.
    """

    lines: int
    unread: int
    shown: Sequence[str]
    requests: int
    refused: int
    rules: Sequence[RuleResult]
    suggested: Sequence[Suggestion] = ()
    first: float | None = None
    last: float | None = None
    notes: Sequence[str] = ()
    peaks: Sequence[Peaks] = ()
    late: int = 0
    empty_reason: str = ""

    def rule(self, name: str) -> RuleResult:
        """Return the results of a rule. Raises `KeyError` if no rule has this name."""
        for result in self.rules:
            if result.rule == name:
                return result
        raise KeyError(name)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON objects, without the data that only its charts need."""
        values: dict[str, Any] = to_builtins(self)
        del values["peaks"]
        for result in values["rules"]:
            del result["minutes"]
        return values

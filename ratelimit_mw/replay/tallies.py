"""Counts the requests and refusals of each rule in a replay, over time and by client."""

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from heapq import nlargest
from typing import Final, NamedTuple

from msgspec import Struct

from ratelimit_mw.core.limit import Charge
from ratelimit_mw.replay.formats.base import REQUEST, STATUS, Record
from ratelimit_mw.rules.plan import Plan
from ratelimit_mw.stores.group import hash_tag

MINUTE: Final = 60_000_000  # microseconds
_MOST_DETAILED: Final = 4096  # clients of a rule; when there are more, the half that was refused most is kept
_MOST_EXAMINED: Final = 500  # refused requests of a client whose status, path and user agent are counted
_MOST_VALUES: Final = 50  # different ones of each
_HOUR: Final = 60 * MINUTE
_OFFICE_AGENTS: Final = 5  # user agents; one person rarely has as many
_OFFICE_PATHS: Final = 5
_OFFICE_HOURS: Final = 4  # hours in which it sent requests


class RefusedRequests(Struct):
    """The refused requests of one client. `first`, `last`: microseconds since 1970.

    `statuses`, `paths`: how many of its first requests had each status and path. `agents`: their different user agents.
    """

    first: int
    last: int
    examined: int = 0
    statuses: dict[str, int] = {}
    paths: dict[str, int] = {}
    agents: set[str] = set()

    def examine(self, record: Record, agent: str) -> None:
        """Count one more request."""
        self.examined += 1
        for counts, text in ((self.statuses, str(record[STATUS])), (self.paths, record[REQUEST])):
            if text in counts or len(counts) < _MOST_VALUES:
                counts[text] = counts.get(text, 0) + 1
        if agent and len(self.agents) < _MOST_VALUES:
            self.agents.add(agent)


class RuleTally:
    """The counts of one rule.

    `minutes`: requests and refusals in each minute since 1970. `clients`: refusals by client. `details`: more about the
    clients that were refused most. `is_shadow`: whether the rule only counts the requests that it would have refused.
    """

    __slots__ = ("clients", "details", "is_shadow", "minutes", "name")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.is_shadow = False
        self.clients: Counter[str] = Counter()
        self.details: dict[str, RefusedRequests] = {}
        # a `partial`, because a lambda cannot be pickled for the process that adds the counts
        self.minutes: defaultdict[int, list[int]] = defaultdict(partial(list, (0, 0)))

    @property
    def requests(self) -> int:
        """All requests that met the rule."""
        return sum(requests for requests, _ in self.minutes.values())

    @property
    def refused(self) -> int:
        """All requests that a limit of the rule refused."""
        return sum(refused for _, refused in self.minutes.values())

    def refuse(self, client: str, now: int, record: Record, agent_of: Callable[[Record], str]) -> None:
        """Count the refusal of one request. `now`: microseconds since 1970. `agent_of`: returns its user agent."""
        self.clients[client] += 1
        self.minutes[now // MINUTE][1] += 1
        found = self.details.get(client)
        if found is None:
            if len(self.details) >= _MOST_DETAILED:
                kept = nlargest(_MOST_DETAILED // 2, self.details, key=self.clients.__getitem__)
                self.details = {name: self.details[name] for name in kept}
            found = self.details[client] = RefusedRequests(now, now)
        found.last = now
        if found.examined < _MOST_EXAMINED:
            found.examine(record, agent_of(record))

    def add(self, other: "RuleTally") -> None:
        """Add the counts of other clients."""
        self.is_shadow = self.is_shadow or other.is_shadow
        self.clients.update(other.clients)
        self.details.update(other.details)
        for minute, (requests, refused) in other.minutes.items():
            counts = self.minutes[minute]
            counts[0] += requests
            counts[1] += refused


class PopulationName(NamedTuple):
    """Identifies a population of clients: they have the same rule, key, and notations of limits."""

    rule: str
    key: str
    limits: tuple[str, ...]
    cost: int


class Member:
    """A client of a population. `times`: of its requests, in microseconds.

    `agents`: its different user agents. `paths`: how many of its requests had each text. At most 50 of each.
    """

    __slots__ = ("agents", "paths", "times")

    def __init__(self) -> None:
        self.times: array[int] = array("q")
        self.agents: set[str] = set()
        self.paths: dict[str, int] = {}

    def add(self, now: int, record: Record, agent: str) -> None:
        """Add a request. `now`: microseconds since 1970."""
        self.times.append(now)
        text = record[REQUEST].partition("?")[0]
        if text in self.paths or len(self.paths) < _MOST_VALUES:
            self.paths[text] = self.paths.get(text, 0) + 1
        if agent and len(self.agents) < _MOST_VALUES:
            self.agents.add(agent)

    @property
    def may_be_office(self) -> bool:
        """Whether this may be many users behind one address: several user agents, on several paths or all day."""
        if len(self.agents) < _OFFICE_AGENTS:
            return False
        return len(self.paths) >= _OFFICE_PATHS or len({time // _HOUR for time in self.times}) >= _OFFICE_HOURS


Population = dict[str, Member]
"""The clients of a population, by their identity."""


class Tallies:
    """All counts of a replay, or of its part in one process.

    `requests`: HTTP requests in the period. `refused`: refused requests. `unlimited`: requests that the settings
    exempt. `skipped`: lines without an HTTP request. `logged_refusals`: requests that were answered with 429.
    `preflights`: paths with an OPTIONS request. `nameless`: clients without an address. `populations`: kept for
    suggestions and for the report.
    """

    def __init__(self) -> None:
        self.rules: dict[str, RuleTally] = {}
        self.populations: defaultdict[PopulationName, Population] = defaultdict(dict)
        self.requests = self.refused = self.unlimited = 0
        self.skipped = self.logged_refusals = self.preflights = self.nameless = 0
        self.first: int | None = None  # microseconds since 1970
        self.last: int | None = None

    def add(self, other: "Tallies") -> None:
        """Add the counts of another process, which replayed other clients of the same logs.

        Numbers that do not depend on the client are not added, because both processes have counted them.
        """
        for name, tally in other.rules.items():
            self.rules.setdefault(name, RuleTally(name)).add(tally)
        for population, clients in other.populations.items():
            self.populations[population].update(clients)
        for counter in ("requests", "refused", "unlimited"):
            setattr(self, counter, getattr(self, counter) + getattr(other, counter))


def members_of(tallies: Tallies, made: Plan) -> list[Member]:
    """Return the client of a request in each population that it belongs to."""
    by_key: dict[tuple[str, str], list[Charge]] = {}
    for charge, compiled in zip(made.charges, made.compiled_limits, strict=True):
        counts_requests = charge.cost and isinstance(compiled.cost, int) and not charge.limit.is_concurrency
        if counts_requests and not compiled.is_penalty and not compiled.key.is_shared:
            by_key.setdefault((rule_of(charge.key), compiled.key.text), []).append(charge)
    members: list[Member] = []
    for (rule, key), charges in by_key.items():
        notations = tuple(dict.fromkeys(charge.limit.notation for charge in charges))
        name, identity = PopulationName(rule, key, notations, charges[0].cost), hash_tag(charges[0].key)
        members.append(tallies.populations[name].setdefault(identity, Member()))
    return members


def rule_of(key: str) -> str:
    """Return the name of the rule that a bucket's key ends with."""
    return key.rpartition("}:")[2].partition("/")[0].rstrip("+")

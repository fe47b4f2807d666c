"""The routes of a replay, the plan of each client on a route, and the states of the buckets in these plans."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ratelimit_mw.core.limit import MICROSECONDS, Charge, Decision, Limit, State
from ratelimit_mw.replay.tallies import Member, RuleTally
from ratelimit_mw.rules.plan import Match
from ratelimit_mw.rules.way import way_of
from ratelimit_mw.stores.generations import GenerationalMap
from ratelimit_mw.stores.memory import Entry, MemoryStore

MAX_KEYS: Final = 100_000_000  # a server's store drops keys earlier, if its `max_keys` is reached
_NEVER: Final = 1 << 62  # microseconds

Caller = str | tuple[str, str]  # a client, and its user if there is one
Decide = Callable[[State, int, int, None], tuple[Decision, State]]


class LastingStore(MemoryStore):
    """A store in memory that forgets nothing. `now`: the time of the log, in microseconds, which is its clock.

    An expired state decides like a new one, so the decisions are the same as those of a store that forgets. All
    states of a limit stay in one generation, because a lookup in an older generation takes ten times as long. In a log,
    nearly all requests come long after the last request of their client, so most lookups would be of that kind.
    """

    def __init__(self) -> None:
        self.now = 0
        super().__init__(max_keys=MAX_KEYS, clock=lambda: self.now / MICROSECONDS)
        # By the id of the limit. Contains the limit, so that no other limit can get its id. Clients share the bound
        # method, because with an object for each client, each request would have to load one more object.
        self._shared: Final[dict[int, tuple[Limit, Decide, dict[str, State]]]] = {}

    def _find(self, limit: Limit, key: str, now: int) -> Entry:
        if limit.bucket not in self._maps:
            self._maps[limit.bucket] = GenerationalMap(limit, _NEVER, MAX_KEYS)
        return super()._find(limit, key, now)

    def _drop_empty(self, now: int) -> None:
        """Drop nothing: `ClientPlan` writes states that are not counted here."""

    def bucket_of(self, charge: Charge) -> "Bucket":
        """Return the bucket that decides a charge. If the key has no state, its state is set to None."""
        limit = charge.limit
        shared = self._shared.get(id(limit))
        if shared is None:
            shared = self._shared[id(limit)] = limit, limit.decide, self._find(limit, "", 0)[0].current
        _, decide, states = shared
        states.setdefault(charge.key)
        return Bucket(decide, states, charge.key, charge.cost)


class Bucket(NamedTuple):
    """One charge of a client: the algorithm, the states of its limit, and the key and cost."""

    decide: Decide
    states: dict[str, State]
    key: str
    cost: int


class ClientPlan:
    """The charges of a client's requests on a route. `reason`: why there are no charges, if there are none.

    `members`: to which each request is added. `buckets`: the bucket of each charge, if each charge is a limit in
    a bucket of its own, so that the rest of a store is not needed; else empty.

    The other fields are for a plan with a single bucket, so that a request loads one object less. `decide_one`,
    `states`, `key`, `cost`: the fields of this bucket. `row`: the counts of its rule; None unless there is a single
    bucket. `label`: the client's name in results; empty until the first refusal.
    """

    __slots__ = ("buckets", "charges", "cost", "decide_one", "key", "label", "members", "reason", "row", "states")
    decide_one: Decide
    states: dict[str, State]
    key: str
    cost: int

    def __init__(self, charges: Sequence[Charge] = (), members: Sequence[Member] = (), reason: str = "") -> None:
        self.charges = charges
        self.members = members
        self.reason = reason
        self.buckets: Sequence[Bucket] = ()
        self.row: RuleTally | None = None
        self.label = ""

    def use(self, store: LastingStore) -> None:
        """Decide with the states of this store alone, if the rest of the store is not needed."""
        charges = self.charges
        if len(charges) == 1:
            is_plain = charges[0].role == "limit"
        else:
            buckets = {(charge.key, charge.limit.bucket) for charge in charges}
            is_plain = len(buckets) == len(charges) and all(charge.role == "limit" for charge in charges)
        if is_plain and charges:
            self.buckets = [store.bucket_of(charge) for charge in charges]
            self.decide_one, self.states, self.key, self.cost = self.buckets[0]

    def decide(self, now: int) -> Sequence[Decision]:
        """Decide all charges as a store does: charge all if all admit, else none."""
        results = [
            (bucket, old := bucket.states[bucket.key], bucket.decide(old, now, bucket.cost, None))
            for bucket in self.buckets
        ]
        admitted = all(result[0].allowed for _, _, result in results)
        decisions: list[Decision] = []
        for bucket, old, (decision, new) in results:
            if decision.allowed and not admitted:  # shows the bucket without this charge
                decisions.append(bucket.decide(old, now, 0, None)[0])
                continue
            decisions.append(decision)
            if new is not old:
                bucket.states[bucket.key] = new
        return decisions


class Route:
    """The requests that match one combination of rules.

    `seen`: how many came since they were last added up. `is_simple`: whether the client, the user and the route decide
    alone. `way`: the charges of a client without a user; None if more than its address decides.
    """

    __slots__ = ("is_simple", "match", "plans", "rows", "rule", "seen", "way")

    def __init__(self, match: Match | None, rows: Sequence[RuleTally]) -> None:
        self.match = match
        self.rule = "" if match is None else match.rule
        self.rows = rows
        self.seen = 0
        self.plans: dict[Caller, ClientPlan] = {}
        self.is_simple = match is None or _is_simple(match)
        self.way = None if match is None else way_of(match)


def _is_simple(match: Match) -> bool:
    if match.callables or match.settles or match.has_slots or match.may_delay or match.denied:
        return False
    limits = match.fixed_limits
    return limits is not None and not any(limit.key.headers or limit.key.cookies for limit in limits)


class SharedPlan(dict[Caller, ClientPlan]):
    """The plans of a route, if all clients have the same plan."""

    def __init__(self, client_plan: ClientPlan) -> None:
        super().__init__()
        self._client_plan: Final = client_plan

    def __missing__(self, _: Caller) -> ClientPlan:
        return self._client_plan

"""What a request is asked, and what the answer means: plan and conclude. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.limit import Bucket, Charge, Decision, bucket_of
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.memo import Budget, Memo
from ratelimit_mw.core.verdict import Source, Verdict, verdict_of
from ratelimit_mw.http.callables import CallResults, RequestCallable
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.http.keys import KeyContext
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import Policy
from ratelimit_mw.rules.compiled import CompiledLimit, LimitSet
from ratelimit_mw.stores.group import can_be_summed, hash_tag

_MAX_CACHED_LENGTH: Final = 256  # characters of a user or client of whom a plan is remembered
PLANS: Final = Budget(16_384)  # of recent clients, for all combinations of rules
_NETWORK_CACHE_SIZE: Final = 4096  # of IPv6 clients, whose networks are remembered


class Match:
    """The lines that apply to a request. One object per combination of rules, made once.

    `defaults`: what applies where a callable gives no limits. `route`: what the key `route` means unless the framework
    knows better. `denied`: refused without being asked. `may_read_user`: as far as is known before a request comes.
    `messages`: the same for each message, if it is a websocket's handshake; `closes`: there, whether a refused message
    ends it. `may_delay`: whether a request may be held back. `settles`: whether something of it is settled after the
    response; `has_slots`: whether slots are given back then; `has_queue`: whether a request may have to wait for one.
    """

    __slots__ = (
        *(
            "callables",
            "closes",
            "defaults",
            "denied",
            "static_limits",
            "settles",
            "groups",
            "messages",
            "policies",
            "may_read_user",
        ),
        *("has_slots", "plans_by_address", "prefix", "has_queue", "plan_cache", "route", "rule", "may_delay"),
    )

    def __init__(
        self,
        groups: Sequence[LimitSet],
        rule: str,
        route: str,
        defaults: LimitSet | None = None,
        *,
        denied: bool = False,
        messages: "Match | None" = None,
        closes: bool = False,
    ) -> None:
        self.groups = groups
        self.rule = rule
        self.route = route
        self.defaults = defaults
        self.denied = denied
        self.messages = messages
        self.closes = closes
        self.callables: list[RequestCallable] = list(
            dict.fromkeys(call for group in groups for call in group.callables)
        )
        self.static_limits: list[CompiledLimit] | None = None
        if all(group.static_limits is not None for group in groups):
            self.static_limits = [limit for group in groups for limit in group.static_limits or ()]
        elif defaults is not None:
            self.callables += [call for call in defaults.callables if call not in self.callables]
        self.policies = [limit.policy for limit in self.static_limits or ()]
        keys = [key for group in groups for key in (*group.keys, group.tier) if key is not None]
        self.may_read_user = any(key.may_read_user for key in keys)
        # plans by (user, client, route), where nothing else is looked at: a client that comes again costs one look-up
        again = self.static_limits is not None and all(
            limit.key.is_cacheable and isinstance(limit.cost, int) for limit in self.static_limits
        )
        self.plan_cache = Memo(self._plan_for_caller, PLANS) if again and not denied else None
        self.prefix = max((limit.key.prefix for limit in self.static_limits or ()), default=0)
        may_apply = [*groups, *([] if self.static_limits is not None or defaults is None else [defaults])]
        self.may_delay = any(group.may_delay for group in may_apply)
        self.settles = any(group.settles for group in may_apply)
        self.has_slots = any(group.has_slots for group in may_apply)
        self.has_queue = any(group.has_queue for group in may_apply)
        quick = self.plan_cache is not None and not (self.may_delay or self.settles or self.has_slots)
        self.plans_by_address: PlanCache | None = PlanCache(self._plan_for_address, self.prefix) if quick else None

    def limits_for(self, request: KeyContext, route: str, results: CallResults) -> Sequence[CompiledLimit] | None:
        """The lines of a request; None when a callable gave no limits, and neither did that of the defaults."""
        if self.static_limits is not None:
            return self.static_limits
        by_group: dict[LimitSet, Sequence[CompiledLimit]] = {}
        for group in self.groups:
            own = group.limits_for(request, route, results)
            if own is None and group.own is not None and group.own.shadow:
                continue  # it refuses nobody, so nothing has to stand in for it
            if own is None and self.defaults is not None:
                group = self.defaults  # noqa: PLW2901  # it stands in for the group, once
                own = (
                    group.limits_for(request, route, results) or None
                )  # where there are no default limits, nothing does
            if own is None:
                return None
            by_group[group] = own
        return [limit for limits in by_group.values() for limit in limits]

    def _plan_for_address(self, client: str | None) -> "Plan":
        plan_of_address = self._plan(None, client, None)
        is_single = [charge.role for charge in plan_of_address.charges] == ["limit"]
        return replace(plan_of_address, match=self, is_single=is_single)

    def _plan_for_caller(self, who: tuple[str | None, str | None, str | None]) -> "Plan":
        return self._plan(*who)

    def _plan(self, user: str | None, client: str | None, route: str | None) -> "Plan":
        return _plan(self, _PlanContext(user, client), route or self.route, {})


class _PlanContext(Struct, frozen=True, gc=False):
    """A caller of whom nothing else is asked."""

    user: str | None
    client: str | None
    cookies: Mapping[str, str] = {}

    def header(self, _: str) -> str | None:
        return None


class Plan(Struct, frozen=True, gc=False):
    """What the store is asked. `denied`: refused without asking, and as what that counts.

    `match`, and `is_single`, whether there is one charge, that can refuse: where nothing but the client's address
    counts.
    """

    charges: Sequence[Charge]
    compiled_limits: Sequence[CompiledLimit]
    policies: Sequence[Policy]
    denied: Source | None = None
    match: Any = None
    is_single: bool = False

    def subset(self, indices: Sequence[int]) -> "Plan":
        """A part of it."""
        parts = (self.charges, self.compiled_limits, self.policies)
        return Plan(*[[part[index] for index in indices] for part in parts])  # type: ignore[arg-type]  # one kind each


def _is_short(who: str | None) -> bool:
    return who is None or len(who) <= _MAX_CACHED_LENGTH


@cache
def _networks(prefix: int) -> Memo[str, str]:
    """What `_network_representative` says, remembered: one for all rules."""
    return Memo(partial(_network_representative, prefix=prefix), Budget(_NETWORK_CACHE_SIZE), _is_short)


def _network_representative(client: str, prefix: int) -> str:
    """The first address of an IPv6 client's network, of which the same is asked; else the client itself."""
    counted = client_address(client, prefix) if prefix else None
    first = client if counted is None else counted.partition("/")[0]
    return first if client_address(first, prefix) == counted else client  # such as one that means an IPv4 address


class PlanCache(Memo[str | None, Plan]):
    """What is asked of a client, by its address. `prefix`: by so many bits of an IPv6 address."""

    def __init__(self, make: Callable[[str | None], Plan], prefix: int) -> None:
        super().__init__(make, PLANS, _is_short)
        self._networks: Final = _networks(prefix)

    def __missing__(self, client: str | None) -> Plan:
        if client is not None and ":" in client:
            first = self._networks[client]
            if first != client:
                return self[first]
        return super().__missing__(client)


_DENIED: Final = Plan((), (), (), denied="store")
_UNKNOWN_LIMITS: Final = Plan((), (), (), denied="denied_on_error")


def owners(charge_plan: Plan) -> Sequence[str]:
    """The identities that a request has under its keys; none where it has no key but those that all clients share."""
    pairs = zip(charge_plan.charges, charge_plan.compiled_limits, strict=True)
    return list(dict.fromkeys(hash_tag(charge.key) for charge, limit in pairs if not limit.key.is_shared))


def plan(match: Match, request: Request, results: CallResults) -> Plan:
    """The charges of a request, given what the callables of its match answered."""
    if match.plan_cache is not None:
        user, client = request.user if match.may_read_user else None, request.client
        if _is_short(user) and _is_short(client):
            if client is not None and ":" in client:
                client = _networks(match.prefix)[client]
            return match.plan_cache[user, client, request.route]
    return _DENIED if match.denied else _plan(match, request, request.route or match.route, results)


def _plan(match: Match, request: KeyContext, route: str, results: CallResults) -> Plan:
    compiled_limits = match.limits_for(request, route, results)
    if compiled_limits is None:
        return Plan((), (), ()) if match.groups[0].settings.shadow else _UNKNOWN_LIMITS
    charges = []
    for limit in compiled_limits:
        identity = limit.key.identity(request, route, results)
        if identity is None:
            return _plan_without(compiled_limits, request, route, results)
        charges.append(limit.charges[identity, limit.cost_of(results)])
    return Plan(
        _with_distinct_buckets(charges),
        compiled_limits,
        match.policies if compiled_limits is match.static_limits else [limit.policy for limit in compiled_limits],
    )


def _plan_without(candidates: Sequence[CompiledLimit], request: KeyContext, route: str, results: CallResults) -> Plan:
    """The same when a key is not there."""
    charges, compiled_limits = [], []
    for limit in candidates:
        identity = limit.key.identity(request, route, results)
        if identity is None:
            warn_throttled(
                f"key {limit.key.text!r}", "is not there; missing_key = %r says what follows", limit.missing_key
            )
            if limit.missing_key == "deny" and not limit.shadow:
                return _DENIED
            if (
                limit.is_penalty
                or limit.missing_key == "deny"
                or (limit.missing_key == "exempt" and not limit.key.failed(results))
            ):
                continue  # a ban of all who have no key would be everybody's, for what one of them did
            identity = limit.missing_key_identity
        charges.append(limit.charges[identity, limit.cost_of(results)])
        compiled_limits.append(limit)
    return Plan(_with_distinct_buckets(charges), compiled_limits, [limit.policy for limit in compiled_limits])


def _with_distinct_buckets(charges: Sequence[Charge]) -> Sequence[Charge]:
    """The same charges; of two in one bucket that no store can sum, the second gets a bucket of its own.

    So both limits hold, where a store would refuse to be asked: limits of one name that callables give, for example.
    The answer is a tuple, which never changes: a store may remember what it makes of it.
    """
    if len(charges) == 1 or len({(charge.key, charge.limit.bucket) for charge in charges}) == len(charges):
        return tuple(charges)
    first_by_bucket: dict[tuple[str, str], Charge] = {}
    charges_apart = []
    for charge in charges:
        own = charge
        while not can_be_summed(first_by_bucket.setdefault((own.key, own.limit.bucket), own), own):
            own = replace(own, key=f"{own.key}+")  # no name has a plus
        charges_apart.append(own)
    return tuple(charges_apart)


def without_charged(charge_plan: Plan, charged: Iterable[Charge]) -> Plan:
    """Drop what outer middleware has charged already: whole charges, or the part of a cost that was charged.

    `charged`: the charges of the outer middleware. Penalties stay, because outer middleware cannot know whether this
    one refuses.
    """
    paid = Counter[Bucket]()
    for charge in charged:
        paid[bucket_of(charge)] += charge.cost
    if not any(bucket_of(charge) in paid for charge in charge_plan.charges):
        return charge_plan
    costs = [charge.cost - paid[bucket_of(charge)] for charge in charge_plan.charges]
    indices = [
        index for index, charge in enumerate(charge_plan.charges) if costs[index] > 0 or bucket_of(charge) not in paid
    ]
    if any(charge_plan.charges[index].role == "limit" for index in indices):  # which may refuse
        penalties = [index for index, charge in enumerate(charge_plan.charges) if charge.role == "penalty"]
        costs = [
            charge.cost if charge.role == "penalty" else costs[index]
            for index, charge in enumerate(charge_plan.charges)
        ]
        indices = sorted({*indices, *penalties})
    remaining = charge_plan.subset(indices)
    return replace(remaining, charges=[replace(charge_plan.charges[index], cost=costs[index]) for index in indices])


def without_store(charge_plan: Plan) -> tuple[Source, Plan]:
    """What happens when the store failed: the strictest of what the lines say, and what is asked locally instead.

    The charges are those of the store, of which a `FallbackStore` takes its share; the policies say that share.
    """
    modes = {limit.on_store_error for limit in charge_plan.compiled_limits if not limit.shadow}
    if "deny" in modes:
        return "denied_on_error", Plan((), (), ())
    indices = [index for index, limit in enumerate(charge_plan.compiled_limits) if limit.on_store_error == "local"]
    if not indices:
        return "allowed_on_error", Plan((), (), ())
    remaining = charge_plan.subset(indices)
    return "local", replace(remaining, policies=[limit.local_policy for limit in remaining.compiled_limits])


def conclude(match: Match, charge_plan: Plan, decisions: Sequence[Decision], source: Source = "store") -> Verdict:
    """The verdict on a request."""
    if charge_plan.denied is not None or source == "denied_on_error":
        return Verdict(False, (), (), match.rule, charge_plan.denied or source)
    return verdict_of(charge_plan.charges, decisions, match.rule, source, charge_plan.policies)

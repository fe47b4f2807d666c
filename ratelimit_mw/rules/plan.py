"""Plans the charges of a request, and makes the verdict from their decisions. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision, RequestBucket, request_bucket
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.memo import Budget, Memo
from ratelimit_mw.core.verdict import Source, Verdict, verdict_of
from ratelimit_mw.http.callables import CallResults, RequestCallable
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.http.cookies import Cookies
from ratelimit_mw.http.keys import KeyContext
from ratelimit_mw.http.networks import is_ipv4
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.response import Policy
from ratelimit_mw.settings.compiled import CompiledLimit, LimitSet
from ratelimit_mw.stores.group import can_be_summed, hash_tag

_MAX_CACHED_LENGTH: Final = 256  # characters of a user or client address; plans for longer ones are not cached
PLAN_BUDGET: Final = Budget(16_384, second_use=True)  # plans of recent clients, for all combinations of rules
_NO_USER: Final = "; if all requests lack it, authenticate outside the rate limiter"
_NETWORK_CACHE_SIZE: Final = 4096  # IPv6 addresses


class Match:
    """The limits that apply to a request. There is one object per combination of rules.

    `defaults`: the limits that apply if a callable returns no valid ones. `route`: the value of the key `route`, unless
    the framework knows the route. `denied`: the request is refused without a query of the store. `may_read_user`: a key
    may read the user; also true with a callable's limits, whose keys are unknown. `messages`: the limits of each
    message, if the request is a websocket handshake. `closes`: in `messages`, a refused message closes the websocket.
    `may_delay`, `settles`, `has_slots`, `has_queue`: see `LimitSet`.
    """

    __slots__ = (
        "_limits_by_ip",
        "callables",
        "closes",
        "defaults",
        "denied",
        "fixed_limits",
        "has_queue",
        "has_slots",
        "limit_sets",
        "may_delay",
        "may_read_user",
        "messages",
        "plan_cache",
        "plans_by_address",
        "policies",
        "prefix",
        "route",
        "rule",
        "settles",
    )

    def __init__(
        self,
        limit_sets: Sequence[LimitSet],
        rule: str,
        route: str,
        defaults: LimitSet | None = None,
        *,
        denied: bool = False,
        messages: "Match | None" = None,
        closes: bool = False,
    ) -> None:
        self.limit_sets = limit_sets
        self.rule = rule
        self.route = route
        self.defaults = defaults
        self.denied = denied
        self.messages = messages
        self.closes = closes
        self.callables: list[RequestCallable] = list(
            dict.fromkeys(call for limit_set in limit_sets for call in limit_set.callables)
        )
        self.fixed_limits: list[CompiledLimit] | None = None
        if all(limit_set.fixed_limits is not None for limit_set in limit_sets):
            self.fixed_limits = [limit for limit_set in limit_sets for limit in limit_set.fixed_limits or ()]
        elif defaults is not None:
            self.callables += [call for call in defaults.callables if call not in self.callables]
        self.policies = [limit.policy for limit in self.fixed_limits or ()]
        keys = [key for limit_set in limit_sets for key in (*limit_set.keys, limit_set.tier) if key is not None]
        self.may_read_user = any(key.may_read_user for key in keys)
        # Plans by (user, client, route), if plans depend on nothing else. Then each later request of a client costs one
        # lookup.
        can_cache = self.fixed_limits is not None and all(
            limit.key.is_cacheable and isinstance(limit.cost, int) for limit in self.fixed_limits
        )
        self.plan_cache = Memo(self._plan_for_caller, PLAN_BUDGET) if can_cache and not denied else None
        self.prefix = max((limit.key.prefix for limit in self.fixed_limits or ()), default=0)
        may_apply = [*limit_sets, *([] if self.fixed_limits is not None or defaults is None else [defaults])]
        self.may_delay = any(limit_set.may_delay for limit_set in may_apply)
        self.settles = any(limit_set.settles for limit_set in may_apply)
        self.has_slots = any(limit_set.has_slots for limit_set in may_apply)
        self.has_queue = any(limit_set.has_queue for limit_set in may_apply)
        has_fast_path = self.plan_cache is not None and not (
            self.may_delay
            or self.settles
            or self.has_slots
            or any(limit.key.may_read_route for limit in self.fixed_limits or ())
        )
        self.plans_by_address: PlanCache | None = (
            PlanCache(self.plan_for_address, self.prefix) if has_fast_path else None
        )
        self._limits_by_ip: Sequence[CompiledLimit] = ()  # all limits, if all read the address, each in its own bucket
        if has_fast_path and all(limit.key.is_ip_without_user for limit in self.fixed_limits or ()):
            samples = [limit.charge("{}", limit.cost_of({})) for limit in self.fixed_limits or ()]
            if len({(charge.key, charge.limit.bucket) for charge in samples}) == len(samples):
                self._limits_by_ip = self.fixed_limits or ()

    def limits_for(self, request: KeyContext, route: str, results: CallResults) -> Sequence[CompiledLimit] | None:
        """Return the limits of a request; None if a callable returned no valid ones and no defaults replace them."""
        if self.fixed_limits is not None:
            return self.fixed_limits
        by_limit_set: dict[LimitSet, Sequence[CompiledLimit]] = {}
        for limit_set in self.limit_sets:
            chosen = limit_set.limits_for(request, route, results)
            if chosen is None and limit_set.rule is not None and limit_set.rule.shadow:
                continue  # a shadow rule refuses no request, so the defaults need not replace it
            if chosen is None and self.defaults is not None:
                limit_set = self.defaults  # noqa: PLW2901  # the defaults replace it, at most once
                # an empty list of default limits cannot replace a limit
                chosen = limit_set.limits_for(request, route, results) or None
            if chosen is None:
                return None
            by_limit_set[limit_set] = chosen
        return [limit for limits in by_limit_set.values() for limit in limits]

    def plan_for_address(self, client: str | None) -> "Plan":
        """Make the plan of a client address. `plans_by_address` caches it; if that is None, do not call this method."""
        limits = self._limits_by_ip
        if limits and client is not None and is_ipv4(client):  # the same as `_plan`, in half the time
            tag = limits[0].tag_of(f"ip={client}")
            charges = tuple([limit.charge(tag, limit.cost_of({})) for limit in limits])
            return Plan(charges, limits, self.policies, None, self, _is_single(charges))
        by_address = self._plan_for_caller((None, client, None))
        # a plan without a key, from `_plan_without`, has no match
        return by_address if by_address.match is self else replace(by_address, match=self)

    def _plan_for_caller(self, caller: tuple[str | None, str | None, str | None]) -> "Plan":
        user, client, route = caller
        return _plan(self, _PlanContext(user, client), route or self.route, {})


class _PlanContext(Struct, frozen=True, gc=False):
    """The part of a request that cached plans depend on."""

    user: str | None
    client: str | None
    cookies: Cookies = Cookies(())

    def header(self, _: str) -> str | None:
        return None

    def header_lines(self, _: str) -> Sequence[str]:
        return ()


class Plan(Struct, frozen=True, gc=False):
    """The charges of a request, each with its limit and policy.

    `denied_source`: the source of the verdict if the request is refused without a query of the store. `match`: always
    set in plans by client address; in others, None if a callable chose the limits or a key is missing. `is_single`:
    true only if there is exactly one charge, of the role `limit`; false also if a callable chose the limits or a key is
    missing.
    """

    charges: Sequence[Charge]
    compiled_limits: Sequence[CompiledLimit]
    policies: Sequence[Policy]
    denied_source: Source | None = None
    match: Any = None
    is_single: bool = False

    def subset(self, indices: Sequence[int]) -> "Plan":
        """Return a plan with some of the charges."""
        parts = (self.charges, self.compiled_limits, self.policies)
        return Plan(*[[part[index] for index in indices] for part in parts])  # type: ignore[arg-type]  # one kind each


def _is_short(text: str | None) -> bool:
    return text is None or len(text) <= _MAX_CACHED_LENGTH


@cache
def _networks(prefix: int) -> Memo[str, str]:
    """Return the cache of `_network_representative`, which all rules share."""
    return Memo(partial(_network_representative, prefix=prefix), Budget(_NETWORK_CACHE_SIZE), _is_short)


def _network_representative(client: str, prefix: int) -> str:
    """Return the first address of an IPv6 client's network, which has the same plan. Other clients are unchanged."""
    counted = client_address(client, prefix) if prefix else None
    first = client if counted is None else counted.partition("/")[0]
    return first if client_address(first, prefix) == counted else client  # e.g. an IPv4-mapped address


class PlanCache(Memo[str | None, Plan]):
    """Plans by client address. `prefix`: the bits of an IPv6 address that matter."""

    def __init__(self, make: Callable[[str | None], Plan], prefix: int) -> None:
        super().__init__(make, PLAN_BUDGET, _is_short)
        self._networks: Final = _networks(prefix)

    def __missing__(self, client: str | None) -> Plan:
        if client is not None and ":" in client:
            first = self._networks[client]
            if first != client:
                return self[first]
        return super().__missing__(client)


# The settings refuse the request with a 403. `store` is also the source if no store was queried, see `Source`.
_DENIED: Final = Plan((), (), (), denied_source="store")
# The limits are unknown, because a callable failed: the request gets a 503, as if the store had failed.
_UNKNOWN_LIMITS: Final = Plan((), (), (), denied_source="denied_on_error")


def client_identities(charge_plan: Plan) -> Sequence[str]:
    """Return the identities of a request, except those that all clients share."""
    pairs = zip(charge_plan.charges, charge_plan.compiled_limits, strict=True)
    return list(dict.fromkeys(hash_tag(charge.key) for charge, limit in pairs if not limit.key.is_shared))


def plan(match: Match, request: Request, results: CallResults) -> Plan:
    """Return the charges of a request, given the results of the callables of its match."""
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
        return Plan((), (), ()) if match.limit_sets[0].settings.shadow else _UNKNOWN_LIMITS
    charges = []
    last = tag = ""
    for limit in compiled_limits:
        identity = limit.key.identity(request, route, results)
        if identity is None:
            return _plan_without(compiled_limits, request, route, results)
        if identity != last:  # computed once for successive limits with the same key, because the hash takes time
            last, tag = identity, limit.tag_of(identity)
        charges.append(limit.charge(tag, limit.cost_of(results)))
    if match.fixed_limits is None:
        return Plan(_with_distinct_buckets(charges), compiled_limits, [limit.policy for limit in compiled_limits])
    return Plan(_with_distinct_buckets(charges), compiled_limits, match.policies, None, match, _is_single(charges))


def _is_single(charges: Sequence[Charge]) -> bool:
    return len(charges) == 1 and charges[0].role == "limit"


def _plan_without(candidates: Sequence[CompiledLimit], request: KeyContext, route: str, results: CallResults) -> Plan:
    """Return the plan of a request that lacks a key, as `missing_key` specifies."""
    charges, compiled_limits = [], []
    for limit in candidates:
        identity = limit.key.identity(request, route, results)
        if identity is None and limit.key_if_raised is not None and limit.key.raised(results):
            identity = limit.key_if_raised.identity(request, route, results)
        if identity is None:
            missing_key = limit.missing_key
            if missing_key == "exempt" and (limit.key.failed(results) or limit.key.is_ambiguous(request)):
                missing_key = "shared"  # otherwise a client could repeat a header to be exempt
            warn_throttled(
                limit.key.place,
                "is missing; missing_key = %r applies%s",
                missing_key,
                _NO_USER if limit.key.requires_user else "",
                code="RL-213",
            )
            if missing_key == "deny" and not limit.shadow:
                return _DENIED
            # all clients without the key share a bucket, so one could get all of them banned
            if limit.is_penalty or missing_key != "shared":
                continue
        tag = limit.missing_key_tag if identity is None else limit.tag_of(identity)
        charges.append(limit.charge(tag, limit.cost_of(results)))
        compiled_limits.append(limit)
    return Plan(_with_distinct_buckets(charges), compiled_limits, [limit.policy for limit in compiled_limits])


def _with_distinct_buckets(charges: Sequence[Charge]) -> Sequence[Charge]:
    """Return the charges, each in a bucket of its own or in one that can be summed.

    If two charges share a bucket but cannot be summed, `+` is appended to the key of the second, which gives it a
    bucket of its own. Otherwise the store would reject the charges. This happens, for example, if callables return
    different limits of one name.

    Returns a tuple, so that a store can use it as the key of a cache.
    """
    if len(charges) == 1 or len({(charge.key, charge.limit.bucket) for charge in charges}) == len(charges):
        return tuple(charges)
    first_by_bucket: dict[tuple[str, str], Charge] = {}
    distinct_charges = []
    for charge in charges:
        distinct = charge
        while not can_be_summed(first_by_bucket.setdefault((distinct.key, distinct.limit.bucket), distinct), distinct):
            distinct = replace(distinct, key=f"{distinct.key}+")  # unique: names have no plus sign
        distinct_charges.append(distinct)
    return tuple(distinct_charges)


def without_charged(charge_plan: Plan, charged: Iterable[Charge]) -> Plan:
    """Leave out what outer middleware has charged already: whole charges, or the charged part of a cost.

    `charged`: the charges of the outer middleware. Penalties stay, because the outer middleware cannot know whether
    this middleware refuses.
    """
    paid = Counter[RequestBucket]()
    for charge in charged:
        paid[request_bucket(charge)] += charge.cost
    if not any(request_bucket(charge) in paid for charge in charge_plan.charges):
        return charge_plan
    costs = [charge.cost - paid[request_bucket(charge)] for charge in charge_plan.charges]
    indices = [
        index
        for index, charge in enumerate(charge_plan.charges)
        if costs[index] > 0 or request_bucket(charge) not in paid
    ]
    if any(charge_plan.charges[index].role == "limit" for index in indices):  # this middleware may refuse
        penalties = [index for index, charge in enumerate(charge_plan.charges) if charge.role == "penalty"]
        costs = [
            charge.cost if charge.role == "penalty" else costs[index]
            for index, charge in enumerate(charge_plan.charges)
        ]
        indices = sorted({*indices, *penalties})
    remaining = charge_plan.subset(indices)
    return replace(remaining, charges=[replace(charge_plan.charges[index], cost=costs[index]) for index in indices])


def plan_on_store_error(charge_plan: Plan) -> tuple[Source, Plan]:
    """Return what replaces the failed store: the source of the verdict, and the plan for the fallback store.

    If a limit has `on_store_error = "deny"`, the request is refused. Otherwise, the limits with `local` are decided in
    this process, and those with `allow` are skipped. The `deny` of a shadow limit has no effect. The
    charges of the plan are unchanged, because a `FallbackStore` scales them. Its policies are those of the scaled
    limits.
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
    """Return the verdict on a request, given the decisions on its charges."""
    if charge_plan.denied_source is not None or source == "denied_on_error":
        return Verdict(False, (), (), match.rule, charge_plan.denied_source or source)
    return verdict_of(charge_plan.charges, decisions, match.rule, source, charge_plan.policies)

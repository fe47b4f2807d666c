"""Plans the charges of a request, and makes the verdict from their decisions. Pure: no store, no clock, no I/O."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.core.limit import Charge, Decision, RequestBucket, request_bucket
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.memo import cached_property
from ratelimit_mw.core.verdict import Source, Verdict, verdict_of
from ratelimit_mw.http.callables import CallResults, RequestCallable
from ratelimit_mw.http.cookies import Cookies
from ratelimit_mw.http.keys import KeyContext
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.overrides import NO_OVERRIDES, ActiveOverrides
from ratelimit_mw.settings.compiled import CompiledLimit, LimitSet
from ratelimit_mw.settings.features import Priority
from ratelimit_mw.stores.group import can_be_summed, hash_tag

BLOCKLIST: Final = "blocklist"  # the rule of requests that no limit refuses, but a block
_NO_USER: Final = "; if all requests lack it, authenticate outside the rate limiter"


class Match:
    """The limits that apply to a request. There is one object per combination of rules.

    `defaults`: the limits that apply if a callable returns no valid ones. `route`: the value of the key `route`, unless
    the framework knows the route. `denied`: the request is refused without a query of the store;
    `source` is then that of the verdict. `priority`: see `engine.overload`. `may_read_user`: a key
    may read the user; also true with a callable's limits, whose keys are unknown. `messages`: the limits of each
    message, if the request is a websocket handshake. `closes`: in `messages`, a refused message closes the websocket.
    `may_delay`, `settles`, `has_slots`, `has_queue`, `shares_fairly`: see `LimitSet`.
    """

    __slots__ = (
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
        "policies",
        "priority",
        "route",
        "rule",
        "settles",
        "shares_fairly",
        "source",
    )

    def __init__(
        self,
        limit_sets: Sequence[LimitSet],
        rule: str,
        route: str,
        defaults: LimitSet | None = None,
        *,
        denied: bool = False,
        source: Source = "store",
        priority: Priority = "normal",
        messages: "Match | None" = None,
        closes: bool = False,
    ) -> None:
        self.limit_sets = limit_sets
        self.rule = rule
        self.route = route
        self.defaults = defaults
        self.denied = denied
        self.source: Source = source
        self.priority: Priority = priority
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
        may_apply = [*limit_sets, *([] if self.fixed_limits is not None or defaults is None else [defaults])]
        self.may_delay = any(limit_set.may_delay for limit_set in may_apply)
        self.settles = any(limit_set.settles for limit_set in may_apply)
        self.has_slots = any(limit_set.has_slots for limit_set in may_apply)
        self.has_queue = any(limit_set.has_queue for limit_set in may_apply)
        self.shares_fairly = any(limit_set.shares_fairly for limit_set in may_apply)

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


class Plan(Struct, frozen=True, gc=False):
    """The charges of a request, each with its limit and policy.

    `denied_source`: the source of the verdict if the request is refused without a query of the store. `is_blocked`:
    because an override blocks the client.
    """

    charges: Sequence[Charge]
    compiled_limits: Sequence[CompiledLimit]
    policies: Sequence[Policy]
    denied_source: Source | None = None
    is_blocked: bool = False

    def subset(self, indices: Sequence[int]) -> "Plan":
        """Return a plan with some of the charges."""
        parts = (self.charges, self.compiled_limits, self.policies)
        return Plan(*[[part[index] for index in indices] for part in parts])  # type: ignore[arg-type]  # one kind each


# The settings refuse the request with a 403. `store` is also the source if no store was queried, see `Source`.
_DENIED: Final = Plan((), (), (), denied_source="store")
_BLOCKED: Final = Plan((), (), (), denied_source="store", is_blocked=True)
# The limits are unknown, because a callable failed: the request gets a 503, as if the store had failed.
_UNKNOWN_LIMITS: Final = Plan((), (), (), denied_source="denied_on_error")


def client_identities(plan: Plan) -> Sequence[str]:
    """Return the identities of a request, except those that all clients share."""
    pairs = zip(plan.charges, plan.compiled_limits, strict=True)
    return list(dict.fromkeys(hash_tag(charge.key) for charge, limit in pairs if not limit.key.is_shared))


def make_plan(  # noqa: C901  # a call of a part would add to the time of every request
    match: Match,
    request: Request,
    results: CallResults,
    overrides: ActiveOverrides = NO_OVERRIDES,
    *,
    only_own: bool = False,
) -> Plan:
    """Return the charges of a request, given the results of the callables of its match.

    `only_own`: leaves out limits that other clients share, those that headers hide, and those whose key is missing.
    """
    if match.denied:
        return replace(_DENIED, denied_source=match.source)
    route = request.route or match.route
    context = _UserReadOnce(request) if match.may_read_user else request
    compiled_limits = original_limits = match.limits_for(context, route, results)
    refuses = not match.limit_sets[0].settings.shadow
    if compiled_limits is None:
        if overrides.limits_for((), context, route, results, refuses=refuses) is None:
            return _BLOCKED
        is_open = not refuses or overrides.switch_of_all() is not None
        return Plan((), (), ()) if is_open else _plan_without_limits(match, context, route, results)
    if overrides.concerns_request(compiled_limits, context, route, results):
        compiled_limits = overrides.limits_for(compiled_limits, context, route, results, refuses=refuses)
        if compiled_limits is None:
            return _BLOCKED
    if only_own:
        compiled_limits = [
            limit
            for limit in compiled_limits
            if limit.is_own and limit.key.identity(context, route, results) is not None
        ]
    charges = []
    last = tag = ""
    for limit in compiled_limits:
        identity = limit.key.identity(context, route, results)
        if identity is None:
            return _plan_without(compiled_limits, context, route, results)
        if identity != last:  # computed once for successive limits with the same key, because the hash takes time
            last, tag = identity, limit.tag_of(identity)
        charges.append(limit.charge(tag, limit.cost_of(results)))
    if match.shares_fairly:
        for limit, charge in zip(compiled_limits, charges, strict=True):
            limit.held_by(charge, context, route, results)
    is_fixed = match.fixed_limits is not None and compiled_limits is original_limits
    policies = match.policies if is_fixed else [limit.policy for limit in compiled_limits]
    return Plan(with_distinct_buckets(charges), compiled_limits, policies)


class _UserReadOnce:
    """What keys read of a request. Reads the user at most once, because that may query a database."""

    def __init__(self, request: Request) -> None:
        self._request: Final = request
        self.client: Final = request.client
        self.header: Final = request.header
        self.header_lines: Final = request.header_lines

    @cached_property
    def user(self) -> str | None:
        return self._request.user

    @property
    def cookies(self) -> Cookies:
        return self._request.cookies


def _plan_without_limits(match: Match, request: KeyContext, route: str, results: CallResults) -> Plan:
    """Return the plan of a request whose limits are unknown: a callable that finds no client fails, too."""
    unknown = [one for one in match.limit_sets if one.fixed_limits is None and one.settings.missing_key == "deny"]
    lacks_key = any(one.key.identity(request, route, results) is None for one in unknown)
    return _DENIED if lacks_key else _UNKNOWN_LIMITS


def _plan_without(candidates: Sequence[CompiledLimit], request: KeyContext, route: str, results: CallResults) -> Plan:
    """Return the plan of a request that lacks a key, as `missing_key` specifies."""
    charges, compiled_limits = [], []
    for limit in candidates:
        identity = limit.identity(request, route, results)
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
        charges.append(limit.held_by(limit.charge(tag, limit.cost_of(results)), request, route, results))
        compiled_limits.append(limit)
    return Plan(with_distinct_buckets(charges), compiled_limits, [limit.policy for limit in compiled_limits])


def with_distinct_buckets(charges: Sequence[Charge]) -> Sequence[Charge]:
    """Return the charges, each in a bucket of its own or in one that can be summed.

    If two charges share a bucket but cannot be summed, `+` is appended to the key of the second, which gives it a
    bucket of its own. Otherwise the store would reject the charges. This happens, for example, if callables return
    different limits of one name.
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


def without_charged(plan: Plan, charged: Iterable[Charge]) -> Plan:
    """Leave out what outer middleware has charged already: whole charges, or the charged part of a cost.

    `charged`: the charges of the outer middleware. Penalties stay, because the outer middleware cannot know whether
    this middleware refuses.
    """
    paid = Counter[RequestBucket]()
    for charge in charged:
        paid[request_bucket(charge)] += charge.cost
    if not any(request_bucket(charge) in paid for charge in plan.charges):
        return plan
    costs = [charge.cost - paid[request_bucket(charge)] for charge in plan.charges]
    indices = [
        index for index, charge in enumerate(plan.charges) if costs[index] > 0 or request_bucket(charge) not in paid
    ]
    if any(plan.charges[index].role == "limit" for index in indices):  # this middleware may refuse
        penalties = [index for index, charge in enumerate(plan.charges) if charge.role == "penalty"]
        costs = [charge.cost if charge.role == "penalty" else costs[index] for index, charge in enumerate(plan.charges)]
        indices = sorted({*indices, *penalties})
    remaining = plan.subset(indices)
    return replace(remaining, charges=[replace(plan.charges[index], cost=costs[index]) for index in indices])


def plan_on_store_error(plan: Plan) -> tuple[Source, Plan]:
    """Return what replaces the failed store: the source of the verdict, and the plan for the fallback store.

    If a limit has `on_store_error = "deny"`, the request is refused. Otherwise, the limits with `local` are decided in
    this process, and those with `allow` are skipped. The `deny` of a shadow limit has no effect. The
    charges of the plan are unchanged, because a `FallbackStore` scales them. Its policies are those of the scaled
    limits.
    """
    modes = {limit.on_store_error for limit in plan.compiled_limits if not limit.shadow}
    if "deny" in modes:
        return "denied_on_error", Plan((), (), ())
    indices = [index for index, limit in enumerate(plan.compiled_limits) if limit.on_store_error == "local"]
    if not indices:
        return "allowed_on_error", Plan((), (), ())
    remaining = plan.subset(indices)
    return "local", replace(remaining, policies=[limit.local_policy for limit in remaining.compiled_limits])


def conclude(match: Match, plan: Plan, decisions: Sequence[Decision], source: Source = "store") -> Verdict:
    """Return the verdict on a request, given the decisions on its charges."""
    if plan.denied_source is not None or source == "denied_on_error":
        return Verdict(False, (), (), BLOCKLIST if plan.is_blocked else match.rule, plan.denied_source or source)
    return verdict_of(plan.charges, decisions, match.rule, source, plan.policies)

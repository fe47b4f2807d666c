"""The compiled limits of a rule: the key, cost, role and name with which each limit charges a request."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import lru_cache, partial
from typing import Any, Final, cast

from msgspec.structs import force_setattr, replace

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.algorithms.takeover import taking_over
from ratelimit_mw.core.errors import ErrorCollector
from ratelimit_mw.core.identity import encode, key_tagger, rule_spellings
from ratelimit_mw.core.limit import Charge, Limit, Role, scaled
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.memo import cached_property, get_or_create
from ratelimit_mw.core.signatures import reject_async
from ratelimit_mw.http.callables import CallResults, RequestCallable, cost_result
from ratelimit_mw.http.keys import Key, KeyContext, KeySpec
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.features import keeping, parse_penalty, settle_policy, slot_limit_spec
from ratelimit_mw.settings.limits import (
    DynamicLimits,
    LimitSelector,
    LimitSpec,
    ParsedLimits,
    TieredLimits,
    check_list_buckets,
    resolve_cost,
)
from ratelimit_mw.settings.options import MissingKey
from ratelimit_mw.settings.rule import OnStoreError, Rule

_WSGI: Final = " under WSGI"
_KEY: Final = "compiled_key"  # the attribute of settings with their key, which most rules share
_CACHE_SIZE: Final = 1024  # lists of limits that callables returned, perhaps another one for each client


class CompiledLimit:
    """One limit of a rule, ready to charge. `limit_set`: the limits of the rule. `spec`: what it was compiled from.

    `tag_of(identity)` returns the part of a bucket key that all limits of a client share: the hashed identity, in
    braces. `key_if_raised`: replaces the key if its
    callable raised; None if `missing_key` is set. `fair_share`: the key of the holders of its slots, if several share
    them fairly.
    """

    __slots__ = (
        "_key_suffix",
        "_limit_of",
        "_template",
        "cost",
        "fair_share",
        "is_penalty",
        "key",
        "key_if_raised",
        "limit_set",
        "local_policy",
        "may_delay",
        "min_cost",
        "missing_key",
        "missing_key_tag",
        "on_store_error",
        "policy",
        "queue",
        "queue_timeout",
        "shadow",
        "spec",
        "tag_of",
    )

    def __init__(
        self, spec: LimitSpec, name: str, limit_set: "LimitSet", *, penalty: bool = False, label: str = ""
    ) -> None:
        settings, rule = limit_set.settings, limit_set.rule
        self.limit_set: Final = limit_set
        self.key: Final = limit_set.key if spec.key is None else Key(spec.key, settings.ipv6_prefix)
        self.fair_share: Final = limit_set.fair_share_of(spec.limit, self.key)
        if self.fair_share is not None:
            spec = replace(spec, limit=replace(spec.limit, holder=""))
            self._limit_of: Final = lru_cache(_CACHE_SIZE)(lambda tag: replace(spec.limit, holder=tag))
        self.spec: Final = spec
        self.cost: Final = limit_set.cost if spec.cost is None else spec.cost
        self.is_penalty: Final = penalty
        self.missing_key: Final[MissingKey] = settings.missing_key or "shared"
        self.key_if_raised: Final = (
            Key("ip", settings.ipv6_prefix) if settings.missing_key is None and self.key.callables else None
        )
        self.on_store_error: Final[OnStoreError] = settings.for_rule(rule, "on_store_error")
        self.shadow: Final = spec.shadow or settings.shadow or (rule is not None and rule.shadow)
        takes_slot = spec.limit.is_concurrency and not self.shadow
        self.queue: Final[int] = settings.for_rule(rule, "queue") if takes_slot else 0
        self.queue_timeout: Final[float] = settings.for_rule(rule, "queue_timeout")
        self.may_delay: Final = spec.limit.effective_max_delay_us > 0 and not self.shadow
        make_policy = partial(
            Policy,
            name,
            only_in_refusals=self.key.is_all or penalty,
            shadow=self.shadow,
            settles=spec.settle,
            settle_policy=limit_set.settle_policy if spec.settle else None,
            label=label,
            on_refused=None if rule is None else rule.on_refused,
        )
        self.policy: Final = make_policy(spec.limit)
        # a request that is charged 0 in advance is never refused, whatever it is settled to
        self.min_cost: Final = int(not penalty and self.policy.settle_policy is not None)
        local_limit = scaled(spec.limit, settings.local_share)  # the limit that decides while the store fails
        self.local_policy: Final = self.policy if local_limit is spec.limit else make_policy(local_limit)
        self.tag_of: Final = limit_set.tag_of
        self.missing_key_tag: Final = self.tag_of(encode([("missing", self.key.text)]))  # for requests without a key
        role: Final[Role] = "penalty" if penalty else "shadow" if self.shadow else "limit"
        self._key_suffix: Final = f":{limit_set.bucket_name}"
        self._template: Final = Charge(
            self._key_suffix,
            spec.limit,
            self.cost if isinstance(self.cost, int) else 1,
            role=role,
            lease=spec.lease,
            lease_time=spec.lease_time,
        )

    @property
    def is_own(self) -> bool:
        """Whether a client may see what is left, and has one bucket: not one for each route."""
        return not (self.policy.may_be_hidden or self.key.is_shared or self.key.reads_route)

    def charge(self, tag: str, cost: int) -> Charge:
        """Return the charge of a client. `tag`: from `tag_of`. A copy of a valid charge need not be checked again."""
        charge = copy(self._template)
        force_setattr(charge, "key", tag + self._key_suffix)
        return charge if cost == charge.cost else replace(charge, cost=cost)

    def held_by(self, charge: Charge, request: KeyContext, route: str, results: CallResults) -> Charge:
        """Set the holder of the slots of a new charge. Requests without the key of `fair_share` are one holder."""
        if self.fair_share is not None:
            identity = self.fair_share.identity(request, route, results)
            force_setattr(charge, "limit", self._limit_of("" if identity is None else self.tag_of(identity)))
        return charge

    def identity(self, request: KeyContext, route: str, results: CallResults) -> str | None:
        """Return the identity of a request, or None if it lacks the key and `missing_key` applies."""
        identity = self.key.identity(request, route, results)
        if identity is None and self.key_if_raised is not None and self.key.raised(results):
            return self.key_if_raised.identity(request, route, results)
        return identity

    @property
    def can_refuse(self) -> bool:
        """Whether it can refuse requests. False for a penalty, because another limit has to refuse before it."""
        return not self.is_penalty and not self.shadow and self.cost != 0

    def cost_of(self, results: CallResults) -> int:
        """Return the units that a request costs."""
        return self.cost if isinstance(self.cost, int) else cost_result(self.cost, results, self.min_cost)


class LimitSet:
    """The limits of one rule: fixed, as `fixed_limits`, or chosen for each request by tier or callable.

    `name`: the name in headers. `rule`: None for limits of the global settings. `bucket_name`: the name in bucket
    keys, if it differs from `name`. `concurrent`: the number of concurrency slots; 0 without such a limit. `keep`: the
    percent of each quota that is left to other requests.
    `rule_names`: the names by which an override may refer to these limits; those of an endpoint begin with `@`.

    `callables`: all callables of the limits. `may_delay`: whether a request may be delayed. `settles`: whether a charge
    may be settled after the response. `has_slots`: whether a request may hold slots until its response has ended.
    `has_queue`: whether a request may wait in a queue for a slot. `shares_fairly`: whether a limit has `fair_share`.
    `may_await`: whether an `AsyncGate` may have to await a callable, a delay or a slot.
    """

    report_chosen: Callable[[Sequence[Limit]], None] | None = None  # see `RuleSet.report_chosen`

    def __init__(
        self,
        limits: ParsedLimits,
        name: str,
        settings: Settings,
        rule: Rule | None = None,
        bucket_name: str | None = None,
        concurrent: int = 0,
        keep: int = 0,
    ) -> None:
        self.name: Final = name
        self._keep: Final = keep
        self.bucket_name: Final = bucket_name or name
        # a slash precedes what the limits of a rule count in addition, such as messages
        own_name, bucket_rule = name.partition("/")[0], self.bucket_name.partition("/")[0]
        is_of_endpoint = bucket_rule.startswith("@")  # a rule of the settings may have its name without the @
        spellings = {one for one in rule_spellings(bucket_rule) if one.startswith("@")}
        self.rule_names: Final = frozenset(spellings if is_of_endpoint else (own_name, bucket_rule))
        self.settings: Final = settings
        self.rule: Final = rule
        self._key: Final[KeySpec] = settings.for_rule(rule, "key")
        is_inherited = self._key is settings.key
        self.key: Final = get_or_create(settings, _KEY, self._compile_key) if is_inherited else self._compile_key()
        cost = resolve_cost(rule.cost, []) if rule else None
        self.cost: Final[int | RequestCallable] = 1 if cost is None else cost
        self.tag_of: Final = key_tagger(settings.key_secret, plain=settings.plain_keys)
        self._penalty: Final = _penalty(settings, rule, name)
        self.settle_policy: Final = settle_policy(
            settings.for_rule(rule, "settle"), settings.for_rule(rule, "count_status")
        )
        self.settles: Final = self.settle_policy is not None and limits != []
        self._slots: Final = (
            (slot_limit_spec(concurrent, settings.slot_lifetime, settings.slot_retry),) if concurrent else ()
        )
        self._selector: Final = limits if isinstance(limits, LimitSelector) else None
        self.fixed_limits: Final[Sequence[CompiledLimit] | None] = (
            None if isinstance(limits, LimitSelector) else self._compile(tuple(limits))
        )
        self.callables: Final = self._referenced_callables()
        # a callable may return limits that delay
        self.may_delay: Final = isinstance(limits, DynamicLimits) or any(limit.may_delay for limit in self.known_limits)
        self.has_slots: Final = any(limit.policy.limit.is_concurrency for limit in self.known_limits)
        self.has_queue: Final = any(limit.queue for limit in self.known_limits)
        self.shares_fairly: Final = any(limit.fair_share is not None for limit in self.known_limits)
        self.may_await: Final = bool(self.callables) or self.may_delay or self.has_queue

    @cached_property
    def _compiled(self) -> Callable[..., Any]:
        """Calls a function, or returns its cached result. Made when it is needed, because most rules need no cache."""
        return lru_cache(_CACHE_SIZE)(lambda compile_, *given: compile_(*given))

    def overridden(self, limit: CompiledLimit, text: str) -> Sequence[CompiledLimit]:
        """Return the limits in a text, in place of those of this rule. See `_compile_override`."""
        return cast("Sequence[CompiledLimit]", self._compiled(self._compile_override, limit, text))

    def in_shadow(self, limit: CompiledLimit) -> CompiledLimit:
        """Return a limit of this rule as it would be with `shadow`."""
        return cast("CompiledLimit", self._compiled(self._compile_shadow, limit))

    def _compiled_choice(self, specs: tuple[LimitSpec, ...]) -> Sequence[CompiledLimit]:
        return cast("Sequence[CompiledLimit]", self._compiled(self._compile_chosen, specs))

    def fair_share_of(self, limit: Limit, key: Key) -> Key | None:
        """Return the key of the holders of slots; None if they are not shared fairly, or only one has the slots."""
        spec = self.settings.for_rule(self.rule, "fair_share")
        if spec is None or not limit.is_concurrency:
            return None
        fair_share = Key(spec, self.settings.ipv6_prefix)
        return None if fair_share.text == key.text else fair_share

    def _compile_key(self) -> Key:
        return Key(self._key, self.settings.ipv6_prefix)

    def limits_for(self, request: KeyContext, route: str, results: CallResults) -> Sequence[CompiledLimit] | None:
        """Return the limits of a request; None if a callable returned none that are valid."""
        if self._selector is None:
            return self.fixed_limits
        try:
            specs = self._selector.select(request, route, results)
            return None if specs is None else self._compiled_choice(tuple(specs))
        except Exception as error:  # noqa: BLE001  # an invalid result must not exempt a request
            effect = (
                "the request gets 503"
                if self.rule is None and self.name == "default"
                else "the default limits apply, or if these are [], 503"
            )
            warn_throttled(
                f"limits of {self.name}", "are invalid; %s: %s", effect, error, code="RL-219", value=str(error)
            )
            return None

    @property
    def tier(self) -> Key | None:
        """The key that reads a request's tier; None if the limits do not depend on a tier."""
        return self._selector.key if isinstance(self._selector, TieredLimits) else None

    @property
    def unlimited_default(self) -> str | None:
        """See `TieredLimits.unlimited_default`; None without limits by tier."""
        return self._selector.unlimited_default if isinstance(self._selector, TieredLimits) else None

    @property
    def keys(self) -> Sequence[Key]:
        """The keys that are known before the first request; with a callable's limits, the rule's key as well."""
        fair_shares = [limit.fair_share for limit in self.known_limits if limit.fair_share is not None]
        return self._fallback_keys + [limit.key for limit in self.known_limits] + fair_shares

    @property
    def refusing_keys(self) -> Sequence[Key]:
        """Those of `keys` whose limits can refuse requests."""
        return self._fallback_keys + [limit.key for limit in self.known_limits if limit.can_refuse]

    @property
    def _fallback_keys(self) -> list[Key]:
        return [self.key] if self.fixed_limits is None and self.tier is None else []

    @property
    def known_limits(self) -> Sequence[CompiledLimit]:
        """All limits that are known before the first request."""
        if isinstance(self._selector, TieredLimits):
            return [limit for specs in self._selector.all.values() for limit in self._compiled_choice(tuple(specs))]
        return self._compile(()) if self.fixed_limits is None else self.fixed_limits

    def _compile_chosen(self, specs: tuple[LimitSpec, ...]) -> Sequence[CompiledLimit]:
        """Compile the chosen limits. Raises `ConfigError` if two of them can share a bucket."""
        if isinstance(self._selector, DynamicLimits):  # the limits of tiers are checked at startup
            check_list_buckets("limits", specs, self._key)
            if self.report_chosen is not None:
                self.report_chosen([spec.limit for spec in specs])
        return self._compile(specs)

    def _compile(self, specs: tuple[LimitSpec, ...]) -> Sequence[CompiledLimit]:
        series = self._selector.name_of(specs) if isinstance(self._selector, TieredLimits) else ""
        specs = tuple(self._keeping(self._taking_over(spec, f"{series}{place}")) for place, spec in enumerate(specs, 1))
        labels = [self.name if index == 0 else f"{self.name}-{index + 1}" for index in range(len(specs))]
        names = [spec.limit.name or label for spec, label in zip(specs, labels, strict=True)]
        # a callable may name a limit after a client, so metrics must not have such names
        if not isinstance(self._selector, DynamicLimits):
            labels = names.copy()
        slots = [f"{self.name}-concurrent"] * len(self._slots)
        named = zip((*specs, *self._slots), names + slots, labels + slots, strict=True)
        limits = [CompiledLimit(spec, name, self, label=label) for spec, name, label in named]
        if self._penalty is not None:
            penalty = self._taking_over(self._penalty, "penalty")
            limits.append(CompiledLimit(penalty, f"{self.name}-penalty", self, penalty=True))
        return limits

    def _taking_over(self, spec: LimitSpec, place: str) -> LimitSpec:
        """Return the spec with a limit that takes over units, if `on_change` says so. `place`: that in the list."""
        limit = taking_over(spec.limit, self.settings.on_change, f"{self.bucket_name}~{place}")
        return spec if limit is spec.limit else replace(spec, limit=limit)

    def _keeping(self, spec: LimitSpec) -> LimitSpec:
        if not self._keep:
            return spec
        cost = self.cost if spec.cost is None else spec.cost
        return replace(spec, limit=keeping(spec.limit, self._keep, cost if isinstance(cost, int) else 1))

    def _compile_override(self, limit: CompiledLimit, text: str) -> Sequence[CompiledLimit]:
        """Return the limits in `text`, in place of those of this rule. Key and cost are those of `limit`.

        Slots and the penalty of the rule stay. Raises `ConfigError` for a text that is no limits.
        """
        has_other_cost = limit.is_penalty or limit.policy.limit.is_concurrency
        spec = LimitSpec(limit=limit.policy.limit) if has_other_cost else limit.spec
        return self._compile(tuple(replace(spec, limit=one, max_delay=None, lease=0) for one in parse(text)))

    def _compile_shadow(self, limit: CompiledLimit) -> CompiledLimit:
        return CompiledLimit(replace(limit.spec, shadow=True), limit.policy.name, self, label=limit.policy.label)

    def named_callables(self) -> Iterator[tuple[str, RequestCallable]]:
        """Yield each callable of these limits, including that of `settle`, with the name of its setting."""
        yield from (("key", call) for key in self.keys for call in key.callables)
        costs = [self.cost, *(limit.cost for limit in self.known_limits)]
        yield from (("cost", cost) for cost in costs if not isinstance(cost, int))
        if self._selector is not None:
            setting = "tier" if isinstance(self._selector, TieredLimits) else "limits"
            yield from ((setting, call) for call in self._selector.callables)
        if self.settle_policy is not None and self.settle_policy.call is not None:
            yield "settle", self.settle_policy.call

    def _referenced_callables(self) -> Sequence[RequestCallable]:
        callables = [] if self._selector is None else list(self._selector.callables)
        charged = [(limit.key, limit.cost) for limit in self.known_limits]
        if self.fixed_limits is None:  # a limit that a callable returns may have the rule's key and cost
            charged.append((self.key, self.cost))
        charged += [(limit.fair_share, 1) for limit in self.known_limits if limit.fair_share is not None]
        for key, cost in charged:
            callables += key.callables if isinstance(cost, int) else [*key.callables, cost]
        return list(dict.fromkeys(callables))


def check_no_async_callables(limit_sets: Iterable[LimitSet]) -> None:
    """Raise `ConfigError` if a callable of these limits is async: WSGI cannot await it."""
    mistakes = ErrorCollector()
    for limit_set in limit_sets:
        owner = "app_limits" if limit_set.name == "app" else f"rule {limit_set.name}"
        # An endpoint limit has no name here; the traceback shows its line. The global limits have the name "default".
        needs_no_owner = limit_set.name in ("", "default")
        for setting, call in limit_set.named_callables():
            with mistakes.collect(setting if needs_no_owner else f"{setting} of {owner}"):
                reject_async(call, _WSGI)
    mistakes.raise_if_any()


def _penalty(settings: Settings, rule: Rule | None, name: str) -> LimitSpec | None:
    """Return the penalty of a rule; for `app_limits`, which apply to every request, the global penalty.

    A shadow rule refuses no request, so it has no penalty.
    """
    penalty = rule.penalty if rule is not None else settings.penalty if name == "app" else None
    ban = None if settings.shadow or (rule is not None and rule.shadow) else parse_penalty(penalty)
    return None if ban is None else LimitSpec(limit=ban, cost=1, settle=False)

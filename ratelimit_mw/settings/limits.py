"""Parses the option `limits`: limit specs, limits by tier, and limits that a callable returns."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypedDict

from msgspec import Struct
from msgspec.structs import asdict, replace

from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.core.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.core.limit import DEFAULT_LEASE_TIME, Limit, check_int, check_lease, check_name, check_seconds
from ratelimit_mw.core.log import warn_throttled
from ratelimit_mw.core.signatures import callable_place
from ratelimit_mw.core.validation import build_checked, checks_of, closest_match, option_checks, reject_reserved_name
from ratelimit_mw.http.callables import FAILED, CallResults, RequestCallable, is_callable_name, resolve_callable
from ratelimit_mw.http.keys import ANY_PREFIX, Key, KeyContext, KeySpec, check_key
from ratelimit_mw.http.request import as_text


class LimitOptions(TypedDict, total=False):
    """A table in `limits`: one limit and its own options."""

    limit: Annotated[str | Limit, "required: one limit"]
    key: Annotated[KeySpec, "selects the bucket, instead of the rule's key", check_key]
    cost: Annotated[
        int | RequestCallable | str,
        "units that a request takes, or a callable of the request; an invalid result counts 1",
    ]
    name: Annotated[str, "the name in headers and in the bucket's key"]
    shadow: Annotated[bool, "decides and reports, but never refuses"]
    max_delay: Annotated[
        float, "seconds that a request may be delayed instead of refused; it keeps its slots meanwhile; not for windows"
    ]
    lease: Annotated[
        int, "units of a hot limit that each process takes in advance from a store on a server; 0: no lease"
    ]
    lease_time: Annotated[float, "seconds after which a process refunds the units that it did not spend"]
    settle: Annotated[
        bool, "`false`: never settled, because the limit counts something other than the cost, such as requests"
    ]
    overdraw: Annotated[
        bool,
        "in the decision service: a cost that the caller gives is always taken, with a debt of at most one quota",
    ]


class LimitSpec(Struct, frozen=True, kw_only=True):
    """One limit of a rule with its own options: key, cost, shadow, max_delay, lease, settle, overdraw."""

    limit: Limit
    key: KeySpec | None = None
    cost: int | RequestCallable | None = None  # None: the rule's cost
    shadow: bool = False
    max_delay: float | None = None
    lease: int = 0
    lease_time: float = DEFAULT_LEASE_TIME
    settle: bool = True
    overdraw: bool = False


_CHECKS: Final = checks_of(LimitSpec, LimitOptions)


def parse_limit_specs(place: str, value: object) -> list[LimitSpec]:
    """Parse a list of limits, or a single one, into limit specs.

    Raises one `ConfigError` that names `place[index]` of each invalid limit.
    """
    mistakes = ErrorCollector()
    specs: list[LimitSpec] = []
    if isinstance(value, (str, Limit, Mapping, LimitSpec)):
        with mistakes.collect(place):
            specs += _parse_spec(value)
    elif not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise ConfigError(
            f"{place}: got {value!r}, expected text such as '100/minute', a Limit, a table or a list of these",
            code="RL-009",
        )
    else:
        for index, one in enumerate(value):
            with mistakes.collect(f"{place}[{index}]"):
                specs += _parse_spec(one)
    mistakes.raise_if_any()
    return specs


def _parse_spec(value: object) -> list[LimitSpec]:
    if isinstance(value, LimitSpec):
        return [_build_spec(**asdict(value))]
    if isinstance(value, Limit):
        reject_reserved_name(value.name)
        return [LimitSpec(limit=value, cost=1 if value.is_concurrency else None, settle=not value.is_concurrency)]
    if isinstance(value, str):
        return [LimitSpec(limit=limit) for limit in parse(value)]
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected text such as '100/minute', a Limit or a table", code="RL-009")
    return [build_checked(_build_spec, value, LimitOptions)]


def _build_spec(*, limit: Any = None, name: Any = None, **options: Any) -> LimitSpec:
    """Build a limit spec from the options of a table. Raises one `ConfigError` for all problems."""
    if isinstance(options.get("key"), list):
        options["key"] = tuple(options["key"])  # can be hashed
    spec = LimitSpec(limit=limit, **options)
    mistakes = ErrorCollector()
    limits: list[Limit] = []
    with mistakes.collect():
        limits = [_one_limit(limit, name)]
    with mistakes.collect():
        limits = [_with_max_delay(one, spec.max_delay) for one in limits]
    with mistakes.collect():
        spec = replace(spec, cost=resolve_cost(spec.cost, limits))
    mistakes.run(option_checks(spec, _CHECKS))
    with mistakes.collect():
        check_lease(limits, spec.lease, spec.lease_time)
        if spec.lease and any(one.effective_max_delay_us for one in limits):
            raise ConfigError(
                "lease: units charged in advance cannot be delayed; expected no max_delay beside it", code="RL-016"
            )
    mistakes.raise_if_any()
    if limits[0].is_concurrency:  # a request takes one slot, whatever its cost for other limits
        spec = replace(spec, cost=1 if spec.cost is None else spec.cost, settle=False)
    return replace(spec, limit=limits[0])


def _one_limit(value: Any, name: Any) -> Limit:
    with error_location("limit"):
        limits = [value] if isinstance(value, Limit) else parse(value) if isinstance(value, str) else ()
        if len(limits) != 1:
            raise ConfigError(f"got {value!r}, expected one limit such as '100/minute'", code="RL-009")
    named = limits[0] if name is None else replace(limits[0], name=name)
    reject_reserved_name(named.name)
    return named


def _with_max_delay(limit: Limit, max_delay: Any) -> Limit:
    """Return the limit with this `max_delay`; unchanged for None."""
    if max_delay is None:
        return limit
    if not limit.can_delay and check_seconds("max_delay", max_delay):
        if limit.is_concurrency:
            raise ConfigError(
                f"max_delay: it is unknown when a slot of {limit.notation} is free; use `queue` to let requests wait",
                code="RL-015",
            )
        raise ConfigError(
            f"max_delay: {limit.notation} cannot delay requests; a bucket can, such as "
            f"'{limit.notation.partition(' ')[0]} using gcra'",
            code="RL-015",
        )
    return replace(limit, max_delay=max_delay) if limit.can_delay else limit


def resolve_cost(value: Any, limits: Sequence[Limit]) -> int | RequestCallable | None:
    """Return `value` if it is a valid cost: a callable, or units that each of `limits` can admit.

    Raises `ConfigError` that names `cost`.
    """
    if value is None:
        return None
    if callable(value) or is_callable_name(value):
        with error_location("cost"):
            return resolve_callable(value)
    check_int("cost", value, 0)
    for limit in limits:
        if limit.is_concurrency and not value:
            raise ConfigError(
                f"cost: 0 takes no slot of {limit.notation}, so it limits nothing; expected at least 1", code="RL-017"
            )
        if value > limit.most and limit.quota:
            raise ConfigError(
                f"cost: {value} can never pass {limit.notation}, which admits at most {limit.most} at once",
                code="RL-017",
            )
    return int(value)


def check_list_buckets(place: str, specs: Sequence[LimitSpec], key: KeySpec) -> None:
    """Raise `ConfigError` if two limits of one list can share a bucket or have one name.

    `key`: the key of limits without one of their own. Names must differ, because clients know a limit by its name.
    """
    names: dict[str, int] = {}
    for index, spec in enumerate(specs):
        name = spec.limit.name
        if name is not None and names.setdefault(name, index) != index:
            raise ConfigError(
                f"{place}[{index}].name: {name!r} is also the name of {place}[{names[name]}]; choose another name",
                code="RL-005",
            )
    seen: dict[str, list[tuple[int, Key]]] = {}
    for index, spec in enumerate(specs):
        compiled_key = Key(key if spec.key is None else spec.key, ANY_PREFIX)
        same_bucket = seen.setdefault(spec.limit.bucket, [])
        for first, other in same_bucket:
            if compiled_key.can_collide_with(other):
                raise ConfigError(
                    f"{place}[{index}]: {spec.limit.notation} can count in the same bucket as {place}[{first}]; "
                    "give one of them a name",
                    code="RL-018",
                )
        same_bucket.append((index, compiled_key))


_DEFAULT_TIER: Final = "default"
NOT_BY_TIER: Final = "there are no limits by tier; expected limits such as {free = '60/hour', pro = '600/hour'}"
_MAX_SHOWN: Final = 100  # characters of an unknown tier
_CACHE_SIZE: Final = 1024  # parsed results of one callable


class TieredLimits:
    """`{free = "60/hour", pro = "5000/hour"}`: limits by the tier that a key names.

    The default tier applies to clients without a tier, and to those whose tier is not in the table. It is
    `default_tier`, or else the tier named `default`, or else the first tier.

    `all`: the limits of each tier, in order. `unlimited_default`: the default tier, if it is only the first in the
    table and has no limits, although another has; else None. `callables`: those whose results `select` needs.
    """

    def __init__(self, place: str, tiers: Mapping[str, Any], tier: KeySpec | None, default: str | None) -> None:
        if tier is None:
            raise ConfigError(
                f"{place}: got limits by tier ({', '.join(map(str, tiers))}), which need `tier`: a key that names "
                "the tier, such as 'header:X-Plan'",
                code="RL-019",
            )
        self.all: Final = _parse_tiers(place, tiers)
        if isinstance(default, str) and default not in tiers:
            raise ConfigError(f"default_tier: got {default!r}, expected one of {', '.join(tiers)}", code="RL-019")
        self._default: Final = default or (_DEFAULT_TIER if _DEFAULT_TIER in tiers else next(iter(tiers)))
        is_chosen = default is not None or _DEFAULT_TIER in tiers
        is_unlimited = not is_chosen and not self.all[self._default] and any(self.all.values())
        self.unlimited_default: Final = self._default if is_unlimited else None
        self.key: Final = Key(tier, ANY_PREFIX)
        self.callables: Final[Sequence[RequestCallable]] = self.key.callables

    def select(self, request: KeyContext, route: str, results: CallResults) -> Sequence[LimitSpec]:
        """Return the limits of the tier that the key names, else of the default tier."""
        identity = self.key.identity(request, route, results) or ""
        # an identity escapes no character of a tier's name, so the text after `=` is that name
        specs = self.all.get(identity.partition("=")[2])
        if specs is None:
            self._report_unknown(results)
            return self.all[self._default]
        return specs

    def name_of(self, specs: Sequence[LimitSpec]) -> str:
        """Return the first tier with these limits and a `~`, for the names of their buckets."""
        return next(f"{name}~" for name, limits in self.all.items() if tuple(limits) == tuple(specs))

    def _report_unknown(self, results: CallResults) -> None:
        """Warn of a callable that names a tier which is not in the table. Other keys may have any text by intention."""
        for call in self.callables:
            name = as_text(results.get(call))
            if name is not None and name not in self.all:
                warn_throttled(
                    f"tier {callable_place(call)}",
                    "returned %s, expected None or one of %s: the tier %s applies",
                    *(f"{name!r:.{_MAX_SHOWN}}", ", ".join(self.all), self._default),
                    code="RL-215",
                    call=call,
                )


class DynamicLimits:
    """Limits that a callable returns for each request: notation, Limits, or any other form of a list of limits.

    `callables`: as in `TieredLimits`.
    """

    def __init__(self, call: RequestCallable) -> None:
        self._call: Final = call
        self.callables: Final[Sequence[RequestCallable]] = [call]
        self._parsed: Final = lru_cache(_CACHE_SIZE)(_parse_result)

    def select(self, _: KeyContext, __: str, results: CallResults) -> Sequence[LimitSpec] | None:
        """Return the limits in the callable's result; None if it raised or returned no valid limits."""
        result = results[self._call]
        if result is FAILED:
            return None
        try:
            return self._parsed(result) if isinstance(result, (str, Limit)) else _parse_result(result)
        except Exception as error:  # noqa: BLE001  # an invalid result must not exempt the request
            warn_throttled(
                f"limits {callable_place(self._call)}",
                "returned no valid limits; the default limits apply, and if these come from the same callable or are "
                "[], the request gets 503: %s",
                error,
                code="RL-219",
                call=self._call,
                value=str(error),
            )
            return None


LimitSelector = TieredLimits | DynamicLimits  # selects the limits of each request
ParsedLimits = Sequence[LimitSpec] | LimitSelector


def _parse_result(result: Any) -> Sequence[LimitSpec]:
    """Parse a callable's result. Raises `ConfigError` if it is invalid; `[]` is valid and means no limits."""
    specs = parse_limit_specs("limits", result)
    if has_concurrency(specs):
        raise ConfigError(
            "limits: got a Concurrency from a callable; set `concurrent` in the rule instead", code="RL-020"
        )
    if any(callable(spec.cost) or (spec.key is not None and Key(spec.key, ANY_PREFIX).callables) for spec in specs):
        raise ConfigError(
            "limits: a callable returned a key or cost that is a callable; set it in the rule instead", code="RL-020"
        )
    return specs


def _parse_tiers(place: str, tiers: Mapping[str, Any]) -> dict[str, Sequence[LimitSpec]]:
    mistakes = ErrorCollector()
    specs_by_tier: dict[str, Sequence[LimitSpec]] = {}
    for name, limits in tiers.items():
        with mistakes.collect(place):
            check_name(f"tier {name!r}", name)
            specs_by_tier[name] = parse_limit_specs(name, limits)
    mistakes.raise_if_any()
    return specs_by_tier


def parse_limits(
    place: str, value: object, tier: KeySpec | None = None, default_tier: str | None = None
) -> ParsedLimits:
    """Parse the value of `limits` to limit specs or a selector. Raises `ConfigError` that names `place`."""
    if (callable(value) and not isinstance(value, type)) or is_callable_name(value):
        with error_location(place):
            return DynamicLimits(resolve_callable(value))
    if isinstance(value, Mapping) and not value:
        raise ConfigError(
            f"{place}: got an empty table, expected a table of one limit or of tiers; [] means no limits", code="RL-002"
        )
    if isinstance(value, Mapping) and not _is_limit_table(value, tier):
        return TieredLimits(place, value, tier, default_tier)
    return parse_limit_specs(place, value)


def check_tier_name(option: str, value: object) -> None:
    """Raise `ConfigError` unless `value` can be the name of a tier."""
    if not isinstance(value, str):
        raise ConfigError(f"{option}: got {value!r}, expected the name of a tier", code="RL-019")


def _is_limit_table(table: Mapping[Any, Any], tier: KeySpec | None) -> bool:
    """Return whether a table is meant as one limit, even if incomplete or misspelled, and not as limits by tier."""
    options = LimitOptions.__annotations__
    if any(not isinstance(name, str) or name in options for name in table):
        return True
    return tier is None and any(closest_match(name, options) for name in table)


def known_specs(limits: ParsedLimits) -> list[Sequence[LimitSpec]]:
    """Return the lists of limits that are known at startup.

    Returns one list in general, one list per tier for limits by tier, and no list for a callable.
    """
    if isinstance(limits, TieredLimits):
        return list(limits.all.values())
    return [] if isinstance(limits, LimitSelector) else [limits]


def has_concurrency(limits: ParsedLimits) -> bool:
    """Return whether one of the limits that are known at startup counts slots."""
    return any(spec.limit.is_concurrency for specs in known_specs(limits) for spec in specs)


def check_estimates(limits: ParsedLimits, cost: object) -> None:
    """Raise `ConfigError` for a limit that is settled but charges 0 in advance. `cost`: the rule's cost."""
    for specs in known_specs(limits):
        for spec in specs:
            effective_cost = cost if spec.cost is None else spec.cost
            if effective_cost == 0 and type(effective_cost) is int and spec.settle:
                raise ConfigError(
                    f"cost: got 0 for {spec.limit.notation} beside settle or count_status: a request that "
                    "charges nothing is never refused, whatever it is settled to later; expected an estimate of at "
                    "least 1, or settle = false in the limit's table",
                    code="RL-017",
                )


def check_buckets(place: str, limits: ParsedLimits, key: KeySpec) -> None:
    """Check the buckets of a list of limits, or of each tier, by `check_list_buckets`. Skips a callable's limits."""
    if isinstance(limits, TieredLimits):
        for name, specs in limits.all.items():
            check_list_buckets(f"{place}.{name}", specs, key)
    elif not isinstance(limits, LimitSelector):
        check_list_buckets(place, limits, key)

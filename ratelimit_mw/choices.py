"""What `limits` may say besides a list: how to choose them for each request."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ratelimit_mw.callables import callable_name
from ratelimit_mw.calls import FAILED, CallResults, RequestCallable, is_callable_name, resolve_callable
from ratelimit_mw.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.items import LimitOptions, LimitSpec, check_distinct_buckets, parse_limit_specs
from ratelimit_mw.keys import ANY_PREFIX, Key, KeyContext, KeySpec
from ratelimit_mw.limit import Limit, check_name
from ratelimit_mw.notices import warn_throttled
from ratelimit_mw.words import closest_match

_DEFAULT_TIER: Final = "default"
NOT_BY_TIER: Final = (
    "no limits here go by tier; allowed beside it are limits such as {free = '60/hour', pro = '600/hour'}"
)
_CACHE_SIZE: Final = 1024  # answers of a callable whose limits are kept


class LimitSelector(ABC):
    """Limits that are chosen for each request. `callables`: the callables it needs."""

    callables: Sequence[RequestCallable]

    @abstractmethod
    def select(self, request: KeyContext, route: str, results: CallResults) -> Sequence[LimitSpec] | None:
        """The limits of this request; None when the callable gave none that can be used."""


class TieredLimits(LimitSelector):
    """`{free = "60/hour", pro = "5000/hour"}`: limits by the tier that a key names.

    The default tier is `default_tier`, or else the one called `default`, or else the first; it is for whoever has no
    tier, or one that is not in the table.
    """

    def __init__(self, place: str, tiers: Mapping[str, Any], tier: KeySpec | None, default: str | None) -> None:
        if tier is None:
            raise ConfigError(
                f"{place}: found limits by tier ({', '.join(map(str, tiers))}), which need `tier`: a key that says "
                "which, such as 'header:X-Plan'"
            )
        self._tiers: Final = _parse_tiers(place, tiers)
        if isinstance(default, str) and default not in tiers:
            raise ConfigError(f"default_tier: found {default!r}, allowed is one of {', '.join(tiers)}")
        self._default: Final = default or (_DEFAULT_TIER if _DEFAULT_TIER in tiers else next(iter(tiers)))
        self.key: Final = Key(tier, ANY_PREFIX)
        self.callables = self.key.callables

    @property
    def all(self) -> Mapping[str, Sequence[LimitSpec]]:
        """All tiers with their limits, in order."""
        return self._tiers

    def select(self, request: KeyContext, route: str, results: CallResults) -> Sequence[LimitSpec]:
        """The limits of the tier that the key names."""
        identity = self.key.identity(request, route, results) or ""
        # names of tiers have no character that an identity escapes: what stands behind the kind is the value itself
        return self._tiers.get(identity.partition("=")[2], self._tiers[self._default])


class DynamicLimits(LimitSelector):
    """A callable of the request that gives its limits: notation, Limits, or whatever else a list of limits may hold."""

    def __init__(self, call: RequestCallable) -> None:
        self._call: Final = call
        self.callables = [call]
        self._compiled: Final = lru_cache(_CACHE_SIZE)(_parse_result)

    def select(self, _: KeyContext, __: str, results: CallResults) -> Sequence[LimitSpec] | None:
        """The limits that the callable gave."""
        result = results[self._call]
        if result is FAILED:
            return None
        try:
            return self._compiled(result) if isinstance(result, (str, Limit)) else _parse_result(result)
        except Exception as error:  # noqa: BLE001  # whatever a callable gives, the request is limited
            warn_throttled(f"limits {callable_name(self._call)}", "gave no limits, the default ones apply: %s", error)
            return None


def _parse_result(result: Any) -> Sequence[LimitSpec]:
    """The limits that a callable gave. Raises `ConfigError` for none: `[]` says in words that there are none."""
    specs = parse_limit_specs("limits", result)
    if any(spec.limit.is_concurrency for spec in specs):
        raise ConfigError("limits: found a Concurrency; the rule may have it, as `concurrent`")
    if any(callable(spec.cost) or (spec.key is not None and Key(spec.key, ANY_PREFIX).callables) for spec in specs):
        raise ConfigError(
            "limits: found a key or cost that is a callable; nobody asks it any more, the rule may have it"
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


def compile_limits(
    place: str, value: object, tier: KeySpec | None = None, default_tier: str | None = None
) -> Sequence[LimitSpec] | LimitSelector:
    """What `limits` says: the items, in order, or a Choice. Raises `ConfigError` naming `place`."""
    if (callable(value) and not isinstance(value, type)) or is_callable_name(value):
        with error_location(place):
            return DynamicLimits(resolve_callable(value))
    if isinstance(value, Mapping) and not value:
        raise ConfigError(f"{place}: found an empty table, allowed is one of a limit or of tiers; [] says none")
    if isinstance(value, Mapping) and not _is_limit_table(value, tier):
        return TieredLimits(place, value, tier, default_tier)
    return parse_limit_specs(place, value)


def check_default_tier(value: object) -> None:
    """Raises `ConfigError` unless `value` can be the name of a tier, or is None."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"default_tier: found {value!r}, allowed is the name of a tier")


def _is_limit_table(table: Mapping[Any, Any], tier: KeySpec | None) -> bool:
    """Whether this is one limit, perhaps without its `limit` or misspelt, rather than a table of tiers."""
    options = LimitOptions.__annotations__
    if any(not isinstance(name, str) or name in options for name in table):
        return True
    return tier is None and any(closest_match(name, options) for name in table)


def static_specs(limits: Sequence[LimitSpec] | LimitSelector) -> list[Sequence[LimitSpec]]:
    """The lists of limits that are known before a request comes: one, one for each tier, or none."""
    if isinstance(limits, TieredLimits):
        return list(limits.all.values())
    return [] if isinstance(limits, LimitSelector) else [limits]


def check_estimates(limits: Sequence[LimitSpec] | LimitSelector, cost: object) -> None:
    """Raises `ConfigError` for a limit that is to be settled, of which nothing is taken before. `cost`: of the rule."""
    for specs in static_specs(limits):
        for spec in specs:
            own = cost if spec.cost is None else spec.cost
            if own == 0 and type(own) is int and spec.settle:
                raise ConfigError(
                    f"cost: found 0 for {spec.limit.notation} beside settle or count_status: what takes nothing is "
                    "never refused, whatever is charged after it; allowed is an estimate of at least 1, or "
                    "settle = false in the limit's table"
                )


def check_buckets(place: str, limits: Sequence[LimitSpec] | LimitSelector, key: KeySpec) -> None:
    """Raises `ConfigError` for two limits that can count in one bucket. `key`: of items that have none of their own."""
    if isinstance(limits, TieredLimits):
        for name, specs in limits.all.items():
            check_distinct_buckets(f"{place}.{name}", specs, key)
    elif not isinstance(limits, LimitSelector):
        check_distinct_buckets(place, limits, key)

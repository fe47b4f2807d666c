"""Items: what a list of limits holds."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from msgspec import Struct
from msgspec.structs import asdict, replace

from ratelimit_mw.calls import RequestCallable, is_callable_name, resolve_callable
from ratelimit_mw.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.keys import ANY_PREFIX, Key, KeySpec, check_key
from ratelimit_mw.limit import DEFAULT_LEASE_TIME, Limit, check_int, check_lease, check_seconds
from ratelimit_mw.notation import parse
from ratelimit_mw.words import build_checked, check_bool, reject_reserved_name


class LimitOptions(TypedDict, total=False):
    """A table in `limits`: one limit, with what is its own."""

    limit: Annotated[str | Limit, "required: one limit"]
    key: Annotated[KeySpec, "whose bucket, instead of the rule's key"]
    cost: Annotated[
        int | RequestCallable | str,
        "units a request takes, or a callable of the request; what is no whole number counts 1",
    ]
    name: Annotated[str, "in headers and in the bucket's key"]
    shadow: Annotated[bool, "decides and reports, but never refuses"]
    max_delay: Annotated[
        float, "seconds a request may be held back instead of refused, with the slots it took; not for windows"
    ]
    lease: Annotated[int, "units of a hot limit that each process takes ahead from a store on a server; 0 is none"]
    lease_time: Annotated[float, "seconds after which it gives back what it did not spend"]
    settle: Annotated[
        bool, "`false`: never corrected, because it counts something else than the cost, such as requests"
    ]


class LimitSpec(Struct, frozen=True, kw_only=True):
    """One limit of a rule, with what may be its own: key, cost, shadow, max_delay, lease, settle."""

    limit: Limit
    key: KeySpec | None = None
    cost: int | RequestCallable | None = None  # None: the rule's
    shadow: bool = False
    max_delay: float | None = None
    lease: int = 0
    lease_time: float = DEFAULT_LEASE_TIME
    settle: bool = True


def parse_limit_specs(place: str, value: object) -> list[LimitSpec]:
    """The items that a list of limits stands for, in order; none for an empty list.

    Raises `ConfigError` naming `place[index]`, for all of them that are wrong.
    """
    mistakes = ErrorCollector()
    specs: list[LimitSpec] = []
    if isinstance(value, (str, Limit, Mapping, LimitSpec)):
        with mistakes.collect(place):
            specs += _parse_spec(value)
    elif not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise ConfigError(
            f"{place}: found {value!r}, allowed is text such as '100/minute', a Limit, a table or a list of these"
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
        raise ConfigError(f"found {value!r}, allowed is text such as '100/minute', a Limit or a table")
    return [build_checked(_build_spec, value, LimitOptions)]


def _build_spec(
    *,
    limit: Any = None,
    name: Any = None,
    key: Any = None,
    cost: Any = None,
    shadow: Any = False,
    max_delay: Any = None,
    lease: Any = 0,
    lease_time: Any = DEFAULT_LEASE_TIME,
    settle: Any = True,
) -> LimitSpec:
    mistakes = ErrorCollector()
    limits: list[Limit] = []
    with mistakes.collect():
        limits = [_one_limit(limit, name)]
    with mistakes.collect():
        limits = [_with_max_delay(one, max_delay) for one in limits]
    with mistakes.collect():
        cost = check_cost(cost, limits)
    with mistakes.collect():
        check_bool("shadow", shadow)
    with mistakes.collect():
        check_bool("settle", settle)
    with mistakes.collect():
        if key is not None:
            check_key(key)
    with mistakes.collect():
        check_lease(limits, lease, lease_time)
        if lease and any(one.effective_max_delay_us for one in limits):
            raise ConfigError("lease: what is taken ahead cannot be held back; allowed is no max_delay beside it")
    mistakes.raise_if_any()
    if limits[0].is_concurrency:  # a request is at work once, whatever else it costs
        cost, settle = 1 if cost is None else cost, False
    return LimitSpec(
        limit=limits[0],
        key=key,
        cost=cost,
        shadow=shadow,
        max_delay=max_delay,
        lease=lease,
        lease_time=lease_time,
        settle=settle,
    )


def _one_limit(value: Any, name: Any) -> Limit:
    with error_location("limit"):
        limits = [value] if isinstance(value, Limit) else parse(value) if isinstance(value, str) else ()
        if len(limits) != 1:
            raise ConfigError(f"found {value!r}, allowed is one limit such as '100/minute'")
    named = limits[0] if name is None else replace(limits[0], name=name)
    reject_reserved_name(named.name)
    return named


def _with_max_delay(limit: Limit, max_delay: Any) -> Limit:
    """The limit with this `max_delay`; None is its own."""
    if max_delay is None:
        return limit
    if not limit.can_delay and check_seconds("max_delay", max_delay):
        if limit.is_concurrency:
            raise ConfigError(
                f"max_delay: nobody knows when one of {limit.notation} is given back; `queue` lets requests wait "
                "for one"
            )
        raise ConfigError(
            f"max_delay: {limit.notation} holds nothing back; a bucket does, such as "
            f"'{limit.notation.partition(' ')[0]} using gcra'"
        )
    return replace(limit, max_delay=max_delay) if limit.can_delay else limit


def check_cost(value: Any, limits: Sequence[Limit]) -> int | RequestCallable | None:
    """A cost: units that all these limits can admit, or a callable. Raises `ConfigError` naming `cost`."""
    if value is None:
        return None
    if callable(value) or is_callable_name(value):
        with error_location("cost"):
            return resolve_callable(value)
    check_int("cost", value, 0)
    for limit in limits:
        if limit.is_concurrency and not value:
            raise ConfigError(f"cost: 0 takes no slot of {limit.notation}, so it limits nothing; allowed is at least 1")
        if value > limit.most:
            raise ConfigError(
                f"cost: {value} can never pass {limit.notation}, which admits at most {limit.most} at once"
            )
    return int(value)


def check_distinct_buckets(place: str, specs: Sequence[LimitSpec], key: KeySpec) -> None:
    """Raises `ConfigError` for two items that can count in one bucket. `key`: of items that have none of their own."""
    seen: dict[str, list[tuple[int, Key]]] = {}
    for index, spec in enumerate(specs):
        own = Key(key if spec.key is None else spec.key, ANY_PREFIX)
        same = seen.setdefault(spec.limit.bucket, [])
        for first, other in same:
            if own.can_collide_with(other):
                raise ConfigError(
                    f"{place}[{index}]: {spec.limit.notation} can count in the same bucket as {place}[{first}]; "
                    "give one of them a name"
                )
        same.append((index, own))

"""Items: what a list of limits holds."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypedDict

from msgspec import Struct
from msgspec.structs import asdict, replace

from ratelimit_mw.bucket import BucketLimit
from ratelimit_mw.calls import Call, call_from, named_call
from ratelimit_mw.errors import ConfigError, Mistakes, located
from ratelimit_mw.keys import ANY_PREFIX, Key, KeySpec, check_key
from ratelimit_mw.limit import LEASE_TIME, Limit, check_lease, seconds, whole
from ratelimit_mw.notation import parse
from ratelimit_mw.words import flags, made

_NO_DELAY: Final = "max_delay: the middleware holds no request back; Limiter tells the delay to who can wait"


class ItemOptions(TypedDict, total=False):
    """A table in `limits`: one limit, with what is its own."""

    limit: Annotated[str | Limit, "required: one limit"]
    key: Annotated[KeySpec, "whose bucket, instead of the rule's key"]
    cost: Annotated[
        int | Call | str, "units a request takes, or a callable of the request; what is no whole number counts 1"
    ]
    name: Annotated[str, "in headers and in the bucket's key"]
    shadow: Annotated[bool, "decides and reports, but never refuses"]
    max_delay: Annotated[float, "seconds a request may be held back; 0 until the middleware can hold one back"]
    lease: Annotated[int, "units of a hot limit that each process takes ahead from a store on a server; 0 is none"]
    lease_time: Annotated[float, "seconds after which it gives back what it did not spend"]


class Item(Struct, frozen=True, kw_only=True):
    """One limit of a rule, with what may be its own: key, cost, shadow, max_delay, lease."""

    limit: Limit
    key: KeySpec | None = None
    cost: int | Call | None = None  # None: the rule's
    shadow: bool = False
    max_delay: float | None = None
    lease: int = 0
    lease_time: float = LEASE_TIME


def compile_items(place: str, value: object) -> list[Item]:
    """The items that a list of limits stands for, in order; none for an empty list.

    Raises `ConfigError` naming `place[index]`, for all of them that are wrong.
    """
    mistakes = Mistakes()
    items: list[Item] = []
    if isinstance(value, (str, Limit, Mapping, Item)):
        with mistakes.at(place):
            items += _items(value)
    elif not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray)):
        raise ConfigError(
            f"{place}: found {value!r}, allowed is text such as '100/minute', a Limit, a table or a list of these"
        )
    else:
        for index, one in enumerate(value):
            with mistakes.at(f"{place}[{index}]"):
                items += _items(one)
    mistakes.tell()
    return items


def _items(value: object) -> list[Item]:
    if isinstance(value, Item):
        return [_item(**asdict(value))]
    if isinstance(value, Limit):
        return [Item(limit=_undelayed(value), cost=1 if value.held else None)]
    if isinstance(value, str):
        return [Item(limit=limit) for limit in map(_undelayed, parse(value))]
    if not isinstance(value, Mapping):
        raise ConfigError(f"found {value!r}, allowed is text such as '100/minute', a Limit or a table")
    return [made(_item, value, ItemOptions)]


def _item(
    *,
    limit: Any = None,
    name: Any = None,
    key: Any = None,
    cost: Any = None,
    shadow: Any = False,
    max_delay: Any = None,
    lease: Any = 0,
    lease_time: Any = LEASE_TIME,
) -> Item:
    mistakes = Mistakes()
    limits: list[Limit] = []
    with mistakes.at():
        limits = [_one_limit(limit, name)]
    with mistakes.at():
        cost = check_cost(cost, limits)
    with mistakes.at():
        flags("shadow", shadow)
    with mistakes.at():
        if key is not None:
            check_key(key)
    with mistakes.at():
        if max_delay is not None and seconds("max_delay", max_delay):
            raise ConfigError(_NO_DELAY)
    with mistakes.at():
        check_lease(limits, lease, lease_time)
    mistakes.tell()
    if cost is None and limits[0].held:
        cost = 1  # a request is at work once, whatever else it costs
    own_delay = max_delay if isinstance(limits[0], BucketLimit) else None  # 0, of which a window knows nothing
    return Item(
        limit=limits[0], key=key, cost=cost, shadow=shadow, max_delay=own_delay, lease=lease, lease_time=lease_time
    )


def _one_limit(given: Any, name: Any) -> Limit:
    with located("limit"):
        limits = [given] if isinstance(given, Limit) else parse(given) if isinstance(given, str) else ()
        if len(limits) != 1:
            raise ConfigError(f"found {given!r}, allowed is one limit such as '100/minute'")
    return _undelayed(limits[0] if name is None else replace(limits[0], name=name))


def _undelayed(limit: Limit) -> Limit:
    if getattr(limit, "max_delay", 0.0):
        raise ConfigError(_NO_DELAY)
    return limit


def check_cost(value: Any, limits: Sequence[Limit]) -> int | Call | None:
    """A cost: units that all these limits can admit, or a callable. Raises `ConfigError` naming `cost`."""
    if value is None:
        return None
    if callable(value) or named_call(value):
        with located("cost"):
            return call_from(value)
    whole("cost", value, 0)
    for limit in limits:
        if value > limit.most:
            raise ConfigError(
                f"cost: {value} can never pass {limit.notation}, which admits at most {limit.most} at once"
            )
    return int(value)


def check_different(place: str, items: Sequence[Item], key: KeySpec) -> None:
    """Raises `ConfigError` for two items that can count in one bucket. `key`: of items that have none of their own."""
    seen: dict[str, list[tuple[int, Key]]] = {}
    for index, item in enumerate(items):
        own = Key(key if item.key is None else item.key, ANY_PREFIX)
        same = seen.setdefault(item.limit.bucket, [])
        for first, other in same:
            if own.meets(other):
                raise ConfigError(
                    f"{place}[{index}]: {item.limit.notation} can count in the same bucket as {place}[{first}]; "
                    "give one of them a name"
                )
        same.append((index, own))

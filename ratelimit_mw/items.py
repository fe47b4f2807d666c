"""Items: what a list of limits holds."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypedDict

from msgspec import Struct
from msgspec.structs import asdict, replace

from ratelimit_mw.calls import Call, call_from, named_call
from ratelimit_mw.errors import ConfigError, Mistakes, located
from ratelimit_mw.keys import ANY_PREFIX, Key, KeySpec, check_key
from ratelimit_mw.limit import LEASE_TIME, Limit, check_lease, seconds, whole
from ratelimit_mw.notation import parse
from ratelimit_mw.words import check_name, flags, made


class ItemOptions(TypedDict, total=False):
    """A table in `limits`: one limit, with what is its own."""

    limit: Annotated[str | Limit, "required: one limit"]
    key: Annotated[KeySpec, "whose bucket, instead of the rule's key"]
    cost: Annotated[
        int | Call | str, "units a request takes, or a callable of the request; what is no whole number counts 1"
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


class Item(Struct, frozen=True, kw_only=True):
    """One limit of a rule, with what may be its own: key, cost, shadow, max_delay, lease, settle."""

    limit: Limit
    key: KeySpec | None = None
    cost: int | Call | None = None  # None: the rule's
    shadow: bool = False
    max_delay: float | None = None
    lease: int = 0
    lease_time: float = LEASE_TIME
    settle: bool = True


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
        check_name(value.name)
        return [Item(limit=value, cost=1 if value.held else None, settle=not value.held)]
    if isinstance(value, str):
        return [Item(limit=limit) for limit in parse(value)]
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
    settle: Any = True,
) -> Item:
    mistakes = Mistakes()
    limits: list[Limit] = []
    with mistakes.at():
        limits = [_one_limit(limit, name)]
    with mistakes.at():
        limits = [_holding(one, max_delay) for one in limits]
    with mistakes.at():
        cost = check_cost(cost, limits)
    with mistakes.at():
        flags("shadow", shadow)
    with mistakes.at():
        flags("settle", settle)
    with mistakes.at():
        if key is not None:
            check_key(key)
    with mistakes.at():
        check_lease(limits, lease, lease_time)
        if lease and any(one.patience_us for one in limits):
            raise ConfigError("lease: what is taken ahead cannot be held back; allowed is no max_delay beside it")
    mistakes.tell()
    if limits[0].held:  # a request is at work once, whatever else it costs
        cost, settle = 1 if cost is None else cost, False
    return Item(
        limit=limits[0],
        key=key,
        cost=cost,
        shadow=shadow,
        max_delay=max_delay,
        lease=lease,
        lease_time=lease_time,
        settle=settle,
    )


def _one_limit(given: Any, name: Any) -> Limit:
    with located("limit"):
        limits = [given] if isinstance(given, Limit) else parse(given) if isinstance(given, str) else ()
        if len(limits) != 1:
            raise ConfigError(f"found {given!r}, allowed is one limit such as '100/minute'")
    found = limits[0] if name is None else replace(limits[0], name=name)
    check_name(found.name)
    return found


def _holding(limit: Limit, max_delay: Any) -> Limit:
    """The limit with this `max_delay`; None is its own."""
    if max_delay is None:
        return limit
    if not limit.holds_back and seconds("max_delay", max_delay):
        if limit.held:
            raise ConfigError(
                f"max_delay: nobody knows when one of {limit.notation} is given back; `queue` lets requests wait "
                "for one"
            )
        raise ConfigError(
            f"max_delay: {limit.notation} holds nothing back; a bucket does, such as "
            f"'{limit.notation.partition(' ')[0]} using gcra'"
        )
    return replace(limit, max_delay=max_delay) if limit.holds_back else limit


def check_cost(value: Any, limits: Sequence[Limit]) -> int | Call | None:
    """A cost: units that all these limits can admit, or a callable. Raises `ConfigError` naming `cost`."""
    if value is None:
        return None
    if callable(value) or named_call(value):
        with located("cost"):
            return call_from(value)
    whole("cost", value, 0)
    for limit in limits:
        if limit.held and not value:
            raise ConfigError(f"cost: 0 takes no slot of {limit.notation}, so it limits nothing; allowed is at least 1")
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

"""What `limits` may say: limits, or a way to choose them for each request."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, TypedDict

from msgspec import Struct
from msgspec.structs import replace

from ratelimit_mw.calls import FAILED, Answers, Call, call_from, name_of, named_call
from ratelimit_mw.errors import ConfigError, Mistakes, located
from ratelimit_mw.keys import ANY_PREFIX, Caller, Key, KeySpec, check_key
from ratelimit_mw.limit import Limit, seconds, well_named, whole
from ratelimit_mw.notation import parse
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.words import flags, made

_DEFAULT_TIER: Final = "default"
_REMEMBERED: Final = 1024  # answers of a callable whose limits are kept
_NO_DELAY: Final = "max_delay: the middleware holds no request back; Limiter tells the delay to who can wait"


class ItemOptions(TypedDict, total=False):
    """A table in `limits`: one limit, with what is its own."""

    limit: Annotated[str | Limit, "one limit"]
    key: Annotated[KeySpec, "whose bucket, instead of the rule's key"]
    cost: Annotated[int | Call, "units a request takes, or a callable of the request; what is no whole number counts 1"]
    name: Annotated[str, "in headers and in the bucket's key"]
    shadow: Annotated[bool, "decides and reports, but never refuses"]
    max_delay: Annotated[float, "seconds a request may be held back; 0 until the middleware can hold one back"]


class Item(Struct, frozen=True, kw_only=True):
    """One limit of a rule, with what may be its own: key, cost, shadow, max_delay."""

    limit: Limit
    key: KeySpec | None = None
    cost: int | Call | None = None  # None: the rule's
    shadow: bool = False
    max_delay: float | None = None


class Choice:
    """Limits that are chosen for each request. `calls`: the callables it needs."""

    calls: Sequence[Call] = ()

    def items(self, request: Caller, route: str, answers: Answers) -> Sequence[Item] | None:
        """The limits of this request; None when the callable gave none that can be used."""
        raise NotImplementedError


class Tiers(Choice):
    """`{free = "60/hour", pro = "5000/hour"}`: limits by the tier that a key names.

    The default tier is `default_tier`, or else the one called `default`, or else the first; it is for whoever has no
    tier, or one that is not in the table.
    """

    def __init__(self, place: str, tiers: Mapping[str, Any], tier: KeySpec | None, default: str | None) -> None:
        if tier is None:
            raise ConfigError(
                f"{place}: limits by tier, {', '.join(map(str, tiers))}, need `tier`, a key that names one"
            )
        self._tiers: Final = _compiled_tiers(place, tiers)
        if default is not None and default not in tiers:
            raise ConfigError(f"default_tier: found {default!r}, allowed is one of {', '.join(tiers)}")
        self._default: Final = default or (_DEFAULT_TIER if _DEFAULT_TIER in tiers else next(iter(tiers)))
        self.key: Final = Key(tier, ANY_PREFIX)
        self.calls = self.key.calls

    @property
    def all(self) -> Mapping[str, Sequence[Item]]:
        """All tiers with their limits, in order."""
        return self._tiers

    def items(self, request: Caller, route: str, answers: Answers) -> Sequence[Item]:
        """The limits of the tier that the key names."""
        identity = self.key.identity(request, route, answers) or ""
        # names of tiers have no character that an identity escapes: what stands behind the kind is the value itself
        return self._tiers.get(identity.partition("=")[2], self._tiers[self._default])


class Dynamic(Choice):
    """A callable of the request that gives its limits: notation, Limits, or whatever else a list of limits may hold."""

    def __init__(self, call: Call) -> None:
        self._call: Final = call
        self.calls = [call]
        self._compiled: Final = lru_cache(_REMEMBERED)(_compiled)

    def items(self, _: Caller, __: str, answers: Answers) -> Sequence[Item] | None:
        """The limits that the callable gave."""
        answer = answers[self._call]
        if answer is FAILED:
            return None
        try:
            return self._compiled(answer) if isinstance(answer, (str, Limit)) else _compiled(answer)
        except Exception as error:  # noqa: BLE001  # whatever a callable gives, the request is limited
            warn_rarely(f"limits {name_of(self._call)}", "gave no limits, the default ones apply: %s", error)
            return None


def _compiled(answer: Any) -> Sequence[Item]:
    """The limits that a callable gave. Raises `ConfigError` for none: `[]` says in words that there are none."""
    items = compile_items("limits", answer)
    check_different("limits", items, "all")
    if any(callable(item.cost) or (item.key is not None and Key(item.key, ANY_PREFIX).calls) for item in items):
        raise ConfigError(
            "limits: found a key or cost that is a callable; nobody asks it any more, the rule may have it"
        )
    return items


def _compiled_tiers(place: str, tiers: Mapping[str, Any]) -> dict[str, Sequence[Item]]:
    mistakes = Mistakes()
    compiled: dict[str, Sequence[Item]] = {}
    for name, limits in tiers.items():
        with mistakes.at(place):
            well_named(f"tier {name!r}", name)
            compiled[name] = compile_items(name, limits)
    mistakes.tell()
    return compiled


def compile_limits(
    place: str, value: object, tier: KeySpec | None = None, default_tier: str | None = None
) -> Sequence[Item] | Choice:
    """What `limits` says: the items, in order, or a Choice. Raises `ConfigError` naming `place`."""
    if (callable(value) and not isinstance(value, type)) or named_call(value):
        with located(place):
            return Dynamic(call_from(value))
    if isinstance(value, Mapping) and value and "limit" not in value and not _misspelt(value):
        return Tiers(place, value, tier, default_tier)
    return compile_items(place, value)


def _misspelt(table: Mapping[Any, Any]) -> bool:
    """Whether this is an item without its `limit`, rather than a table of tiers."""
    return not all(isinstance(name, str) for name in table) or any(
        name in ItemOptions.__annotations__ for name in table
    )


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
        return [value]
    if isinstance(value, Limit):
        return [Item(limit=_undelayed(value))]
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
    mistakes.tell()
    return Item(limit=limits[0], key=key, cost=cost, shadow=shadow, max_delay=max_delay)


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

"""What `limits` may say besides a list: how to choose them for each request."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ratelimit_mw.callables import name_of
from ratelimit_mw.calls import FAILED, Answers, Call, call_from, named_call
from ratelimit_mw.errors import ConfigError, Mistakes, located
from ratelimit_mw.items import Item, ItemOptions, check_different, compile_items
from ratelimit_mw.keys import ANY_PREFIX, Caller, Key, KeySpec
from ratelimit_mw.limit import Limit, well_named
from ratelimit_mw.notices import warn_rarely
from ratelimit_mw.words import close_to

_DEFAULT_TIER: Final = "default"
NOT_BY_TIER: Final = (
    "no limits here go by tier; allowed beside it are limits such as {free = '60/hour', pro = '600/hour'}"
)
_REMEMBERED: Final = 1024  # answers of a callable whose limits are kept


class Choice(ABC):
    """Limits that are chosen for each request. `calls`: the callables it needs."""

    calls: Sequence[Call]

    @abstractmethod
    def items(self, request: Caller, route: str, answers: Answers) -> Sequence[Item] | None:
        """The limits of this request; None when the callable gave none that can be used."""


class Tiers(Choice):
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
        self._tiers: Final = _compiled_tiers(place, tiers)
        if isinstance(default, str) and default not in tiers:
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
    if any(item.limit.held for item in items):
        raise ConfigError("limits: found a Concurrency; the rule may have it, as `concurrent`")
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
    if isinstance(value, Mapping) and not value:
        raise ConfigError(f"{place}: found an empty table, allowed is one of a limit or of tiers; [] says none")
    if isinstance(value, Mapping) and not _is_item(value, tier):
        return Tiers(place, value, tier, default_tier)
    return compile_items(place, value)


def check_default_tier(value: object) -> None:
    """Raises `ConfigError` unless `value` can be the name of a tier, or is None."""
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"default_tier: found {value!r}, allowed is the name of a tier")


def _is_item(table: Mapping[Any, Any], tier: KeySpec | None) -> bool:
    """Whether this is one limit, perhaps without its `limit` or misspelt, rather than a table of tiers."""
    words = ItemOptions.__annotations__
    if any(not isinstance(name, str) or name in words for name in table):
        return True
    return tier is None and any(close_to(name, words) for name in table)


def fixed_items(found: Sequence[Item] | Choice) -> list[Sequence[Item]]:
    """The lists of limits that are known before a request comes: one, one for each tier, or none."""
    if isinstance(found, Tiers):
        return list(found.all.values())
    return [] if isinstance(found, Choice) else [found]


def check_estimates(found: Sequence[Item] | Choice, cost: object) -> None:
    """Raises `ConfigError` for a limit that is to be settled, of which nothing is taken before. `cost`: of the rule."""
    for items in fixed_items(found):
        for item in items:
            own = cost if item.cost is None else item.cost
            if own == 0 and type(own) is int and item.settle:
                raise ConfigError(
                    f"cost: found 0 for {item.limit.notation} beside settle or count_status: what takes nothing is "
                    "never refused, whatever is charged after it; allowed is an estimate of at least 1, or "
                    "settle = false in the limit's table"
                )


def check_buckets(place: str, found: Sequence[Item] | Choice, key: KeySpec) -> None:
    """Raises `ConfigError` for two limits that can count in one bucket. `key`: of items that have none of their own."""
    if isinstance(found, Tiers):
        for name, items in found.all.items():
            check_different(f"{place}.{name}", items, key)
    elif not isinstance(found, Choice):
        check_different(place, found, key)

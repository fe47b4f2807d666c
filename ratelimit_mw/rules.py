"""Rules: which requests, by path and method, under which limits."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import fields, replace

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.keys import Key, KeySpec
from ratelimit_mw.limit import Limit, well_named, whole
from ratelimit_mw.notation import nearest, parse
from ratelimit_mw.paths import Paths

OnStoreError = Literal["allow", "deny", "local"]
ON_STORE_ERROR: Final = ("allow", "deny", "local")
OWN_NAMES: Final = ("default", "app", "unmatched")

_ANY_PREFIX: Final = 64  # where only the form of a key is looked at
_METHOD = re.compile(r"[A-Z]+")


class Item(Struct, frozen=True, kw_only=True):
    """One limit of a rule, with what may be its own: key, cost, shadow."""

    limit: Limit
    key: KeySpec | None = None
    cost: int = 1
    shadow: bool = False


class Rule(Struct, frozen=True, kw_only=True):
    """Which requests, and what limits them. All values as in settings; `limits` and `path` are required.

    Raises `ConfigError` that names the field, what was found and what is allowed.
    """

    path: str | Sequence[str]
    limits: Any = None  # notation, a Limit, a table of one item, or a sequence of these
    name: str | None = None
    methods: Sequence[str] = ()
    key: KeySpec | None = None
    on_store_error: OnStoreError | None = None
    exempt: bool = False
    shadow: bool = False
    final: bool = True

    def __post_init__(self) -> None:
        flags("exempt", self.exempt)
        flags("shadow", self.shadow)
        flags("final", self.final)
        if self.name is not None and well_named("name", self.name) in OWN_NAMES:
            raise ConfigError(f"name: found {self.name!r}, which has a meaning of its own here; choose another")
        check_on_store_error(self.on_store_error)
        Paths("path", self.path)
        self._check_methods()
        if self.exempt and self.limits:
            raise ConfigError("limits: a rule with exempt = true has none")
        if not self.exempt and self.limits is None:
            raise ConfigError("limits: required; a rule that limits nothing says limits = []")
        self.items()
        if self.key is not None:
            check_key(self.key)

    def items(self) -> list[Item]:
        """The limits of this rule, one by one."""
        return [] if self.limits is None else compile_items("limits", self.limits)

    @property
    def full_name(self) -> str:
        """The name, or one made of methods and path: `POST_login`."""
        if self.name:
            return self.name
        paths = [self.path] if isinstance(self.path, str) else self.path
        return re.sub(r"[^A-Za-z0-9.-]+", "_", "_".join([*self.methods, *paths])).strip("_")[:64] or "root"

    def _check_methods(self) -> None:
        if isinstance(self.methods, str) or not isinstance(self.methods, Sequence):
            raise ConfigError(f"methods: found {self.methods!r}, allowed is a list such as ['GET', 'POST']")
        for index, method in enumerate(self.methods):
            if not isinstance(method, str) or not _METHOD.fullmatch(method):
                raise ConfigError(
                    f"methods[{index}]: found {method!r}, allowed is a method in upper case, such as 'POST'"
                )


def rule_from(value: object) -> Rule:
    """A Rule, or a table of its fields. Raises `ConfigError` for anything else."""
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"found {value!r}, allowed is a table or a Rule")
    check_words(value, [field.name for field in fields(Rule)])
    if "path" not in value:
        raise ConfigError("path: required")
    return Rule(**value)


def compile_items(place: str, value: object) -> list[Item]:
    """The items that `limits` stands for, in order; none for an empty list.

    Raises `ConfigError` naming `place[index]`.
    """
    if isinstance(value, (str, Limit, Mapping, Item)):
        try:
            return _items(value)
        except ConfigError as error:
            raise error.at(place) from None
    if not isinstance(value, Sequence):
        raise ConfigError(
            f"{place}: found {value!r}, allowed is text such as '100/minute', a Limit, a table or a list of these"
        )
    items: list[Item] = []
    for index, one in enumerate(value):
        try:
            items += _items(one)
        except ConfigError as error:
            raise error.at(f"{place}[{index}]") from None
    return items


def _items(value: object) -> list[Item]:
    if isinstance(value, Item):
        return [value]
    if isinstance(value, Limit):
        return [_item(value)]
    if isinstance(value, str):
        return [_item(limit) for limit in parse(value)]
    if not isinstance(value, Mapping):
        raise ConfigError(f"found {value!r}, allowed is text such as '100/minute', a Limit or a table")
    check_words(value, ["limit", "key", "cost", "name", "shadow"])
    given = value.get("limit")
    limits = [given] if isinstance(given, Limit) else list(parse(given)) if isinstance(given, str) else []
    if len(limits) != 1:
        raise ConfigError(f"limit: found {given!r}, allowed is one limit such as '100/minute'")
    limit = replace(limits[0], name=value["name"]) if value.get("name") is not None else limits[0]
    return [_item(limit, **{word: value[word] for word in ("key", "cost", "shadow") if word in value})]


def check_different(place: str, items: Sequence[Item], key: KeySpec) -> None:
    """Raises `ConfigError` for two items that can count in one bucket. `key`: of items that have none of their own."""
    seen: dict[str, list[tuple[int, Key]]] = {}
    for index, item in enumerate(items):
        own = Key(key if item.key is None else item.key, _ANY_PREFIX)
        same = seen.setdefault(item.limit.bucket, [])
        for first, other in same:
            if own.meets(other):
                raise ConfigError(
                    f"{place}[{index}]: {item.limit.notation} can count in the same bucket as {place}[{first}]; "
                    "give one of them a name"
                )
        same.append((index, own))


def _item(limit: Limit, *, key: Any = None, cost: Any = 1, shadow: Any = False) -> Item:
    whole("cost", cost, 0)
    flags("shadow", shadow)
    if cost > limit.most:
        raise ConfigError(f"cost: {cost} can never pass {limit.notation}, which admits at most {limit.most} at once")
    if getattr(limit, "max_delay", 0.0):
        raise ConfigError("max_delay: the middleware holds no request back; Limiter tells the delay to who can wait")
    if key is not None:
        check_key(key)
    return Item(limit=limit, key=key, cost=cost, shadow=shadow)


def check_on_store_error(value: object) -> None:
    """Raises `ConfigError` unless `value` says what happens when the store fails, or is None."""
    if value is not None and value not in ON_STORE_ERROR:
        raise ConfigError(f"on_store_error: found {value!r}, allowed is one of {', '.join(ON_STORE_ERROR)}")


def check_key(value: Any, ipv6_prefix: int = _ANY_PREFIX) -> None:
    """Raises `ConfigError` unless `value` is a key."""
    try:
        Key(value, ipv6_prefix)
    except ConfigError as error:
        raise error.at("key") from None


def flags(field: str, value: object) -> None:
    """Raises `ConfigError` unless `value` is true or false."""
    if type(value) is not bool:
        raise ConfigError(f"{field}: found {value!r}, allowed is true or false")


def check_words(value: Mapping[Any, Any], known: Sequence[str]) -> None:
    """Raises `ConfigError` for the first word in a table that is not known, with the nearest that is."""
    for word in value:
        if word not in known:
            raise ConfigError(f"unknown word {word!r}{nearest(str(word), known)} ({', '.join(known)})")

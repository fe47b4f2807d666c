"""Settings: one vocabulary for keyword arguments, mappings and TOML."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from msgspec import Struct
from msgspec.structs import asdict, fields

from ratelimit_mw.errors import ConfigError
from ratelimit_mw.keys import KeySpec, check_ipv6_prefix
from ratelimit_mw.limit import seconds
from ratelimit_mw.paths import Paths
from ratelimit_mw.rules import (
    ON_STORE_ERROR,
    OnStoreError,
    Rule,
    check_different,
    check_key,
    check_words,
    compile_items,
    flags,
    rule_from,
)

Headers = Literal["ietf", "legacy", "both", "none"]
MissingKey = Literal["shared", "deny", "exempt"]
_LONGEST_SECRET = 64  # bytes; BLAKE2b takes no longer key
_HEADERS = ("ietf", "legacy", "both", "none")
_MISSING_KEY = ("shared", "deny", "exempt")


class Options(TypedDict, total=False):
    """The settings as keyword arguments. What each means: `Settings`."""

    limits: Any
    app_limits: Any
    rules: Sequence[Rule | Mapping[str, Any]]
    key: KeySpec
    store: Any
    ipv6_prefix: int
    exempt: Sequence[str]
    on_store_error: OnStoreError
    store_timeout: float
    headers: Headers
    shadow: bool
    missing_key: MissingKey
    key_secret: str
    plain_keys: bool
    enabled: bool


class Settings(Struct, frozen=True, kw_only=True):
    """What is limited, by what, and how.

    Raises `ConfigError` that names the place, what was found and what is allowed.
    """

    limits: Any = None  # required; applies unless a final rule matched. [] says none, in words
    app_limits: Any = ()  # on every request besides its rule
    rules: Sequence[Any] = ()  # in order; the first final match ends the search
    key: KeySpec = "user | ip"
    store: Any = "memory://"  # a URL, or a store
    ipv6_prefix: int = 64  # bits by which IPv6 clients are counted, 32 to 128
    exempt: Sequence[str] = ()  # paths that are not limited
    on_store_error: OnStoreError = "local"
    store_timeout: float = 0.05  # seconds
    headers: Headers = "ietf"
    shadow: bool = False  # decide and report, but never refuse
    missing_key: MissingKey = "shared"
    key_secret: str = ""  # keys the hash of identities
    plain_keys: bool = False  # leaves identities readable in the store
    enabled: bool = True

    def __post_init__(self) -> None:
        if self.limits is None:
            raise ConfigError("limits: required, such as '100/minute'; [] says that there are none")
        check_ipv6_prefix(self.ipv6_prefix)
        check_key(self.key, self.ipv6_prefix)
        check_different("limits", compile_items("limits", self.limits), self.key)
        check_different("app_limits", compile_items("app_limits", self.app_limits), self.key)
        for index, rule in enumerate(self.compiled_rules()):
            check_different(f"rules[{index}].limits", rule.items(), self.key if rule.key is None else rule.key)
        if self.exempt or not isinstance(self.exempt, (list, tuple)):
            Paths("exempt", self.exempt)
        _one_of("on_store_error", self.on_store_error, ON_STORE_ERROR)
        if not seconds("store_timeout", self.store_timeout):
            raise ConfigError("store_timeout: found 0, allowed is more than 0 seconds")
        _one_of("headers", self.headers, _HEADERS)
        _one_of("missing_key", self.missing_key, _MISSING_KEY)
        if (
            not isinstance(self.key_secret, str)
            or len(self.key_secret.encode("utf-8", "surrogatepass")) > _LONGEST_SECRET
        ):
            raise ConfigError(f"key_secret: allowed is text of at most {_LONGEST_SECRET} bytes")
        for field in ("shadow", "plain_keys", "enabled"):
            flags(field, getattr(self, field))

    def __repr__(self) -> str:
        """Without what is secret: the key_secret, and the store's URL, which may hold a password."""
        shown = asdict(self)
        shown["key_secret"] = "***" if self.key_secret else ""
        if isinstance(self.store, str):
            shown["store"] = f"{self.store.partition('://')[0]}://***"
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def compiled_rules(self) -> list[Rule]:
        """The rules as objects, in order, with names of their own."""
        if isinstance(self.rules, (str, Mapping)) or not isinstance(self.rules, Sequence):
            raise ConfigError(f"rules: found {self.rules!r}, allowed is a list of tables or Rules")
        rules: list[Rule] = []
        names: dict[str, int] = {}
        for index, value in enumerate(self.rules):
            try:
                rules.append(rule_from(value))
            except ConfigError as error:
                raise error.at(f"rules[{index}]") from None
            first = names.setdefault(rules[-1].full_name, index)
            if first != index:
                raise ConfigError(
                    f"rules[{index}]: has the name {rules[-1].full_name!r} like rules[{first}]; give it one of its own"
                )
        return rules

    @classmethod
    def of(cls, settings: "Settings | Mapping[str, Any] | None", options: Mapping[str, Any]) -> "Settings":
        """Settings from an object or a mapping, and keyword arguments that go before it."""
        if isinstance(settings, cls):
            if not options:
                return settings
            settings = asdict(settings)
        elif settings is not None and not isinstance(settings, Mapping):
            raise ConfigError(
                f"settings: found {settings!r:.100}, allowed is Settings or a mapping; Settings.load(path) reads TOML"
            )
        given = {**(settings or {}), **options}
        check_words(given, [field.name for field in fields(cls)])
        return cls(**given)

    @classmethod
    def load(cls, path: str | Path) -> "Settings":
        """Settings from a TOML file. Raises `ConfigError` that names the file."""
        try:
            return cls.of(tomllib.loads(Path(path).read_text("utf-8")), {})
        except (OSError, ValueError) as error:  # ConfigError, TOMLDecodeError and UnicodeDecodeError are ValueErrors
            raise ConfigError(f"{path}: {error}") from None


def _one_of(field: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{field}: found {value!r}, allowed is one of {', '.join(allowed)}")

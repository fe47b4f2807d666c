"""Settings: the same options in keyword arguments, mappings, files and environment variables."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import environ
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, fields

from ratelimit_mw.algorithms.concurrency import LIFETIME, RETRY
from ratelimit_mw.core.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.core.limit import NAME, check_int, check_seconds
from ratelimit_mw.core.validation import OptionsMeta, build_checked, check_bool, check_choice
from ratelimit_mw.http.callables import Predicate, is_callable_name, resolve_callable
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.client_lists import ClientList
from ratelimit_mw.http.keys import KeySpec, check_ipv6_prefix, check_key, key_or_placeholder
from ratelimit_mw.http.paths import Paths
from ratelimit_mw.http.response import HeaderStyle
from ratelimit_mw.settings.features import (
    PenaltySpec,
    check_no_concurrency,
    check_single_concurrency,
    check_slot_times,
    check_slots,
    parse_penalty,
    parse_statuses,
    resolve_settle,
)
from ratelimit_mw.settings.limits import check_buckets, check_default_tier, check_estimates, parse_limits
from ratelimit_mw.settings.loading import problems_except, read_environment, read_file, variable_of, with_location
from ratelimit_mw.settings.options import HEADERS, MISSING_KEY, MissingKey, Options
from ratelimit_mw.settings.rule import (
    LIMIT_TABLE_OPTIONS,
    ON_MESSAGE_REFUSED,
    ON_STORE_ERROR,
    OnMessageRefused,
    OnStoreError,
    PathSpec,
    Rule,
    rule_from,
)

_NOTATION: Final = ("limits", "app_limits", "messages")  # notation may have commas, so a variable's text is not split
_HOOKS: Final = ("on_decision", "on_store_event")
_FLAGS: Final = ("ignore_case", "shadow", "plain_keys", "strict")
_MISPLACED_OPTIONS: Final = {
    **dict.fromkeys(
        ("path", "methods", "host", "when", "preflight", "final", "name", "cost"), "into a rule: [[rules]]"
    ),
    **LIMIT_TABLE_OPTIONS,
}
_VALID_REST: Final[Mapping[str, Any]] = {"limits": [], "tier": "ip"}  # for `check`: completes a part of the settings
_MIN_SECRET_BYTES: Final = 16  # bytes
_MAX_SECRET_BYTES: Final = 64  # bytes; the longest key of BLAKE2b
_PUBLISHED_SECRETS: Final = ("a long random text of your own",)  # from the documentation of the first release candidate
_HOW_TO_GENERATE: Final = "make one with python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


class Settings(Struct, frozen=True, kw_only=True, metaclass=OptionsMeta):
    """The settings of one middleware. `Options` describes each field.

    Raises `ConfigError` with all problems, each with its field, the value and what is expected.
    """

    limits: Any = None  # required
    app_limits: Any = ()
    messages: Any = ()
    on_message_refused: OnMessageRefused = "close"
    rules: Sequence[Any] = ()
    concurrent: int = 0
    queue: int = 0
    queue_timeout: float = 5.0  # seconds
    slot_lifetime: float = LIFETIME  # seconds
    slot_retry: float = RETRY  # seconds
    key: KeySpec = "user | ip"
    tier: KeySpec | None = None
    default_tier: str | None = None
    settle: Any = None
    count_status: Any = ()
    penalty: PenaltySpec | None = None
    store: Any = "memory://"
    trusted_proxies: Sequence[str] | int = ()
    proxy_header: str = "x-forwarded-for"
    ipv6_prefix: int = 64
    exempt: PathSpec = ()
    safelist: Sequence[Any] = ()
    blocklist: Sequence[Any] = ()
    ignore_case: bool = False
    on_store_error: OnStoreError = "local"
    local_share: float = 1.0
    store_timeout: float = 0.05  # seconds
    max_waiting: int | None = None
    headers: HeaderStyle = "ietf"
    on_refused: Any = None
    on_decision: Any = None
    on_store_event: Any = None
    jitter: float = 0.0  # seconds
    shadow: bool = False
    missing_key: MissingKey = "shared"
    key_secret: str = ""
    plain_keys: bool = False
    strict: bool = False
    enabled: bool | Predicate = True

    def __post_init__(self) -> None:
        mistakes = ErrorCollector()
        checks: Sequence[Callable[[], object]] = (
            self._check_keys,
            self._check_limits,
            self._check_rules,
            self._check_slots,
            partial(ClientIPResolver, self.trusted_proxies, self.proxy_header),
            partial(check_ipv6_prefix, self.ipv6_prefix),
            partial(resolve_settle, self.settle),
            partial(parse_statuses, self.count_status),
            partial(parse_penalty, self.penalty),
            self._check_exempt,
            partial(ClientList, "safelist", self.safelist),
            partial(ClientList, "blocklist", self.blocklist),
            partial(check_choice, "on_store_error", self.on_store_error, ON_STORE_ERROR),
            partial(check_choice, "on_message_refused", self.on_message_refused, ON_MESSAGE_REFUSED),
            self._check_seconds,
            self._check_max_waiting,
            partial(check_choice, "headers", self.headers, HEADERS),
            self._check_on_refused,
            self._check_share,
            *(partial(self._check_hook, field) for field in _HOOKS),
            partial(check_choice, "missing_key", self.missing_key, MISSING_KEY),
            self._check_secret,
            self._check_enabled,
            *(partial(check_bool, field, getattr(self, field)) for field in _FLAGS),
        )
        for check in checks:
            with mistakes.collect():
                check()
        mistakes.raise_if_any()

    def __repr__(self) -> str:
        """Return a text without secrets: without key_secret, the store's URL, and the headers of the lists."""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the same fields for tools that print objects by field, such as rich."""
        values = asdict(self)
        values["key_secret"] = "***" if self.key_secret else ""
        if isinstance(self.store, str):
            values["store"] = f"{self.store.partition('://')[0]}://***"
        for field in ("safelist", "blocklist"):
            values[field] = ["***" if isinstance(member, Mapping) else member for member in values[field]]
        return list(values.items())

    def parsed_rules(self) -> list[Rule]:
        """Return the rules as parsed objects, in order. Raises `ConfigError` if two have the same name."""
        if isinstance(self.rules, (str, bytes, Mapping)) or not isinstance(self.rules, Sequence):
            raise ConfigError(
                f"rules: got {self.rules!r}, expected a list of tables or Rules; in TOML each begins with [[rules]]"
            )
        mistakes = ErrorCollector()
        rules: list[Rule] = []
        names: dict[str, int] = {}
        for index, value in enumerate(self.rules):
            with mistakes.collect(_rule_place(index, value)):
                rule = rule_from(value)
                rules.append(rule)
                first = names.setdefault(rule.full_name, index)
                if first != index:
                    problem = f"name: {rule.full_name!r} is also the name of rules[{first}]"
                    raise ConfigError(f"{problem}; choose another name")
        mistakes.raise_if_any()
        return rules

    @classmethod
    def of(cls, settings: "Settings | Mapping[str, Any] | None", options: Mapping[str, Any]) -> "Settings":
        """Build settings from an object or a mapping, from keyword arguments and from the environment.

        Keyword arguments override the mapping, and both override the environment: what the code gives wins. (`load`
        differs: there the environment overrides the file.) A Settings object is complete, so the environment is not
        read.
        """
        if isinstance(settings, cls):
            return (
                settings
                if not options
                else build_checked(cls, {**asdict(settings), **options}, Options, _MISPLACED_OPTIONS)
            )
        if settings is not None and not isinstance(settings, Mapping):
            text = isinstance(settings, str)
            preview = f"{settings!r:.100}" if text else type(settings).__name__
            hint = f"limits={preview} sets limits; " if text else ""
            raise ConfigError(
                f"settings: got {preview}, expected Settings or a mapping; {hint}Settings.load(path) reads a file"
            )
        values = {**(settings or {}), **options}
        from_env, env_problems = cls._from_environment()
        env_values = {option: value for option, value in from_env.items() if option not in values}

        def with_variable(problem: str) -> str:
            variable = variable_of(problem, env_values)
            return f"{variable}: {problem}" if variable else problem

        return cls._build({**env_values, **values}, env_problems, with_variable)

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Raise `ConfigError` for problems in a part of the settings, whatever the rest will be."""
        build_checked(cls, {**_VALID_REST, **given}, Options, _MISPLACED_OPTIONS)

    @classmethod
    def load(cls, path: str | Path) -> "Settings":
        """Build settings from a TOML or JSON file and the environment.

        The environment overrides the file, so that one file serves several deployments. (`of` differs: there the
        arguments override the environment.) Raises `ConfigError` that names the file.
        """
        values, (env_values, env_problems) = read_file(Path(path)), cls._from_environment()
        return cls._build(
            {**values, **env_values}, env_problems, lambda problem: with_location(problem, Path(path), env_values)
        )

    @classmethod
    def strict_setting(cls, value: object) -> bool:
        """Return the setting `strict` without building the settings: from `value`, else from the environment."""
        if isinstance(value, cls):
            return value.strict
        if isinstance(value, Mapping) and "strict" in value:
            return value["strict"] is True
        env_values, env_problems = cls._from_environment()
        if env_problems:
            raise ConfigError(*env_problems.values())
        return env_values.get("strict") is True

    @classmethod
    def _build(
        cls, values: Mapping[str, Any], env_problems: Mapping[str, str], describe: Callable[[str], str]
    ) -> "Settings":
        """Build settings from `values`. `env_problems`: the problems of unreadable environment variables, by option.

        Raises one `ConfigError` for these and all other problems; `describe` adds the location to the latter.
        """
        try:
            built = build_checked(cls, values, Options, _MISPLACED_OPTIONS)
        except ConfigError as error:
            raise ConfigError(
                *env_problems.values(), *map(describe, problems_except(error.problems, env_problems))
            ) from None
        if env_problems:
            raise ConfigError(*env_problems.values())
        return built

    @classmethod
    def _from_environment(cls) -> tuple[dict[str, Any], dict[str, str]]:
        defaults = {field.name: field.default for field in fields(cls) if field.name not in _NOTATION}
        # read it as a number; its field is None, because the default depends on the integration
        defaults["max_waiting"] = 0
        return read_environment(environ, Options, defaults)

    def _check_on_refused(self) -> None:
        if self.on_refused is not None:
            with error_location("on_refused"):
                resolve_callable(self.on_refused, None)

    def _check_hook(self, field: str) -> None:
        if (hook := getattr(self, field)) is not None:
            with error_location(field):
                resolve_callable(hook, ("event",), plain=True)

    def _check_share(self) -> None:
        share = self.local_share
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise ConfigError(f"local_share: got {share!r}, expected a number above 0 and up to 1, such as 0.25")

    def _check_enabled(self) -> None:
        if callable(self.enabled) or is_callable_name(self.enabled):
            with error_location("enabled"):
                resolve_callable(self.enabled, plain=True)
        else:
            check_bool("enabled", self.enabled)

    def _check_keys(self) -> None:
        check_key(self.key)
        if self.tier is not None:
            check_key(self.tier, "tier")
        check_default_tier(self.default_tier)

    def _check_limits(self) -> None:
        if self.limits is None:
            raise ConfigError("limits: required, such as '100/minute'; [] means no limits")
        mistakes = ErrorCollector()
        for field in _NOTATION:
            with mistakes.collect():
                limits = parse_limits(field, getattr(self, field), *self._tiers)
                check_buckets(field, limits, key_or_placeholder(self.key))
                if field == "messages":
                    check_no_concurrency(field, limits)
                elif self.settle is not None or self.count_status:
                    with error_location(field):
                        check_estimates(limits, None)
                if field == "limits":
                    check_single_concurrency(limits, self.concurrent)
        mistakes.raise_if_any()

    def _check_rules(self) -> None:
        mistakes = ErrorCollector()
        for index, rule in enumerate(self.parsed_rules()):
            place = _rule_place(index, rule)
            key = key_or_placeholder(self.key) if rule.key is None else rule.key
            for field, resolve in (("limits", rule.resolve_limits), ("messages", rule.resolve_messages)):
                with mistakes.collect(place):
                    check_buckets(field, resolve(*self._tiers) or (), key)
            with mistakes.collect(place):
                settle = self.settle if rule.settle is None else rule.settle
                statuses = self.count_status if rule.count_status is None else rule.count_status
                if settle is not None or statuses:
                    check_estimates(rule.resolve_limits(*self._tiers), rule.cost)
        mistakes.raise_if_any()

    def _check_slots(self) -> None:
        check_slots(self.concurrent, self.queue, self.queue_timeout)
        check_slot_times(self.slot_lifetime, self.slot_retry)

    @property
    def _tiers(self) -> tuple[KeySpec | None, str | None]:
        """`tier` and `default_tier`. An invalid key is replaced here, because another check reports it."""
        return (None if self.tier is None else key_or_placeholder(self.tier)), self.default_tier

    def _check_exempt(self) -> None:
        if self.exempt or not isinstance(self.exempt, (list, tuple)):
            Paths("exempt", self.exempt)

    def _check_seconds(self) -> None:
        if not check_seconds("store_timeout", self.store_timeout):
            raise ConfigError("store_timeout: got 0, expected more than 0 seconds")
        check_seconds("jitter", self.jitter)

    def _check_max_waiting(self) -> None:
        if self.max_waiting is not None:
            check_int("max_waiting", self.max_waiting, 0)

    def _check_secret(self) -> None:
        secret = self.key_secret
        size = len(secret.encode("utf-8", "surrogatepass")) if isinstance(secret, str) else -1
        if size and not _MIN_SECRET_BYTES <= size <= _MAX_SECRET_BYTES:
            sizes = f"{_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES}"
            raise ConfigError(f"key_secret: expected text of {sizes} bytes; {_HOW_TO_GENERATE}")
        if secret in _PUBLISHED_SECRETS:
            raise ConfigError(f"key_secret: got the text of an example, which is public; {_HOW_TO_GENERATE}")


def _rule_place(index: int, rule: object) -> str:
    """Return the place of a rule in error messages, with its name if it has one: `rules[2] (login)`."""
    name = rule.get("name") if isinstance(rule, Mapping) else getattr(rule, "name", None)
    return f"rules[{index}] ({name})" if isinstance(name, str) and NAME.fullmatch(name) else f"rules[{index}]"

"""Settings: the same options in keyword arguments, mappings, files and environment variables."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from os import environ
from pathlib import Path, PurePath
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from ratelimit_mw.algorithms.concurrency import LIFETIME, RETRY
from ratelimit_mw.algorithms.takeover import OnChange
from ratelimit_mw.core.errors import ConfigError, ErrorCollector, error_location
from ratelimit_mw.core.limit import NAME
from ratelimit_mw.core.signatures import callable_name
from ratelimit_mw.core.structs import defaults_of
from ratelimit_mw.core.validation import OptionsMeta, build_checked, checks_of, option_checks
from ratelimit_mw.http.callables import Predicate, is_callable_name, resolve_callable
from ratelimit_mw.http.client_ip import ClientIPResolver
from ratelimit_mw.http.keys import KeySpec, check_key, key_or_placeholder
from ratelimit_mw.http.paths import Paths
from ratelimit_mw.http.response import HeaderStyle
from ratelimit_mw.settings.features import PenaltySpec, check_no_concurrency, check_single_concurrency
from ratelimit_mw.settings.limits import check_buckets, check_estimates, parse_limits
from ratelimit_mw.settings.loading import option_of, read_environment, with_location
from ratelimit_mw.settings.options import MissingKey, Options, SpanAttributes
from ratelimit_mw.settings.rule import (
    LIMIT_TABLE_OPTIONS,
    OnMessageRefused,
    OnStoreError,
    PathSpec,
    Rule,
    RuleOptions,
    rule_from,
    texts_of,
)
from ratelimit_mw.settings.source import ORIGIN, CallSource, FileSource, Origin

_FILES: Final = (".toml", ".json")
_NOTATION: Final = ("limits", "app_limits", "messages")  # notation has commas, so a variable's text is not split
_MISPLACED_OPTIONS: Final = {
    **dict.fromkeys(
        ("path", "methods", "host", "when", "preflight", "final", "name", "cost", "priority", "keep"),
        "into a rule: [[rules]]",
    ),
    **LIMIT_TABLE_OPTIONS,
}
_MISPLACED_IN_RULES: Final = {
    **{
        option: "into the global settings, in TOML above the first [[rules]]"
        for option in Options.__annotations__
        if option not in RuleOptions.__annotations__
    },
    **LIMIT_TABLE_OPTIONS,
}
_FROM_ENVIRONMENT: Final = "from_environment"  # an attribute and not a field, because users cannot set it
# valid values that `check` adds to a part of the settings, in place of missing ones
_REQUIRED_DEFAULTS: Final[Mapping[str, Any]] = {"limits": [], "tier": "ip"}


class Settings(Struct, frozen=True, kw_only=True, dict=True, metaclass=OptionsMeta):
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
    fair_share: KeySpec | None = None
    slot_lifetime: float = LIFETIME  # seconds
    slot_retry: float = RETRY  # seconds
    latency_goal: float = 0.0  # seconds
    at_work_least: int = 4
    at_work_most: int = 500
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
    usage_path: str | None = None
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
    refresh: float = 1.0  # seconds
    reload: bool = False
    remember_refused: int = 0
    metrics: bool = False
    metrics_folder: str | None = None
    span_attributes: SpanAttributes = "none"
    jitter: float = 0.0  # seconds
    shadow: bool = False
    on_change: OnChange = "fresh"
    missing_key: MissingKey | None = None
    key_secret: str = ""
    plain_keys: bool = False
    strict: bool = False
    enabled: bool | Predicate = True

    def __post_init__(self) -> None:
        mistakes = ErrorCollector()
        # the problem of the key comes first, because limits and rules use it
        mistakes.run([partial(check_key, "key", self.key), self._check_limits, self._check_rules])
        check_proxies = partial(ClientIPResolver, self.trusted_proxies, self.proxy_header)
        mistakes.run([check_proxies, *option_checks(self, _CHECKS), self._check_at_work])
        mistakes.raise_if_any()
        if self.usage_path and self.exempt and Paths("exempt", self.exempt).match(self.usage_path, normal=False):
            raise ConfigError(
                f"usage_path: {self.usage_path!r} is exempt, too; remove it from `exempt`, as it is free anyway",
                code="RL-074",
            )

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

    @property
    def from_environment(self) -> Collection[str]:
        """The options whose values come from the environment. A copy by `replace` has none."""
        found: Collection[str] = vars(self).get(_FROM_ENVIRONMENT, ())
        return found

    @property
    def origin(self) -> Origin | None:
        """The file or callable that these settings come from; None if there is none. A copy by `replace` has none."""
        found: Origin | None = vars(self).get(ORIGIN)
        return found

    @property
    def is_reloaded(self) -> bool:
        """Whether an integration takes over changes of their origin while the app runs."""
        return self.origin is not None and self.refresh > 0 and (self.reload or self.origin.source.is_polled)

    def exempting(self, paths: Sequence[str]) -> "Settings":
        """Return these settings with other paths that are exempt, too; the same object if all of them are."""
        exempt = texts_of(self.exempt)
        added = [path for path in paths if path not in exempt]
        if not added:
            return self
        return self.pass_origin_to(replace(self, exempt=[*exempt, *added]), lambda changed: changed.exempting(paths))

    def pass_origin_to(self, made: "Settings", step: Callable[["Settings"], "Settings"]) -> "Settings":
        """Give `made`, which is `step(self)`, the same origin, so that a reload takes the step, too. Returns `made`."""
        if self.origin is not None and made is not self:
            vars(made)[ORIGIN] = self.origin.then(step)
        return made

    def for_rule(self, rule: Rule | None, option: str) -> Any:
        """Return an option of a rule, or the global one if the rule does not set it. `rule`: None for global limits."""
        value = None if rule is None else getattr(rule, option)
        return getattr(self, option) if value is None else value

    def parsed_rules(self) -> list[Rule]:
        """Return the rules as parsed objects, in order. Raises `ConfigError` if two have the same name."""
        if isinstance(self.rules, (str, bytes, Mapping)) or not isinstance(self.rules, Sequence):
            raise ConfigError(
                f"rules: got {self.rules!r}, expected a list of tables or Rules; in TOML each begins with [[rules]]",
                code="RL-008",
            )
        mistakes = ErrorCollector()
        rules: list[Rule] = []
        names: dict[str, int] = {}
        for index, value in enumerate(self.rules):
            with mistakes.collect(_rule_place(index, value)):
                rule = rule_from(value, _MISPLACED_IN_RULES)
                rules.append(rule)
                first = names.setdefault(rule.full_name, index)
                if first != index:
                    raise ConfigError(_same_name(rule, rule_from(self.rules[first]), first), code="RL-005")
        mistakes.raise_if_any()
        return rules

    @classmethod
    def of(cls, settings: "SettingsValue", options: Mapping[str, Any]) -> "Settings":
        """Build settings from an object or a mapping, from keyword arguments and from the environment.

        Keyword arguments override the mapping, and both override the environment, because code takes precedence. (In
        `load`, the environment overrides the file.) A Settings object is complete, so the environment is not read. A
        callable, which text may name, returns one of them.
        """
        if isinstance(settings, cls):
            if not options:
                return settings
            built = build_checked(cls, {**asdict(settings), **options}, Options, _MISPLACED_OPTIONS)
            vars(built)[_FROM_ENVIRONMENT] = set(settings.from_environment) - set(options)
            return settings.pass_origin_to(built, partial(cls.of, options=options))
        if is_settings_callable(settings):
            made: Settings = _call_source(cls, settings, options).snapshot().build()
            return made
        if settings is not None and not isinstance(settings, Mapping):
            text = isinstance(settings, str)
            preview = f"{settings!r:.100}" if text else type(settings).__name__
            is_file = isinstance(settings, PurePath) or (isinstance(settings, str) and settings.endswith(_FILES))
            hint = f"limits={preview} sets limits; " if text and not is_file else ""
            path = repr(str(settings)) if is_file else "path"
            raise ConfigError(
                f"settings: got {preview}, expected Settings or a mapping; {hint}Settings.load({path:.100}) reads a "
                "file",
                code="RL-008",
            )
        values = {**(settings or {}), **options}
        from_env, env_problems = cls._from_environment()
        env_values = {option: value for option, value in from_env.items() if option not in values}
        return cls._build({**env_values, **values}, env_values, env_problems)

    @classmethod
    def check(cls, given: Mapping[str, Any]) -> None:
        """Check some of the options alone. Raise `ConfigError` for problems that the other options could not solve."""
        build_checked(cls, {**_REQUIRED_DEFAULTS, **given}, Options, _MISPLACED_OPTIONS)

    @classmethod
    def load(cls, path: str | Path) -> "Settings":
        """Build settings from a TOML or JSON file and the environment.

        The environment overrides the file, so that one file serves several deployments. (In `of`, the arguments
        override the environment.) Raises `ConfigError` that names the file.
        """
        built: Settings = FileSource(Path(path), partial(cls._of_table, Path(path))).snapshot().build()
        return built

    @classmethod
    def _of_table(cls, path: Path, values: Mapping[str, Any]) -> "Settings":
        env_values, env_problems = cls._from_environment()
        return cls._build({**values, **env_values}, env_values, env_problems, path)

    @classmethod
    def strict_setting(cls, value: object) -> bool:
        """Return the setting `strict`, from `value` or else from the environment, without building the settings."""
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
        cls,
        values: Mapping[str, Any],
        env_values: Mapping[str, Any],
        env_problems: Mapping[str, str],
        path: Path | None = None,
    ) -> "Settings":
        """Build settings from `values`.

        `env_values`: values from the environment. `path`: the file that the other values come from.

        Raises one `ConfigError` for all problems, each with its location. The error includes `env_problems`: the
        problems of unreadable variables, by option.
        """
        mistakes = ErrorCollector()
        mistakes.add(env_problems.values())
        try:
            built = build_checked(cls, values, Options, _MISPLACED_OPTIONS)
        except ConfigError as error:
            others = [problem for problem in error.problems if option_of(problem) not in env_problems]
            mistakes.add(with_location(problem, env_values, path) for problem in others)
        mistakes.raise_if_any()
        vars(built)[_FROM_ENVIRONMENT] = set(env_values)
        return built

    @classmethod
    def _from_environment(cls) -> tuple[dict[str, Any], dict[str, str]]:
        defaults = {name: value for name, value in defaults_of(cls).items() if name not in _NOTATION}
        # a variable is read as a number; the field is None, because the default depends on the integration
        defaults["max_waiting"] = 0
        defaults["key"] = None  # a key may be a list, which is JSON
        return read_environment(environ, Options, defaults)

    def _check_limits(self) -> None:
        if self.limits is None:
            raise ConfigError("limits: required, such as '100/minute'; [] means no limits", code="RL-002")
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
            key = key_or_placeholder(self.for_rule(rule, "key"))
            for field, resolve in (("limits", rule.resolve_limits), ("messages", rule.resolve_messages)):
                with mistakes.collect(place):
                    check_buckets(field, resolve(*self._tiers) or (), key)
            with mistakes.collect(place):
                if self.for_rule(rule, "settle") is not None or self.for_rule(rule, "count_status"):
                    check_estimates(rule.resolve_limits(*self._tiers), rule.cost)
        mistakes.raise_if_any()

    def _check_at_work(self) -> None:
        if type(self.at_work_least) is type(self.at_work_most) is int and self.at_work_least > self.at_work_most:
            raise ConfigError(
                f"at_work_least: got {self.at_work_least}, more than at_work_most, {self.at_work_most}", code="RL-080"
            )

    @property
    def _tiers(self) -> tuple[KeySpec | None, str | None]:
        """`tier` and `default_tier`. An invalid key is replaced here, because another check reports it."""
        return (None if self.tier is None else key_or_placeholder(self.tier)), self.default_tier


SettingsValue = Settings | Mapping[str, Any] | str | Callable[[], Settings | Mapping[str, Any]] | None
"""What an integration takes as its settings. Text names a callable: `call:app.limits:current`."""

_CHECKS: Final = checks_of(Settings, Options)


def is_settings_callable(value: object) -> bool:
    """Return whether settings come from a callable, or from text that names one."""
    return is_callable_name(value) or (callable(value) and not isinstance(value, Mapping))


def _call_source(kind: type[Settings], value: Any, options: Mapping[str, Any]) -> CallSource:
    """Return the source of settings that a callable returns. Raises `ConfigError` unless it can be called."""
    with error_location("settings"):
        call: Any = resolve_callable(value, (), plain=True)
    place = value.strip() if isinstance(value, str) else callable_name(call)

    def make(returned: Any) -> Settings:
        if not isinstance(returned, (Settings, Mapping)):
            raise ConfigError(
                f"settings: {place} returned {type(returned).__name__}, expected Settings or a mapping", code="RL-068"
            )
        built = kind.of(returned, options)
        return replace(built) if built is returned else built  # a copy, as the callable may return the object again

    return CallSource(call, place, make)


def _same_name(rule: Rule, other: Rule, index: int) -> str:
    """Return the message for a rule with the same name as an earlier rule. `index`: the index of the earlier rule."""
    name = f"{rule.full_name!r}" if rule.name else f"the default name {rule.full_name!r}, made of {rule.name_source!r},"
    others = f"name of rules[{index}]" if other.name else f"default name of rules[{index}], of {other.name_source!r}"
    fix = "choose another name" if rule.name else "give one of them a name"
    return f"name: {name} is also the {others}; {fix}"


def _rule_place(index: int, rule: object) -> str:
    """Return the place of a rule in error messages, with its name if it has one: `rules[2] (login)`."""
    name = rule.get("name") if isinstance(rule, Mapping) else getattr(rule, "name", None)
    return f"rules[{index}] ({name})" if isinstance(name, str) and NAME.fullmatch(name) else f"rules[{index}]"

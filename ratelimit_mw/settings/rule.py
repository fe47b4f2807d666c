"""Rules: the requests that they match, and their limits."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypedDict

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.core.limit import Limit, check_name
from ratelimit_mw.core.validation import (
    RESERVED_NAMES,
    OptionsMeta,
    build_checked,
    checks_of,
    option_checks,
    reject_reserved_name,
)
from ratelimit_mw.http.callables import Predicate, RequestCallable, callable_check
from ratelimit_mw.http.hosts import Hosts
from ratelimit_mw.http.keys import KeySpec, check_key, key_or_placeholder
from ratelimit_mw.http.paths import Paths
from ratelimit_mw.settings.features import (
    PenaltySpec,
    Priority,
    SettleSpec,
    StatusSpec,
    check_concurrent,
    check_count_status,
    check_fair_share,
    check_keep,
    check_no_concurrency,
    check_penalty,
    check_queue,
    check_queue_timeout,
    check_settle,
    check_single_concurrency,
    parse_penalty,
)
from ratelimit_mw.settings.limits import (
    NOT_BY_TIER,
    LimitOptions,
    LimitSpec,
    ParsedLimits,
    TieredLimits,
    check_estimates,
    check_tier_name,
    has_concurrency,
    known_specs,
    parse_limits,
    resolve_cost,
)

OnStoreError = Literal["allow", "deny", "local"]
OnMessageRefused = Literal["close", "drop"]

LIMIT_TABLE_OPTIONS: Final = dict.fromkeys(
    ("max_delay", "lease", "lease_time"),
    "into the table of a limit, such as {limit = '10/second using gcra', max_delay = 2}",
)

LimitValue = str | Limit | LimitOptions | LimitSpec | Mapping[str, Any]
# not parsed yet: notation, a Limit, a table, or a list of these; a table of tiers; or a callable of the request
LimitsValue = LimitValue | Sequence[LimitValue] | RequestCallable
PathSpec = str | Sequence[str]


def texts_of(value: PathSpec) -> Sequence[str]:
    """Return one path or host, or several, as a sequence."""
    return [value] if isinstance(value, str) else value


_METHOD = re.compile(r"[A-Z]+")


def _check_name(option: str, value: object) -> None:
    reject_reserved_name(check_name(option, value))


def _check_methods(option: str, value: object) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{option}: got {value!r}, expected a list such as ['GET', 'POST']", code="RL-028")
    for index, method in enumerate(value):
        if not isinstance(method, str) or not _METHOD.fullmatch(method):
            raise ConfigError(
                f"{option}[{index}]: got {method!r}, expected a method in upper case, such as 'POST'", code="RL-028"
            )


class EndpointLimitOptions(TypedDict, total=False):
    """The options that rules in settings and limits on endpoints share."""

    name: Annotated[
        str, "the name in headers and in every bucket's key; else made of methods, hosts and paths", _check_name
    ]
    methods: Annotated[
        Sequence[str], "in upper case; `[]`: all. `GET` includes HEAD and websocket handshakes", _check_methods
    ]
    when: Annotated[
        Predicate,
        "a plain callable of the request; if it returns False, the rule does not apply",
        callable_check(plain=True),
    ]
    key: Annotated[KeySpec, "selects the bucket, instead of the global key", check_key]
    cost: Annotated[
        int | RequestCallable | str,
        "units that a request takes, or a callable of the request; an invalid result counts 1",
    ]
    tier: Annotated[KeySpec, "a key that names the client's tier, instead of the global one", check_key]
    default_tier: Annotated[
        str, "the tier of clients whose tier is missing or unknown, instead of the global one", check_tier_name
    ]
    settle: Annotated[
        SettleSpec,
        "a callable of the request and its response that returns the true cost, instead of the global one",
        check_settle,
    ]
    count_status: Annotated[
        StatusSpec,
        '`[401, "4xx"]`: only requests with these response statuses are charged, instead of the global list; `[]`: all',
        check_count_status,
    ]
    penalty: Annotated[
        PenaltySpec,
        "`10 refusals per minute: 15 minutes`: refuses a client for that time after so many refusals by limits with "
        "the rule's key",
        check_penalty,
    ]
    on_store_error: Annotated[
        OnStoreError,
        "instead of the global one; if several rules match, `deny` of one refuses the request, and otherwise the "
        "limits with `allow` are skipped",
    ]
    shadow: Annotated[bool, "decides and reports, but never refuses, and is never final"]
    final: Annotated[bool, "ends the search for rules"]
    concurrent: Annotated[
        int, "how many requests per key may be in progress or delayed at once; 0: no limit", check_concurrent
    ]
    queue: Annotated[
        int, "how many requests per key may wait for a slot in one process, instead of the global value", check_queue
    ]
    queue_timeout: Annotated[
        float, "seconds that a request may wait in the queue, instead of the global value", check_queue_timeout
    ]
    fair_share: Annotated[
        KeySpec, "shares slots between the values of this key, instead of the global one", check_fair_share
    ]


class RuleOptions(EndpointLimitOptions, total=False):
    """A rule as a table: `[[rules]]`."""

    path: Annotated[PathSpec, "required: `/users/{id}`, `/api/{rest:path}`; several paths share one bucket"]
    limits: Annotated[
        LimitsValue,
        "required, unless the rule has `concurrent` or `exempt`; `[]`: no limits; cannot be combined with `exempt`",
    ]
    host: Annotated[str | Sequence[str], "only for these hosts: `api.example.com`, `*.example.com`", Hosts]
    preflight: Annotated[bool, "only for CORS preflights"]
    on_refused: Annotated[
        Callable[..., Any] | str,
        "the response to requests that a limit of the rule refuses, instead of the global one",
        callable_check(None),
    ]
    exempt: Annotated[bool, "skips the default limits, but not `app_limits`"]
    messages: Annotated[
        LimitsValue,
        "for messages of websockets, instead of the global limits; `[]`: no limits; cannot be combined with `exempt`",
    ]
    priority: Annotated[
        Priority,
        "with `latency_goal`, the part of what may be at work that these requests may use: `critical` all of it, "
        "`normal` 0.9, `low` half; if several rules match, that of the first other than `normal` counts",
    ]
    keep: Annotated[
        str,
        "a part of the quota of each of `app_limits`, such as `40%`, that requests of this rule leave to others; if "
        "several rules match, the largest counts",
        check_keep,
    ]
    on_message_refused: Annotated[OnMessageRefused, "instead of the global one; if several rules match, `close` counts"]


class Rule(Struct, frozen=True, kw_only=True, metaclass=OptionsMeta):
    """A rule: the requests that it matches, and their limits. `RuleOptions` describes each field.

    Raises `ConfigError` with all problems, each with its field, the value and what is expected.
    """

    name: str | None = None
    methods: Sequence[str] = ()
    when: Any = None
    key: KeySpec | None = None
    cost: Any = None
    tier: KeySpec | None = None
    default_tier: str | None = None
    settle: Any = None
    count_status: Any = None
    penalty: PenaltySpec | None = None
    on_store_error: OnStoreError | None = None
    shadow: bool = False
    final: bool = True
    concurrent: int = 0
    queue: int | None = None
    queue_timeout: float | None = None  # seconds
    fair_share: KeySpec | None = None
    path: Any = None  # required
    limits: Any = None  # required, unless exempt
    host: Any = ()
    preflight: bool = False
    on_refused: Any = None
    exempt: bool = False
    messages: Any = None
    priority: Priority = "normal"
    keep: str | None = None
    on_message_refused: OnMessageRefused | None = None

    def __post_init__(self) -> None:
        mistakes = ErrorCollector()
        mistakes.run([self._check_path, *option_checks(self, _CHECKS)])
        mistakes.run([self._check_exempt, self._check_methods, self._check_penalty, self._check_limits])
        mistakes.run([self._check_slots, self._check_messages, self._check_tiers])
        mistakes.raise_if_any()

    def resolve_limits(self, tier: KeySpec | None, default_tier: str | None) -> ParsedLimits:
        """Return the limits of this rule. `tier`, `default_tier`: the global options, for a rule without its own."""
        return () if self.limits is None else self._parse_limits("limits", tier, default_tier)

    def resolve_messages(self, tier: KeySpec | None, default_tier: str | None) -> ParsedLimits | None:
        """Return the rule's limits of messages, as `resolve_limits` does; None if the global ones apply."""
        if self.messages is None:
            return () if self.exempt else None
        return self._parse_limits("messages", tier, default_tier)

    @property
    def full_name(self) -> str:
        """The name. Without one, it is made of methods, hosts and paths: `POST_login`."""
        if self.name:
            return self.name
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", self.name_source).strip("_.")[:64] or "root"
        return f"path_{name}" if name in RESERVED_NAMES else name

    @property
    def name_source(self) -> str:
        """The methods, hosts and paths from which the default name is made: `POST /login`."""
        methods = ["preflight"] if self.preflight else self.methods
        return " ".join([*methods, *texts_of(self.host), *texts_of(self.path)])

    @property
    def settles(self) -> bool:
        """Whether the rule has its own options for settlement after the response."""
        return self.settle is not None or bool(self.count_status)

    @property
    def all_methods(self) -> set[str]:
        """The methods, with HEAD if GET is one of them; empty for all methods."""
        return {*self.methods, "HEAD"} if "GET" in self.methods else set(self.methods)

    @property
    def is_final(self) -> bool:
        """Whether the search for rules ends with this one. It never ends with a shadow rule."""
        return self.final and not self.shadow

    def _parse_limits(self, field: str, tier: KeySpec | None, default_tier: str | None) -> ParsedLimits:
        tiers = (
            tier if self.tier is None else key_or_placeholder(self.tier),
            default_tier if self.default_tier is None else self.default_tier,
        )
        return parse_limits(field, getattr(self, field), *tiers)

    def _check_path(self) -> None:
        if self.path is None:
            raise ConfigError("path: required, such as '/login' or '/{rest:path}'", code="RL-026")
        Paths("path", self.path)

    def _check_exempt(self) -> None:
        for option, name in (("limits", "limits"), ("concurrent", "slots"), ("messages", "limits of messages")):
            if self.exempt and getattr(self, option):
                raise ConfigError(f"{option}: a rule with exempt = true cannot have {name}", code="RL-024")

    def _check_methods(self) -> None:
        if self.preflight is True and self.methods:
            raise ConfigError(
                f"methods: got {self.methods!r}; a rule with preflight = true applies only to OPTIONS", code="RL-028"
            )
        if self.messages and (self.preflight is True or (self.methods and "GET" not in self.methods)):
            raise ConfigError("messages: a websocket begins with a GET, which this rule does not match", code="RL-025")

    def _check_tiers(self) -> None:
        by_tier = any(
            isinstance(resolve("all", None), TieredLimits) for resolve in (self.resolve_limits, self.resolve_messages)
        )
        for field in ("tier", "default_tier"):
            if getattr(self, field) is not None and not by_tier:
                raise ConfigError(f"{field}: {NOT_BY_TIER}", code="RL-019")

    def _check_limits(self) -> None:
        if not self.exempt and self.limits is None and not self.concurrent:
            raise ConfigError("limits: required; for a rule without limits, set limits = []", code="RL-002")
        limits = self.resolve_limits("all", None)  # any tier will do: `Settings` checks that one is configured
        inheriting = [spec for specs in known_specs(limits) for spec in specs if spec.cost is None]
        resolve_cost(self.cost, [spec.limit for spec in inheriting])
        if self.settles:
            check_estimates(limits, self.cost)

    def _check_penalty(self) -> None:
        if parse_penalty(self.penalty) is not None and (self.exempt or self.limits == []):
            raise ConfigError(
                "penalty: a rule without limits never refuses, so it cannot have a penalty", code="RL-022"
            )

    def _check_slots(self) -> None:
        limits = self.resolve_limits("all", None)
        check_single_concurrency(limits, self.concurrent)
        for option, purpose in (("queue", "wait for"), ("queue_timeout", "wait for"), ("fair_share", "share")):
            if getattr(self, option) and not self.concurrent and not has_concurrency(limits):
                text = f"{option}: the rule has no slots to {purpose}; add `concurrent` to it"
                raise ConfigError(text, code="RL-021")

    def _check_messages(self) -> None:
        check_no_concurrency("messages", self.resolve_messages("all", None) or ())


_CHECKS: Final = checks_of(Rule, RuleOptions)


def rule_from(value: object, elsewhere: Mapping[str, str] = LIMIT_TABLE_OPTIONS) -> Rule:
    """Return a Rule, built from a table if it is one. Raises `ConfigError` for anything else.

    `elsewhere`: options of other tables, and where they belong.
    """
    if isinstance(value, Rule):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"got {value!r}, expected a table or a Rule", code="RL-008")
    return build_checked(Rule, value, RuleOptions, elsewhere)


def placed(rules: Iterable[Rule]) -> list[tuple[str, Rule]]:
    """Return each rule of the settings with its place for messages: `rules[2] (login)`."""
    return [(f"rules[{index}] ({rule.full_name})", rule) for index, rule in enumerate(rules)]

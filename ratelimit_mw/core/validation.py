"""Validation of options, shared by all tables of the settings.

A table is a TypedDict whose fields are `Annotated[type, "description"]`, or `Annotated[type, "description", check]`.
Checks, the JSON Schema and the reference are generated from it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar, get_args, get_origin

from msgspec import Struct

from ratelimit_mw.core.errors import ConfigError, ErrorCollector
from ratelimit_mw.core.limit import check_int, check_seconds
from ratelimit_mw.core.signatures import accepts, callable_name, parameters_of
from ratelimit_mw.core.structs import defaults_of

T = TypeVar("T")
P = ParamSpec("P")
Check = Callable[[str, Any], object]  # (option, value): raises ConfigError that names the option
# names that this package gives to its own rules and limits; settings cannot use them
RESERVED_NAMES: Final = ("default", "app", "unmatched", "preflight", "blocklist")
_RATE = re.compile(r"\s*[0-9]+\s*(?:/|per\b)")
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a header name (RFC 9110, 5.6.2)

if TYPE_CHECKING:
    from msgspec import StructMeta  # lets type checkers check keyword arguments against fields

    OptionsMeta = StructMeta
else:

    class OptionsMeta(type(Struct)):
        """Metaclass of option Structs. Reports unknown keyword arguments like unknown options of a table."""

        def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
            """Create an instance. Raises `ConfigError` for unknown keyword arguments, and for any by position."""
            known = cls.__struct_fields__
            if arguments:
                got, name = type(arguments[0]).__name__, cls.__name__
                raise ConfigError(
                    f"got {got} by position, expected keyword arguments: {name}(limits='100/minute'), or "
                    f"{name}(**mapping)",
                    code="RL-001",
                )
            if unknown := [unknown_key_message(option, known) for option in keywords if option not in known]:
                raise ConfigError(*unknown, code="RL-001")
            return super().__call__(*arguments, **keywords)


def reject_unknown_keys(values: Iterable[object], table: type, elsewhere: Mapping[str, str] = {}) -> None:
    """Raise `ConfigError` for keys that the TypedDict `table` lacks, and suggest the closest match.

    `elsewhere`: options of other tables, and where they belong. An option of `table` that is also in `elsewhere` has
    its own error, and is not listed.
    """
    known = list(table.__annotations__)
    unknown = [unknown_key_message(option, known, elsewhere) for option in values if option not in known]
    if unknown:
        raise ConfigError(*unknown, code="RL-001")


def build_checked(
    kind: Callable[..., T], values: Mapping[Any, Any], table: type, elsewhere: Mapping[str, str] = {}
) -> T:
    """Build a `kind` from `values`, whose keys must be in `table`. Raises one `ConfigError` for all problems."""
    mistakes = ErrorCollector()
    with mistakes.collect():
        reject_unknown_keys(values, table, elsewhere)
    with mistakes.collect():
        built = kind(**{option: value for option, value in values.items() if option in table.__annotations__})
    mistakes.raise_if_any()
    return built


def unknown_key_message(option: object, known: Sequence[str], elsewhere: Mapping[str, str] = {}) -> str:
    """Return the message on an unknown option: where it belongs, its equivalent here, or the closest match."""
    if isinstance(option, str) and option in elsewhere:
        return f"unknown setting `{option}` here: it goes {elsewhere[option]}"
    if isinstance(option, str) and (translation := translate_option(option)) is not None:
        here, meaning = translation
        if here == "limits" and "limits" not in known and "limit" in known:  # a table with a single limit
            here = "limit"
        goes = "" if here in known else f"; it goes {elsewhere.get(here, 'into the settings of the middleware')}"
        return f"unknown setting `{option}`: here it is `{here}`: {meaning}{goes}"
    near = closest_match(str(option), known)
    listed = ", ".join(one for one in known if one not in elsewhere)
    hint = f": did you mean `{near}`?" if near else f"; there are {listed}"
    return f"unknown setting `{option}`{hint}"


def check_arguments(
    table: type | None = None,
    elsewhere: Mapping[str, str] = {},
    explain: Callable[[Sequence[object]], str] = lambda _: "",
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function or constructor to raise `ConfigError` instead of TypeError for wrong arguments.

    `table`: options that it accepts besides its parameters. `elsewhere`: options of other tables, and where they
    belong. `explain`: returns the message for positional arguments whose purpose it recognizes, else an empty text.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*arguments: P.args, **keywords: P.kwargs) -> T:
            try:
                return function(*arguments, **keywords)
            except TypeError:
                if accepts(function, arguments, keywords):
                    raise
            if text := explain(arguments):
                raise ConfigError(text, code="RL-047")
            known = list(parameters_of(function) or ())
            raise ConfigError(*_call_problems(known, arguments, keywords, table, elsewhere), code="RL-001")

        return call

    return decorate


def _call_problems(
    parameters: Sequence[Parameter],
    arguments: Sequence[object],
    keywords: Mapping[str, object],
    table: type | None,
    elsewhere: Mapping[str, str],
) -> Sequence[str]:
    """Return the problems of a call that a function does not accept."""
    named = [one for one in parameters if one.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    known = [one.name for one in named if one.name != "self"] + (list(table.__annotations__) if table else [])
    if unknown := [unknown_key_message(option, known, elsewhere) for option in keywords if option not in known]:
        return unknown
    positional_names = [one.name for one in named if one.kind is not Parameter.KEYWORD_ONLY]
    by_place = dict(zip(positional_names, arguments, strict=False))
    twice = [
        f"{option}: given twice, {_repr(by_place[option])} by position and `{option}=`; a callable that gives the key "
        "goes into `key`"
        for option in keywords
        if option in by_place
    ]
    expected = ", ".join(name for name in positional_names if name != "self")
    fix = _limits_and_key([one for one in arguments if isinstance(one, str)]) if "limits" in by_place else ""
    extra = [
        f"got {_repr(one)} by position, expected there only {expected}{fix}"
        for one in arguments[len(positional_names) :]
    ]
    missing = [one.name for one in named if one.default is Parameter.empty and one.name not in {**by_place, **keywords}]
    examples = {"limits": ", such as '100/minute'"}
    return [*twice, *extra, *(f"{option}: required{examples.get(option, '')}" for option in missing)]


def _limits_and_key(texts: Sequence[str]) -> str:
    """Return the call that was meant with a rate and a key by position, in either order; empty for other texts."""
    rates = [text for text in texts if _RATE.match(text)]
    keys = [text for text in texts if text not in rates]
    return f": did you mean limits={rates[0]!r}, key={keys[0]!r}?" if len(rates) == len(keys) == 1 else ""


def _repr(value: object) -> str:
    return callable_name(value) if callable(value) else f"{value!r:.100}"


def reject_reserved_name(name: str | None) -> None:
    """Raise `ConfigError` for a reserved name."""
    if name in RESERVED_NAMES:
        raise ConfigError(f"name: got {name!r}, which is reserved; choose another", code="RL-005")


OptionChecks = Sequence[tuple[str, Check, bool]]
"""The options that have a check, their checks, and whether their default is None."""


def option_checks(options: Struct, checks: OptionChecks) -> Iterator[Callable[[], object]]:
    """Yield the check of each option's value. `checks`: from `checks_of`.

    None is valid if it is the default, and means that the option is not set.
    """
    for option, check, may_be_none in checks:
        value = getattr(options, option)
        if value is not None or not may_be_none:
            yield partial(check, option, value)


def checks_of(struct: type[Struct], table: type) -> OptionChecks:
    """Return the checks that `table` names for the options of `struct`, or else those of their types."""
    defaults = defaults_of(struct)
    found: list[tuple[str, Check, bool]] = []
    for option, hint in table.__annotations__.items():
        kind, _, *checks = get_args(hint)
        if kind is bool:
            checks = [check_bool]
        elif get_origin(kind) is Literal:
            checks = [partial(check_choice, allowed=get_args(kind))]
        found += [(option, check, defaults[option] is None) for check in checks]
    return found


def at_most(maximum: int, unit: str) -> Check:
    """Return a check that a value is a whole number from 0 to `maximum`."""

    def check(option: str, value: object) -> None:
        if check_int(option, value, 0) > maximum:
            raise ConfigError(f"{option}: got {value}, expected at most {maximum} {unit}", code="RL-004")

    return check


def positive_seconds(hint: str = "") -> Check:
    """Return a check that a value is a number of seconds above 0. `hint`: follows the message on 0."""

    def check(option: str, value: object) -> None:
        if not check_seconds(option, value):
            raise ConfigError(f"{option}: got 0, expected more than 0 seconds{hint}", code="RL-004")

    return check


def check_bool(field: str, value: object) -> None:
    """Raise `ConfigError` unless `value` is true or false."""
    if type(value) is not bool:
        raise ConfigError(f"{field}: got {value!r}, expected true or false", code="RL-003")


def check_choice(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ConfigError(f"{field}: got {value!r}, expected one of {', '.join(allowed)}", code="RL-003")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `, did you mean ...?` if a known word is close, else an empty text."""
    match = closest_match(word, known)
    return f", did you mean {match!r}?" if match else ""


def closest_match(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is closest to a misspelled one, whatever its case, or None."""
    by_spelling = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), list(by_spelling), n=1)
    return by_spelling[near[0]] if near else None


# equivalents of the options of slowapi, flask-limiter, django-ratelimit, express-rate-limit and others
_KEY: Final = ("key", "text such as 'ip' or 'user | ip', or a callable of the request")
_LIMITS: Final = ("limits", "text such as '100/minute' or '5/minute; 100/hour', or a list")
_WINDOW: Final = ("limits", "the window is part of the text: '100/minute', '5 per 30 seconds'")
_APP: Final = ("app_limits", "limits on every request, in addition to the limits of its rule")
_ALGORITHM: Final = ("limits", "the algorithm is part of the text: '100/minute using sliding_window_log'")
_STORE: Final = ("store", "a URL such as 'redis://localhost:6379/0', or a store")
_PREFIX: Final = ("store", "the prefix is an argument of a store: RedisStore(url, prefix='shop:')")
_WHEN: Final = ("when", "a callable of the request that returns False where the rule does not apply")
_EXEMPT: Final = ("exempt", "paths that are not limited")
_ERRORS: Final = ("on_store_error", "'allow', 'deny' or 'local'")
_HEADERS: Final = ("headers", "'ietf', 'legacy', 'both', 'draft-6', 'draft-7' or 'none'")
_REFUSED: Final = ("on_refused", "a callable of request and verdict that returns the response")
_DECISION: Final = ("on_decision", "a callable that gets an event for each decision")
_STATUS: Final = ("count_status", "the statuses of the responses that are charged, such as [401, '4xx']")
_PROXIES: Final = ("trusted_proxies", "the networks of the proxies that report the client's address")
_SAFELIST: Final = ("safelist", "networks, headers or callables of clients that are never limited")
_BLOCKLIST: Final = ("blocklist", "networks, headers or callables of clients that are refused")
_PENALTY: Final = ("penalty", "text such as '10 refusals per minute: 15 minutes'")
_BURST: Final = ("limits", "the burst is part of the text: '100/minute burst 20 using gcra'")
_IPV6: Final = ("ipv6_prefix", "the bits by which IPv6 clients are counted")

_EQUIVALENTS: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(("key_func", "key_function", "key_generator", "identifier", "get_ident", "ident"), _KEY),
    **dict.fromkeys(("get_cache_key", "request_identifier", "authenticate", "get_key"), _KEY),
    **dict.fromkeys(("default_limits", "default_limit", "limit_value", "rate", "rates", "rate_limit"), _LIMITS),
    **dict.fromkeys(("rate_limits", "max", "times", "quota", "max_requests", "num_requests", "get_rate"), _LIMITS),
    **dict.fromkeys(("throttle_rates", "parse_rate"), _LIMITS),
    **dict.fromkeys(("window", "window_ms", "window_size", "period", "per", "duration", "interval"), _WINDOW),
    **dict.fromkeys(("milliseconds", "seconds", "minutes", "hours", "days"), _WINDOW),
    **dict.fromkeys(("application_limits", "global_limits"), _APP),
    **dict.fromkeys(("strategy", "algorithm", "using", "moving_window"), _ALGORITHM),
    **dict.fromkeys(("storage_uri", "storage_url", "storage", "storage_options", "backend", "cache"), _STORE),
    **dict.fromkeys(("redis", "redis_url", "redis_uri", "use_cache", "cache_name", "client"), _STORE),
    **dict.fromkeys(("key_prefix", "prefix", "namespace", "cache_format"), _PREFIX),
    **dict.fromkeys(("exempt_when", "skip", "request_filter", "condition"), _WHEN),
    **dict.fromkeys(("exclude", "exempt_routes", "exempt_paths", "excluded_paths"), _EXEMPT),
    **dict.fromkeys(("swallow_errors", "in_memory_fallback", "in_memory_fallback_enabled", "fail_open"), _ERRORS),
    **dict.fromkeys(("on_error", "pass_on_store_error", "fallback"), _ERRORS),
    **dict.fromkeys(("headers_enabled", "standard_headers", "legacy_headers", "header_name_mapping"), _HEADERS),
    **dict.fromkeys(("retry_after", "set_rate_limit_headers", "draft"), _HEADERS),
    **dict.fromkeys(("on_breach", "handler", "error_message", "message", "callback", "http_callback"), _REFUSED),
    **dict.fromkeys(("ws_callback", "status_code", "on_blocked", "view"), _REFUSED),
    **dict.fromkeys(("on_limit_reached", "on_limit", "on_decide"), _DECISION),
    **dict.fromkeys(("deduct_when", "request_was_successful", "skip_failed_requests"), _STATUS),
    **dict.fromkeys(("skip_successful_requests", "default_limits_deduct_when"), _STATUS),
    **dict.fromkeys(("trust_proxy", "proxies", "forwarded_allow_ips", "num_proxies", "trusted_hosts"), _PROXIES),
    **dict.fromkeys(("ip_meta_key", "real_ip_header", "client_ip_header"), ("proxy_header", "a header's name")),
    **dict.fromkeys(("whitelist", "allowlist", "allow_list", "white_list"), _SAFELIST),
    **dict.fromkeys(("blacklist", "denylist", "deny_list", "black_list", "blocked"), _BLOCKLIST),
    **dict.fromkeys(("ipv6_subnet", "ipv6_mask"), _IPV6),
    **dict.fromkeys(("meta_limits", "on_meta_breach"), _PENALTY),
    **dict.fromkeys(("burst", "burst_size", "at_once", "nodelay"), _BURST),
    **dict.fromkeys(("weight", "tokens", "default_limits_cost"), ("cost", "the units that a request takes")),
    **dict.fromkeys(("method", "per_method"), ("methods", "a list such as ['GET', 'POST']")),
    **dict.fromkeys(("enable", "active"), ("enabled", "true, false, or a callable of the request")),
    "override_defaults": ("final", "if false, the limits around it apply as well"),
    **dict.fromkeys(("group", "uid", "bucket", "scope"), ("name", "limits of the same name share a bucket")),
    **dict.fromkeys(("timeout", "socket_timeout"), ("store_timeout", "seconds for a call of the store")),
    **dict.fromkeys(("hash_secret", "secret"), ("key_secret", "text that keys the hash of identities")),
    **dict.fromkeys(("dry_run", "report_only"), ("shadow", "true: decide and report, but never refuse")),
    "block": ("shadow", "block=False is shadow=True; without it, requests are refused"),
    **dict.fromkeys(
        ("max_concurrent", "concurrency", "max_concurrency"), ("concurrent", "requests in progress at once")
    ),
}
_BY_SPELLING: Final = {option.replace("_", ""): translation for option, translation in _EQUIVALENTS.items()}


def translate_option(option: str) -> tuple[str, str] | None:
    """Return the equivalent of another rate limiter's option, and its meaning; None if it is unknown.

    Ignores case and underscores.
    """
    return _BY_SPELLING.get(option.replace("_", "").lower())

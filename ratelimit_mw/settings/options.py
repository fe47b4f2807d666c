"""The global settings: each option with its type and meaning."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, TypedDict

from ratelimit_mw.algorithms.takeover import OnChange
from ratelimit_mw.core.errors import ConfigError
from ratelimit_mw.core.events import DecisionEvent, StoreEvent
from ratelimit_mw.core.limit import check_int, check_seconds
from ratelimit_mw.core.validation import check_bool, positive_seconds
from ratelimit_mw.http.callables import Predicate, callable_check, is_callable_name
from ratelimit_mw.http.client_lists import ClientList, ClientListEntry
from ratelimit_mw.http.keys import KeySpec, check_ipv6_prefix, check_key
from ratelimit_mw.http.paths import Paths, is_normal
from ratelimit_mw.http.response import HeaderStyle
from ratelimit_mw.settings.features import (
    PenaltySpec,
    SettleSpec,
    StatusSpec,
    check_concurrent,
    check_count_status,
    check_fair_share,
    check_penalty,
    check_queue,
    check_queue_timeout,
    check_remember_refused,
    check_settle,
    check_slot_lifetime,
)
from ratelimit_mw.settings.limits import check_tier_name
from ratelimit_mw.settings.rule import LimitsValue, OnMessageRefused, OnStoreError, PathSpec, Rule, RuleOptions

MissingKey = Literal["shared", "deny", "exempt"]
SpanAttributes = Literal["none", "refused", "all"]
_MAX_AT_WORK: Final = 100_000  # requests in a process
_MIN_SECRET_BYTES: Final = 16
_MAX_SECRET_BYTES: Final = 64  # the longest key of BLAKE2b
_PUBLISHED_SECRETS: Final = ("a long random text of your own",)  # from the documentation of the first release candidate
_HOW_TO_GENERATE: Final = "make one with python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"


def _check_exempt(option: str, value: object) -> None:
    if value or not isinstance(value, (list, tuple)):
        Paths(option, value)


def _check_usage_path(option: str, value: object) -> None:
    if not isinstance(value, str) or value == "/" or "{" in value or not is_normal(value):
        raise ConfigError(
            f"{option}: got {value!r}, expected one path without parameters, such as '/rate-limits'", code="RL-073"
        )
    Paths(option, value)


def _check_share(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise ConfigError(
            f"{option}: got {value!r}, expected a number above 0 and up to 1, such as 0.25", code="RL-004"
        )


def _check_at_work(option: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= _MAX_AT_WORK:
        raise ConfigError(f"{option}: got {value!r}, expected a whole number from 1 to {_MAX_AT_WORK}", code="RL-004")


def _check_secret(option: str, value: object) -> None:
    size = len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else -1
    if size and not _MIN_SECRET_BYTES <= size <= _MAX_SECRET_BYTES:
        sizes = f"{_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES}"
        raise ConfigError(f"{option}: expected text of {sizes} bytes; {_HOW_TO_GENERATE}", code="RL-037")
    if value in _PUBLISHED_SECRETS:
        raise ConfigError(f"{option}: got the text of an example, which is public; {_HOW_TO_GENERATE}", code="RL-037")


def _check_folder(option: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ConfigError(
            f"{option}: got {value!r}, expected the path of a folder, such as '/run/myapp'", code="RL-054"
        )


def _check_enabled(option: str, value: object) -> None:
    is_call = callable(value) or is_callable_name(value)
    (callable_check(plain=True) if is_call else check_bool)(option, value)


class Options(TypedDict, total=False):
    """The settings, as keyword arguments and as a table."""

    limits: Annotated[LimitsValue, "required: for requests that no final rule matches; `[]`: no limits"]
    app_limits: Annotated[
        LimitsValue, "for every request, in addition to the limits of its rule; one bucket per key over all routes"
    ]
    messages: Annotated[LimitsValue, "for messages of websockets; one bucket per key over all websockets; ASGI only"]
    on_message_refused: Annotated[OnMessageRefused, "`close` the websocket (1013), or `drop` the message"]
    rules: Annotated[
        Sequence[Rule | RuleOptions | Mapping[str, Any]], "in order; the first final rule that matches ends the search"
    ]
    concurrent: Annotated[
        int,
        "with `limits`: how many requests per key may be in progress or delayed at once; 0: no limit",
        check_concurrent,
    ]
    queue: Annotated[
        int, "how many requests per key may wait for a slot in one process, oldest first; 0: no queue", check_queue
    ]
    queue_timeout: Annotated[float, "seconds that a request may wait in the queue", check_queue_timeout]
    fair_share: Annotated[
        KeySpec,
        "a key, such as `ip`, between whose values slots in common are shared fairly",
        check_fair_share,
    ]
    slot_lifetime: Annotated[
        float, "seconds after which the slots of a killed process are free again", check_slot_lifetime
    ]
    slot_retry: Annotated[
        float,
        "seconds in `Retry-After` when all slots are taken, or for `latency_goal`; an estimate",
        positive_seconds(),
    ]
    latency_goal: Annotated[
        float,
        "seconds in which nine of ten requests shall be answered: while more take longer, fewer are at work at once in "
        "a process, and others get 503 before any charge; 0: no goal",
        check_seconds,
    ]
    at_work_least: Annotated[
        int, "with `latency_goal`: how many requests may be at work in a process at least", _check_at_work
    ]
    at_work_most: Annotated[
        int, "with `latency_goal`: how many requests may be at work in a process at most", _check_at_work
    ]
    key: Annotated[KeySpec, "selects the bucket, unless the limit or the rule has its own key", check_key]
    tier: Annotated[KeySpec, "a key that names the client's tier, for limits by tier", check_key]
    default_tier: Annotated[
        str,
        "the tier of clients whose tier is missing or unknown; by default the one named `default`, or else the first",
        check_tier_name,
    ]
    settle: Annotated[
        SettleSpec,
        "a callable of the request and its response that returns the true cost, when the response has ended",
        check_settle,
    ]
    count_status: Annotated[
        StatusSpec,
        '`[401, "4xx"]`: only requests with these response statuses are charged; others are refunded. `[]`: all',
        check_count_status,
    ]
    penalty: Annotated[
        PenaltySpec,
        "`10 refusals per minute: 15 minutes`: refuses a client everywhere for that time after so many refusals by "
        "limits with the global `key`",
        check_penalty,
    ]
    store: Annotated[
        Any,
        "`memory://`, `sqlite:///FOLDER/FILE`, `redis://`, `rediss://`, `unix://`, `redis+cluster://`, "
        "`redis+sentinel://`, or a store",
    ]
    trusted_proxies: Annotated[
        Sequence[str] | int, "networks, addresses and `unix:` of trusted proxies, or the number of proxies"
    ]
    proxy_header: Annotated[
        str, "the header in which proxies name the client: `x-forwarded-for`, `forwarded`, or one with a single address"
    ]
    ipv6_prefix: Annotated[int, "bits of an IPv6 address that identify a client, 32 to 128", check_ipv6_prefix]
    exempt: Annotated[PathSpec, "paths that are not limited at all", _check_exempt]
    usage_path: Annotated[
        str,
        "a path, such as `/rate-limits`, where GET is answered with what is left of the client's own limits, at no "
        "cost; default: none",
        _check_usage_path,
    ]
    safelist: Annotated[
        Sequence[ClientListEntry], "networks, headers or callables: these clients are never limited", ClientList
    ]
    blocklist: Annotated[
        Sequence[ClientListEntry],
        "networks, headers or callables: these clients get 403, without a query to the store",
        ClientList,
    ]
    ignore_case: Annotated[bool, "rules match paths in any case; exemptions stay exact"]
    on_store_error: Annotated[OnStoreError, "`allow`, `deny` (503) or `local`, the same limits in this process"]
    local_share: Annotated[
        float,
        "with `local`: the part of each quota and burst that this process admits, above 0; 1/N with N processes",
        _check_share,
    ]
    store_timeout: Annotated[float, "seconds for a complete call to the store, more than 0", positive_seconds()]
    max_waiting: Annotated[
        int,
        "requests that a process delays at one time, at most half of them for one key; default 1,000, or 2 under WSGI, "
        "where each takes a thread",
        partial(check_int, minimum=0),
    ]
    headers: Annotated[
        HeaderStyle,
        "`ietf`, `legacy` (`X-RateLimit-*`), `both`, `draft-6`, `draft-7` (earlier drafts of `ietf`) or `none`",
    ]
    on_refused: Annotated[
        Callable[..., Any] | str,
        "the response to refused requests: an ASGI or WSGI app, or a callable of request and verdict",
        callable_check(None),
    ]
    on_decision: Annotated[
        Callable[[DecisionEvent], Any] | str,
        "a plain callable that receives each decision, including shadow limits",
        callable_check(("event",), plain=True),
    ]
    on_store_event: Annotated[
        Callable[[StoreEvent], Any] | str,
        "a plain callable that receives an event when the store fails, and when it is back",
        callable_check(("event",), plain=True),
    ]
    refresh: Annotated[
        float,
        "seconds between looks of a process at the overrides and switches in the store, only while requests come; with "
        "`reload`, at the settings file; and at settings from a callable; 0: never",
        check_seconds,
    ]
    reload: Annotated[bool, "takes over the settings file when it changes, without a restart"]
    remember_refused: Annotated[
        int,
        "how many of the clients that were refused most, and of the latest refusals, each process reports to the store "
        "every second, for the commands `top` and `tail`, and for `dashboard`; 0: none",
        check_remember_refused,
    ]
    metrics: Annotated[bool, "counts decisions, for `PrometheusCollector`, OpenTelemetry and `dashboard`"]
    metrics_folder: Annotated[
        str,
        "a folder on this host where each process keeps its counts, so that one scrape has all; default: "
        "`ratelimit_mw` in `$PROMETHEUS_MULTIPROC_DIR`, if that is set, else each process has its own counts only",
        _check_folder,
    ]
    span_attributes: Annotated[
        SpanAttributes,
        "the requests whose decision the current OpenTelemetry span describes: `none`, `refused` or `all`",
    ]
    jitter: Annotated[
        float,
        "maximum random addition to `Retry-After`, in seconds, so that clients do not all return at once",
        check_seconds,
    ]
    shadow: Annotated[bool, "decides and reports, but never refuses"]
    on_change: Annotated[
        OnChange,
        "what a limit takes over from one of the same name with other numbers: `fresh` (nothing), the units `used`, or "
        "their `share` of the quota",
    ]
    missing_key: Annotated[
        MissingKey,
        "if a key is missing: `shared` (one bucket, one warning), `deny` (403), `exempt`; without it `shared`, but the "
        "client's address if the key's callable raised",
    ]
    key_secret: Annotated[str, "the key of the hash of identities; 16 to 64 bytes of random text", _check_secret]
    plain_keys: Annotated[bool, "leaves identities readable in the store"]
    strict: Annotated[
        bool,
        "raises `ConfigError` instead of a start-up warning about something that limits less than it seems to, and "
        "for a store that rejects the connection",
    ]
    enabled: Annotated[
        bool | Predicate, "`false` switches everything off; or a plain callable of the request", _check_enabled
    ]

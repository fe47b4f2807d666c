"""The global settings: each option with its type and meaning."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypedDict

from ratelimit_mw.core.events import DecisionEvent, StoreEvent
from ratelimit_mw.http.callables import Predicate
from ratelimit_mw.http.client_lists import ClientListEntry
from ratelimit_mw.http.keys import KeySpec
from ratelimit_mw.http.response import Headers
from ratelimit_mw.settings.features import PenaltySpec, SettleSpec, StatusSpec
from ratelimit_mw.settings.rule import LimitsSpec, OnMessageRefused, OnStoreError, PathSpec, Rule, RuleOptions

HEADERS: Final = ("ietf", "legacy", "both", "none")
MissingKey = Literal["shared", "deny", "exempt"]
MISSING_KEY: Final = ("shared", "deny", "exempt")


class Options(TypedDict, total=False):
    """The settings, as keyword arguments and as a table."""

    limits: Annotated[LimitsSpec, "required: the last, final rule, for what no final rule matched. `[]` says none"]
    app_limits: Annotated[LimitsSpec, "on every request besides its rule, one bucket per key over all routes"]
    messages: Annotated[LimitsSpec, "of a websocket's messages, one bucket per key over all websockets; ASGI only"]
    on_message_refused: Annotated[OnMessageRefused, "`close` the websocket (1013), or `drop` the message"]
    rules: Annotated[
        Sequence[Rule | RuleOptions | Mapping[str, Any]], "in order; the first final match ends the search"
    ]
    concurrent: Annotated[
        int, "with `limits`: how many requests of a key may be at work, or held back, at once; 0 is no limit"
    ]
    queue: Annotated[int, "how many requests of a key wait for that, in one process, oldest first; 0 is none"]
    queue_timeout: Annotated[float, "for how many seconds at most"]
    slot_lifetime: Annotated[float, "seconds after which the place of a killed process is free again"]
    slot_retry: Annotated[float, "seconds that a client is told to wait where all are at work: a hint"]
    key: Annotated[KeySpec, "whose bucket, where neither item nor rule says so"]
    tier: Annotated[KeySpec, "a key that names the tier, for limits by tier"]
    default_tier: Annotated[str, "the tier of whoever has none; else the one called `default`, else the first"]
    settle: Annotated[
        SettleSpec, "a callable of the request and its response that says the true cost, once the response has ended"
    ]
    count_status: Annotated[
        StatusSpec,
        '`[401, "4xx"]`: only answers with these statuses are charged; the rest is given back. `[]` says all',
    ]
    penalty: Annotated[
        PenaltySpec,
        "`10 refusals per minute: 15 minutes`: who is refused so often, by limits with this key, is refused everywhere",
    ]
    store: Annotated[
        Any, "`memory://`, `redis://`, `rediss://`, `unix://`, `redis+cluster://`, `redis+sentinel://`, or a store"
    ]
    trusted_proxies: Annotated[
        Sequence[str] | int, "networks, addresses and `unix:` that say who the client is, or how many proxies there are"
    ]
    proxy_header: Annotated[str, "where they say it: `x-forwarded-for`, `forwarded`, or a header of a single value"]
    ipv6_prefix: Annotated[int, "bits by which IPv6 clients are counted, 32 to 128"]
    exempt: Annotated[PathSpec, "paths that are not limited at all"]
    safelist: Annotated[Sequence[ClientListEntry], "networks, headers or callables: these clients are never limited"]
    blocklist: Annotated[Sequence[ClientListEntry], "the same: these get 403, and the store is not asked"]
    ignore_case: Annotated[bool, "rules match paths in any case; exemptions stay exact"]
    on_store_error: Annotated[OnStoreError, "`allow`, `deny` (503) or `local`, the same limits in this process"]
    local_share: Annotated[
        float, "with `local`: how much of each quota and burst this process admits, above 0; with N processes 1/N"
    ]
    store_timeout: Annotated[float, "seconds for a whole call of the store, more than 0"]
    max_waiting: Annotated[
        int,
        "requests that a process holds back at one time, at most half of them of one key; else 1,000, and under WSGI, "
        "where each takes a thread, 2",
    ]
    headers: Annotated[Headers, "`ietf`, `legacy` (`X-RateLimit-*`), `both` or `none`"]
    on_refused: Annotated[
        Callable[..., Any] | str, "who answers instead of us: an ASGI or WSGI app, or a callable of request and verdict"
    ]
    on_decision: Annotated[
        Callable[[DecisionEvent], Any] | str, "a plain callable that hears of each decision, shadow limits included"
    ]
    on_store_event: Annotated[
        Callable[[StoreEvent], Any] | str, "a plain callable that hears when the store fails, and when it is back"
    ]
    jitter: Annotated[float, "seconds that `Retry-After` may be longer, by chance, so that not all come back at once"]
    shadow: Annotated[bool, "decide and report, but never refuse"]
    missing_key: Annotated[
        MissingKey, "when a key is not there: `shared` (one bucket, one warning), `deny` (403), `exempt`"
    ]
    key_secret: Annotated[str, "keys the hash of identities; 16 to 64 bytes of random text"]
    plain_keys: Annotated[bool, "leaves identities readable in the store"]
    strict: Annotated[
        bool,
        "a warning at start about something that limits less than it seems to is a `ConfigError` instead, and so is a "
        "store that rejects us",
    ]
    enabled: Annotated[bool | Predicate, "`false` switches everything off; or a plain callable of the request"]

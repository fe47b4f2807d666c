"""The global settings: each option with its type and meaning."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypedDict

from ratelimit_mw.core.events import DecisionEvent, StoreEvent
from ratelimit_mw.http.callables import Predicate
from ratelimit_mw.http.client_lists import ClientListEntry
from ratelimit_mw.http.keys import KeySpec
from ratelimit_mw.http.response import HeaderStyle
from ratelimit_mw.settings.features import PenaltySpec, SettleSpec, StatusSpec
from ratelimit_mw.settings.rule import LimitsValue, OnMessageRefused, OnStoreError, PathSpec, Rule, RuleOptions

HEADERS: Final = ("ietf", "legacy", "both", "none")
MissingKey = Literal["shared", "deny", "exempt"]
MISSING_KEY: Final = ("shared", "deny", "exempt")


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
        int, "with `limits`: how many requests per key may be in progress or delayed at once; 0: no limit"
    ]
    queue: Annotated[int, "how many requests per key may wait for a slot in one process, oldest first; 0: no queue"]
    queue_timeout: Annotated[float, "seconds that a request may wait in the queue"]
    slot_lifetime: Annotated[float, "seconds after which the slots of a killed process are free again"]
    slot_retry: Annotated[float, "seconds in `Retry-After` when all slots are taken; an estimate"]
    key: Annotated[KeySpec, "selects the bucket, unless the limit or the rule has its own key"]
    tier: Annotated[KeySpec, "a key that names the client's tier, for limits by tier"]
    default_tier: Annotated[str, "the tier of clients without one; else the tier named `default`, else the first"]
    settle: Annotated[
        SettleSpec, "a callable of the request and its response that returns the true cost, when the response has ended"
    ]
    count_status: Annotated[
        StatusSpec,
        '`[401, "4xx"]`: only requests with these response statuses are charged; others are refunded. `[]`: all',
    ]
    penalty: Annotated[
        PenaltySpec,
        "`10 refusals per minute: 15 minutes`: refuses a client everywhere for that time after so many refusals by "
        "limits with this key",
    ]
    store: Annotated[
        Any, "`memory://`, `redis://`, `rediss://`, `unix://`, `redis+cluster://`, `redis+sentinel://`, or a store"
    ]
    trusted_proxies: Annotated[
        Sequence[str] | int, "networks, addresses and `unix:` of trusted proxies, or the number of proxies"
    ]
    proxy_header: Annotated[
        str, "the header in which proxies name the client: `x-forwarded-for`, `forwarded`, or one with a single address"
    ]
    ipv6_prefix: Annotated[int, "bits of an IPv6 address that identify a client, 32 to 128"]
    exempt: Annotated[PathSpec, "paths that are not limited at all"]
    safelist: Annotated[Sequence[ClientListEntry], "networks, headers or callables: these clients are never limited"]
    blocklist: Annotated[
        Sequence[ClientListEntry], "networks, headers or callables: these clients get 403, without a query to the store"
    ]
    ignore_case: Annotated[bool, "rules match paths in any case; exemptions stay exact"]
    on_store_error: Annotated[OnStoreError, "`allow`, `deny` (503) or `local`, the same limits in this process"]
    local_share: Annotated[
        float, "with `local`: the part of each quota and burst that this process admits, above 0; 1/N with N processes"
    ]
    store_timeout: Annotated[float, "seconds for a complete call to the store, more than 0"]
    max_waiting: Annotated[
        int,
        "requests that a process delays at one time, at most half of them for one key; default 1,000, or 2 under WSGI, "
        "where each takes a thread",
    ]
    headers: Annotated[HeaderStyle, "`ietf`, `legacy` (`X-RateLimit-*`), `both` or `none`"]
    on_refused: Annotated[
        Callable[..., Any] | str,
        "the response to refused requests: an ASGI or WSGI app, or a callable of request and verdict",
    ]
    on_decision: Annotated[
        Callable[[DecisionEvent], Any] | str, "a plain callable that receives each decision, including shadow limits"
    ]
    on_store_event: Annotated[
        Callable[[StoreEvent], Any] | str,
        "a plain callable that receives an event when the store fails, and when it is back",
    ]
    jitter: Annotated[
        float, "maximum random addition to `Retry-After`, in seconds, so that clients do not all return at once"
    ]
    shadow: Annotated[bool, "decides and reports, but never refuses"]
    missing_key: Annotated[
        MissingKey, "if a key is missing: `shared` (one bucket, one warning), `deny` (403), `exempt`"
    ]
    key_secret: Annotated[str, "the key of the hash of identities; 16 to 64 bytes of random text"]
    plain_keys: Annotated[bool, "leaves identities readable in the store"]
    strict: Annotated[
        bool,
        "raises `ConfigError` instead of a start-up warning about something that limits less than it seems to, and "
        "for a store that rejects the connection",
    ]
    enabled: Annotated[bool | Predicate, "`false` switches everything off; or a plain callable of the request"]

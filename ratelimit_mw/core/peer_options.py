"""Options of other rate limiters and their equivalents in this package."""

from collections.abc import Mapping
from typing import Final

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
_HEADERS: Final = ("headers", "'ietf', 'legacy', 'both' or 'none'")
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
    **dict.fromkeys(("group", "uid", "bucket"), ("name", "endpoints whose limits have the same name share a bucket")),
    **dict.fromkeys(("timeout", "socket_timeout"), ("store_timeout", "seconds for a call of the store")),
    **dict.fromkeys(("hash_secret", "secret"), ("key_secret", "text that keys the hash of identities")),
    **dict.fromkeys(("dry_run", "report_only"), ("shadow", "true: decide and report, but never refuse")),
    "block": ("shadow", "false, the default: requests are refused"),
    **dict.fromkeys(
        ("max_concurrent", "concurrency", "max_concurrency"), ("concurrent", "requests in progress at once")
    ),
}
_BY_SPELLING: Final = {option.replace("_", ""): translation for option, translation in _EQUIVALENTS.items()}


def translate_option(option: str) -> tuple[str, str] | None:
    """Return the equivalent of another rate limiter's option, and its meaning; None if it is unknown.

    Covers slowapi, flask-limiter, django-ratelimit, express-rate-limit and others. Ignores case and underscores.
    """
    return _BY_SPELLING.get(option.replace("_", "").lower())

"""The error about a wrong setting names its place, its value and the valid values."""

from math import inf, nan
from typing import Any

import pytest

from ratelimit_mw import SlidingWindowCounter
from ratelimit_mw.settings import Settings
from web.messages import (
    BOOL,
    CLOSE_OR_DROP,
    COUNT,
    FIVE,
    FOLDER,
    IMPORTABLE,
    KEYS,
    LIMIT,
    LIMITS,
    MODES,
    NAME,
    NO_RATE,
    PERIODS,
    PREFIX,
    SECONDS,
    SPANS,
    TEMPLATE,
    TEMPLATES,
    USAGE,
    found,
    message_of,
)

pytestmark = pytest.mark.promise(9)

LIMIT_ROWS: list[tuple[Any, str]] = [  # the value of limits, the message
    (None, "limits: required, such as '100/minute'; [] means no limits"),
    ("", "limits: got '', expected text such as '100/minute'"),
    (5, f"limits: {found(5, LIMITS)}"),
    ("10", f"limits: '10': {NO_RATE}"),
    ("-1/minute", f"limits: '-1/minute': {NO_RATE}"),
    ("1.5/minute", f"limits: '1.5/minute': {NO_RATE}"),
    ("1/0 minutes", "limits: '1/0 minutes': window: got 0 seconds, expected one microsecond to a hundred years"),
    ("10/mfoo", f"limits: '10/mfoo': unknown period 'mfoo' {PERIODS}"),
    (["5/minute", 7], f"limits[1]: {found(7, LIMIT)}"),
    (["5/minute", "5/minut"], f"limits[1]: '5/minut': unknown period 'minut', did you mean 'minute'? {PERIODS}"),
    (
        {"limit": "5/minute", "cots": 2},
        "limits: unknown setting `cots`: did you mean `cost`?",
    ),
    ([{}], "limits[0].limit: got None, expected one limit such as '100/minute'"),
    (
        [{"limit": "5/minute; 6/hour"}],
        "limits[0].limit: got '5/minute; 6/hour', expected one limit such as '100/minute'",
    ),
    ([{"limit": "5/minute", "cost": 6}], f"limits[0].cost: 6 can never pass {FIVE}, which admits at most 5 at once"),
    ([{"limit": "5/minute", "cost": -1}], f"limits[0].cost: {found(-1, COUNT)}"),
    ([{"limit": "5/minute", "cost": 1.0}], f"limits[0].cost: {found(1.0, COUNT)}"),
    ([{"limit": "5/minute", "cost": nan}], f"limits[0].cost: {found(nan, COUNT)}"),
    ([{"limit": "5/minute", "cost": True}], f"limits[0].cost: {found(True, COUNT)}"),
    ([{"limit": "5/minute", "name": "a b"}], f"limits[0].name: {found('a b', NAME)}"),
    ([{"limit": "5/minute", "name": "x\r\n"}], f"limits[0].name: {found(chr(120) + chr(13) + chr(10), NAME)}"),
    ([{"limit": "5/minute", "name": "x" * 65}], f"limits[0].name: {found('x' * 65, NAME)}"),
    ([{"limit": "5/minute", "shadow": 1}], f"limits[0].shadow: {found(1, BOOL)}"),
    ([{"limit": "5/minute", "key": "iq"}], f"limits[0].key: {found('iq', KEYS)}"),
    (
        [{"limit": "5/minute", "max_delay": 1}],
        f"limits[0].max_delay: {FIVE} cannot delay requests; a bucket can, such as '5/60s using gcra'",
    ),
    ("5/minute; 5/minute", f"limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name"),
    (
        [SlidingWindowCounter(5, 60), {"limit": "5/60s", "key": "user | ip"}],
        f"limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name",
    ),
    (
        ["9/hour", {"limit": "5/minute", "key": "ip"}, {"limit": "5/minute", "key": "ip/48"}],
        f"limits[2]: {FIVE} can count in the same bucket as limits[1]; give one of them a name",
    ),
]

NETWORKS = (
    "expected ip/8 to ip/31, the bits of an IPv4 network, ip/32 to ip/128, those of an IPv6 network, or both, such as "
    "ip/24/56"
)
MAKE_ONE = "make one with python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
SETTING_ROWS: list[tuple[str, Any, str]] = [  # the setting, its value, the message
    ("app_limits", None, f"app_limits: {found(None, LIMITS)}"),
    ("app_limits", "1/fortnight", f"app_limits: '1/fortnight': unknown period 'fortnight' {PERIODS}"),
    ("messages", None, f"messages: {found(None, LIMITS)}"),
    ("messages", "1/fortnight", f"messages: '1/fortnight': unknown period 'fortnight' {PERIODS}"),
    (
        "messages",
        "5/minute; 5/minute",
        f"messages[1]: {FIVE} can count in the same bucket as messages[0]; give one of them a name",
    ),
    (
        "messages",
        {"free": "5/minute"},
        "messages: got limits by tier (free), which need `tier`: a key that names the tier, such as 'header:X-Plan'",
    ),
    ("on_message_refused", "shut", f"on_message_refused: {found('shut', CLOSE_OR_DROP)}"),
    ("on_message_refused", None, f"on_message_refused: {found(None, CLOSE_OR_DROP)}"),
    ("latency_goal", -1, "latency_goal: got -1, expected a finite number of seconds, 0 or more"),
    ("at_work_least", 0, "at_work_least: got 0, expected a whole number from 1 to 100000"),
    ("at_work_least", 501, "at_work_least: got 501, more than at_work_most, 500"),
    ("at_work_most", 100_001, "at_work_most: got 100001, expected a whole number from 1 to 100000"),
    ("key", "ipp", f"key: got 'ipp', did you mean 'ip'?; expected {KEYS}"),
    ("key", "IP", f"key: got 'IP', did you mean 'ip'?; expected {KEYS}"),
    ("key", "remote_addr", f"key: got 'remote_addr', did you mean 'ip'?; expected {KEYS}"),
    ("key", "a.keys:of", f"key: got 'a.keys:of', did you mean 'call:a.keys:of'?; expected {KEYS}"),
    ("LIMITS", "1/minute", "unknown setting `LIMITS`: did you mean `limits`?"),
    ("key", "user+", f"key: {found('', KEYS)}"),
    ("key", "header:a b", f"key: {found('header:a b', KEYS)}"),
    ("key", None, f"key: {found(None, f'a callable, text made of {KEYS}, or a list of these')}"),
    *[
        ("key", key, f"key: got {key!r}, {NETWORKS}")
        for key in ("ip/7", "ip/129", "ip/24/31", "ip/33/56", "ip/24/", "ip/x")
    ],
    ("key", "call:os:name", "key: got 'call:os:name' of type str, expected a function"),
    (
        "key",
        "call:os:nosuch",
        f"key: {found('call:os:nosuch', IMPORTABLE)}: AttributeError: module 'os' has no attribute 'nosuch'",
    ),
    ("ipv6_prefix", 31, f"ipv6_prefix: {found(31, PREFIX)}"),
    ("ipv6_prefix", 129, f"ipv6_prefix: {found(129, PREFIX)}"),
    ("ipv6_prefix", True, f"ipv6_prefix: {found(True, PREFIX)}"),
    ("ipv6_prefix", 64.0, f"ipv6_prefix: {found(64.0, PREFIX)}"),
    ("exempt", "health", f"exempt: {found('health', TEMPLATE)}"),
    ("exempt", ["/a", "b"], f"exempt[1]: {found('b', TEMPLATE)}"),
    ("exempt", None, f"exempt: {found(None, TEMPLATES)}"),
    *(("usage_path", value, f"usage_path: {found(value, USAGE)}") for value in ("", "limits", "/", "/a/", "/{x}", 7)),
    ("usage_path", "/a?b", f"usage_path: {found('/a?b', 'a path without ? and #; the query is not part of it')}"),
    ("on_store_error", "open", f"on_store_error: {found('open', MODES)}"),
    ("on_store_error", None, f"on_store_error: {found(None, MODES)}"),
    ("metrics", 1, f"metrics: {found(1, BOOL)}"),
    ("metrics_folder", "", f"metrics_folder: {found('', FOLDER)}"),
    ("metrics_folder", " ", f"metrics_folder: {found(' ', FOLDER)}"),
    ("metrics_folder", 7, f"metrics_folder: {found(7, FOLDER)}"),
    ("metrics_folder", "a\0b", f"metrics_folder: {found('a' + chr(0) + 'b', FOLDER)}"),
    ("span_attributes", "some", f"span_attributes: {found('some', SPANS)}"),
    ("refresh", -1, f"refresh: {found(-1, SECONDS)}"),
    ("refresh", True, f"refresh: {found(True, SECONDS)}"),
    ("reload", 1, f"reload: {found(1, BOOL)}"),
    ("store_timeout", 0, "store_timeout: got 0, expected more than 0 seconds"),
    ("store_timeout", -1, f"store_timeout: {found(-1, SECONDS)}"),
    ("store_timeout", nan, f"store_timeout: {found(nan, SECONDS)}"),
    ("store_timeout", inf, f"store_timeout: {found(inf, SECONDS)}"),
    ("store_timeout", True, f"store_timeout: {found(True, SECONDS)}"),
    ("store_timeout", "1", f"store_timeout: {found('1', SECONDS)}"),
    ("headers", "iet", f"headers: {found('iet', 'one of ietf, legacy, both, draft-6, draft-7, none')}"),
    ("missing_key", "", f"missing_key: {found('', 'one of shared, deny, exempt')}"),
    ("shadow", 1, f"shadow: {found(1, BOOL)}"),
    ("on_change", "keep", "on_change: got 'keep', expected one of fresh, used, share"),
    ("plain_keys", 0, f"plain_keys: {found(0, BOOL)}"),
    ("enabled", "false", f"enabled: {found('false', BOOL)}"),
    *(
        ("key_secret", secret, f"key_secret: expected text of 16 to 64 bytes; {MAKE_ONE}")
        for secret in (b"x", "x", "x" * 15, "é" * 33, None)
    ),
    (
        "key_secret",
        "a long random text of your own",
        f"key_secret: got the text of an example, which is public; {MAKE_ONE}",
    ),
]


@pytest.mark.parametrize(("limits", "message"), LIMIT_ROWS)
def test_the_error_for_a_wrong_limit_names_place_and_valid_values(limits: Any, message: str) -> None:
    assert message_of(limits=limits) == message


@pytest.mark.parametrize(("name", "value", "message"), SETTING_ROWS)
def test_the_error_for_a_wrong_setting_names_place_and_valid_values(name: str, value: Any, message: str) -> None:
    assert message_of(**{"limits": "9/hour", name: value}) == message


def test_the_error_for_an_unknown_setting_suggests_a_name_or_place() -> None:
    words = (
        "limits, app_limits, messages, on_message_refused, rules, concurrent, queue, queue_timeout, fair_share, "
        "slot_lifetime, slot_retry, latency_goal, at_work_least, at_work_most, key, tier, default_tier, settle, "
        "count_status, penalty, store, trusted_proxies, proxy_header, ipv6_prefix, exempt, usage_path, safelist, "
        "blocklist, ignore_case, on_store_error, local_share, store_timeout, max_waiting, headers, on_refused, "
        "on_decision, on_store_event, refresh, reload, remember_refused, metrics, metrics_folder, span_attributes, "
        "jitter, shadow, on_change, missing_key, key_secret, plain_keys, strict, enabled"
    )
    nine = {"limits": "9/hour"}
    assert message_of(**nine, trusted_proxy=1) == "unknown setting `trusted_proxy`: did you mean `trusted_proxies`?"
    table = "the table of a limit, such as {limit = '10/second using gcra', max_delay = 2}"
    assert message_of(**nine, max_delay=2) == f"unknown setting `max_delay` here: it goes into {table}"
    assert message_of(**nine, methods=["GET"]) == "unknown setting `methods` here: it goes into a rule: [[rules]]"
    rule = {"path": "/a", "limits": "9/hour"}
    for option, value in {"store": "redis://localhost", "trusted_proxies": [], "enabled": True}.items():
        assert message_of(**nine, rules=[{**rule, option: value}]) == (
            f"rules[0]: unknown setting `{option}` here: it goes into the global settings, in TOML above the first "
            "[[rules]]"
        )
    assert message_of(**nine, on_stor_error=1) == "unknown setting `on_stor_error`: did you mean `on_store_error`?"
    assert message_of(**nine, x=1) == f"unknown setting `x`; there are {words}"
    assert message_of() == "limits: required, such as '100/minute'; [] means no limits"


def test_one_error_lists_all_mistakes_with_their_places() -> None:
    wrong = {"path": "a", "methods": ["post"], "limits": ["1/minute", {"limit": "1/minut", "cost": -1}]}
    assert message_of(limit="9/hour", key="iq", rules=[wrong, {"pth": "/"}], shadow=1).split("\n  ") == [
        "11 mistakes:",
        "unknown setting `limit`: did you mean `limits`?",
        f"key: {found('iq', KEYS)}",
        "limits: required, such as '100/minute'; [] means no limits",
        f"rules[0].path: {found('a', TEMPLATE)}",
        "rules[0].methods[0]: got 'post', expected a method in upper case, such as 'POST'",
        f"rules[0].limits[1].limit: '1/minut': unknown period 'minut', did you mean 'minute'? {PERIODS}",
        f"rules[0].limits[1].cost: {found(-1, COUNT)}",
        "rules[1]: unknown setting `pth`: did you mean `path`?",
        "rules[1].path: required, such as '/login' or '/{rest:path}'",
        "rules[1].limits: required; for a rule without limits, set limits = []",
        f"shadow: {found(1, BOOL)}",
    ]


def test_the_error_names_each_wrong_item_of_a_list() -> None:
    problems = message_of(limits=[], exempt=["health", "/a", "/static/*"], trusted_proxies=["10.0.0.1/8", "nginx"])
    assert [line.partition(":")[0] for line in problems.split("\n  ")[1:]] == [
        "trusted_proxies[0]",
        "trusted_proxies[1]",
        "exempt[0]",
        "exempt[2]",
    ]


@pytest.mark.parametrize("secret", ["", "x" * 16, "é" * 8, "x" * 64])
def test_secrets_of_an_allowed_length_are_accepted(secret: str) -> None:
    assert Settings(limits=[], key_secret=secret).key_secret == secret

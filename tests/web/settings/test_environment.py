"""Tests settings from the environment and from files, and their precedence."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec import json

from ratelimit_mw import ConfigError, asgi, wsgi
from ratelimit_mw.service import service
from ratelimit_mw.service.served_settings import served_settings
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import App200
from web.faces import FACES
from web.messages import BOOL, PREFIX, SECONDS
from web.scenario import Step
from web.wsgi_talk import hello

P = "RATELIMIT_MW_"
MIDDLEWARE: list[tuple[Any, Any]] = [(asgi.RateLimitMiddleware, App200()), (wsgi.RateLimitMiddleware, hello)]
RATE = "got no rate, expected text such as '100/minute' or '5 per 10 seconds'"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(P)]:
        monkeypatch.delenv(name)


def of(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], **given: Any) -> Settings:
    for name, value in variables.items():
        monkeypatch.setenv(P + name, value)
    return Settings.of(given, {})


KINDS: list[tuple[str, str, Any]] = [
    ("LIMITS", "5/minute", "5/minute"),
    ("LIMITS", " 5/minute; 9/hour using gcra ", "5/minute; 9/hour using gcra"),
    ("LIMITS", "5/minute, 9/hour", "5/minute, 9/hour"),
    ("LIMITS", "[]", []),
    ("LIMITS", '["5/minute", {"limit": "9/hour", "cost": 2}]', ["5/minute", {"limit": "9/hour", "cost": 2}]),
    ("LIMITS", '{"limit": "9/hour", "key": "all"}', {"limit": "9/hour", "key": "all"}),
    ("LIMITS", "call:web.scenarios_callables:limits_of", "call:web.scenarios_callables:limits_of"),
    ("APP_LIMITS", "5/minute", "5/minute"),
    ("APP_LIMITS", "5/minute, 9/hour", "5/minute, 9/hour"),
    ("APP_LIMITS", "call:web.scenarios_callables:limits_of", "call:web.scenarios_callables:limits_of"),
    ("APP_LIMITS", "[]", []),
    ("MESSAGES", "20/second, 9/minute", "20/second, 9/minute"),
    ("MESSAGES", "[]", []),
    ("ON_MESSAGE_REFUSED", "drop", "drop"),
    ("RULES", '[{"path": "/a", "limits": "5/minute"}]', [{"path": "/a", "limits": "5/minute"}]),
    ("RULES", "[]", []),
    ("CONCURRENT", "20", 20),
    ("QUEUE", "50", 50),
    ("QUEUE_TIMEOUT", "2.5", 2.5),
    ("FAIR_SHARE", "header:x-key | ip", "header:x-key | ip"),
    ("SLOT_LIFETIME", "30", 30),
    ("SLOT_RETRY", "0.5", 0.5),
    ("LATENCY_GOAL", "0.25", 0.25),
    ("AT_WORK_LEAST", "8", 8),
    ("AT_WORK_MOST", "900", 900),
    ("KEY", "user | ip", "user | ip"),
    ("KEY", '["user", "ip"]', ["user", "ip"]),
    ("KEY", "header:x-key+ip/48", "header:x-key+ip/48"),
    ("TIER", "header:x-tier", "header:x-tier"),
    ("DEFAULT_TIER", "free", "free"),
    ("SETTLE", "call:web.scenarios_settlements:cost_of", "call:web.scenarios_settlements:cost_of"),
    ("COUNT_STATUS", "401, 4xx", ["401", "4xx"]),
    ("COUNT_STATUS", '[401, "5xx"]', [401, "5xx"]),
    ("PENALTY", "10 refusals per minute: 15 minutes", "10 refusals per minute: 15 minutes"),
    ("STORE", "redis://h:1/0", "redis://h:1/0"),
    ("TRUSTED_PROXIES", "10.0.0.0/8, 192.0.2.1 ,unix:", ["10.0.0.0/8", "192.0.2.1", "unix:"]),
    ("TRUSTED_PROXIES", "2", 2),
    ("TRUSTED_PROXIES", "10.0.0.1", ["10.0.0.1"]),
    ("TRUSTED_PROXIES", '["10.0.0.0/8"]', ["10.0.0.0/8"]),
    ("TRUSTED_PROXIES", "[]", []),
    ("PROXY_HEADER", "forwarded", "forwarded"),
    ("IPV6_PREFIX", "48", 48),
    ("EXEMPT", "/health,/static/{path:path}", ["/health", "/static/{path:path}"]),
    ("EXEMPT", "/health", ["/health"]),
    ("EXEMPT", ",/health,,", ["/health"]),
    ("USAGE_PATH", "/rate-limits", "/rate-limits"),
    ("SAFELIST", "10.0.0.0/8,2001:db8::/32", ["10.0.0.0/8", "2001:db8::/32"]),
    ("SAFELIST", '["10.0.0.0/8", {"header": "x", "value": "y"}]', ["10.0.0.0/8", {"header": "x", "value": "y"}]),
    ("BLOCKLIST", "call:web.scenarios_clients:is_vip", ["call:web.scenarios_clients:is_vip"]),
    ("ON_STORE_ERROR", "deny", "deny"),
    ("ON_CHANGE", "used", "used"),
    ("REFRESH", "0", 0),
    ("STORE_TIMEOUT", "0.25", 0.25),
    ("STORE_TIMEOUT", "2", 2),
    ("STORE_TIMEOUT", "1e-3", 0.001),
    ("HEADERS", "both", "both"),
    ("ON_REFUSED", "call:web.responses.test_on_refused:teapot", "call:web.responses.test_on_refused:teapot"),
    ("ON_DECISION", "call:json:dumps", "call:json:dumps"),
    ("ON_STORE_EVENT", "call:json:dumps", "call:json:dumps"),
    ("METRICS_FOLDER", "/run/app, too", "/run/app, too"),
    ("SPAN_ATTRIBUTES", "refused", "refused"),
    ("LOCAL_SHARE", "0.25", 0.25),
    ("LOCAL_SHARE", "1", 1),
    ("MAX_WAITING", "50", 50),
    ("REMEMBER_REFUSED", "1000", 1000),
    ("JITTER", "1.5", 1.5),
    ("JITTER", "0", 0),
    ("MISSING_KEY", "deny", "deny"),
    ("KEY_SECRET", "s3cret-of-our-own", "s3cret-of-our-own"),
    ("KEY_SECRET", "1234567890123456", "1234567890123456"),
    ("KEY_SECRET", "[s3cret-of-our-own", "[s3cret-of-our-own"),
    ("KEY_SECRET", '{"a": 1234567890}', '{"a": 1234567890}'),
    ("KEY_SECRET", "[12345678901234]", "[12345678901234]"),
    *[(name, word, True) for name in ("IGNORE_CASE", "METRICS", "RELOAD", "SHADOW", "PLAIN_KEYS", "STRICT", "ENABLED")
      for word in ("true", "1", "yes", "on", "TRUE", "Yes", " on ")],
    *[(name, word, False) for name in ("IGNORE_CASE", "METRICS", "RELOAD", "SHADOW", "PLAIN_KEYS", "STRICT", "ENABLED")
      for word in ("false", "0", "no", "off", "FALSE", "No")],
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "value"), KINDS)
def test_each_setting_is_parsed_from_its_variable(
    name: str, text: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {} if name == "LIMITS" else {"limits": "9/hour"}
    found = getattr(of(monkeypatch, {name: text}, **more), name.lower())
    assert (found, type(found)) == (value, type(value))


def test_every_setting_has_a_parsing_case() -> None:
    assert {name.lower() for name, _, _ in KINDS} == set(Settings.__struct_fields__)


def test_limits_by_tier_are_parsed_from_json(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"LIMITS": '{"free": "9/hour", "pro": ["99/hour"]}', "TIER": "header:x-tier", "DEFAULT_TIER": "pro"}
    assert of(monkeypatch, variables).limits == {"free": "9/hour", "pro": ["99/hour"]}


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("LIMIT", "5/minute", "RATELIMIT_MW_LIMIT: unknown setting `limit`: did you mean `limits`?"),
        ("LIMITS", "[", "RATELIMIT_MW_LIMITS: got invalid JSON: Input data was truncated"),
        ("RULES", '[{"path": "/a"},]',
         "RATELIMIT_MW_RULES: got invalid JSON: JSON is malformed: trailing comma in array (byte 16)"),
        ("SAFELIST", '{"header": x}',
         "RATELIMIT_MW_SAFELIST: got invalid JSON: JSON is malformed: invalid character (byte 11)"),
    ],
)  # fmt: skip
def test_errors_for_unreadable_variables_name_the_variable(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError) as caught:
        of(monkeypatch, {name: text}, limits="9/hour")
    assert str(caught.value) == message


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("LIMITS", "lots", f"limits: 'lots': {RATE}"),
        ("APP_LIMITS", "5/minute,lots", f"app_limits: 'lots': {RATE}"),
        ("RULES", "/login", "rules[0]: got '/login', expected a table or a Rule"),
        ("RULES", '{"path": "/"}',
         "rules: got {'path': '/'}, expected a list of tables or Rules; in TOML each begins with [[rules]]"),
        ("ENABLED", "maybe", f"enabled: got 'maybe', expected {BOOL}"),
        ("ON_CHANGE", "Used", "on_change: got 'Used', expected one of fresh, used, share"),
        ("SHADOW", "2", f"shadow: got '2', expected {BOOL}"),
        ("IPV6_PREFIX", "31", f"ipv6_prefix: got 31, expected {PREFIX}"),
        ("IPV6_PREFIX", "48.5", f"ipv6_prefix: got 48.5, expected {PREFIX}"),
        ("IPV6_PREFIX", "/48", f"ipv6_prefix: got '/48', expected {PREFIX}"),
        ("STORE_TIMEOUT", "soon", f"store_timeout: got 'soon', expected {SECONDS}"),
        ("STORE_TIMEOUT", "nan", f"store_timeout: got nan, expected {SECONDS}"),
        ("STORE_TIMEOUT", "0", "store_timeout: got 0, expected more than 0 seconds"),
        ("REMEMBER_REFUSED", "10001", "remember_refused: got 10001, expected at most 10000 clients"),
        ("JITTER", "-1", f"jitter: got -1, expected {SECONDS}"),
        ("MAX_WAITING", "1.5", "max_waiting: got 1.5, expected a whole number from 0 to 9007199254740991"),
        ("LOCAL_SHARE", "2", "local_share: got 2, expected a number above 0 and up to 1, such as 0.25"),
        ("HEADERS", "some", "headers: got 'some', expected one of ietf, legacy, both, draft-6, draft-7, none"),
        ("HEADERS", "IETF", "headers: got 'IETF', expected one of ietf, legacy, both, draft-6, draft-7, none"),
        ("SAFELIST", "10.0.0.0/8,x",
         "safelist[1]: got 'x', expected a network such as '10.0.0.0/8' or an address such as '192.0.2.1'"),
        ("KEY_SECRET", "x" * 65, "import secrets; print(secrets.token_urlsafe(32))'"),
    ],
)  # fmt: skip
def test_invalid_values_raise_the_error_of_their_setting(
    name: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {} if name == "LIMITS" else {"limits": "9/hour"}
    with pytest.raises(ConfigError) as caught:
        of(monkeypatch, {name: text}, **more)
    assert str(caught.value).endswith(message)


LISTS = ("rules", "exempt", "safelist", "blocklist", "trusted_proxies", "count_status")


@pytest.mark.promise(9)
@pytest.mark.parametrize("text", ["", " "])
@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_an_empty_variable_raises_a_config_error(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = "; [] is an empty list" if name in LISTS else ""
    message = f"{P}{name.upper()}: got an empty value; set the variable, or remove it{fix}"
    with pytest.raises(ConfigError) as caught:
        of(monkeypatch, {name.upper(): text}, **({} if name == "limits" else {"limits": "9/hour"}))
    assert caught.value.problems == (message,)
    file = tmp_path / "limits.toml"
    file.write_text('limits = "9/hour"', "utf-8")
    with pytest.raises(ConfigError) as caught:
        Settings.load(file)
    assert caught.value.problems == (message,)


def test_an_unknown_variable_hides_no_other_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('key = "nobody"', "utf-8")
    values = {"STROE": "x", "HEADERS": "yes", "STRICT": "ja", "LIMITS": "["}
    for name, text in values.items():
        monkeypatch.setenv(P + name, text)
    known = [
        f"{P}STROE: unknown setting `stroe`: did you mean `store`?",
        f"{P}LIMITS: got invalid JSON: Input data was truncated",
        f"{P}HEADERS: headers: got 'yes', expected one of ietf, legacy, both, draft-6, draft-7, none",
        f"{P}STRICT: strict: got 'ja', expected {BOOL}",
    ]
    own = "key: got 'nobody', expected "
    with pytest.raises(ConfigError) as caught:
        asgi.RateLimitMiddleware(App200(), key="nobody")
    (wrong,) = [problem for problem in caught.value.problems if problem not in known]
    assert wrong.startswith(own)
    assert sorted(caught.value.problems) == sorted([*known, wrong])
    with pytest.raises(ConfigError) as caught:
        Settings.load(file)
    (wrong,) = [problem for problem in caught.value.problems if problem not in known]
    assert wrong.startswith(f"{file}:1: {own}")
    assert sorted(caught.value.problems) == sorted([*known, wrong])


@pytest.mark.promise(9)
def test_an_error_in_a_variable_is_not_attributed_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('limits = "9/hour"\nheaders = "both"\n', "utf-8")
    monkeypatch.setenv(P + "HEADERS", "some")
    with pytest.raises(ConfigError) as caught:
        Settings.load(file)
    assert "headers: got 'some', expected one of ietf, legacy, both, draft-6, draft-7, none" in str(caught.value)
    assert not str(caught.value).startswith(str(file))


def test_all_unreadable_variables_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(P + "LIMITS", "[")
    monkeypatch.setenv(P + "STORES", "memory://")
    monkeypatch.setenv(P + "NOTHING_LIKE_IT", "1")
    with pytest.raises(ConfigError) as caught:
        Settings.of({}, {})
    problems = sorted(caught.value.problems)
    assert [problem.partition(":")[0] for problem in problems] == [
        f"{P}LIMITS", f"{P}NOTHING_LIKE_IT", f"{P}STORES"
    ]  # fmt: skip
    assert problems[1].startswith(f"{P}NOTHING_LIKE_IT: unknown setting `nothing_like_it`; there are limits, ")
    assert problems[2] == f"{P}STORES: unknown setting `stores`: did you mean `store`?"


def test_errors_contain_no_secret_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "t0p-s3cret"
    for name, text in (
        ("SAFELIST", f'[{{"header": "X-Token", "value": "{secret}"'),
        ("SAFELIST", f'{{"header": "X-Token", "value": "{secret}"}}'),
        ("BLOCKLIST", f'[[{{"header": "X-Token", "value": "{secret}"}}]]'),
        ("KEY_SECRET", secret * 10),
    ):
        monkeypatch.setenv(P + name, text)
        with pytest.raises(ConfigError) as caught:
            Settings.of({"limits": []}, {})
        assert secret not in f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
        monkeypatch.delenv(P + name)


# limits that are off

OFF = "RATELIMIT_MW_ENABLED is false, so nothing is limited; remove the variable, if this is not meant"
SHADOW = (
    "RATELIMIT_MW_SHADOW is true, so nothing is limited, and limits only report; remove the variable, if this is not "
    "meant"
)


@pytest.mark.parametrize(
    ("variables", "given", "texts"),
    [
        ({"ENABLED": "false"}, {}, [OFF]),
        ({"ENABLED": "no", "SHADOW": "yes"}, {"strict": True}, [OFF]),
        ({"SHADOW": "1", "STRICT": "true"}, {}, [SHADOW]),
        ({"ENABLED": "true", "SHADOW": "false"}, {}, []),
        ({"ENABLED": "false"}, {"enabled": True}, []),
        ({"ENABLED": "false"}, {"enabled": False}, []),
        ({"SHADOW": "true"}, {"shadow": True}, []),
        ({}, {"enabled": False}, []),
        ({}, {"shadow": True}, []),
    ],
)
@pytest.mark.parametrize("by", ["arguments", "object", "object and arguments"])
def test_a_variable_that_turns_all_limits_off_is_logged(
    by: str,
    variables: dict[str, str],
    given: dict[str, Any],
    texts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    loaded = of(monkeypatch, variables, limits="9/hour", **(given if by == "object" else {}))
    settings = {"limits": "9/hour"} if by == "arguments" else loaded
    more = {} if by == "object" else given
    made = [middleware(app, settings, **more) for middleware, app in MIDDLEWARE]
    assert caplog.messages == [f"ratelimit_mw: {text}" for text in texts] * len(made)


def test_a_variable_that_turns_off_the_limits_of_a_file_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "limits.toml"
    file.write_text('limits = "9/hour"\ntrusted_proxies = ["192.0.2.7"]', "utf-8")
    monkeypatch.setenv(P + "ENABLED", "false")
    service(file)
    settings = Settings.load(file)
    assert settings == Settings(limits="9/hour", trusted_proxies=["192.0.2.7"], enabled=False)
    _ = asgi.RateLimitMiddleware(App200(), settings)
    assert caplog.messages == [f"ratelimit_mw: {OFF}"] * 2


@pytest.mark.parametrize("variables", [{}, {"RATELIMIT_MW_STORE": "memory://"}], ids=["alone", "beside"])
@pytest.mark.parametrize("imported", [False, True])
def test_a_variable_without_mw_is_logged(
    imported: bool, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for package in ("flask_limiter", "django_ratelimit", "slowapi"):
        monkeypatch.delitem(sys.modules, package, raising=False)
    if imported:  # it reads such variables
        monkeypatch.setitem(sys.modules, "slowapi", ModuleType("slowapi"))
    others = {"RATELIMIT_STORE": "redis://app", "RATELIMIT_QUEUE": "9", "RATELIMIT_STORAGE_URL": "", "QUEUE": "9"}
    for name, value in {**others, **variables}.items():
        monkeypatch.setenv(name, value)
    made = [middleware(app, limits="9/hour", strict=True) for middleware, app in MIDDLEWARE]
    served_settings(Settings(limits="9/hour", trusted_proxies=["192.0.2.7"]))
    names = [name for name in ("QUEUE", "STORE") if f"{P}{name}" not in variables and not imported]
    texts = [f"RATELIMIT_{name} is not read; if it is for ratelimit_mw, write RATELIMIT_MW_{name}" for name in names]
    assert caplog.messages == [f"ratelimit_mw: {text}" for text in texts] * (len(made) + 1)


# precedence


def test_code_overrides_the_environment_which_overrides_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(P + "LIMITS", "1/hour")
    monkeypatch.setenv(P + "HEADERS", "legacy")
    monkeypatch.setenv(P + "SHADOW", "yes")
    for middleware, app in MIDDLEWARE:
        found = middleware(app)._gate.settings
        assert (found.limits, found.headers, found.shadow, found.key) == ("1/hour", "legacy", True, "user | ip")
    mapping = {"limits": "2/hour", "headers": "both"}
    for more, limits in (({}, "2/hour"), ({"limits": "3/hour"}, "3/hour")):
        for middleware, app in MIDDLEWARE:
            found = middleware(app, mapping, **more)._gate.settings
            assert (found.limits, found.headers, found.shadow) == (limits, "both", True)


def test_a_settings_object_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(P + "HEADERS", "legacy")
    monkeypatch.setenv(P + "NO_SUCH", "1")
    settings = Settings(limits="9/hour")
    assert settings.headers == "ietf"
    for middleware, app in MIDDLEWARE:
        assert middleware(app, settings)._gate.settings is settings
    found = wsgi.RateLimitMiddleware(hello, settings, shadow=True)._gate.settings
    assert (found.headers, found.shadow, found.limits) == ("ietf", True, "9/hour")
    with pytest.raises(ConfigError, match=r"^RATELIMIT_MW_NO_SUCH: unknown setting `no_such`"):
        wsgi.RateLimitMiddleware(hello, limits="9/hour")


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    "name",
    [
        "RATELIMITMW_LIMITS",
        "RATE_LIMIT_MW_LIMITS",
        "RATELIMITS_MW_LIMITS",
        "ratelimit_mw_limits",
        "RATELIMIT_MV_LIMITS",
    ],
)
def test_a_misspelled_prefix_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "5/minute")
    text = f"{name}: unknown variable: did you mean `RATELIMIT_MW_LIMITS`?"
    for given in ({}, {"limits": "9/hour"}):
        with pytest.raises(ConfigError) as raised:
            Settings.of(given, {})
        assert [problem.removesuffix(" [RL-001]") for problem in raised.value.problems] == [text]


@pytest.mark.parametrize("name", ["RATELIMIT_LIMITS", "RATELIMITMW", "RATELIMITMW_IMAGE", "MY_RATELIMIT_MW_LIMITS"])
def test_unrelated_variables_are_ignored(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "5/minute")
    assert Settings.of({"limits": "9/hour"}, {}).limits == "9/hour"


@pytest.mark.parametrize(("ending", "text"), [("toml", 'limits = "9/hour"'), ("json", '{"limits": "9/hour"}')])
def test_a_file_may_begin_with_a_byte_order_mark(ending: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / f"limits.{ending}"
    file.write_text(text, "utf-8-sig")
    assert Settings.load(file).limits == "9/hour"


@pytest.mark.parametrize("ending", ["toml", "json"])
def test_the_environment_overrides_a_file(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / f"limits.{ending}"
    text = 'limits = "9/hour"\nheaders = "both"\nexempt = ["/a"]\n'
    file.write_text(text if ending == "toml" else '{"limits": "9/hour", "headers": "both", "exempt": ["/a"]}', "utf-8")
    monkeypatch.setenv(P + "HEADERS", "legacy")
    monkeypatch.setenv(P + "EXEMPT", "/b,/c")
    monkeypatch.setenv(P + "PLAIN_KEYS", "on")
    found = Settings.load(file)
    assert (found.limits, found.headers, found.exempt, found.plain_keys) == ("9/hour", "legacy", ["/b", "/c"], True)
    monkeypatch.setenv(P + "HEADERS", "none")  # a `Settings` object ignores the environment
    made = wsgi.RateLimitMiddleware(hello, found, plain_keys=False)._gate.settings
    assert (made.headers, made.plain_keys) == ("legacy", False)


@pytest.mark.parametrize("face", FACES)
def test_settings_from_the_environment_apply_to_requests(face: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = '[{"path": "/login", "methods": ["POST"], "limits": "1/hour", "key": "ip"}]'
    for name, text in (("LIMITS", "9/hour"), ("RULES", rules), ("EXEMPT", "/health"), ("SAFELIST", "10.0.0.0/8")):
        monkeypatch.setenv(P + name, text)
    store = RecordingStore(clock=Clock())
    send = FACES[face]({"store": store})
    steps = [
        Step(), Step(path="/health"), Step(client="10.1.1.1"), Step(method="POST", path="/login"),
        Step(method="POST", path="/login"),
    ]  # fmt: skip
    assert [send(step).status for step in steps] == [200, 200, 200, 200, 429]
    assert len(store.calls) == 3


# JSON files

DOCUMENT: dict[str, Any] = {
    "limits": ["9/hour", {"limit": "99/day", "key": "all", "name": "everybody"}],
    "app_limits": "1000/second",
    "messages": "20/second",
    "on_message_refused": "drop",
    "trusted_proxies": 2,
    "store_timeout": 0.1,
    "ignore_case": True,
    "safelist": ["10.0.0.0/8", {"header": "X-Token", "value": "s\u00e9sam"}],
    "rules": [{"path": "/login", "methods": ["POST"], "limits": {"free": "5/hour", "pro": []}, "tier": "user"}],
}


def test_a_json_file_gives_the_same_settings_as_arguments(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_bytes(json.encode(DOCUMENT))
    assert Settings.load(file) == Settings.load(str(file)) == Settings(**DOCUMENT)


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "invalid JSON: Input data was truncated"),
        (b"{", "invalid JSON: Input data was truncated"),
        (b'{"limits": 5}',
         "limits: got 5, expected text such as '100/minute', a Limit, a table or a list of these"),
        (b"[]", "got list, expected a table of settings"),
        (b"null", "got NoneType, expected a table of settings"),
        (b'"5/minute"', "got str, expected a table of settings"),
        (b'{"limits": "5/minute", "limit": 1}', "unknown setting `limit`: did you mean `limits`?"),
        (b"\xff", "invalid JSON: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b'limits = "5/minute"', "invalid JSON: JSON is malformed: invalid character (byte 0)"),
    ],
)  # fmt: skip
def test_errors_in_a_json_file_name_the_file(text: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        Settings.load(file)
    assert str(caught.value) == f"{file}: {message}"


def test_all_errors_in_a_file_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "limits.json"
    file.write_text('{"limits": "lots", "headers": "some", "rules": [{"path": "x", "limits": []}], "stor": 1}', "utf-8")
    with pytest.raises(ConfigError) as caught:
        Settings.load(file)
    assert str(caught.value).splitlines() == [
        "4 mistakes:",
        f"  {file}: unknown setting `stor`: did you mean `store`?",
        f"  {file}: limits: 'lots': {RATE}",
        f"  {file}: rules[0].path: got 'x', expected a path that starts with /, such as '/users/{{id}}'",
        f"  {file}: headers: got 'some', expected one of ietf, legacy, both, draft-6, draft-7, none",
    ]

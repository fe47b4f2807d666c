"""Options have the same names and values in arguments, mappings, `Settings` and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from msgspec.structs import fields

from ratelimit_mw import ConfigError
from ratelimit_mw.asgi import RateLimitMiddleware as AsgiMiddleware
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import LimitOptions, LimitSpec
from ratelimit_mw.settings.options import Options
from ratelimit_mw.settings.rule import Rule, RuleOptions
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware

TOML = """
limits = "100/minute"
app_limits = "1000/second"
key = "user | ip"
store = "redis://localhost:6379/0"
ipv6_prefix = 64
exempt = ["/health", "/static/{path:path}"]
on_store_error = "local"
store_timeout = 0.05
headers = "ietf"
shadow = false
enabled = true

[[rules]]
name = "login"
path = "/login"
methods = ["POST"]
limits = ["5/minute", {limit = "20/hour using token_bucket", key = "user"}]
key = "ip"
on_store_error = "deny"
"""
JUNK: list[Any] = [
    None, 0, 1, -1, 1.5, float("nan"), float("inf"), True, "", "x", b"x", [], {}, [None], [[]], ["x"], [b"/x"],
    {"a": 1}, {1: 2}, set(), {"x"}, range(3), object(), int, "\ud800", 10**400, [object()],
]  # fmt: skip


def test_settings_have_the_expected_defaults() -> None:
    assert {name: getattr(Settings(limits=[]), name) for name in Settings.__struct_fields__} == {
        "limits": [],
        "app_limits": (),
        "messages": (),
        "on_message_refused": "close",
        "rules": (),
        "concurrent": 0,
        "queue": 0,
        "queue_timeout": 5.0,
        "fair_share": None,
        "slot_lifetime": 15.0,
        "slot_retry": 1.0,
        "latency_goal": 0.0,
        "at_work_least": 4,
        "at_work_most": 500,
        "key": "user | ip",
        "tier": None,
        "default_tier": None,
        "settle": None,
        "count_status": (),
        "penalty": None,
        "store": "memory://",
        "trusted_proxies": (),
        "proxy_header": "x-forwarded-for",
        "ipv6_prefix": 64,
        "exempt": (),
        "usage_path": None,
        "safelist": (),
        "blocklist": (),
        "ignore_case": False,
        "on_store_error": "local",
        "local_share": 1.0,
        "store_timeout": 0.05,
        "max_waiting": None,
        "headers": "ietf",
        "on_refused": None,
        "on_decision": None,
        "on_store_event": None,
        "refresh": 1.0,
        "reload": False,
        "remember_refused": 0,
        "metrics": False,
        "metrics_folder": None,
        "span_attributes": "none",
        "jitter": 0.0,
        "shadow": False,
        "on_change": "fresh",
        "missing_key": None,
        "key_secret": "",
        "plain_keys": False,
        "strict": False,
        "enabled": True,
    }


TABLES: list[tuple[type, Any]] = [(Options, Settings), (RuleOptions, Rule)]


@pytest.mark.parametrize(("table", "kind"), TABLES)
def test_each_options_table_has_the_fields_of_its_struct(table: type, kind: Any) -> None:
    assert list(get_type_hints(table)) == [field.name for field in fields(kind)]
    assert table.__total__ is False  # type: ignore[attr-defined]  # of a TypedDict


@pytest.mark.parametrize(("table", "kind"), TABLES)
def test_each_option_has_its_fields_type_and_a_description(table: type, kind: Any) -> None:
    """If the types differ, the field accepts any value, which is checked later."""
    words, checked = get_type_hints(table, include_extras=True), get_type_hints(kind)
    for name, word in words.items():
        kind_of_word, meaning = word.__origin__, word.__metadata__[0]
        assert isinstance(meaning, str)
        assert checked[name] in (kind_of_word, kind_of_word | None, Any, Sequence[Any]), name


def test_a_limit_table_has_the_fields_of_its_spec_and_a_name() -> None:
    assert [*get_type_hints(LimitOptions)] == [
        "limit",
        "key",
        "cost",
        "name",
        "shadow",
        "max_delay",
        "lease",
        "lease_time",
        "settle",
        "overdraw",
    ]
    assert {field.name for field in fields(LimitSpec)} == {*get_type_hints(LimitOptions)} - {"name"}


@pytest.mark.parametrize("middleware", [AsgiMiddleware, WsgiMiddleware])
def test_keyword_arguments_override_a_mapping_or_settings(middleware: Any) -> None:
    for given in ({"limits": "1/minute", "headers": "none"}, Settings(limits="1/minute", headers="none")):
        settings = middleware(None, given, limits="2/minute")._gate.settings
        assert (settings.limits, settings.headers) == ("2/minute", "none")
    assert middleware(None, {"limits": "1/minute"})._gate.settings == Settings(limits="1/minute")


def test_settings_without_other_arguments_are_returned_unchanged() -> None:
    settings = Settings(limits="1/minute")
    assert Settings.of(settings, {}) is settings


@pytest.mark.parametrize("given", ["1/minute", 5, ["1/minute"], b"limits"])
def test_settings_must_be_settings_or_a_mapping(given: Any) -> None:
    message = "settings: got .*, expected Settings or a mapping; (limits=.*)?Settings.load\\(path\\) reads a file"
    with pytest.raises(ConfigError, match=message):
        AsgiMiddleware(None, given)  # type: ignore[arg-type]  # on purpose: settings are checked before the app


def test_a_toml_file_gives_the_same_settings_as_arguments(tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    file.write_text(TOML, "utf-8")
    login: dict[str, Any] = {
        "name": "login",
        "path": "/login",
        "methods": ["POST"],
        "limits": ["5/minute", {"limit": "20/hour using token_bucket", "key": "user"}],
        "key": "ip",
        "on_store_error": "deny",
    }
    assert Settings.load(file) == Settings(
        limits="100/minute",
        app_limits="1000/second",
        store="redis://localhost:6379/0",
        exempt=["/health", "/static/{path:path}"],
        rules=[login],
    )
    assert Settings.load(str(file)).parsed_rules() == [Rule(**login)]


IN_A_TABLE = "got the settings in the table [{}], expected them at the top; remove this table header"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"limits = ", "invalid TOML: Invalid value (at end of document)"),
        (b'limits = []\nenabled = "no"', "2: enabled: got 'no', expected true or false"),
        (b"", "limits: required, such as '100/minute'; [] means no limits"),
        (b"\xff", "invalid TOML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        (b'[ratelimit]\nlimits = "1/minute"', IN_A_TABLE.format("ratelimit")),
        (b'[tool.ratelimit_mw]\nlimits = "1/minute"\n[[rules]]', IN_A_TABLE.format("tool.ratelimit_mw")),
        (None, "[Errno 2] No such file or directory: {file!r}"),
    ],
)
def test_the_error_for_a_wrong_file_names_the_file(text: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.toml"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError) as caught:
        Settings.load(file)
    gap = "" if message[0].isdecimal() else " "  # the number of a line in the file
    assert str(caught.value) == f"{file}:{gap}{message.replace('{file!r}', repr(str(file)))}"


@pytest.mark.promise(9)
@pytest.mark.parametrize("middleware", [AsgiMiddleware, WsgiMiddleware])
@pytest.mark.parametrize("field", [field.name for field in fields(Settings)])
def test_any_value_of_a_setting_works_or_raises_config_error(field: str, middleware: Any) -> None:
    for junk in JUNK:
        try:
            middleware(None, {"limits": "1/minute", field: junk})
        except ConfigError as error:
            assert str(error)  # noqa: PT017  # most values are wrong, some are not; no other error may be raised


@pytest.mark.promise(9)
@pytest.mark.parametrize("kind", [Rule, LimitSpec])
def test_any_value_in_a_rule_or_limit_works_or_raises_config_error(kind: type[Rule | LimitSpec]) -> None:
    for field in (*kind.__struct_fields__, "name"):
        for junk in JUNK:
            item: Any = {"limit": "1/minute", **({field: junk} if kind is LimitSpec else {})}
            rule: Any = {"path": "/", "limits": [item], **({field: junk} if kind is Rule else {})}
            try:
                WsgiMiddleware(None, limits=[], rules=[rule])  # type: ignore[arg-type]  # there is no app to call
            except ConfigError as error:
                assert all(problem.startswith("rules[0]") for problem in error.problems)  # noqa: PT017

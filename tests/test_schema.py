"""The JSON Schema of settings files is derived from the types, and accepts the same files as the settings."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from jsonschema import Draft4Validator, Draft202012Validator

from checking import command
from ratelimit_mw import ConfigError, Limit
from ratelimit_mw.http.client_lists import HeaderOptions
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import LimitOptions
from ratelimit_mw.settings.options import Options
from ratelimit_mw.settings.rule import RuleOptions
from ratelimit_mw.settings.schema import NAMED, STRUCTS, _schema, alternatives, options_of, settings_schema
from ratelimit_mw.wsgi import RateLimitMiddleware

BROKEN = Path(__file__).parent / "broken_settings"
SCHEMA = settings_schema()
VALIDATORS: list[Any] = [Draft202012Validator(SCHEMA), Draft4Validator({**SCHEMA, "$schema": None})]
TABLES: list[Any] = [Options, RuleOptions, LimitOptions, HeaderOptions]

# From the design: every setting that a file is likely to have.
SAMPLE = """
limits = "100/minute"
app_limits = "1000/second"
key = "user | ip"
store = "redis://localhost:6379/0"
trusted_proxies = ["10.0.0.0/8"]
proxy_header = "x-forwarded-for"
ipv6_prefix = 64
exempt = ["/health", "/static/{path:path}"]
safelist = ["10.1.0.0/16"]
on_store_error = "local"
store_timeout = 0.05
headers = "ietf"
shadow = false
missing_key = "shared"
enabled = true

[[rules]]
name = "login"
path = "/login"
methods = ["POST"]
limits = ["5/minute", {limit = "20/hour using sliding_window_log", key = "user"}]
key = "ip"
on_store_error = "deny"
"""

RIGHT: list[dict[str, Any]] = [
    {},
    {"limits": []},
    {"limits": {"limit": "5/minute", "cost": 2, "name": "a", "shadow": True, "max_delay": 0.0}},
    {"limits": ["5/minute", {"limit": "6/hour", "cost": "call:json:dumps"}]},
    {"messages": "5/second; 99/minute", "on_message_refused": "drop"},
    {"rules": [{"path": "/a", "limits": [], "messages": {"limit": "5/second"}, "on_message_refused": "close"}]},
    {"limits": "call:json:dumps", "key": "call:json:dumps | ip"},
    {
        "limits": "5/minute",
        "key": ["call:json:dumps", "ip"],
        "rules": [{"path": "/", "limits": [], "key": ["user", "ip"]}],
    },
    {"limits": {"free": "5/minute", "pro": ["5/second", {"limit": "9/minute", "key": "ip"}]}, "tier": "user"},
    {"trusted_proxies": 2},
    {"blocklist": ["192.0.2.1", "call:json:dumps", {"header": "x-probe", "value": "secret"}]},
    {"exempt": "/health"},
    {"store_timeout": 1},
    {"rules": [{"path": ["/a", "/b"], "limits": [], "host": "a.example", "when": "call:json:dumps", "cost": 0}]},
    {"rules": [{"path": "/a", "exempt": True, "host": ["a.example"], "preflight": True}]},
]
WRONG: list[dict[str, Any]] = [
    {"limit": "5/minute"},
    {"limits": 5},
    {"limits": [["5/minute"]]},
    {"limits": [{"limit": "5/minute", "cots": 2}]},
    {"limits": [{"key": "ip"}]},
    {"limits": {"limt": "5/minute", "key": "ip"}},
    {"limits": {}},
    {"limits": {"free": 5}, "tier": "user"},
    {"headers": "iet"},
    {"on_message_refused": "shut"},
    {"on_refused": "json:dumps"},
    {"on_decision": "json:dumps"},
    {"local_share": "0.5"},
    {"max_waiting": "many"},
    {"on_refused": "call:json"},
    {"store": 5},
    {"safelist": "10.0.0.0/8"},
    {"safelist": [{"header": "x-probe"}]},
    {"safelist": [{"header": "x-probe", "vale": "secret"}]},
    {"trusted_proxies": "10.0.0.0/8"},
    {"enabled": "true"},
    {"rules": {"path": "/a", "limits": []}},
    {"rules": [{"limits": []}]},
    {"rules": [{"path": "/a", "limits": [], "metods": ["GET"]}]},
    {"rules": [{"path": "/a", "limits": [], "when": True}]},
    {"rules": [{"path": "/a", "limits": [], "on_store_error": "open"}]},
]


def objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """Yield every object in a schema, the schema itself first."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from objects(part)


def given(file: Path) -> Any:
    text = file.read_text("utf-8")
    return json.loads(text) if file.suffix == ".json" else tomllib.loads(text)


def unasked(*_: Any) -> Any:
    """The app behind the middleware, which is never called."""


def known(settings: Mapping[str, Any]) -> bool:
    """Return whether the middleware accepts the settings."""
    try:
        RateLimitMiddleware(unasked, settings)
    except ConfigError:
        return False
    return True


def test_schema_is_valid() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("table", TABLES)
def test_schema_describes_every_option_of_every_table(table: Any) -> None:
    found = SCHEMA if table is Options else SCHEMA["$defs"][NAMED[table]]
    meanings = {name: get_args(hint)[1] for name, hint in get_type_hints(table, include_extras=True).items()}
    assert {name: word["description"] for name, word in found["properties"].items()} == meanings
    assert found["additionalProperties"] is False
    assert found["description"] == table.__doc__.partition("\n")[0]


def test_tests_cover_every_table_of_the_schema() -> None:
    assert list(STRUCTS) == TABLES


def test_schema_defaults_match_the_settings() -> None:
    settings = Settings(limits=[])
    for name, word in SCHEMA["properties"].items():
        default = getattr(settings, name)
        usual = list(default) if isinstance(default, tuple) else default
        assert word.get("default") == (None if name == "limits" else usual), name


def test_required_options_are_those_that_cannot_be_left_out() -> None:
    complete: dict[Any, Any] = {
        Options: {"limits": "5/minute"},
        RuleOptions: {"path": "/", "limits": []},
        LimitOptions: {"limit": "5/minute"},
        HeaderOptions: {"header": "x-a", "value": "b"},
    }
    within: dict[Any, Any] = {
        Options: lambda table: table,
        RuleOptions: lambda table: {"limits": [], "rules": [table]},
        LimitOptions: lambda table: {"limits": [table]},
        HeaderOptions: lambda table: {"limits": [], "safelist": [table]},
    }
    for table in TABLES:
        assert known(within[table](complete[table]))
        for name in (word.name for word in options_of(table) if word.required):
            assert not known(within[table]({word: value for word, value in complete[table].items() if word != name}))
        assert {word.name for word in options_of(table) if word.required} <= set(complete[table])


@pytest.mark.parametrize("validator", VALIDATORS, ids=["2020-12", "4"])
def test_schema_accepts_the_sample_file(validator: Any) -> None:
    validator.validate(tomllib.loads(SAMPLE))


@pytest.mark.parametrize("validator", VALIDATORS, ids=["2020-12", "4"])
@pytest.mark.parametrize("settings", RIGHT, ids=str)
def test_schema_and_middleware_accept_valid_settings(settings: dict[str, Any], validator: Any) -> None:
    settings = {"limits": "100/minute", **settings}
    assert known(settings)
    validator.validate(settings)


@pytest.mark.parametrize("validator", VALIDATORS, ids=["2020-12", "4"])
@pytest.mark.parametrize("settings", WRONG, ids=str)
def test_schema_and_middleware_reject_invalid_settings(settings: dict[str, Any], validator: Any) -> None:
    settings = {"limits": "100/minute", **settings} if "limit" not in settings else settings
    assert not known(settings)
    assert not validator.is_valid(settings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("misspelt_setting.toml", "'trusted_proxy' was unexpected"),
        ("several_mistakes.toml", "'limit' was unexpected"),
        ("several_mistakes.toml", "'metods' was unexpected"),
        ("wrong_types.json", "'64' is not of type 'integer'"),
        ("rule_without_path.toml", "'path' is a required property"),
    ],
)
def test_schema_finds_mistakes_in_broken_files(name: str, said: str) -> None:
    found = [error.message for error in VALIDATORS[0].iter_errors(given(BROKEN / name))]
    assert [message for message in found if said in message]


@pytest.mark.parametrize("validator", VALIDATORS, ids=["2020-12", "4"])
@pytest.mark.parametrize("table", TABLES)
def test_schema_and_middleware_reject_misspelled_options_in_every_table(table: Any, validator: Any) -> None:
    for word in options_of(table):
        misspelt = {f"{word.name}x": 1}
        places: dict[Any, dict[str, Any]] = {
            Options: {"limits": [], **misspelt},
            RuleOptions: {"limits": [], "rules": [{"path": "/", "limits": [], **misspelt}]},
            LimitOptions: {"limits": [{"limit": "5/minute", **misspelt}]},
            HeaderOptions: {"limits": [], "safelist": [{"header": "a", "value": "b", **misspelt}]},
        }
        assert not known(places[table])
        assert not validator.is_valid(places[table])


def test_references_have_no_other_keywords() -> None:
    """Taplo would ignore other keywords beside a `$ref`."""
    for part in objects(SCHEMA):
        assert "$ref" not in part or set(part) == {"$ref"}
    named = {part["$ref"] for part in objects(SCHEMA) if "$ref" in part}
    assert named == {f"#/$defs/{name}" for name in SCHEMA["$defs"]}


def test_schema_omits_types_that_a_file_cannot_contain() -> None:
    assert alternatives(str | Limit) == [str]
    assert alternatives(str | Mapping[str, Any]) == [str]


def test_unknown_type_raises_a_type_error() -> None:
    with pytest.raises(TypeError, match="got <class 'bytes'>, which has no schema"):
        _schema(bytes)


def test_command_prints_the_schema(tmp_path: Path) -> None:
    done = command("schema", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == SCHEMA

"""The error about a wrong rule names its place, the wrong value and the valid values."""

from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.rules.plan import make_plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import known_specs
from ratelimit_mw.settings.rule import Rule
from web.messages import BOOL, CLOSE_OR_DROP, FIVE, KEYS, MODES, NAME, PERIODS, TEMPLATE, TEMPLATES, found, message_of
from web.plain_request import PlainRequest

pytestmark = pytest.mark.promise(9)

ONE_EACH = "at most one parameter between two slashes, and at most one {name:path}"
NONE: dict[str, Any] = {"limits": []}

ROWS: list[tuple[dict[str, Any], str]] = [  # a rule, the message after its place
    ({"limits": []}, ".path: required, such as '/login' or '/{rest:path}'"),
    ({"limits": "1/minute"}, ".path: required, such as '/login' or '/{rest:path}'"),
    ({"path": "/"}, ".limits: required; for a rule without limits, set limits = []"),
    ({"path": "/", "limits": ["10/mfoo"]}, f".limits[0]: '10/mfoo': unknown period 'mfoo' {PERIODS}"),
    ({"path": "/", "limits": "1/minute", "exempt": True}, ".limits: a rule with exempt = true cannot have limits"),
    ({"path": "/", "limits": [], "pth": "/x"}, ": unknown setting `pth`: did you mean `path`?"),
    (
        {"path": "/", "limits": "9/hour", "lease": 2},
        (
            ": unknown setting `lease` here: it goes into the table of a limit, such as "
            "{limit = '10/second using gcra', max_delay = 2}"
        ),
    ),
    ({**NONE, "path": "login"}, f".path: {found('login', TEMPLATE)}"),
    ({**NONE, "path": ""}, f".path: {found('', TEMPLATE)}"),
    ({**NONE, "path": []}, f".path: {found([], TEMPLATES)}"),
    ({**NONE, "path": None}, ".path: required, such as '/login' or '/{rest:path}'"),
    ({**NONE, "path": ["/a", 5]}, f".path[1]: {found(5, TEMPLATE)}"),
    ({**NONE, "path": "/{a:uid}"}, ".path: got '{a:uid}', expected the converters str, path, int, float, uuid"),
    ({**NONE, "path": "/{a"}, ".path: got '/{a', expected '{name}' or '{name:path}' as parameter"),
    ({**NONE, "path": "/{}/b"}, ".path: got '/{}/b', expected '{name}' or '{name:path}' as parameter"),
    ({**NONE, "path": "/{a}-{b}"}, ".path: got '/{a}-{b}', expected " + ONE_EACH),
    ({**NONE, "path": "/{a:path}/b/{c:path}"}, ".path: got '/{a:path}/b/{c:path}', expected " + ONE_EACH),
    ({**NONE, "path": "/a", "methods": "GET"}, ".methods: got 'GET', expected a list such as ['GET', 'POST']"),
    (
        {**NONE, "path": "/a", "methods": ["GET", "post"]},
        ".methods[1]: got 'post', expected a method in upper case, such as 'POST'",
    ),
    ({**NONE, "path": "/a", "name": "a/b"}, f".name: {found('a/b', NAME)}"),
    (
        {**NONE, "path": "/a", "name": "app"},
        " (app).name: got 'app', which is reserved; choose another",
    ),
    ({**NONE, "path": "/a", "final": 0}, f".final: {found(0, BOOL)}"),
    ({**NONE, "path": "/a", "shadow": None}, f".shadow: {found(None, BOOL)}"),
    ({"path": "/a", "exempt": "yes"}, f".exempt: {found('yes', BOOL)}"),
    ({**NONE, "path": "/a", "on_store_error": "alow"}, f".on_store_error: {found('alow', MODES)}"),
    ({**NONE, "path": "/a", "on_message_refused": 5}, f".on_message_refused: {found(5, CLOSE_OR_DROP)}"),
    ({**NONE, "path": "/a", "keep": 40}, ".keep: got 40, expected text from '1%' to '99%'"),
    ({**NONE, "path": "/a", "priority": "high"}, f".priority: {found('high', 'one of critical, normal, low')}"),
    ({**NONE, "path": "/a", "messages": "10/mfoo"}, f".messages: '10/mfoo': unknown period 'mfoo' {PERIODS}"),
    (
        {"path": "/a", "exempt": True, "messages": "1/second"},
        ".messages: a rule with exempt = true cannot have limits of messages",
    ),
    (
        {**NONE, "path": "/a", "messages": "1/second", "methods": ["POST"]},
        ".messages: a websocket begins with a GET, which this rule does not match",
    ),
    (
        {**NONE, "path": "/a", "messages": "1/second", "preflight": True},
        ".messages: a websocket begins with a GET, which this rule does not match",
    ),
    (
        {**NONE, "path": "/a", "messages": {"free": "1/second"}},
        ".messages: got limits by tier (free), which need `tier`: a key that names the tier, such as 'header:X-Plan'",
    ),
    (
        {**NONE, "path": "/a", "messages": ["5/minute", {"limit": "5/minute", "key": "ip"}], "key": "ip"},
        f".messages[1]: {FIVE} can count in the same bucket as messages[0]; give one of them a name",
    ),
    ({**NONE, "path": "/a", "key": "ip |"}, f".key: {found('', KEYS)}"),
    (
        {"path": "/a", "limits": ["5/minute", {"limit": "5/minute", "key": "ip"}], "key": "ip"},
        f".limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name",
    ),
    (
        {"path": "/a", "limits": ["5/minute", {"limit": "5/minute", "key": "ip", "shadow": True}]},
        f".limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name",
    ),
]


@pytest.mark.parametrize(("rule", "message"), ROWS)
def test_the_error_for_a_wrong_rule_names_place_and_valid_values(rule: dict[str, Any], message: str) -> None:
    rules = [{**NONE, "path": "/one"}, Rule(path="/two", limits="1/minute"), rule]
    assert message_of(limits="9/hour", rules=rules) == f"rules[2]{message}"


@pytest.mark.parametrize("rules", [{"path": "/"}, "/", None, 5])
def test_rules_must_be_a_list(rules: Any) -> None:
    tables = "a list of tables or Rules; in TOML each begins with [[rules]]"
    assert message_of(limits="9/hour", rules=rules) == f"rules: {found(rules, tables)}"


@pytest.mark.parametrize("rule", ["/", None, 5, ["/"]])
def test_each_rule_must_be_a_table_or_a_rule_object(rule: Any) -> None:
    assert message_of(limits="9/hour", rules=[rule]) == f"rules[0]: {found(rule, 'a table or a Rule')}"


MADE = "rules[1].name: the default name {}, is also the {}; give one of them a name"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            [{**NONE, "path": "/a"}, {**NONE, "path": "/a"}],
            MADE.format("'a', made of '/a'", "default name of rules[0], of '/a'"),
        ),
        (
            [{**NONE, "path": "/a/b"}, {**NONE, "path": "/c"}, {**NONE, "path": "/d", "name": "a_b"}],
            "rules[2] (a_b).name: 'a_b' is also the default name of rules[0], of '/a/b'; choose another name",
        ),
        (
            [{**NONE, "path": "/x", "name": "x"}, {**NONE, "path": "/y", "name": "x"}],
            "rules[1] (x).name: 'x' is also the name of rules[0]; choose another name",
        ),
        (
            [{**NONE, "path": "/d", "name": "POST_a_b"}, {**NONE, "path": ["/a", "/b"], "methods": ["POST"]}],
            MADE.format("'POST_a_b', made of 'POST /a /b'", "name of rules[0]"),
        ),
        (
            [{**NONE, "path": "/login"}, {**NONE, "path": "/login/"}],
            MADE.format("'login', made of '/login/'", "default name of rules[0], of '/login'"),
        ),
        (
            [{**NONE, "path": "/a/b"}, {**NONE, "path": "/a{b}"}],
            MADE.format("'a_b', made of '/a{b}'", "default name of rules[0], of '/a/b'"),
        ),
    ],
)
def test_names_of_rules_must_be_unique(rules: list[dict[str, Any]], message: str) -> None:
    assert message_of(limits="9/hour", rules=rules) == message


@pytest.mark.parametrize("limits", [["5/minute", {"limit": "5/minute", "name": "b"}], "5/minute; 6/minute"])
def test_a_rule_may_have_two_limits_that_differ_in_name_or_quota(limits: Any) -> None:
    rule = Settings(limits=[], rules=[{"path": "/", "limits": limits}]).parsed_rules()[0]
    assert len(known_specs(rule.resolve_limits(None, None))[0]) == 2


def test_equal_limits_with_different_keys_count_in_separate_buckets() -> None:
    limits = [{"limit": "5/minute", "key": "ip"}, {"limit": "5/minute", "key": "user"}]
    request = PlainRequest(user="7")
    match = RuleSet(Settings(limits=limits, plain_keys=True)).match(request)
    assert match is not None
    buckets = [charge.key for charge in make_plan(match, request, {}).charges]
    assert buckets == ["{ip=192.0.2.1}:default", "{user=7}:default"]


def test_the_error_of_the_rule_constructor_names_the_field() -> None:
    with pytest.raises(ConfigError) as caught:
        Rule(path="/a", limits=["10/minute", "10/mfoo"])
    assert str(caught.value) == f"limits[1]: '10/mfoo': unknown period 'mfoo' {PERIODS}"

"""The fields of a rule: its default name, its limits and its defaults."""

from typing import Any

import pytest

from ratelimit_mw import SlidingWindowCounter, TokenBucket
from ratelimit_mw.settings.limits import LimitSpec, parse_limit_specs
from ratelimit_mw.settings.rule import Rule, rule_from


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"path": "/"}, "root"),
        ({"path": "/login"}, "login"),
        ({"path": "/login", "methods": ["POST"]}, "POST_login"),
        ({"path": "/", "methods": ["GET", "POST"]}, "GET_POST"),
        ({"path": ["/a", "/b/{id}"]}, "a_b_id"),
        ({"path": "/käse"}, "k_se"),
        ({"path": "/" + "x" * 100}, "x" * 64),
        ({"path": "/login", "name": "mine"}, "mine"),
        ({"path": "/", "host": "*.a.example"}, "a.example"),
        ({"path": "/b", "host": ["a.example", "c"], "methods": ["GET"]}, "GET_a.example_c_b"),
        ({"path": "/b", "preflight": True}, "preflight_b"),
        ({"path": "/default"}, "path_default"),
        ({"path": "/app"}, "path_app"),
        ({"path": "/", "preflight": True}, "path_preflight"),
    ],
)
def test_rule_names_default_to_methods_host_and_path(fields: dict[str, Any], name: str) -> None:
    assert Rule(limits=[], **fields).full_name == name


@pytest.mark.parametrize(
    ("limits", "items"),
    [
        ([], []),
        ((), []),
        ("5/minute", [LimitSpec(limit=SlidingWindowCounter(5, 60))]),
        (
            "5/minute; 6/hour",
            [LimitSpec(limit=SlidingWindowCounter(5, 60)), LimitSpec(limit=SlidingWindowCounter(6, 3600))],
        ),
        (TokenBucket(5, 60), [LimitSpec(limit=TokenBucket(5, 60))]),
        (
            {"limit": "5/minute", "key": "ip", "cost": 2, "name": "n", "shadow": True},
            [LimitSpec(limit=SlidingWindowCounter(5, 60, name="n"), key="ip", cost=2, shadow=True)],
        ),
        ([{"limit": TokenBucket(5, 60, name="a"), "name": "b"}], [LimitSpec(limit=TokenBucket(5, 60, name="b"))]),
        ([{"limit": TokenBucket(5, 60, name="a"), "name": None}], [LimitSpec(limit=TokenBucket(5, 60, name="a"))]),
        (
            ["5/minute; 6/hour", {"limit": "7/day"}],
            [LimitSpec(limit=SlidingWindowCounter(*rate)) for rate in ((5, 60), (6, 3600), (7, 86400))],
        ),
        (LimitSpec(limit=TokenBucket(5, 60), cost=0), [LimitSpec(limit=TokenBucket(5, 60), cost=0)]),
    ],
)
def test_limits_are_parsed_from_each_accepted_form(limits: Any, items: list[LimitSpec]) -> None:
    assert parse_limit_specs("limits", limits) == items


def test_a_table_makes_an_equal_rule_and_fields_have_defaults() -> None:
    rule = Rule(path="/a", limits="5/minute", methods=["GET"], key="ip", final=False, on_store_error="deny")
    table = {"path": "/a", "limits": "5/minute", "methods": ["GET"], "key": "ip", "final": False}
    assert rule_from({**table, "on_store_error": "deny"}) == rule
    assert rule_from(rule) is rule
    defaults = Rule(path="/a", limits=[])
    assert (defaults.final, defaults.exempt, defaults.shadow, defaults.key) == (True, False, False, None)
    assert Rule(path="/a", exempt=True).resolve_limits(None, None) == ()

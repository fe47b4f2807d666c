"""Tests `match`, `plan` and `conclude`: the charges of a request, and their keys and names."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from ratelimit_mw import Charge, Decision, MemoryStore, SlidingWindowCounter, StoreError, TokenBucket
from ratelimit_mw.core import log as notices
from ratelimit_mw.http.callables import FAILED
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.plan import Match, Plan, conclude, make_plan, plan_on_store_error
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import EndpointLimit
from ratelimit_mw.testing import Clock
from web.plain_request import PlainRequest

IP = "{ip=192.0.2.1}"
ADMITTED = Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 0)
REFUSED = Decision(False, 5, 0, 30.0, 30.0, 60.0, 0.0, 0)


def rules(**settings: Any) -> RuleSet:
    return RuleSet(Settings(**{"plain_keys": True, "limits": "9/hour", **settings}))


def matched(compiled: RuleSet, request: Request) -> Match:
    match = compiled.match(request)
    assert match is not None
    return match


def planned(compiled: RuleSet, request: Request, answers: Mapping[Any, str | None] | None = None) -> Plan:
    return make_plan(matched(compiled, request), request, answers or {})


def keys(asked: Plan) -> list[str]:
    return [charge.key for charge in asked.charges]


def tenant(request: Request) -> str:
    return request.path


def plan_name(request: Request) -> str:
    return request.method


def test_charges_are_ordered_by_app_limits_then_rules_then_default_limits() -> None:
    compiled = rules(
        app_limits="1/second",
        limits=["5/minute", TokenBucket(6, 60, name="six")],
        rules=[{"path": "/a", "limits": "7/minute", "final": False}],
    )
    asked = planned(compiled, PlainRequest("/a"))
    assert list(asked.charges) == [
        Charge(f"{IP}:app", SlidingWindowCounter(1, 1)),
        Charge(f"{IP}:a", SlidingWindowCounter(7, 60)),
        Charge(f"{IP}:default", SlidingWindowCounter(5, 60)),
        Charge(f"{IP}:default", TokenBucket(6, 60, name="six")),
    ]
    assert [policy.name for policy in asked.policies] == ["app", "a", "default", "six"]


def test_a_charge_has_the_cost_and_role_of_its_limit() -> None:
    limits = [{"limit": "9/hour", "cost": 3}, {"limit": "5/minute", "shadow": True}]
    charges = planned(rules(limits=limits), PlainRequest()).charges
    assert [(charge.cost, charge.role, charge.max_delay) for charge in charges] == [
        (3, "limit", None),
        (1, "shadow", None),
    ]
    whole = planned(rules(limits=limits, shadow=True), PlainRequest()).charges
    assert [charge.role for charge in whole] == ["shadow", "shadow"]
    ruled = rules(rules=[{"path": "/", "limits": "1/minute", "shadow": True}])
    assert [charge.role for charge in planned(ruled, PlainRequest()).charges] == ["shadow", "limit"]


@pytest.mark.parametrize(
    ("path", "rule", "key"),
    [
        ("/a/1", "things", "{route=things}:things"),
        ("/b/2", "things", "{route=things}:things"),
        ("/c", "default", "{route=unmatched}:default"),
        ("//a/1", "things", "{route=things}:things"),
    ],
)
def test_the_route_key_is_the_name_of_the_rule(path: str, rule: str, key: str) -> None:
    compiled = rules(rules=[{"path": ["/a/{id}", "/b/{id}"], "limits": "5/minute", "name": "things"}], key="route")
    assert matched(compiled, PlainRequest(path)).rule == rule
    assert keys(planned(compiled, PlainRequest(path)))[0] == key


def test_the_route_key_prefers_the_route_of_the_framework() -> None:
    request = PlainRequest("/reports/7")
    request.route = "/reports/{id}"
    assert keys(planned(rules(key="route"), request)) == ["{route=/reports/%7Bid%7D}:default"]


def test_each_key_callable_is_listed_once() -> None:
    compiled = rules(
        app_limits=[{"limit": "1/second", "key": tenant}],
        limits=[{"limit": "9/hour", "key": tenant}, {"limit": "5/minute", "key": plan_name}],
        rules=[{"path": "/a", "limits": "7/minute", "key": plan_name}],
    )
    assert compiled.callables == {tenant, plan_name}
    assert matched(compiled, PlainRequest("/")).callables == [tenant, plan_name]
    assert matched(compiled, PlainRequest("/a")).callables == [tenant, plan_name]
    assert keys(planned(compiled, PlainRequest("/a"), {tenant: "t", plan_name: "p"})) == [
        f"{{call:{__name__}:tenant=t}}:app",
        f"{{call:{__name__}:plan_name=p}}:a",
    ]


@pytest.mark.promise(10)
def test_keys_are_hashed_and_a_secret_changes_them() -> None:
    hashed, keyed, other = (
        keys(planned(rules(plain_keys=False, key_secret=secret), PlainRequest()))[0]
        for secret in ("", "s" * 16, "\udcff" * 16)
    )
    assert len({hashed, keyed, other}) == 3
    for key in (hashed, keyed, other):
        assert len(key) == len("{}:default") + 32
        assert "192.0.2.1" not in key
    assert hashed == "{fb80db64bc9560f3682de42ac2e27ce2}:default"  # the same in every process


@pytest.mark.promise(10)
def test_no_client_can_name_the_bucket_of_missing_keys() -> None:
    compiled = rules(key="header:x-key")
    assert keys(planned(compiled, PlainRequest())) == ["{missing=header:x-key}:default"]
    evil = PlainRequest(headers={"x-key": "missing=header:x-key"})
    assert keys(planned(compiled, evil)) == ["{header:x-key=missing%3Dheader:x-key}:default"]


def test_match_and_plan_return_the_same_when_repeated() -> None:
    compiled = rules(rules=[{"path": "/a", "limits": "7/minute"}])
    request = PlainRequest("/a")
    assert matched(compiled, request) is matched(compiled, request)
    assert planned(compiled, request).charges == planned(compiled, request).charges


@pytest.mark.parametrize(
    ("settings", "answer", "charged"),
    [
        ({"missing_key": "shared"}, None, True),
        ({"missing_key": "exempt"}, None, False),
        ({"missing_key": "exempt"}, FAILED, True),
    ],
)
@pytest.mark.promise(9)
def test_a_failed_key_callable_does_not_exempt_a_request(
    settings: dict[str, Any], answer: str | None, *, charged: bool
) -> None:
    asked = planned(rules(key=tenant, **settings), PlainRequest(), {tenant: answer})
    assert bool(asked.charges) is charged
    assert not asked.denied_source


def test_each_missing_key_is_logged_once_by_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})
    for _ in range(5):
        planned(rules(key="user+ip"), PlainRequest())
        planned(rules(key="ip"), PlainRequest(client=None))
    applies = "is missing; missing_key = 'shared' applies"
    assert caplog.messages == [
        f"ratelimit_mw: key 'user+ip': {applies}; if all requests lack it, authenticate outside the rate limiter",
        f"ratelimit_mw: key 'ip': {applies}",
    ]


def test_the_log_locates_a_callable_without_a_key(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})
    call = lambda _: None  # noqa: E731  # a callable without a name
    for _ in range(2):
        planned(rules(key=call), PlainRequest(), {call: None})
    (text,) = caplog.messages
    name = "test_the_log_locates_a_callable_without_a_key.<locals>.<lambda>"
    begin, _, end = text.partition(f"{name} at test_plan.py:{call.__code__.co_firstlineno}:")
    assert begin == "ratelimit_mw: key "
    assert end.lstrip("0123456789") == ": is missing; missing_key = 'shared' applies"


@pytest.mark.parametrize(("answer", "applies"), [(None, "exempt"), (FAILED, "shared")])
def test_the_log_says_that_a_callable_that_failed_does_not_exempt(
    answer: Any, applies: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_quiet_until", {})
    asked = planned(rules(key=tenant, missing_key="exempt"), PlainRequest(), {tenant: answer})
    assert len(asked.charges) == (applies == "shared")
    assert caplog.messages[-1].endswith(f": is missing; missing_key = '{applies}' applies")


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"limits": "9/hour", "key": "header:x-key"}, ["default"]),
        ({"limits": [], "app_limits": "9/hour", "key": "cookie:sid"}, ["app"]),
        ({"limits": "9/hour", "rules": [{"path": "/", "limits": "1/minute", "key": "header:a+cookie:b"}]}, ["root"]),
        ({"limits": "9/hour", "key": "header:x-key | ip"}, ["default"]),
        ({"limits": "9/hour", "key": "ip | header:x-key"}, []),
        ({"limits": ["9/hour", {"limit": "9/hour", "key": "ip"}], "key": "header:x-key"}, []),
        ({"limits": []}, []),
    ],
)
def test_a_key_that_only_the_client_controls_causes_a_startup_warning(
    settings: dict[str, Any], warned: list[str]
) -> None:
    found = [finding for finding in RuleSet(Settings(**settings)).findings if finding.weakens_limits]
    assert [finding.text.split(": ")[0] for finding in found] == [f"rule {name}" for name in warned]


def test_conclude_combines_decisions_into_a_verdict() -> None:
    compiled = rules(limits="5/minute; 6/hour")
    match = matched(compiled, PlainRequest())
    asked = planned(compiled, PlainRequest())
    verdict = conclude(match, asked, [ADMITTED, REFUSED])
    assert (verdict.allowed, verdict.rule, verdict.source, verdict.retry_after) == (False, "default", "store", 30.0)
    assert conclude(match, asked, [ADMITTED, ADMITTED]).allowed
    denied = conclude(match, Plan((), (), (), denied_source="store"), ())
    assert (denied.allowed, denied.decisions, denied.retry_after) == (False, (), 0.0)


@pytest.mark.promise(8)
@pytest.mark.parametrize("decisions", [[], [ADMITTED], [ADMITTED] * 3])
def test_a_wrong_number_of_decisions_is_a_store_error(decisions: list[Decision]) -> None:
    compiled = rules(limits="5/minute; 6/hour")
    message = f"the store returned {len(decisions)} decisions on 2 charges"
    with pytest.raises(StoreError, match=message):
        conclude(matched(compiled, PlainRequest()), planned(compiled, PlainRequest()), decisions)


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("modes", "source", "kept"),
    [
        (("allow", "allow"), "allowed_on_error", 0),
        (("local", "local"), "local", 2),
        (("allow", "local"), "local", 1),
        (("allow", "deny"), "denied_on_error", 0),
        (("local", "deny"), "denied_on_error", 0),
    ],
)
def test_the_strictest_on_store_error_applies(modes: tuple[Any, Any], source: str, kept: int) -> None:
    one = {"path": "/", "limits": "5/minute", "final": False, "on_store_error": modes[0]}
    asked = planned(rules(rules=[one], on_store_error=modes[1]), PlainRequest())
    found, left = plan_on_store_error(asked)
    assert (found, len(left.charges), len(left.compiled_limits), len(left.policies)) == (source, kept, kept, kept)


@pytest.mark.promise(9)
@pytest.mark.parametrize("answer", [None, "5/minut", 7], ids=str)
def test_a_callable_without_valid_limits_denies_if_there_are_no_default_limits(answer: Any) -> None:
    compiled = rules(limits=[], rules=[{"path": "/", "limits": lambda _: answer}])
    found = matched(compiled, PlainRequest("/"))
    asked = make_plan(found, PlainRequest("/"), dict.fromkeys(found.callables, answer))
    assert (asked.denied_source, list(asked.charges)) == ("denied_on_error", [])


@pytest.mark.promise(2, 9)
def test_limits_of_one_name_that_cannot_be_summed_get_separate_buckets() -> None:
    """Callables return the limits, so they are not known at startup. Both limits apply, and no request fails."""
    given = ["5/minute using gcra", {"limit": "5/minute using gcra", "max_delay": 3}, "5/minute using gcra"]
    marks = [EndpointLimit(partial(str, index), name="own", final=False) for index in range(3)]  # distinct callables
    compiled = rules(limits=[], key="ip")
    match = compiled.match(PlainRequest(), compiled.compile_endpoint_limits(tuple(marks), "place"))
    assert match is not None
    asked = make_plan(match, PlainRequest(), dict(zip(match.callables, given, strict=True)))
    assert keys(asked) == [f"{IP}:@own", f"{IP}:@own+", f"{IP}:@own"]
    store = MemoryStore(clock=Clock())
    assert [store.take(asked.charges)[0].allowed for _ in range(3)] == [True, True, False]

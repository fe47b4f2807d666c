"""Tests the items of `limits`: their own options, and that no two of them may share a bucket."""

from functools import partial
from typing import Any

import pytest

from ratelimit_mw import ConfigError, FixedWindow, LeakyBucket, Limit, SlidingWindowCounter, TokenBucket
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.limits import LimitSpec
from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import FACES
from web.messages import COUNT, FIVE, KEYS, LIMIT, LIMITS, NAME, message_of
from web.scenario import Step

PRIME = "999999937/86400s"
FIVE_AN_HOUR = "5/3600s using sliding_window_counter"
NO_TIER = "got limits by tier (a), which need `tier`: a key that names the tier, such as 'header:X-Plan'"
HOST = "a name such as 'api.example.com' or '*.example.com', without scheme and port"
BUCKETS = ["token_bucket", "gcra", "leaky_bucket"]
WINDOWS = ["fixed_window", "sliding_window_counter", "sliding_window_log"]


def charges_of(limits: Any, step: Step = Step(), face: str = "wsgi", **settings: Any) -> list[Any]:  # noqa: B008
    store = RecordingStore(clock=Clock())
    answer = FACES[face]({"limits": limits, "store": store, "plain_keys": True, **settings})(step)
    assert answer.status == 200
    return [charge for _, charges in store.calls for charge in charges]


@pytest.mark.parametrize("face", FACES)
def test_each_limit_is_charged_with_its_own_options(face: str) -> None:
    limits: list[Any] = [
        "9/hour",
        {"limit": "8/hour", "key": "all"},
        {"limit": "7/hour", "cost": 3},
        {"limit": "6/hour", "name": "six"},
        {"limit": "5/hour", "shadow": True},
        {"limit": SlidingWindowCounter(4, 3600, name="four"), "cost": 0},
        {"limit": SlidingWindowCounter(3, 3600, name="three"), "name": "drei"},
        FixedWindow(2, 3600),
    ]
    found = charges_of(limits, face=face, key="ip")
    mine, everybody = "{ip=192.0.2.1}:default", "{all=all}:default"
    assert [(one.key, one.limit.quota, one.cost, one.limit.name, one.role) for one in found] == [
        (mine, 9, 1, None, "limit"),
        (everybody, 8, 1, None, "limit"),
        (mine, 7, 3, None, "limit"),
        (mine, 6, 1, "six", "limit"),
        (mine, 5, 1, None, "shadow"),
        (mine, 4, 0, "four", "limit"),
        (mine, 3, 1, "drei", "limit"),
        (mine, 2, 1, None, "limit"),
    ]


@pytest.mark.parametrize("face", FACES)
def test_each_limit_has_its_own_lease(face: str) -> None:
    hot = {"limit": "900/hour", "key": "all", "lease": 100, "lease_time": 2.5}
    found = charges_of(["9/hour", hot], face=face)
    assert [(one.limit.quota, one.lease, one.lease_time) for one in found] == [(9, 0, 1.0), (900, 100, 2.5)]


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            {"lease": 10},
            "lease: 10 can never pass 9/3600s using sliding_window_counter, which admits at most 9 at once",
        ),
        ({"lease": -1}, "lease: got -1, expected a whole number from 0 to 9007199254740991"),
        ({"lease": True}, "lease: got True, expected a whole number from 0 to 9007199254740991"),
        ({"lease_time": 0}, "lease_time: got 0, expected more than 0 seconds"),
        ({"lease_time": -1.0}, "lease_time: got -1.0, expected a finite number of seconds, 0 or more"),
    ],
)
def test_errors_for_invalid_leases_name_the_setting(item: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as told:
        Settings(limits=[{"limit": "9/hour", **item}])
    assert str(told.value) == f"limits[0].{said}"


@pytest.mark.promise(9)
@pytest.mark.parametrize("name", ["default", "app", "unmatched", "preflight", "blocklist"])
@pytest.mark.parametrize("named", [lambda name: {"limit": "5/hour", "name": name}, partial(FixedWindow, 5, 3600)])
def test_a_limit_cannot_have_a_reserved_name(named: Any, name: str) -> None:
    limit = named(name=name)
    with pytest.raises(ConfigError) as told:
        Settings(limits=["9/hour", limit])
    own = f"name: got '{name}', which is reserved; choose another"
    assert str(told.value).removeprefix("limits[1].").removeprefix("limits[1]: ") == own


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("algorithm", BUCKETS + WINDOWS)
def test_a_max_delay_of_zero_delays_no_request(face: str, algorithm: str) -> None:
    (charge,) = charges_of([{"limit": f"5/hour using {algorithm}", "max_delay": 0}], face=face)
    assert (charge.max_delay, charge.effective_max_delay_us, charge.cost) == (None, 0, 1)
    (plain,) = charges_of(f"5/hour using {algorithm}", face=face)
    assert charge == plain


@pytest.mark.parametrize(
    ("limit", "patience", "at_once"),
    [
        ({"limit": "5/hour using gcra", "max_delay": 0.5}, 500_000, None),
        ({"limit": "5/hour using leaky_bucket", "max_delay": 3}, 3_000_000, 0),
        ({"limit": "5/hour using leaky_bucket at_once 2", "max_delay": 3}, 3_000_000, 2),
        ({"limit": "5/hour using leaky_bucket"}, 0, 5),
        (TokenBucket(5, 60, max_delay=2), 2_000_000, None),
        ({"limit": TokenBucket(5, 60, max_delay=2)}, 2_000_000, None),
        ({"limit": TokenBucket(5, 60, max_delay=2), "max_delay": 0}, 0, None),
        ({"limit": LeakyBucket(5, 60, max_delay=2), "max_delay": 1, "name": "slow"}, 1_000_000, 0),
        (LimitSpec(limit=TokenBucket(5, 60, max_delay=2)), 2_000_000, None),
        (LimitSpec(limit=TokenBucket(5, 60), max_delay=0.000001), 1, None),
    ],
)
def test_a_charge_has_the_max_delay_of_its_table_or_limit(limit: Any, patience: int, at_once: int | None) -> None:
    (charge,) = charges_of([limit])
    assert (charge.effective_max_delay_us, charge.max_delay) == (patience, None)
    if isinstance(charge.limit, LeakyBucket):
        assert charge.limit.numbers[-1] == at_once


NOT_BY_TIER = "there are no limits by tier; expected limits such as {free = '60/hour', pro = '600/hour'}"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("item", "said"),
    [
        (
            {"limit": "5/hour", "max_delay": 1},
            f"max_delay: {FIVE_AN_HOUR} cannot delay requests; a bucket can, such as '5/3600s using gcra'",
        ),
        ({"limit": "5/hour", "max_delay": -1}, "max_delay: got -1, expected a finite number of seconds, 0 or more"),
        (
            {"limit": "5/hour using gcra", "max_delay": True},
            "max_delay: got True, expected a finite number of seconds, 0 or more",
        ),
        (
            {"limit": "999999937/day using gcra", "max_delay": 2_000_000.0},
            (
                "max_delay: got 2000000.0 seconds, expected at most 450359.9: with more, "
                f"{PRIME} using gcra would not be exact"
            ),
        ),
        (
            {"limit": "5/hour using gcra", "max_delay": 1, "lease": 2},
            "lease: units charged in advance cannot be delayed; expected no max_delay beside it",
        ),
        (
            {"limit": TokenBucket(5, 60, max_delay=2), "lease": 2, "shadow": True},
            "lease: units charged in advance cannot be delayed; expected no max_delay beside it",
        ),
    ],
)
def test_invalid_max_delays_raise_config_errors(item: dict[str, Any], said: str) -> None:
    assert message_of(limits=["9/day", item]) == f"limits[1].{said}"
    assert message_of(limits=[], rules=[{"path": "/", "limits": [item]}]) == f"rules[0].limits[0].{said}"
    assert message_of(limits={"a": [item]}, tier="user") == f"limits.a[0].{said}"


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("item", "problems"),
    [
        ({}, ["limits[0].limit: got None, expected one limit such as '100/minute'"]),
        ({"limit": 5}, ["limits[0].limit: got 5, expected one limit such as '100/minute'"]),
        ({"limit": "5/hour; 6/day"},
         ["limits[0].limit: got '5/hour; 6/day', expected one limit such as '100/minute'"]),
        ({"limit": "5/hour", "cost": -1}, [f"limits[0].cost: got -1, expected {COUNT}"]),
        ({"limit": "5/minute", "cost": 6},
         [f"limits[0].cost: 6 can never pass {FIVE}, which admits at most 5 at once"]),
        ({"limit": "5/hour", "cost": "two"}, [f"limits[0].cost: got 'two', expected {COUNT}"]),
        ({"limit": "5/hour", "shadow": "yes"}, ["limits[0].shadow: got 'yes', expected true or false"]),
        ({"limit": "5/hour", "key": "nope"}, [f"limits[0].key: got 'nope', expected {KEYS}"]),
        ({"limit": "5/hour", "name": "a b"}, [f"limits[0].name: got 'a b', expected {NAME}"]),
        ({"limit": "5/hour", "max_delay": -1},
         ["limits[0].max_delay: got -1, expected a finite number of seconds, 0 or more"]),
        ({"limit": "5/hour", "costs": 1}, ["limits[0]: unknown setting `costs`: did you mean `cost`?"]),
        ({"limit": "5/hour", "cost": -1, "key": "nope", "shadow": 1},
         [f"limits[0].cost: got -1, expected {COUNT}", f"limits[0].key: got 'nope', expected {KEYS}",
          "limits[0].shadow: got 1, expected true or false"]),
    ],
)  # fmt: skip
def test_all_errors_in_one_limit_are_reported_together(item: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(limits=[item])
    assert [*caught.value.problems] == problems


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, f"limits: got 5, expected {LIMITS}"),
        (None, "limits: required, such as '100/minute'; [] means no limits"),
        ([5], f"limits[0]: got 5, expected {LIMIT}"),
        ([["5/minute"]], f"limits[0]: got ['5/minute'], expected {LIMIT}"),
        (["5/minute", None], f"limits[1]: got None, expected {LIMIT}"),
        ([b"5/minute"], f"limits[0]: got b'5/minute', expected {LIMIT}"),
        (["5/minute", "5/minute"],
         f"limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name"),
        ("5/minute; 5/minute", f"limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name"),
        ("5/second using smooth; 100/minute using smooth",  # the rate is not part of the bucket's id
         "limits[1]: 100/60s using smooth can count in the same bucket as limits[0]; give one of them a name"),
        (["5/minute", {"limit": "5/minute", "cost": 2}],
         f"limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name"),
        (["5/minute", {"limit": "5/minute", "key": "ip"}],
         f"limits[1]: {FIVE} can count in the same bucket as limits[0]; give one of them a name"),
        ([{"limit": "5/minute", "name": "a"}, {"limit": "5/minute", "name": "a"}],
         "limits[1].name: 'a' is also the name of limits[0]; choose another name"),
    ],
)  # fmt: skip
def test_invalid_lists_of_limits_raise_config_errors(given: Any, message: str) -> None:
    assert message_of(limits=given) == message


@pytest.mark.parametrize(
    "given",
    [
        ["5/minute", {"limit": "5/minute", "key": "all"}],
        ["5/minute", {"limit": "5/minute", "name": "other"}],
        ["5/minute", "5/hour"],
        ["5/minute", "5/minute using gcra"],
        ["5/minute", {"limit": "5/minute", "key": "header:x"}],
    ],
)
def test_limits_that_differ_have_separate_buckets(given: Any) -> None:
    found = charges_of(given, Step(headers={"X": "1"}))
    assert len({(charge.key, charge.limit.bucket) for charge in found}) == 2


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("limit", "parameter"),
    [
        ("8/hour burst 8 using token_bucket", ""),
        ("8/hour using token_bucket", ""),
        ("8/hour burst 7 using token_bucket", ";ratelimit-mw-burst=7"),
        ("8/hour burst 9 using gcra", ";ratelimit-mw-burst=9"),
        ("8/hour burst 1 using leaky_bucket", ";ratelimit-mw-burst=1"),
        ("8/hour", ""),
    ],
)
def test_policy_fields_show_a_burst_that_differs_from_the_quota(face: str, limit: str, parameter: str) -> None:
    answer = FACES[face]({"limits": limit, "store": RecordingStore(clock=Clock())})(Step())
    assert answer.field("ratelimit-policy") == [f'"default";q=8;w=3600{parameter}']


# errors in tiers and rules, with their places


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({"limits": {"a": "5/hour"}}, [f"limits: {NO_TIER}"]),
        ({"limits": {"a": "5/hour", "b": "lots", "c": ["5/hour", 5]}, "tier": "user"},
         ["limits.b: 'lots': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
          f"limits.c[1]: got 5, expected {LIMIT}"]),
        ({"limits": {"a b": "5/hour"}, "tier": "user"}, [f"limits: tier 'a b': got 'a b', expected {NAME}"]),
        ({"limits": {"a": "5/hour"}, "tier": "user", "default_tier": "b"},
         ["default_tier: got 'b', expected one of a"]),
        ({"limits": {"a": "5/hour"}, "tier": "user", "default_tier": 5},
         ["default_tier: got 5, expected the name of a tier"]),
        ({"limits": {"a": "5/hour"}, "tier": "nope"}, [f"tier: got 'nope', expected {KEYS}"]),
        ({"limits": {"a": "5/minute; 5/minute"}, "tier": "user"},
         [f"limits.a[1]: {FIVE} can count in the same bucket as limits.a[0]; give one of them a name"]),
        ({"limits": [], "rules": [{"path": "/", "limits": {"a": "lots"}, "tier": "user"}]},
         ["rules[0].limits.a: 'lots': got no rate, expected text such as '100/minute' or '5 per 10 seconds'"]),
        ({"limits": [], "rules": [{"path": "/", "limits": {"a": "5/hour"}}]},
         [f"rules[0].limits: {NO_TIER}"]),
        ({"limits": [], "rules": [{"path": "/", "limits": {"a": "5/hour"}, "tier": "nope"}]},
         [f"rules[0].tier: got 'nope', expected {KEYS}"]),
        ({"limits": [], "rules": [{"path": "/", "limits": "5/hour", "default_tier": "b"}]},
         [f"rules[0].default_tier: {NOT_BY_TIER}"]),
        ({"limits": [], "rules": [{"path": "/", "limits": lambda _: "5/hour", "tier": "user"}]},
         [f"rules[0].tier: {NOT_BY_TIER}"]),
        ({"limits": [], "tier": "user", "rules": [{"path": "/", "limits": {"a": "5/hour"}, "default_tier": "b"}]},
         ["rules[0].default_tier: got 'b', expected one of a"]),
        ({"limits": "lots", "key": "nope", "safelist": [5], "blocklist": ["x"], "headers": "some", "jitter": -1,
          "rules": [{"path": "x", "limits": "5/hour", "when": 5, "host": "a b"}, {"limits": "5/hour"}, 7]},
         [f"key: got 'nope', expected {KEYS}",
          "limits: 'lots': got no rate, expected text such as '100/minute' or '5 per 10 seconds'",
          "rules[0].path: got 'x', expected a path that starts with /, such as '/users/{id}'",
          "rules[0].when: got 5, expected a callable, or call:PACKAGE.MODULE:FUNCTION",
          f"rules[0].host: got 'a b', expected {HOST}",
          "rules[1].path: required, such as '/login' or '/{rest:path}'",
          "rules[2]: got 7, expected a table or a Rule",
          "safelist[0]: got 5, expected a network, a table of header and value, a callable",
          "blocklist[0]: got 'x', expected a network such as '10.0.0.0/8' or an address such as '192.0.2.1'",
          "headers: got 'some', expected one of ietf, legacy, both, draft-6, draft-7, none",
          "jitter: got -1, expected a finite number of seconds, 0 or more"]),
    ],
)  # fmt: skip
def test_all_errors_are_reported_together_each_once_with_its_place(
    settings: dict[str, Any], problems: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**settings)
    assert [*caught.value.problems] == problems


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("path", ["/LOGIN", "/login", "/LoGiN", "/login/"])
def test_ignore_case_applies_to_rules_but_not_to_exemptions(face: str, path: str) -> None:
    rules = [{"path": "/Login", "limits": "5/hour", "name": "login"}]
    settings: dict[str, Any] = {"rules": rules, "exempt": ["/Health"]}
    found = charges_of("9/hour", Step(path=path), face, ignore_case=True, **settings)
    names = [charge.key.rpartition(":")[2] for charge in found]
    assert names == (["login", "default"] if path.endswith("/") else ["login"])
    exact = charges_of("9/hour", Step(path=path), face, **settings)
    assert [charge.key.rpartition(":")[2] for charge in exact] == ["default"]
    for ignore_case in (True, False):
        assert charges_of("9/hour", Step(path="/Health"), face, ignore_case=ignore_case, **settings) == []
        assert len(charges_of("9/hour", Step(path="/health"), face, ignore_case=ignore_case, **settings)) == 1


def test_a_custom_limit_class_is_accepted() -> None:
    class Mine(SlidingWindowCounter, frozen=True):
        """A limit class of an app."""

    limit: Limit = Mine(5, 60)
    assert charges_of([limit])[0].limit is limit

"""Tests which override applies to a request, and what it makes of the limits. No store decides."""

import asyncio
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from ratelimit_mw.core.memo import Budget
from ratelimit_mw.http.request import Request
from ratelimit_mw.rules.override_entries import EVERYONE, Override, encode_overrides
from ratelimit_mw.rules.overrides import ActiveOverrides, Index, _Recent
from ratelimit_mw.rules.plan import Plan, make_plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.compiled import LimitSet
from web.plain_request import PlainRequest

CLIENT = "192.0.2.1"
NO_LINES: Callable[[str], Sequence[str]] = lambda _: ()  # noqa: E731  # a header that is missing
Entry = tuple[str | None, str, str]  # rule, who, action or limits


def index_of(*entries: Entry, until: float = 2e9) -> Index:
    index = Index()
    overrides = []
    for number, (rule, who, what) in enumerate(entries):
        action, limits = ("limits", what) if "/" in what else (what, None)
        values: Any = (f"{number}", rule, who, action, limits, until)
        overrides.append(Override(*values))
    for _ in index.fill(encode_overrides(overrides)):
        pass
    return index


def active(*entries: Entry) -> ActiveOverrides:
    overrides = ActiveOverrides()
    overrides.take_over(index_of(*entries), 0.0)
    return overrides


def planned(settings: Mapping[str, Any], request: Request, *entries: Entry) -> Plan:
    match = RuleSet(Settings(**{"limits": "1/hour", "plain_keys": True, **settings})).match(request)
    assert match is not None
    return make_plan(match, request, {}, active(*entries))


def charged(settings: Mapping[str, Any], request: Request, *entries: Entry) -> list[str] | None:
    """Return what a request is charged, as texts; None if it is blocked."""
    found = planned(settings, request, *entries)
    assert len(found.charges) == len(found.compiled_limits) == len(found.policies)
    if found.denied_source is not None:
        return None
    return [f"{one.key} {one.limit.notation.partition(' ')[0]} {one.role}" for one in found.charges]


def of(user: str | None = None, client: str | None = CLIENT, path: str = "/", **headers: str) -> PlainRequest:
    return PlainRequest(path, user=user, client=client, headers=headers)


DEFAULT, BOBS = "{ip=192.0.2.1}:default 1/3600s limit", "{user=bob}:default 1/3600s limit"
EXACT = f"ip={CLIENT}"
LIMITED = "{ip=192.0.2.1}:default 9/60s limit"


@pytest.mark.parametrize(
    ("settings", "request_of", "entries", "expected"),
    [
        # who
        ({}, of(), [(None, EXACT, "exempt")], []),
        ({}, of(), [(None, "ip=192.0.2.2", "exempt")], [DEFAULT]),
        ({}, of(), [(None, "ip=192.0.2.0/30", "block")], None),
        ({}, of(client="192.0.2.4"), [(None, "ip=192.0.2.0/30", "block")], ["{ip=192.0.2.4}:default 1/3600s limit"]),
        ({}, of(client="::ffff:192.0.2.1"), [(None, EXACT, "exempt")], []),
        ({}, of(client="2001:db8::1"), [(None, "ip=2001:db8::1", "exempt")], []),
        (
            {}, of(client="2001:db8::2"), [(None, "ip=2001:db8::1", "block")],
            ["{ip=2001:db8::/64}:default 1/3600s limit"],
        ),
        ({}, of(client="2001:db8:0:1::2"), [(None, "ip=2001:db8::/48", "block")], None),
        ({}, of("bob"), [(None, "user=bob", "exempt")], []),
        ({}, of("al"), [(None, "user=bob", "exempt")], ["{user=al}:default 1/3600s limit"]),
        ({"key": "header:x-api-key"}, of(**{"x-api-key": "k"}), [(None, "header:x-api-key=k", "block")], None),
        ({"key": "user+route"}, of("bob"), [(None, "user=bob", "exempt")], []),
        ({}, of(), [(None, f"key={EXACT}", "exempt")], []),
        ({"key": "user+route"}, of("bob"), [(None, "key=user=bob+route=unmatched", "block")], None),
        (
            {"key": "user+route"}, of("bob"), [(None, "key=user=bob", "block")],
            ["{user=bob+route=unmatched}:default 1/3600s limit"],
        ),
        ({}, of(client=None), [(None, EXACT, "block")], ["{missing=user%20%7C%20ip}:default 1/3600s limit"]),
        # the key of the rule decides, except for a block of an address
        ({}, of("bob"), [(None, EXACT, "exempt")], [BOBS]),
        ({}, of("bob"), [(None, EXACT, "9/minute")], [BOBS]),
        ({}, of("bob"), [(None, EXACT, "block")], None),
        ({"key": "all"}, of(), [(None, EXACT, "exempt")], ["{all=all}:default 1/3600s limit"]),
        ({"key": "all"}, of(), [(None, EXACT, "block")], None),
        ({"limits": []}, of(), [(None, EXACT, "block")], None),
        ({"limits": []}, of(), [(None, EXACT, "exempt")], []),
        ({"limits": []}, of(), [("default", EXACT, "block")], []),
        # which one: a key, a part, an address, a small network, a large one; then one of the rule
        ({}, of("bob"), [(None, "user=bob", "block"), (None, "key=user=bob", "exempt")], []),
        ({}, of("bob"), [(None, EXACT, "9/minute"), (None, "user=bob", "exempt")], []),
        # a block of the address comes first; of addresses, the narrowest one decides
        ({}, of("bob"), [(None, EXACT, "block"), (None, "user=bob", "exempt")], None),
        ({}, of("bob"), [(None, "ip=192.0.2.0/24", "block"), (None, "user=bob", "9/minute")], None),
        ({}, of("bob"), [(None, EXACT, "block"), (None, "key=user=bob", "exempt")], None),
        ({}, of(), [(None, "ip=192.0.2.0/24", "block"), (None, f"key={EXACT}", "exempt")], None),
        (
            {"key": "header:x-api-key"}, of(**{"x-api-key": "k"}),
            [(None, EXACT, "block"), (None, "header:x-api-key=k", "exempt")], None,
        ),
        ({}, of("bob"), [(None, "ip=192.0.2.0/24", "block"), (None, EXACT, "exempt"), (None, "user=bob", "9/minute")],
         ["{user=bob}:default 9/60s limit"]),
        ({}, of("bob"), [("login", EXACT, "block"), (None, "user=bob", "exempt")], []),
        ({}, of(), [(None, "ip=192.0.2.0/24", "block"), (None, EXACT, "exempt")], []),
        ({}, of(), [(None, "ip=192.0.0.0/16", "block"), (None, "ip=192.0.2.0/24", "exempt")], []),
        ({}, of(), [(None, EXACT, "block"), ("default", EXACT, "exempt")], []),
        ({}, of(), [("default", EXACT, "block"), (None, EXACT, "exempt")], None),
        ({}, of(), [("login", EXACT, "block"), (None, "ip=192.0.2.0/24", "exempt")], []),
        # limits, of which each has the bucket of its numbers
        ({}, of(), [(None, EXACT, "9/minute")], [LIMITED]),
        ({}, of(), [(None, EXACT, "9/minute; 99/day")], [LIMITED, "{ip=192.0.2.1}:default 99/86400s limit"]),
        ({"limits": "1/hour; 5/day"}, of(), [(None, EXACT, "9/minute")], [LIMITED]),
        (
            {"limits": [{"limit": "1/hour", "key": "user"}, {"limit": "2/hour", "key": "ip"}]},
            of("bob"), [(None, "user=bob", "9/minute")],
            ["{user=bob}:default 9/60s limit"],
        ),
        ({"concurrent": 2}, of(), [(None, EXACT, "9/minute")], [LIMITED, "{ip=192.0.2.1}:default 2 limit"]),
        ({"concurrent": 2}, of(), [(None, EXACT, "exempt")], []),
        ({"app_limits": "8/hour"}, of(), [("app", EXACT, "9/minute")], ["{ip=192.0.2.1}:app 9/60s limit", DEFAULT]),
        ({"app_limits": "8/hour"}, of(), [("default", EXACT, "exempt")], ["{ip=192.0.2.1}:app 8/3600s limit"]),
        (
            {"penalty": "10 refusals per minute: 15 minutes", "app_limits": "8/hour"}, of(), [(None, EXACT, "exempt")],
            [],
        ),
        # switches
        ({}, of(), [(None, EVERYONE, "off")], []),
        ({}, of(), [(None, EVERYONE, "shadow")], [DEFAULT.replace("limit", "shadow")]),
        ({"key": "all"}, of(), [(None, EVERYONE, "off")], []),
        ({"app_limits": "8/hour"}, of(), [("app", EVERYONE, "off")], [DEFAULT]),
        (
            {"app_limits": "8/hour"}, of(), [("app", EVERYONE, "shadow"), (None, EVERYONE, "shadow")],
            ["{ip=192.0.2.1}:app 8/3600s shadow", DEFAULT.replace("limit", "shadow")],
        ),
        ({"app_limits": "8/hour"}, of(), [("app", EVERYONE, "shadow"), (None, EVERYONE, "off")], []),
        (
            {"app_limits": "8/hour"}, of(), [("app", EVERYONE, "off"), (None, EVERYONE, "shadow")],
            [DEFAULT.replace("limit", "shadow")],
        ),
        ({}, of(), [(None, EVERYONE, "off"), (None, EXACT, "block")], None),
        ({}, of(), [(None, EVERYONE, "off"), (None, EXACT, "9/minute")], []),
        ({}, of(), [(None, EVERYONE, "shadow"), (None, EXACT, "9/minute")], [LIMITED.replace("limit", "shadow")]),
        (
            {"penalty": "10 refusals per minute: 15 minutes", "app_limits": "8/hour"},
            of(), [("app", EVERYONE, "shadow")],
            ["{ip=192.0.2.1}:app 8/3600s shadow", DEFAULT],
        ),
        # in shadow mode nothing is refused
        ({"shadow": True}, of(), [(None, EXACT, "block")], [DEFAULT.replace("limit", "shadow")]),
        ({"shadow": True, "limits": []}, of(), [(None, EXACT, "block")], []),
        ({"shadow": True}, of(), [(None, EXACT, "9/minute")], [LIMITED.replace("limit", "shadow")]),
    ],
)  # fmt: skip
def test_what_a_request_is_charged(
    settings: Mapping[str, Any], request_of: PlainRequest, entries: Sequence[Entry], expected: list[str] | None
) -> None:
    assert charged(settings, request_of, *entries) == expected


def test_the_names_of_a_rule() -> None:
    rules = [{"path": "/login", "name": "login", "limits": "5/minute", "messages": "2/second"}]
    for rule, expected in (("login", []), ("default", ["{ip=192.0.2.1}:login 5/60s limit"])):
        assert charged({"rules": rules}, of(path="/login"), (rule, EXACT, "exempt")) == expected
    rule_set = RuleSet(Settings(limits="1/hour", app_limits="8/hour", messages="3/second", rules=rules))
    assert rule_set.rule_names == ["app", "login", "default", "preflight", "messages"]
    names = {limit_set.bucket_name: limit_set.rule_names for limit_set in rule_set.all_limit_sets}
    assert (names["login"], names["login/preflight"], names["login/messages"]) == (frozenset(["login"]),) * 3


def test_the_name_of_a_rule_is_not_that_of_a_limit_on_an_endpoint() -> None:
    settings = Settings(limits="1/hour")
    names = {
        name: LimitSet([], "login", settings, bucket_name=name).rule_names for name in ("login", "@login", "@login()+")
    }
    assert names == {
        "login": {"login"},
        "@login": {"@login"},
        "@login()+": {"@login", "@login()", "@login()+"},
    }


def test_other_limits_keep_the_cost_of_the_rule() -> None:
    rules = [{"path": "/", "name": "heavy", "limits": "50/hour", "cost": 5}]
    (charge,) = planned({"rules": rules}, of(), (None, EXACT, "9/minute")).charges
    assert (charge.cost, charge.limit.quota) == (5, 9)


def test_if_a_callable_of_limits_fails_a_switch_still_lets_requests_pass() -> None:
    def fails(_: Request) -> str:
        raise ValueError

    settings = Settings(limits=fails)
    match = RuleSet(settings).match(of())
    assert match is not None
    results: dict[Any, Any] = {fails: "nonsense"}
    assert make_plan(match, of(), results).denied_source == "denied_on_error"
    assert make_plan(match, of(), results, active((None, EXACT, "exempt"))).denied_source == "denied_on_error"
    for action in ("off", "shadow"):
        switch = None, EVERYONE, action
        assert make_plan(match, of(), results, active(switch)) == Plan((), (), ())
        assert make_plan(match, of(), results, active(switch, (None, EXACT, "block"))).denied_source == "store"


def ways(overrides: ActiveOverrides, **settings: Any) -> Callable[[str], bool]:
    """Return a function that returns whether a client takes the short way."""
    rule_set = RuleSet(Settings(**{"limits": "1/hour", "key": "ip", **settings}))
    rule_set.overrides = overrides
    return lambda client: rule_set.short_way("GET", "/", client, NO_LINES)[0] is not None


def test_only_clients_with_an_override_take_the_longer_way() -> None:
    overrides = ActiveOverrides()
    is_short = ways(overrides)
    clients = [CLIENT, "192.0.2.2", "2001:db8::1", "2001:db8::2"]
    steps: list[tuple[list[Entry], list[bool]]] = [
        ([], [True, True, True, True]),
        ([(None, EXACT, "exempt")], [False, True, True, True]),
        ([(None, "ip=192.0.2.0/30", "block")], [False, False, True, True]),
        ([("x", "ip=2001:db8::1", "block")], [True, True, False, True]),
        ([(None, "user=bob", "exempt")], [True, True, True, True]),
        ([("app", EVERYONE, "off")], [False, False, False, False]),
        ([], [True, True, True, True]),
    ]
    for entries, short in steps:
        overrides.take_over(index_of(*entries), 0.0)
        assert [is_short(client) for client in clients] == short
    assert not ways(active((None, EVERYONE, "off")), key="all")(CLIENT)
    assert ways(ActiveOverrides())(CLIENT)
    assert not ways(ActiveOverrides(is_known=False))(CLIENT)  # before the first look


def test_a_key_takes_the_longer_way() -> None:
    rule_set = RuleSet(Settings(limits="1/hour", key="ip"))
    (charge,) = rule_set.short_way("GET", "/", CLIENT, NO_LINES)[1]
    key = charge.key.partition("}")[0][1:]
    assert [ways(active((None, f"key={key}", "exempt")))(client) for client in (CLIENT, "192.0.2.2")] == [False, True]


def test_a_tag_computed_before_a_change_is_not_kept_after_it() -> None:
    overrides = ActiveOverrides()

    def tag_of(identity: str) -> str:
        overrides.take_over(index_of((None, EXACT, "block")), 0.0)  # as another thread, while this one computes
        return f"{{{identity}}}"

    tags = overrides.remembered(overrides.tagger(64, tag_of))
    tags[CLIENT]
    assert dict(tags) == {}
    assert tags[CLIENT] is None


def test_an_override_ends_alone() -> None:
    overrides = ActiveOverrides()
    index = Index()
    entries = [
        Override(f"{until}", None, who, "block", None, until)
        for until, who in ((10.0, EXACT), (20.0, "ip=192.0.2.0/24"), (30.0, EVERYONE), (40.0, EXACT))
    ]
    for _ in index.fill(encode_overrides(entries)):
        pass
    overrides.take_over(index, 0.0)
    for now, left, next_end in [
        (9.9, 4, 10.0),
        (10.0, 3, 20.0),
        (25.0, 2, 30.0),
        (30.0, 1, 40.0),
        (40.0, 0, float("inf")),
    ]:
        overrides.expire(now)
        assert (len(overrides.entries), overrides.counts["block"], overrides.next_end) == (left, left, next_end)
        assert overrides.concerns(CLIENT, "{}") is (left > 0)
    assert (index.by_who, index.everyone, [*index.networks.values()]) == ({}, (), [{}])


def test_ten_thousand_entries_are_added_in_short_steps() -> None:
    """A step of 100 entries takes half a millisecond; the median is not that of a moment in which others ran."""
    text = encode_overrides(
        Override(f"{number:08x}", None, f"ip=10.{number >> 8}.{number & 255}.0/24", "exempt", None, 2e9)
        for number in range(10_000)
    )
    index, steps = Index(), []
    filling = index.fill(text)
    while True:
        started = time.thread_time()
        if next(filling, "end") == "end":
            break
        steps.append(time.thread_time() - started)
    assert (len(steps), len(index.ends), len(index.networks[4, 8])) == (100, 10_000, 10_000)
    assert sorted(steps)[50] < 0.01


def test_entries_are_no_objects_for_the_garbage_collector() -> None:
    """Ten thousand more such objects would make it look at all of them, which stops the loop."""
    index = index_of(*[(None, f"ip=192.0.2.{number}", "exempt") for number in range(200)])
    gc.collect()
    assert len(index.ends) == len(index.by_who) == 200
    assert not any(map(gc.is_tracked, [*index.ends, *index.by_who.values()]))


def test_the_loop_runs_between_the_steps() -> None:
    async def turns() -> int:
        index, count = Index(), 0
        for _ in index.fill(encode_overrides([Override("1", None, EXACT, "exempt", None, 2e9)] * 250)):
            await asyncio.sleep(0)
            count += 1
        return count

    assert asyncio.run(turns()) == 3


def test_what_was_computed_before_a_change_is_not_remembered_after_it() -> None:
    """Another thread takes over changed overrides while a value is computed."""
    overrides = active()

    def changed(client: str) -> str:
        overrides.take_over(index_of((None, EVERYONE, "off")), 0.0)
        return f"before, for {client}"

    recent = _Recent(overrides, changed, Budget(10))
    assert recent[CLIENT] == f"before, for {CLIENT}"
    assert CLIENT not in recent

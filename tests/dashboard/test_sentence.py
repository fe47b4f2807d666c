"""Tests the sentence at the top of the live page."""

from typing import Any

import pytest
from msgspec import structs, to_builtins

from ratelimit_mw.dashboard.sentence import Problem, problem
from ratelimit_mw.rules.override_entries import Override

AT = 1_795_693_351.4  # 2026-11-26 11:42:31 UTC
CALM = (50, 1)  # admitted and refused in a second
ATTACKED = (3, 36)
CHANGE = {"do": "change", "rule": "login"}


def data(**changed: Any) -> dict[str, Any]:
    return {
        "at": AT,
        "processes": 4,
        "processes_known": 4,
        "digests": ["c45ec6ea"],
        "store": {"state": "ok", "kind": "Redis"},
        "rules": [{"rule": "login", "mode": "on"}, {"rule": "default", "mode": "on"}],
        **changed,
    }


def rows(since: int, *, calm: tuple[int, int] = CALM, attacked: tuple[int, int] = ATTACKED) -> list[tuple[int, ...]]:
    """Return the rows of five minutes, with an attack in the last `since` seconds."""
    last = int(AT)
    return [(at, *(attacked if at > last - since else calm)) for at in range(last - 299, last + 1)]


def minutes(since: int) -> list[tuple[int, ...]]:
    """Return the rows of a day, with an attack in the last `since` minutes."""
    last = int(AT) // 60
    return [
        (60 * at, *(60 * one for one in (ATTACKED if at > last - since else CALM)))
        for at in range(last - 1439, last + 1)
    ]


def found(
    seconds: list[tuple[int, ...]], day: int = 0, clients: dict[str, dict[str, int]] | None = None, **changed: Any
) -> Problem | None:
    return problem(data(**changed), {"login": seconds}, {"login": minutes(day)}, clients or {})


def test_calm_is_no_problem() -> None:
    assert found(rows(0)) is None
    assert problem(data(), {}, {}, {}) is None


def test_a_few_refusals_are_no_problem_whatever_their_share() -> None:
    few = (0, 0)
    assert found([(at, 0, int(at % 2 == 0)) for at, *_ in rows(0)]) is not None  # 30 a minute
    assert found([(at, 0, int(at % 2 == 0 and at > AT - 57)) for at, *_ in rows(0)]) is None
    assert found(rows(0, calm=few)) is None


def test_from_a_fifth_on_refusals_are_a_problem() -> None:
    assert found(rows(0, calm=(80, 20))) is not None
    assert found(rows(0, calm=(81, 19))) is None


@pytest.mark.parametrize("mode", ["shadow", "off", "exempt"])
def test_only_enforcing_rules_are_a_problem(mode: str) -> None:
    assert found(rows(200), rules=[{"rule": "login", "mode": mode}]) is None


def test_it_says_since_when_a_rule_refuses() -> None:
    assert found(rows(205)) == Problem("refusing", "login refuses 92 % of its requests since 11:39:07.", "", [CHANGE])
    calm_before = minutes(60)  # an attack that ended two minutes before the next is another
    text = "login refuses 92 % of its requests since 11:41:32."
    seconds = rows(60)
    assert problem(data(), {"login": seconds}, {"login": calm_before}, {}) == Problem("refusing", text, "", [CHANGE])
    silent = [(at, 0, 0) if at < AT - 20 else (at, *rest) for at, *rest in rows(205)]
    assert found(silent) == Problem("refusing", "login refuses 92 % of its requests since 11:42:12.", "", [CHANGE])


def test_it_says_until_when_a_rule_refused() -> None:
    ended = [(at, *(CALM if at > AT - 14 else rest)) for at, *rest in rows(60)]
    refused = Problem(
        "refusing",
        "login refused 92 % of its requests from 11:41:32 to 11:42:17.",
        "192.0.2.7 was refused 36 a second.",
        [CHANGE, {"do": "block", "who": {"ip": "192.0.2.7"}}],
    )
    assert found(ended, clients={"login": {"ip=192.0.2.7": 9}}) == refused
    silent = [(at, *((0, 0) if at > AT - 14 else rest)) for at, *rest in rows(60)]
    assert found(silent, clients={"login": {"ip=192.0.2.7": 9}}) == refused
    going_on = [(at, *(CALM if at > AT - 11 else rest)) for at, *rest in rows(60)]
    assert found(going_on) == Problem(
        "refusing", "login refuses 92 % of its requests since 11:41:32.", "", [CHANGE]
    )  # nine calm seconds are no end


def test_one_second_of_refusals_begins_in_it() -> None:
    one_second: list[tuple[int, ...]] = [(at, *((0, 900) if at == int(AT) - 5 else CALM)) for at, *_ in rows(0)]
    assert found(one_second, clients={"login": {"9f3aBc": 900}}) == Problem(
        "refusing",
        "login refuses 100 % of its requests since 11:42:26.",
        "9f3aBc is refused 900 a second.",
        [CHANGE, {"do": "block", "who": {"key": "9f3aBc"}}],
    )


def block(who: str, rule: str | None = None) -> Override:
    return Override("1a", rule, who, "block", None, AT + 60)


@pytest.mark.parametrize(
    ("clients", "overrides", "more"),
    [
        (["ip=192.0.2.7"], [block("ip=192.0.2.7")], "192.0.2.7 is refused 36 a second, and is blocked now."),
        (
            ["ip=192.0.2.7"],
            [block("ip=192.0.2.0/24", "login")],
            "192.0.2.7 is refused 36 a second, and is blocked now.",
        ),
        (["9f3aBc"], [block("key=9f3aBc")], "9f3aBc is refused 36 a second, and is blocked now."),
        (
            [f"ip=192.0.2.{last}" for last in range(3)],
            [block("ip=192.0.2.0/24")],
            "3 addresses of 192.0.2.0/24 are refused 36 a second, and are blocked now.",
        ),
    ],
)
def test_a_client_that_is_blocked_is_not_blocked_again(
    clients: list[str], overrides: list[Override], more: str
) -> None:
    def step(overrides: list[Override]) -> tuple[str, int]:
        refused = {"login": dict.fromkeys(clients, 60)}
        said = problem(data(), {"login": rows(205)}, {"login": minutes(0)}, refused, overrides)
        assert said is not None
        return said.more, len(said.steps)

    assert step(overrides) == (more, 1)
    plain = more.partition(",")[0] + "."
    assert step([]) == (plain, 2)
    assert step([structs.replace(overrides[0], rule="default")]) == (plain, 2)
    assert step([structs.replace(overrides[0], action="exempt")]) == (plain, 2)
    other = {"ip=192.0.2.7": "ip=192.0.3.0/24"}.get(clients[0], "ip=192.0.2.1")
    assert step([structs.replace(overrides[0], who=other)]) == (plain, 2)


def test_a_day_without_requests_is_no_day_of_refusals() -> None:
    silent = [(at, 0, 0) for at, *_ in minutes(0)]
    seconds = rows(40, calm=(0, 0))
    text = "login refuses 92 % of its requests since 11:41:52."
    assert problem(data(), {"login": seconds}, {"login": silent}, {}) == Problem("refusing", text, "", [CHANGE])


def test_it_says_since_when_by_the_minute_before_five_minutes() -> None:
    assert found(rows(300), 40) == Problem(
        "refusing", "login refuses 92 % of its requests since 11:03:00.", "", [CHANGE]
    )
    assert found(rows(300), 1000) == Problem(
        "refusing", "login refuses 92 % of its requests since 11-25 19:03.", "", [CHANGE]
    )
    assert found(rows(300), 1440) == Problem(
        "refusing", "login refuses 92 % of its requests for a day or longer.", "", [CHANGE]
    )


def test_it_says_the_worst_rule() -> None:
    worse = rows(100, attacked=(0, 37))
    assert problem(data(), {"login": rows(200), "default": worse}, {}, {}) == Problem(
        "refusing", "default refuses 100 % of its requests since 11:40:52.", "", [{"do": "change", "rule": "default"}]
    )


@pytest.mark.parametrize(
    ("clients", "more", "who"),
    [
        (
            {f"ip=192.0.2.{last}": 160 for last in range(10, 23)} | {"ip=198.51.100.20": 60},
            "13 addresses of 192.0.2.0/24 are refused 35 a second.",
            {"ip": "192.0.2.0/24"},
        ),
        (
            {f"ip=2001:db8:0:{last}::": 1 for last in range(3)},
            "3 addresses of 2001:db8::/48 are refused 36 a second.",
            {"ip": "2001:db8::/48"},
        ),
        ({"ip=192.0.2.7": 30, "user=bob": 30}, "192.0.2.7 is refused 18 a second.", {"ip": "192.0.2.7"}),
        ({"ip=192.0.2.7": 1, "user=bob": 1, "user=ann": 1}, "3 clients are refused 36 a second.", None),
        ({"9f3aBc": 300}, "9f3aBc is refused 36 a second.", {"key": "9f3aBc"}),
        ({"ip=": 60}, "ip= is refused 36 a second.", {"key": "ip="}),
        (
            {"ip=192.0.2.7+user=bob": 60},
            "ip=192.0.2.7+user=bob is refused 36 a second.",
            {"key": "ip=192.0.2.7+user=bob"},
        ),
        ({f"ip=192.0.{net}.7": 60 for net in range(4)}, "4 clients are refused 36 a second.", None),
        ({}, "", None),
    ],
)
def test_it_says_which_clients(clients: dict[str, int], more: str, who: dict[str, str] | None) -> None:
    steps: list[Any] = [CHANGE] if who is None else [CHANGE, {"do": "block", "who": who}]
    assert found(rows(205), clients={"login": clients}) == Problem(
        "refusing", "login refuses 92 % of its requests since 11:39:07.", more, steps
    )


def test_a_store_that_is_away_comes_first() -> None:
    store = {"state": "away", "kind": "Redis", "since": AT - 41, "meaning": "The app serves all requests."}
    text = "Redis has not replied since 11:41:50."
    assert found(rows(205), store=store) == Problem("store", text, "The app serves all requests.")
    assert found(rows(0), store={"state": "away", "kind": "the file"}) == Problem("store", "The file has not replied.")


def test_missing_processes_and_different_settings_are_said() -> None:
    some = "It may be blocked, or was killed. What it limits is not shown here."
    assert found(rows(0), processes=3) == Problem("processes", "1 process does not report: 3 of 4 are here.", some)
    assert found(rows(0), processes=2) == Problem("processes", "2 processes do not report: 2 of 4 are here.", some)
    assert found(rows(0), processes_known=None) is None
    other = found(rows(0), digests=["c45ec6ea", "0b7d1f22"])
    assert to_builtins(other) == {
        "kind": "settings",
        "text": "The processes have 2 different settings.",
        "more": "A deployment may be under way, or a process could not take over a changed file: its log says why.",
        "steps": (),
    }


def test_what_blocks_refuse_is_no_problem() -> None:
    blocked = [{"rule": "blocklist", "mode": "on"}]
    assert problem(data(rules=blocked), {"blocklist": rows(60)}, {}, {}) is None

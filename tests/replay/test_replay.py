"""Tests the results of a replay, its options, and its errors."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from ratelimit_mw import ConfigError, SlidingWindowLog, parse
from ratelimit_mw.cli import main
from ratelimit_mw.replay import Offender, RuleResult, replay, tallies
from ratelimit_mw.replay.client_plans import ClientPlan, LastingStore
from ratelimit_mw.replay.suggestions import clear_gap, peak, refusals, widest_gap
from ratelimit_mw.replay.text import report_lines
from ratelimit_mw.settings import Settings
from replay.replayed import FORMAT, combined, crowd, requests, settled, tier_of, write


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    lines = [combined(at, "192.0.2.1", "POST /login HTTP/1.1") for at in range(0, 60, 5)]
    lines += [combined(at, "192.0.2.2", status=429) for at in range(0, 60, 20)]
    lines += [combined(61, "192.0.2.3", "-"), "no line\n", combined(61, "192.0.2.4", "OPTIONS / HTTP/1.1")]
    path.write_text("".join(sorted(lines, key=lambda line: line[20:60])))
    return path


LOGIN: dict[str, Any] = {"name": "login", "path": "/login", "limits": "5/hour", "key": "ip"}


def named(rule: RuleResult) -> list[tuple[str, int]]:
    return [(one.client, one.refused) for one in rule.most]


def test_report_counts_lines_requests_and_refusals(log: Path) -> None:
    report = replay({"limits": "2/minute", "rules": [LOGIN]}, log)
    assert (report.lines, report.unread, report.shown, report.requests, report.refused) == (
        17 + 1,
        1,
        ["no line"],
        16,
        8,
    )
    login, default = report.rule("login"), report.rule("default")
    assert (login.requests, login.refused, login.clients) == (12, 7, 1)
    first, last = 1_700_000_025.0, 1_700_000_055.0
    assert login.most == [Offender("192.0.2.1", 7, first, last, {"200": 7}, "POST /login", 1)]
    assert (default.requests, default.refused, named(default)) == (4, 1, [("192.0.2.2", 1)])
    assert login.share == 7 / 12
    assert report.last is not None
    assert report.first is not None
    assert report.last - report.first == 61
    assert report.notes == [
        "the log has whole seconds: the lines of one second are spread over it (--as-logged: not)",
        "lines without a request of HTTP, which are left out: 1",
        "requests that were answered with 429 already, some of them retries: 3",
        "the log does not tell preflights from other OPTIONS requests; they count as the latter",
    ]
    with pytest.raises(KeyError):
        report.rule("other")


def test_preflights_have_their_own_buckets(tmp_path: Path) -> None:
    form = '$remote_addr [$time_local] "$request" $status "$http_origin" "$http_access_control_request_method"'
    log = tmp_path / "access.log"
    lines = [
        f'192.0.2.1 [14/Nov/2023:22:13:0{second} +0000] "{method} /x HTTP/1.1" 200 "https://a.example" "{announced}"'
        for second in range(3)
        for method, announced in (("OPTIONS", "POST"), ("POST", "-"))
    ]
    log.write_text("".join(f"{line}\n" for line in lines))
    report = replay({"limits": "2/minute"}, log, format=form)
    assert [(rule.rule, rule.requests, rule.refused) for rule in report.rules] == [
        ("default", 3, 1),
        ("preflight", 3, 1),
    ]
    assert not any("preflights" in note for note in report.notes)


@pytest.mark.parametrize(
    "settings",
    [
        {"limits": "2/minute"},
        {"limits": "2/minute", "rules": [{"path": "/a", "limits": "1/minute"}]},
        {"limits": "2/minute", "rules": [{"path": "/a", "limits": "1/minute", "host": "a.example"}]},
        {"limits": "2/minute", "concurrent": 9},
    ],
)
def test_clients_without_an_address_are_counted_once(settings: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text(
        "".join(
            f'{client} [14/Nov/2023:22:13:0{second} +0000] "GET {path} HTTP/1.1" 200 0.001 a.example\n'
            for second in range(3)
            for path in ("/", "/a")
            for client in ("-", "unix:", "192.0.2.1")
        )
    )
    form = '$remote_addr [$time_local] "$request" $status $request_time $host'
    report = replay({"key": "ip", **settings}, log, format=form)
    assert "clients without an address in the log, to which missing_key applies: 2" in report.notes


def test_shadow_rules_show_what_they_would_refuse(log: Path) -> None:
    report = replay({"limits": "2/minute", "shadow": True, "rules": [LOGIN]}, log)
    assert report.refused == 0
    assert [(rule.rule, rule.refused, rule.shadow) for rule in report.rules] == [
        ("login", 7, True),
        ("default", 1, True),
    ]


def test_rule_is_a_shadow_if_all_its_limits_are_shadows(log: Path) -> None:
    shadow = {"limit": "2/minute", "shadow": True}
    tiers = {"free": [shadow], "pro": [{"limit": "9/minute", "shadow": True}]}
    rule = {"name": "tiers", "path": "/x", "limits": tiers, "tier": "user"}
    report = replay({"limits": [shadow], "rules": [{**LOGIN, "limits": ["5/hour", shadow]}, rule]}, log)
    assert [(one.rule, one.refused, one.shadow) for one in report.rules] == [
        ("login", 10, False),
        ("tiers", 0, True),
        ("default", 1, True),
    ]
    assert report.refused == 7
    report = replay({"limits": "5/minute", "rules": [{**LOGIN, "shadow": True}, {"path": "/x", "exempt": True}]}, log)
    assert [(one.rule, one.shadow) for one in report.rules] == [("login", True), ("x", False), ("default", False)]


def test_replay_is_restricted_to_a_period_and_rules(log: Path) -> None:
    settings = {"limits": "2/minute", "rules": [LOGIN]}
    local = replay(settings, log, since="2023-11-14T22:13:30", until="2023-11-14T22:13:50", rules=["login"])
    assert [(rule.rule, rule.requests) for rule in local.rules] == [("login", 4)]
    zoned = replay(settings, log, since="2023-11-14T23:13:30+01:00", until="2023-11-14T22:13:50Z", rules=["login"])
    assert zoned.as_json() == local.as_json()
    assert replay(settings, log, since="2024-01-01").requests == 0


def test_empty_log_gives_an_empty_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "access.log").write_text("\n")
    (tmp_path / "limits.toml").write_text('limits = "2/minute"\n')
    page = tmp_path / "report.html"
    options = ["--suggest", "--html", str(page)]
    assert main(["replay", str(tmp_path / "limits.toml"), str(tmp_path / "access.log"), *options]) == 0
    assert capsys.readouterr().out.startswith("0 lines, 0 s, 0 unread\n0 of 0 requests refused, 0.0 %\n\nrule")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert page.stat().st_mode & 0o777 == 0o600  # it may contain addresses of clients


def test_report_names_clients_by_their_addresses(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    addresses = ("2001:db8::1", "2001:db8::2", "2001:db8:1::1", "192.0.2.1")
    path.write_text("".join(combined(at, client) for at, client in enumerate(addresses)))
    rows = replay({"limits": "1/hour", "app_limits": {"limit": "3/hour", "key": "all"}}, path).rules
    assert [(rule.rule, named(rule)) for rule in rows] == [("app", []), ("default", [("2001:db8::/64", 1)])]
    rows = replay({"limits": [], "app_limits": {"limit": "3/hour", "key": "all"}}, path).rules
    assert named(rows[0]) == [("192.0.2.1", 1)]


def test_trusted_proxies_forward_their_clients(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    form = '$remote_addr [$time_local] "$request" $status "$http_x_forwarded_for"'
    line = '10.0.0.1 [14/Nov/2023:22:13:20 +0000] "GET / HTTP/1.1" 200 "203.0.113.9, 192.0.2.{}"\n'
    path.write_text("".join(line.format(number % 2) for number in range(6)))
    settings = {"limits": "1/hour", "trusted_proxies": ["10.0.0.0/8"]}
    assert named(replay(settings, path, format=form).rules[0]) == [("192.0.2.0", 2), ("192.0.2.1", 2)]


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"key": "header:x-api-key"}, "key: the log (combined) does not have header:x-api-key", "header:x-api-key=ip"),
    ({"key": "cookie:sid | ip"}, "key: the log (combined) does not have cookie:sid", "cookie:sid=missing"),
    ({"rules": [{**LOGIN, "key": "header:x-k"}]}, "rules[0] (login).key: the log", "header:x-k=text:one"),
    (
        {"rules": [{**LOGIN, "limits": [{"limit": "5/hour", "key": "header:x-k"}]}]},
        "rules[0] (login).limits: the log",
        "header:x-k=user",
    ),
    (
        {"limits": {"free": "5/hour", "pro": "9/hour"}, "tier": "header:x-plan"},
        "tier: the log",
        "header:x-plan=text:pro",
    ),
    (
        {"limits": {"free": "5/hour", "pro": "9/hour"}, "tier": tier_of},
        "tier: a log does not tell what",
        "call:replay.replayed:tier_of=run",
    ),
    ({"key": tier_of}, "key: a log does not tell what call:", "call:replay.replayed:tier_of=ip"),
    (
        {"rules": [{**LOGIN, "cost": tier_of}]},
        "rules[0] (login).cost: a log does not",
        "call:replay.replayed:tier_of=text:2",
    ),
    ({"limits": tier_of}, "limits: a log does not tell what call:", "call:replay.replayed:tier_of=text:5/minute"),
    (
        {"rules": [{**LOGIN, "when": tier_of}]},
        "rules[0] (login).when: a log does not",
        "call:replay.replayed:tier_of=run",
    ),
    ({"enabled": tier_of}, "enabled: a log does not tell", "call:replay.replayed:tier_of=run"),
    ({"safelist": [tier_of]}, "safelist: a log does not tell", "call:replay.replayed:tier_of=run"),
    ({"blocklist": [{"header": "x-bad", "value": "1"}]}, "blocklist: the log", "header:x-bad=missing"),
    (
        {"rules": [{**LOGIN, "host": "a.example.com"}]},
        "rules[0] (login).host: the log",
        "header:host=text:a.example.com",
    ),
    ({"settle": settled}, "settle: the true cost is in no log", "settle=cost"),
    ({"concurrent": 5}, "concurrent: the log has no durations", "slots=none"),
    ({"concurrent": 5}, "concurrent: the log has no durations", "duration=0.5"),
    (
        {"rules": [{**LOGIN, "concurrent": 5, "queue": 2}]},
        "rules[0] (login).queue: a log does not tell who waited",
        "queue=none",
    ),
    ({"messages": "5/second"}, "messages: messages of websockets are in no log", "messages=none"),
    ({"rules": [{**LOGIN, "preflight": True}]}, "rules[0] (login).preflight: the log", "header:origin=missing"),
]


@pytest.mark.parametrize(("options", "problem", "assumption"), MISTAKES)
def test_value_that_the_log_lacks_is_an_error(
    options: dict[str, Any], problem: str, assumption: str, log: Path
) -> None:
    settings = Settings(**{"limits": "2/minute", **options})
    with pytest.raises(ConfigError) as caught:
        replay(settings, log, format="combined")
    assert any(one.startswith(problem) for one in caught.value.problems), caught.value.problems
    assume = [assumption]
    if "queue" in assumption:
        assume.append("duration=1")
    if "origin" in assumption:
        assume.append("header:access-control-request-method=missing")
    assert replay(settings, log, format="combined", assume=assume).requests == 16


def test_assumed_values_are_used(log: Path) -> None:
    settings = {"limits": "2/hour", "key": "header:x-api-key", "rules": [LOGIN]}
    assert replay(settings, log, assume=["header:x-api-key=ip"]).as_json()["rules"][1]["refused"] == 1
    assert replay(settings, log, assume=["header:x-api-key=text:one"]).rule("default").refused == 2
    assert (
        replay({**settings, "missing_key": "deny"}, log, assume=["header:x-api-key=missing"]).rule("default").refused
        == 4
    )
    tiers = {"limits": {"free": "1/hour", "pro": "9/hour"}, "tier": "call:replay.replayed:tier_of"}
    run = replay(tiers, log, assume=["call:replay.replayed:tier_of=run"])
    assert named(run.rule("default")) == [("192.0.2.1", 11)]


@pytest.mark.parametrize(
    ("assumption", "problem"),
    [
        ("header:x", "expected WHAT=VALUE"),
        ("header:x=host", "got 'host', expected ip, user, missing, or text:VALUE"),
        ("slots=5", "got '5', expected slots=none"),
        ("weather=good", "got 'weather', expected header:NAME"),
        ("duration=-1", "got '-1', expected seconds"),
        ("status=2000", "expected a status"),
        ("call:replay.replayed:awaited=run", "the callable is async"),
    ],
)
def test_invalid_assumption_is_an_error(assumption: str, problem: str, log: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        replay({"limits": "2/minute", "key": "header:x | ip"}, log, assume=[assumption, "header:x=ip"])


def test_error_names_file_and_line(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "limits.toml").write_text(
        'limits = "2/minute"\n[[rules]]\npath = "/x"\nlimits = "5/hour"\nkey = "header:x-k"\n'
    )
    assert main(["replay", str(tmp_path / "limits.toml"), str(log)]) == 1
    assert f"{tmp_path}/limits.toml:5: rules[0] (x).key: the log (combined) does not have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "options", "problem"),
    [
        ({"limits": "2/minute", "key": "all"}, {"jobs": 2}, "limits: the key 'all' spans clients"),
        (
            {"limits": [], "app_limits": {"limit": "9/second", "key": "all"}},
            {"jobs": 2},
            "app_limits: the key 'all' spans clients",
        ),
        (
            {"limits": "2/minute", "app_limits": "9/second", "rules": [LOGIN]},
            {"jobs": 2},
            "rules[0] (login): a request has buckets of",
        ),
        (
            {"limits": "2/minute", "key": tier_of},
            {"jobs": 2},
            "limits: the key 'call:replay.replayed:tier_of' is a callable",
        ),
        (
            {"limits": {"free": "2/minute", "pro": "9/minute"}, "tier": "user", "key": "user"},
            {"jobs": 2},
            "limits: limits by tier or callable cannot be divided",
        ),
        ({"limits": "9/minute using leaky_bucket", "key": "ip"}, {"jobs": 0}, "--jobs: got 0"),
        (
            {"limits": [{"limit": "9/minute using leaky_bucket", "max_delay": 1}]},
            {"jobs": 2},
            "limits: all clients share",
        ),
        ({"limits": "2/minute"}, {"jobs": 2, "on_decision": print}, "on_decision: it is called in this process only"),
        ({"limits": "2/minute"}, {"since": "yesterday"}, "--since: got 'yesterday', expected a time"),
        ({"limits": "2/minute"}, {"rules": ["logins"]}, "--rule: got logins, expected one of default"),
    ],
)
def test_invalid_argument_is_an_error(
    settings: dict[str, Any], options: dict[str, Any], problem: str, log: Path
) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        replay(settings, log, **options)


def test_jobs_give_equal_reports(tmp_path: Path) -> None:
    path = write(tmp_path / "access.log", requests(5, 3000))
    settings: dict[str, Any] = {
        "limits": "9/minute",
        "blocklist": ["198.51.100.1"],
        "rules": [LOGIN, {"path": "/search", "exempt": True}],
    }
    one, four = (replay(settings, path, format=FORMAT, suggest=True, distributions=True, jobs=jobs) for jobs in (1, 4))
    assert json.dumps(four.as_json()) == json.dumps(one.as_json())
    assert (four.rules, four.peaks) == (one.rules, one.peaks)
    assert one.refused > 300


def test_suggested_limit_separates_abusers_from_honest_clients(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("".join(crowd(7)))
    plain = replay({"limits": "100000/hour"}, path, suggest=True)
    found = {one.window: one for one in plain.suggested if one.quota is not None}
    minute = found[60.0]
    assert minute.limit is not None
    touched: set[str] = set()
    rule = replay(
        {"limits": minute.limit, "plain_keys": True},
        path,
        on_decision=lambda _, verdict: None if verdict else touched.add(verdict.charges[0].key),  # type: ignore[union-attr]  # each request has a verdict
    ).rule("default")
    assert (rule.clients, rule.refused) == (minute.touched, minute.refused)  # the same as in a replay of the whole log
    abusers = {client for client in touched if "198.51.100." in client}
    assert len(abusers) >= 24
    assert len(touched - abusers) <= 2
    assert all(one.touched <= 27 for one in found.values())


def test_peak_is_the_most_requests_in_any_window() -> None:
    dice = random.Random(3)  # noqa: S311  # times
    for _ in range(200):
        times = sorted(dice.choices(range(40), k=dice.randrange(1, 12)))
        window = dice.randrange(1, 20)
        assert peak(times, window) == max(sum(end - window < time <= end for time in times) for end in times)


def test_widest_gap_is_among_the_largest_hundredth() -> None:
    assert widest_gap([1, 10, *[20] * 296, 30, 60]) == (2.0, 30, 60)
    assert widest_gap([7]) == (1.0, 7, 7)


def test_a_group_of_attackers_is_found_if_it_is_more_than_a_hundredth_of_the_clients() -> None:
    honest, attackers = [*range(5, 20)] * 60, [100] * 40
    assert clear_gap([*sorted(honest), *attackers]) == (100 / 19, 19, 100)
    assert clear_gap([*sorted(honest), *[29] * 40]) == (1.0, 29, 29)  # may be honest clients of another kind
    assert clear_gap([*sorted(honest), *attackers, 9000]) == (90.0, 100, 9000)


def test_each_limit_of_a_rule_has_peaks_and_the_recommended_one_a_line(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("".join(crowd(7)))
    report = replay({"limits": "90/minute; 900/hour"}, path, suggest=True, distributions=True)
    assert [(one.quota, one.window) for one in report.peaks] == [(90, 60.0), (900, 3600.0)]
    found = [one for one in report.suggested if one.quota is not None]
    [best] = [one for one in report.suggested if one.recommended]
    assert best.gap == max(one.gap for one in found)
    assert best.line == f'limits = "{best.limit}"  # touches {best.touched} of {best.clients:,} clients'


def log_with_an_office(path: Path, *, attack: bool, agents: int) -> Path:
    """Write a log of 300 clients, an office that sends 90 requests in a minute, and an attack of 300 if wanted."""
    lines = [(20 * index + at, f"10.0.0.{index}", "GET /", "a") for index in range(250) for at in range(0, 15, 3)]
    lines += [(1000 + at // 2, "192.0.2.20", f"GET /{at % 7}?at={at}", f"agent {at % agents}") for at in range(90)]
    if attack:
        lines += [(3000 + at // 6, "192.0.2.66", "POST /login", "b") for at in range(300)]
    path.write_text("".join(combined(at, client, request, agent=agent) for at, client, request, agent in sorted(lines)))
    return path


@pytest.mark.parametrize("attack", [True, False])
def test_no_recommended_limit_hits_what_may_be_an_office(attack: bool, tmp_path: Path) -> None:
    log = log_with_an_office(tmp_path / "access.log", attack=attack, agents=40)
    report = replay({"limits": "1000/minute"}, log, suggest=True)
    best = [one for one in report.suggested if one.recommended]
    assert [one.limit for one in best] == (["108/60s using sliding_window_counter"] if attack else [])
    for one in report.suggested:
        assert [office.client for office in one.offices] == ["192.0.2.20"] * (one.window > 1)
        assert {victim.client for victim in one.victims} <= {"192.0.2.66"}
    lines = [*report_lines(report)]
    advice = "no: clients above may be offices; safelist these for another replay"
    assert sum(line.endswith(advice) for line in lines) == (0 if attack else 4)
    office = "default  192.0.2.20  40 user agents, 7 paths, mostly GET /0, 11-14 22:30:00 to 11-14 22:30:44"
    assert lines[-1].split() == office.split()
    if attack:
        victim = "default 192.0.2.66 192 1 user agent, 1 path, mostly POST /login, 11-14 23:03:20 to 11-14 23:04:09"
        assert victim.split() in [line.split() for line in lines]
        assert "refused  client, with these lines  what it sent" in lines


def test_one_with_few_user_agents_is_no_office(tmp_path: Path) -> None:
    log = log_with_an_office(tmp_path / "access.log", attack=False, agents=4)
    report = replay({"limits": "1000/minute"}, log, suggest=True)
    [best] = [one for one in report.suggested if one.recommended]
    assert (best.offices, [one.client for one in best.victims]) == ([], ["192.0.2.20"])


@pytest.mark.parametrize(
    ("agents", "paths", "hours", "found"),
    [(5, 5, 1, True), (4, 5, 4, False), (5, 4, 3, False), (5, 1, 4, True), (0, 50, 24, False)],
)
def test_offices_have_user_agents_and_many_paths_or_hours(agents: int, paths: int, hours: int, found: bool) -> None:
    member = tallies.Member()
    for number in range(60):
        agent = f"agent {number % agents}" if agents else ""
        member.add(number % hours * 3_600_000_000, ("", "", "", f"GET /{number % paths}?{number}"), agent)
    assert (len(member.agents), len(member.paths), member.may_be_office) == (agents, paths, found)


def test_a_log_without_user_agents_says_what_that_means(tmp_path: Path) -> None:
    path = write(tmp_path / "access.log", requests(5, 30))
    notes = [replay({"limits": "9/minute"}, path, format=FORMAT, suggest=wanted).notes for wanted in (True, False)]
    assert [sum("no user agents" in note for note in some) for some in notes] == [1, 0]


def test_what_is_known_of_refused_clients_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("_MOST_DETAILED", 2), ("_MOST_EXAMINED", 3), ("_MOST_VALUES", 2)):
        monkeypatch.setattr(tallies, name, most)
    path = tmp_path / "access.log"
    requests = [(1, "a"), (1, "b"), (1, "c"), (1, "c"), (1, "c"), (2, "a"), (3, "a"), (3, "b"), (4, "a"), (4, "b")]
    lines = (combined(at, f"192.0.2.{client}", f"GET /{name}") for at, (client, name) in enumerate(requests))
    path.write_text("".join(lines))
    [rule] = replay({"limits": "1/hour"}, path).rules
    assert named(rule) == [("192.0.2.1", 4), ("192.0.2.3", 1), ("192.0.2.4", 1)]
    [first, forgotten, other] = rule.most
    assert forgotten == Offender("192.0.2.3", 1)
    assert (first.path, first.statuses, first.last - first.first) == ("GET /c", {"200": 3}, 3.0)
    assert (other.path, other.statuses) == ("GET /b", {"200": 1})


def test_refusals_are_counted_by_the_algorithm() -> None:
    times = [index * 100_000 for index in range(50)]
    assert refusals(SlidingWindowLog(10, 1), times, 1) == 0
    assert refusals(SlidingWindowLog(5, 1), times, 1) == 25
    assert refusals(parse("1/second using smooth")[0], times, 1) == 44


def test_command_prints_a_table(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "limits.toml"
    settings.write_text('limits = "2/minute"\n[[rules]]\nname = "login"\npath = "/login"\nlimits = "5/hour"\n')
    assert main(["replay", str(settings), str(log)]) == 1  # 1 of 18 lines was unread
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "18 lines, 1 min 1 s, 1 unread"
    assert lines[1] == "8 of 16 requests refused, 50.0 %"
    assert lines[6:] == [
        "  unread: no line",
        "",
        "rule     requests  refused          clients  most refused",
        "login          12        7  58.3 %        1  192.0.2.1 7",
        "default         4        1  25.0 %        1  192.0.2.2 1",
    ]
    assert main(["replay", str(settings), str(log), "--json", "--rule", "login", "--until", "2023-11-14T22:13:30"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["rules"] == [{"rule": "login", "requests": 2, "refused": 0, "clients": 0, "most": [], "shadow": False}]
    assert (found["lines"], found["unread"], found["suggested"]) == (4, 1, [])


def test_period_without_lines_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings, path = tmp_path / "limits.toml", tmp_path / "access.log"
    settings.write_text('limits = "2/minute"\n')
    line = '192.0.2.1 - - [24/Nov/2026:{}] "GET / HTTP/1.1" 200 5\n'
    path.write_text("".join(map(line.format, ("11:00:00 +0200", "10:00:00 +0200", "12:30:00 +0200"))) + "no line\n" * 3)
    reason = (
        "--since, --until: no line is in this period; the log has lines from 2026-11-24T10:00:00+02:00 to "
        "2026-11-24T12:30:00+02:00"
    )
    for words in (["--since", "2026-11-25"], ["--until", "2026-11-24T08:00:00Z"], ["--since", "2027-01-01"]):
        assert main(["replay", str(settings), str(path), *words]) == 1
        done = capsys.readouterr()
        assert (done.out, done.err) == ("", f"ratelimit_mw: {reason}\n")
    assert main(["replay", str(settings), str(path), "--json", "--since", "2027-01-01"]) == 1
    done = capsys.readouterr()
    assert (json.loads(done.out)["empty_reason"], done.err) == (reason, f"ratelimit_mw: {reason}\n")
    report = replay(settings, path, since="2026-11-24T12:00")
    assert (report.requests, report.empty_reason) == (1, "")
    assert replay(settings, path).empty_reason == ""
    assert replay(settings, path, until="2026-11-24", jobs=2).empty_reason == reason


def test_plan_without_charges_has_no_buckets() -> None:
    client_plan = ClientPlan()
    client_plan.use(LastingStore())
    assert client_plan.buckets == ()

"""Tests that a replay decides each request as the middleware does with the log's clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from profiles import PROOF
from ratelimit_mw import Concurrency
from ratelimit_mw.http.client_ip import client_address
from ratelimit_mw.replay import replay
from replay.replayed import (
    Logged,
    address_of,
    cost_of,
    device_of,
    is_search,
    limits_of,
    plan_of,
    replayed,
    requests,
    served,
    write,
)

LENGTH = 5000 if PROOF else 600  # of each of 64 logs: 38,400 lines; 320,000 in the proof
CALL = "call:replay.replayed:"
RUN = [f"{CALL}{name}=run" for name in ("device_of", "plan_of", "limits_of", "cost_of", "is_search")]
SEARCH = {"name": "search", "path": "/search", "limits": "6/minute using gcra"}
LOGIN = {
    "name": "login",
    "path": "/login",
    "methods": ["POST"],
    "limits": ["3/minute", {"limit": "20/hour using sliding_window_log", "key": "user"}],
    "key": "ip",
}
TIERS = {"free": "5/minute", "pro": "20/minute burst 8 using token_bucket", "default": "9/minute using fixed_window"}

SETTINGS: dict[str, dict[str, Any]] = {
    "fixed_window": {"limits": "9/minute using fixed_window", "key": "ip"},
    "sliding_window_counter": {"limits": "9/minute; 200/hour", "app_limits": "300/minute", "key": "ip/48"},
    "buckets": {"limits": "9/minute using sliding_window_counter buckets 6 strict", "rules": [LOGIN]},
    "sliding_window_log": {"limits": "9/minute using sliding_window_log", "rules": [SEARCH]},
    "token_bucket": {"limits": "30/minute burst 5 using token_bucket", "rules": [SEARCH, LOGIN]},
    "leaky_bucket": {"limits": "30/minute burst 5 using leaky_bucket", "key": "ip | route"},
    "smooth": {"limits": "1/second using smooth", "key": "user | ip"},
    "route": {"limits": "90/minute using gcra", "key": "route+ip", "rules": [{**SEARCH, "key": "route"}]},
    "all": {"limits": "9/minute", "app_limits": {"limit": "2/second", "key": "all"}},
    "header": {"limits": "9/minute", "key": "header:x-api-key | ip", "missing_key": "exempt"},
    "required": {"limits": "9/minute", "key": "header:X-Api-Key", "missing_key": "deny"},
    "shared": {"limits": "9/minute", "key": "user", "missing_key": "shared"},
    "tiers": {"limits": TIERS, "tier": "header:x-plan", "rules": [LOGIN]},
    "cookie": {"limits": "9/minute using gcra", "key": "cookie:sid | ip"},
    "session": {"limits": "9/minute", "key": "cookie:sid+route", "missing_key": "exempt", "rules": [LOGIN]},
    "callable": {"limits": "9/minute using sliding_window_log", "key": device_of, "missing_key": "deny"},
    "name of a callable": {"limits": "9/minute", "key": f"{CALL}device_of | ip", "rules": [{**SEARCH, "key": "all"}]},
    "tier by callable": {"limits": TIERS, "tier": plan_of, "rules": [LOGIN]},
    "tier by cookie": {"limits": {"s1": "2/minute", "default": "9/minute"}, "tier": "cookie:sid", "key": "ip/48"},
    "tier by user": {"limits": {"ann": "30/minute", "default": "9/minute"}, "tier": "user", "rules": [SEARCH]},
    "callables": {
        "limits": limits_of,
        "rules": [{**LOGIN, "path": "/{rest:path}", "cost": cost_of, "when": is_search}],
    },
    "hosts": {"limits": "9/minute", "rules": [{**SEARCH, "host": "*.example.com"}, {**LOGIN, "shadow": True}]},
    "lists": {
        "limits": "6/minute",
        "blocklist": ["198.51.100.1"],
        "safelist": ["198.51.100.2", {"header": "x-api-key", "value": "k1"}],
        "exempt": ["/search"],
        "rules": [{"path": "/users/{id}", "exempt": True}],
    },
    "penalty": {
        "limits": "6/minute",
        "count_status": [200, "4xx"],
        "rules": [{**SEARCH, "penalty": "3 refusals per minute: 5 minutes", "final": False}],
    },
}


@pytest.mark.parametrize("form", ["log", "json"])
@pytest.mark.parametrize("name", SETTINGS)
def test_each_verdict_equals_that_of_the_middleware(name: str, form: str, tmp_path: Path) -> None:
    settings = SETTINGS[name]
    logged = requests(list(SETTINGS).index(name), LENGTH)
    found = replayed(settings, write(tmp_path / f"access.{form}", logged), assume=RUN)
    _check(found, settings, logged)


# By name: settings, an assumption, and a function that adds the assumed value to a request.
ASSUMED: dict[str, tuple[dict[str, Any], str, Callable[[Logged, str], Logged]]] = {
    "header": (
        {"limits": "9/minute", "key": "header:x-device | ip"},
        "header:x-device=ip",
        lambda one, address: _with_headers(one, {"x-device": address}),
    ),
    "text": (
        {"limits": "9/minute using gcra", "key": "header:x-app+route", "rules": [LOGIN]},
        "header:x-app=text:one",
        lambda one, _: _with_headers(one, {"x-app": "one"}),
    ),
    "missing header": (
        {"limits": "9/minute", "key": "header:x-device | ip"},
        "header:x-device=missing",
        lambda one, _: one,
    ),
    "cookie": (
        {"limits": "9/minute", "key": "cookie:device", "rules": [SEARCH]},
        "cookie:device=ip",
        lambda one, address: _with_headers(one, {"cookie": f"device={address}"}),
    ),
    "cookie of users": (
        {"limits": "9/minute", "key": "cookie:device", "missing_key": "exempt"},
        "cookie:device=user",
        lambda one, _: one if one.user == "-" else _with_headers(one, {"cookie": f"device={one.user}"}),
    ),
    "callable": ({"limits": "9/minute", "key": address_of}, f"{CALL}address_of=ip", lambda one, _: one),
    "tier": (
        {"limits": TIERS, "tier": "cookie:plan"},
        "cookie:plan=text:pro",
        lambda one, _: _with_headers(one, {"cookie": "plan=pro"}),
    ),
    "user": (
        {"limits": "9/minute", "key": "user"},
        "user=ip",
        lambda one, address: one._replace(user=address),
    ),
}


def _with_headers(one: Logged, headers: dict[str, str]) -> Logged:
    return one._replace(headers={**one.headers, **headers})


@pytest.mark.parametrize("form", ["log", "json"])
@pytest.mark.parametrize("name", ASSUMED)
def test_assumed_values_give_the_verdicts_of_sent_values(name: str, form: str, tmp_path: Path) -> None:
    settings, assumption, sent = ASSUMED[name]
    logged = requests(100 + list(ASSUMED).index(name), LENGTH)
    found = replayed(settings, write(tmp_path / f"access.{form}", logged), assume=[assumption])
    _check(found, settings, [sent(one, client_address(one.client, 64) or "") for one in logged])


def _check(found: list[Any], settings: dict[str, Any], sent: list[Logged]) -> None:
    expected = served(settings, sent, [time for time, _ in found])
    assert [verdict for _, verdict in found] == expected
    refused = sum(verdict is not None and not verdict.allowed for verdict in expected)
    assert 0.02 * LENGTH < refused < 0.98 * LENGTH  # so that admissions and refusals are compared


def test_requests_are_decided_at_the_times_of_the_log(tmp_path: Path) -> None:
    logged = requests(1, 300)
    path = write(tmp_path / "access.log", logged)
    spread = [time for time, _ in replayed(SETTINGS["fixed_window"], path)]
    assert [int(time) for time in spread] == [1_700_000_000 + one.second for one in logged]
    assert len(set(spread)) == 300
    whole = [time for time, _ in replayed(SETTINGS["fixed_window"], path, as_logged=True)]
    assert whole == [1_700_000_000 + one.second for one in logged]


def test_slots_are_held_for_the_durations_in_the_log(tmp_path: Path) -> None:
    lines = [
        (0.0, 5.0),
        (1.0, 0.5),
        (1.2, 0.1),
        (1.6, 1.0),
        (4.0, 9.0),
        (5.5, 30.0),
        (20.0, 1.0),
        (20.5, 0.1),
        (36.0, 1.0),
    ]
    text = "".join(f'192.0.2.1 {1_700_000_000 + at + took:.3f} {took:.3f} "GET / HTTP/1.1" 200\n' for at, took in lines)
    (tmp_path / "access.log").write_text(text)
    found: list[tuple[float, bool]] = []
    replay(
        {"limits": [Concurrency(2)], "key": "ip"},
        tmp_path / "access.log",
        format='$remote_addr $msec $request_time "$request" $status',
        on_decision=lambda time, verdict: found.append((round(time - 1_700_000_000, 3), bool(verdict))),
    )
    # two slots: 0 to 5 and 1 to 1.5; 1.6 to 2.6; 4 to 13; 5.5 to 35.5, renewed beyond its lifetime of 15 s
    allowed = [True, True, False, True, True, True, True, False, True]
    assert found == [(at, admitted) for (at, _), admitted in zip(lines, allowed, strict=True)]

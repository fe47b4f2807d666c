"""Tests the exact rate limit headers, and the exact responses to refused requests."""

import math
from math import inf
from types import SimpleNamespace
from typing import Any

import http_sf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from ratelimit_mw import (
    CalendarWindow,
    Charge,
    Decision,
    FixedWindow,
    Limit,
    Limiter,
    MemoryStore,
    SlidingWindowCounter,
    TokenBucket,
    Verdict,
)
from ratelimit_mw.core.verdict import verdict_of
from ratelimit_mw.http import response
from ratelimit_mw.http.policy import Policy
from ratelimit_mw.http.response import headers, refusal_response
from ratelimit_mw.testing import Clock

LIMIT = SlidingWindowCounter(5, 60)
ADMITTED = Decision(True, 5, 3, 0.0, 12.0, 60.0, 0.0, 0)
REFUSED = Decision(False, 5, 0, 30.0, 30.0, 60.0, 0.0, 0)


def verdict(*pairs: tuple[Limit, Decision], roles: str = "", hidden: str = "") -> Verdict:
    """Return a verdict on charges n0, n1, ...; in `roles`, s is a shadow; in `hidden`, h is a limit of all clients."""
    charges = [
        Charge(f"{{id}}:n{index}", limit, role="shadow" if roles[index : index + 1] == "s" else "limit")
        for index, (limit, _) in enumerate(pairs)
    ]
    policies = [
        Policy(
            f"n{index}",
            limit,
            only_in_refusals=hidden[index : index + 1] == "h",
            shadow=roles[index : index + 1] == "s",
        )
        for index, (limit, _) in enumerate(pairs)
    ]
    return verdict_of(charges, [decision for _, decision in pairs], policies=policies)


def ietf(of: Verdict) -> list[tuple[str, str]]:
    return headers(of)


@pytest.mark.parametrize(
    ("limit", "decision", "policy", "state"),
    [
        (LIMIT, ADMITTED, '"n0";q=5;w=60', '"n0";r=3;t=12'),
        (LIMIT, replace(ADMITTED, next_after=12.000001), '"n0";q=5;w=60', '"n0";r=3;t=13'),
        (LIMIT, replace(ADMITTED, next_after=0.000001), '"n0";q=5;w=60', '"n0";r=3;t=1'),
        (LIMIT, replace(ADMITTED, next_after=60.2), '"n0";q=5;w=60', '"n0";r=3;t=60'),
        (LIMIT, replace(ADMITTED, next_after=1e9), '"n0";q=5;w=60', '"n0";r=3;t=60'),
        (LIMIT, replace(ADMITTED, next_after=0.0), '"n0";q=5;w=60', '"n0";r=3;t=0'),
        (
            TokenBucket(5, 60, burst=20),
            replace(ADMITTED, limit=20, remaining=19),
            '"n0";q=5;w=60;ratelimit-mw-burst=20',
            '"n0";r=5;t=12',
        ),
        (SlidingWindowCounter(5, 0.5), replace(ADMITTED, next_after=0.4), '"n0";q=5', '"n0";r=3;t=1'),
        (SlidingWindowCounter(5, 1.5), replace(ADMITTED, next_after=1.5), '"n0";q=5', '"n0";r=3;t=2'),
        (SlidingWindowCounter(5, 60.0), ADMITTED, '"n0";q=5;w=60', '"n0";r=3;t=12'),
        (
            SlidingWindowCounter(2 * 10**15, 1),
            replace(ADMITTED, limit=2 * 10**15, remaining=2 * 10**15 - 1, next_after=1.0),
            '"n0";q=999999999999999;w=1',
            '"n0";r=999999999999999;t=1',
        ),
        (SlidingWindowCounter(1, 100 * 365 * 86400), ADMITTED, '"n0";q=1;w=3153600000', '"n0";r=1;t=12'),
    ],
)
def test_ratelimit_fields_have_the_exact_values(limit: Limit, decision: Decision, policy: str, state: str) -> None:
    assert headers(verdict((limit, decision))) == [("RateLimit-Policy", policy), ("RateLimit", state)]


def test_fields_list_the_binding_limit_first_and_at_most_eight_limits() -> None:
    pairs = [(SlidingWindowCounter(5, 60, name=f"l{number}"), ADMITTED) for number in range(12)]
    pairs[10] = (pairs[10][0], replace(ADMITTED, remaining=1))
    (_, policies), (_, states) = headers(verdict(*pairs))
    names = ["n10", "n0", "n1", "n2", "n3", "n4", "n5", "n6"]
    assert [name for name, _ in parsed(policies)] == names
    assert [name for name, _ in parsed(states)] == names


def parsed(line: str) -> list[Any]:
    found: Any = http_sf.parse(line.encode("ascii"), tltype="list")
    return list(found)


@pytest.mark.parametrize(
    ("roles", "hidden", "decisions", "shown"),
    [
        ("s", "", [ADMITTED], []),
        ("s", "", [REFUSED], []),
        ("", "h", [ADMITTED], []),
        ("", "h", [REFUSED], ["n0"]),
        ("ls", "", [ADMITTED, REFUSED], ["n0"]),
        ("ss", "", [ADMITTED, REFUSED], []),
        ("", "hl", [ADMITTED, ADMITTED], ["n1"]),
        ("", "hl", [ADMITTED, REFUSED], ["n1"]),
        ("", "hl", [REFUSED, ADMITTED], ["n0", "n1"]),
        ("", "lhl", [ADMITTED, replace(ADMITTED, remaining=0), replace(ADMITTED, remaining=1)], ["n2", "n0"]),
    ],
)
def test_fields_leave_out_shadows_and_show_hidden_limits_only_if_they_refuse(
    roles: str, hidden: str, decisions: list[Decision], shown: list[str]
) -> None:
    of = verdict(*[(LIMIT, decision) for decision in decisions], roles=roles, hidden=hidden)
    names = [[name for name, _ in parsed(line)] for _, line in headers(of)]
    assert names == ([shown, shown] if shown else [])


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("none", []),
        ("ietf", ["RateLimit-Policy", "RateLimit"]),
        ("legacy", ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"]),
        (
            "both",
            ["RateLimit-Policy", "RateLimit", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"],
        ),
        ("draft-6", ["RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"]),
        ("draft-7", ["RateLimit-Policy", "RateLimit"]),
    ],
)
def test_the_headers_style_selects_the_fields(style: Any, names: list[str]) -> None:
    assert [name for name, _ in headers(verdict((LIMIT, ADMITTED)), style)] == names
    assert [name for name, _ in refusal_response(verdict((LIMIT, REFUSED)), style).headers][4:] == names


def test_legacy_fields_have_the_exact_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response, "time", SimpleNamespace(time=lambda: 1000.5))
    of = verdict((LIMIT, ADMITTED), (LIMIT, replace(ADMITTED, remaining=1, reset_after=7.2)), hidden="lh")
    assert headers(of, "legacy") == [
        ("X-RateLimit-Limit", "5"),
        ("X-RateLimit-Remaining", "3"),
        ("X-RateLimit-Reset", "1061"),
    ]


BURST = TokenBucket(5, 60, burst=20), replace(ADMITTED, limit=20, remaining=19, reset_after=3.1)
MONTH = CalendarWindow(9, "month"), Decision(True, 9, 1, 0.0, 5.0, 5.0, 0.0, 1_000_000)


@pytest.mark.parametrize(
    ("of", "policy", "numbers"),
    [
        (verdict((LIMIT, ADMITTED)), "5;w=60", (5, 3, 60)),
        (verdict((LIMIT, REFUSED)), "5;w=60", (5, 0, 60)),
        (verdict(BURST), "5;w=60;burst=20", (20, 19, 4)),
        (verdict(BURST, (LIMIT, ADMITTED)), "5;w=60, 5;w=60;burst=20", (5, 3, 60)),
        (verdict(BURST, (LIMIT, ADMITTED), roles="ls"), "5;w=60;burst=20", (20, 19, 4)),
        (verdict(MONTH), "9;w=2678400", (9, 1, 5)),
        (verdict((FixedWindow(5, 0.5), replace(ADMITTED, reset_after=0.2))), "5", (5, 3, 1)),
        (verdict((FixedWindow(0, 60), Decision(False, 0, 0, inf, inf, 0.0, 0.0, 0))), "0;w=60", (0, 0, 60)),
    ],
)
def test_fields_of_earlier_drafts_have_the_exact_values(
    of: Verdict, policy: str, numbers: tuple[int, int, int]
) -> None:
    limit, left, reset = numbers
    assert headers(of, "draft-6") == [
        ("RateLimit-Policy", policy),
        ("RateLimit-Limit", f"{limit}"),
        ("RateLimit-Remaining", f"{left}"),
        ("RateLimit-Reset", f"{reset}"),
    ]
    assert headers(of, "draft-7") == [
        ("RateLimit-Policy", policy),
        ("RateLimit", f"limit={limit}, remaining={left}, reset={reset}"),
    ]


@pytest.mark.promise(4)
@pytest.mark.parametrize(
    ("retry_after", "header", "detail"),
    [
        (0.000001, "1", "Try again in 1 second."),
        (1.0, "1", "Try again in 1 second."),
        (1.000001, "2", "Try again in 2 seconds."),
        (59.5, "60", "Try again in 60 seconds."),
        (3153600000.0, "3153600000", "Try again in 3153600000 seconds."),
        (math.inf, None, "This request costs more than its quota ever allows; waiting does not help."),
    ],
)
def test_retry_after_and_the_problem_detail_round_the_wait_up(
    retry_after: float, header: str | None, detail: str
) -> None:
    of = verdict((LIMIT, replace(REFUSED, retry_after=retry_after)))
    status, fields, body = refusal_response(of)
    assert status == 429
    assert json.decode(body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": detail,
        "violated-policies": ["n0"],
    }
    waits = [] if header is None else [("Retry-After", header)]
    assert fields == [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
        *waits,
        *headers(of),
    ]


def test_the_same_verdict_gives_the_same_response() -> None:
    assert len({repr(refusal_response(verdict((LIMIT, REFUSED)), "both")[2]) for _ in range(50)}) == 1
    assert len({tuple(refusal_response(verdict((LIMIT, REFUSED))).headers) for _ in range(50)}) == 1, "no jitter"


@pytest.mark.parametrize("source", ["allowed_on_error", "denied_on_error"])
def test_no_fields_are_sent_if_no_store_decided(source: Any) -> None:
    for style in ("ietf", "legacy", "both", "none"):
        assert headers(Verdict(True, (), (), "default", source), style) == []


@pytest.mark.parametrize(
    ("limiter", "limits", "policy"),
    [
        ("default", "5/minute", '"default";q=5;w=60'),
        ("jobs", "5/minute; 9/hour", '"jobs";q=5;w=60, "jobs-2";q=9;w=3600'),
        ("jobs", [TokenBucket(5, 60, name="mails"), "9/hour"], '"mails";q=5;w=60, "jobs-2";q=9;w=3600'),
    ],
)
def test_a_verdict_of_a_limiter_has_header_fields(limiter: str, limits: Any, policy: str) -> None:
    limited = Limiter(MemoryStore(clock=Clock()), name=limiter)
    fields = dict(headers(limited.hit(limits, "bob")))
    assert fields["RateLimit-Policy"] == policy
    limited.hit(limits, "bob", cost=4)
    refused = refusal_response(limited.hit(limits, "bob"))
    assert refused.status == 429
    assert json.decode(refused.body)["violated-policies"] == [policy[1:].partition('"')[0]]


@given(
    st.lists(
        st.tuples(
            st.integers(1, 10**16 // 4), st.floats(0.001, 1e9), st.integers(0, 2**53), st.floats(0, 1e10), st.booleans()
        ),
        min_size=1,
        max_size=12,
    )
)
def test_fields_can_be_parsed_for_any_numbers(rows: list[tuple[int, float, int, float, bool]]) -> None:
    pairs = []
    for quota, window, remaining, wait, allowed in rows:
        limit = SlidingWindowCounter(min(quota, 10**14), window)
        pairs.append((limit, Decision(allowed, limit.quota, remaining, 0.0 if allowed else wait, wait, wait, 0.0, 0)))
    of = verdict(*pairs)
    (_, policies), (_, states) = headers(of)
    shown = [(int(name[1:]), number) for name, number in parsed(states)]
    assert [name for name, _ in parsed(states)] == [name for name, _ in parsed(policies)]
    assert len(shown) == min(8, len(rows))
    assert shown[0][0] == of.binding
    for index, number in shown:
        limit = pairs[index][0]
        assert 0 <= number["r"] <= limit.quota
        assert 0 <= number["t"] <= math.ceil(limit.max_wait)


@pytest.mark.parametrize(
    ("limit", "wait", "shown"),
    [
        (SlidingWindowCounter(4, 60), 60.0, 60),
        (SlidingWindowCounter(4, 60, strict=True), 90.0, 90),
        (SlidingWindowCounter(4, 60, strict=True), 120.0, 120),
        (SlidingWindowCounter(4, 60, buckets=6, strict=True), 70.0, 70),
        (SlidingWindowCounter(4, 60, buckets=7), 60.000003, 61),
    ],
)
def test_the_wait_in_the_fields_is_never_too_short(limit: SlidingWindowCounter, wait: float, shown: int) -> None:
    of = verdict((limit, Decision(False, 4, 0, wait, wait, wait, 0.0, 0)))
    assert dict(headers(of))["RateLimit"] == f'"n0";r=0;t={shown}'
    assert dict(refusal_response(of).headers)["Retry-After"] == str(shown)

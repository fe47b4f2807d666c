"""Tests that the fast path returns the same plan as the general path, or none."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from ratelimit_mw import Charge, Decision, MemoryStore, asgi, parse, wsgi
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.views import AsgiRequest, WsgiRequest
from ratelimit_mw.rules.plan import Plan, plan
from ratelimit_mw.rules.rule_set import RuleSet
from ratelimit_mw.settings import Settings


def always(_: object) -> bool:
    return True


def never(_: object) -> bool:
    return False


RULES: list[dict[str, Any]] = [
    {"path": "/login", "methods": ["POST"], "limits": "5/minute", "final": True},
    {"path": "/users/{id}", "limits": "10/minute"},
    {"path": "/users/me", "limits": "20/minute"},
    {"path": "/users/{id:int}/posts", "limits": "30/minute"},
    {"path": "/files/{rest:path}", "limits": "40/minute", "final": False},
    {"path": "/files/{rest:path}/raw", "limits": "41/minute"},
    {"path": "/static/{rest:path}", "limits": "50/minute"},
    {"path": "/things/{id}/parts/{part}", "methods": ["GET"], "limits": "60/minute; 600/hour"},
    {"path": "/slash/", "limits": "70/minute"},
    {"path": "/hosted", "host": "a.example", "limits": "80/minute"},
    {"path": "/when", "when": always, "limits": "90/minute"},
    {"path": "/by-key", "key": "header:x-key", "limits": "95/minute"},
    {"path": "/exempt", "exempt": True},
    {"path": "/costly", "cost": 3, "limits": "99/minute", "key": "ip + route"},
    {"path": "/mine", "key": "user | ip", "limits": "98/minute"},
    {"path": "/shared", "key": "all", "limits": "91/minute"},
    {"path": "/account", "key": "user", "limits": "89/minute"},
    {"path": ["/either/{x}", "/either/{x}"], "limits": "97/minute", "shadow": True},
    {"path": "/options", "preflight": True, "limits": "96/minute"},
    {"path": "/static/{more:path}", "limits": "94/minute"},
    {"path": "/hosted", "name": "elsewhere", "host": "b.example", "limits": "93/minute"},
    {"path": "/when", "name": "never", "when": never, "limits": "92/minute"},
]
PATHS = [
    *("/", "", "/login", "/login/", "//login", "/LOGIN", "/login\n", "/lo%67in", "/./login", "/x/../login", "/.login"),
    *("/users/7", "/users/me", "/users/", "/users", "/users/7/", "/users/7/posts", "/users/x/posts", "/users/7\n"),
    *("/files", "/files/", "/files/a", "/files/a/b/raw", "/files/raw", "/static/a/b.css", "/static/", "/static"),
    *("/things/1/parts/2", "/things/1/parts", "/things//parts/2", "/slash/", "/slash", "/hosted", "/when", "/by-key"),
    *(
        "/exempt",
        "/costly",
        "/mine",
        "/shared",
        "/account",
        "/either/1",
        "/options",
        "/none",
        "/users/\u00e9",
        "/users/.",
        "/users/..",
        "x",
    ),
]
METHODS = ["GET", "POST", "HEAD", "OPTIONS", "get", "PROPFIND"]
PEERS = ["127.0.0.1", "10.0.0.1", "192.0.2.9", "::ffff:10.0.0.1", "2001:db8::1", "testclient", "", None, "1.2.3.4:80"]
FORWARDED = [
    *([], ["192.0.2.1"], ["192.0.2.1, 10.0.0.1"], ["192.0.2.1", "192.0.2.2"], ["10.0.0.1"], ["2001:db8::2"], [""]),
    *(["unknown"], [" 192.0.2.1"], ["192.0.2.1:80"], ["::ffff:192.0.2.1"], ["192.0.2.01"], ["192.0.2.1,10.0.0.1"]),
]
PROXIES: list[Any] = [[], ["10.0.0.0/8", "127.0.0.1"], ["unix:"], 1, 2]
HEADERS = ["x-forwarded-for", "forwarded", "x-real-ip"]
MADE = {  # for each seed, how many of 1800 requests get a plan from the fast path; they change with the lists above
    "asgi": [141, 66, 119, 133, 103, 196, 52, 44, 194, 161, 59, 37],
    "wsgi": [172, 77, 134, 161, 121, 218, 53, 47, 216, 176, 62, 44],
}


def compiled(rules: list[dict[str, Any]], proxies: Any, header: str, **more: Any) -> dict[str, Any]:
    one = {"limits": "100/minute", "app_limits": "1000/hour", "trusted_proxies": proxies, "proxy_header": header}
    return {**one, "rules": rules, **more}


def done(rules: RuleSet) -> RuleSet:
    """Return the rules as they are after the first requests, which are checked for proxy headers."""
    rules._proxy_check = None
    rules._refresh_single_match()
    return rules


def scope(path: str, method: str, peer: str | None, header: str, values: list[str]) -> dict[str, Any]:
    fields = [(b"Accept", b"*/*"), *((header.encode(), value.encode()) for value in values), (b"host", b"a.example")]
    client = None if peer is None else (peer, 1)
    return {"type": "http", "method": method, "path": path, "headers": fields, "client": client, "root_path": ""}


def environ(path: str, method: str, peer: str | None, header: str, values: list[str]) -> dict[str, Any]:
    name = "HTTP_" + header.upper().replace("-", "_")
    fields = {name: ",".join(values)} if values else {}
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode().decode("latin-1"),
        "REMOTE_ADDR": peer,
        "HTTP_HOST": "a.example",
        **fields,
    }


def general(rules: RuleSet, request: AsgiRequest | WsgiRequest) -> Plan | None:
    match = rules.match(request)
    return None if match is None else plan(match, request, {})


def both(rules: RuleSet, face: str, request: tuple[str, str, str | None, str, list[str]]) -> tuple[Plan | None, ...]:
    raw: Mapping[str, Any]
    if face == "asgi":
        raw = scope(*request)
        client = raw["client"]
        return asgi._fast_plan(rules, dict(raw)), general(rules, AsgiRequest(raw, client[0] if client else None))
    raw = environ(*request)
    return wsgi._fast_plan(rules, dict(raw)), general(rules, WsgiRequest(raw, raw["REMOTE_ADDR"] or None))


@pytest.mark.promise(10)
@pytest.mark.parametrize("face", ["asgi", "wsgi"])
@pytest.mark.parametrize("seed", range(12))
def test_the_fast_path_gives_the_plan_of_the_general_path(face: str, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # not for cryptography
    made = 0
    for _ in range(12):
        chosen = chance.sample(RULES, chance.randrange(len(RULES)))
        proxies = chance.choice(PROXIES)
        header = chance.choice(HEADERS[: 2 if isinstance(proxies, int) else 3])
        settings = Settings(**compiled(chosen, proxies, header, ignore_case=chance.random() < 0.3))
        rules = done(RuleSet(settings))
        for _ in range(150):
            request = (
                *(chance.choice(PATHS), chance.choice(METHODS), chance.choice(PEERS)),
                *(header, chance.choice(FORWARDED)),
            )
            fast, slow = both(rules, face, request)
            if fast is not None:
                made += 1
                assert slow is not None, request
                assert (fast.charges, fast.policies) == (slow.charges, slow.policies), request
                assert fast.match is rules.match(
                    AsgiRequest(scope(*request), request[2])
                    if face == "asgi"
                    else WsgiRequest(environ(*request), request[2])
                ), request
    assert made == MADE[face][seed]


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
def test_usual_requests_take_the_fast_path(face: str) -> None:
    rules = done(RuleSet(Settings(**compiled(RULES[:2] + RULES[6:8], ["10.0.0.0/8"], "x-forwarded-for"))))
    found = {}
    for path, method in product(["/login", "/users/7", "/static/a/b.css", "/static", "/things/1/parts/2"], METHODS[:2]):
        fast, _ = both(rules, face, (path, method, "10.0.0.1", "x-forwarded-for", ["192.0.2.1"]))
        assert fast is not None
        found[f"{method} {path}"] = [charge.key.partition(":")[2] for charge in fast.charges]
    users, static, things = (rule.limit_set.bucket_name for rule in rules._table.rules[1:])
    assert found == {
        "GET /login": ["app", "default"],
        "POST /login": ["app", rules._table.rules[0].limit_set.bucket_name],
        "GET /users/7": ["app", users],
        "POST /users/7": ["app", users],
        "GET /static/a/b.css": ["app", static],
        "POST /static/a/b.css": ["app", static],
        "GET /static": ["app", "default"],
        "POST /static": ["app", "default"],
        "GET /things/1/parts/2": ["app", things, things],
        "POST /things/1/parts/2": ["app", "default"],
    }


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule["path"] in ("/hosted", "/when", "/by-key", "/slash/")])
def test_rules_by_host_when_header_key_or_final_slash_skip_the_fast_path(face: str, rule: dict[str, Any]) -> None:
    rules = done(RuleSet(Settings(**compiled([rule], [], "x-forwarded-for"))))
    assert both(rules, face, (rule["path"], "GET", "192.0.2.1", "x-forwarded-for", []))[0] is None


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
def test_the_fast_path_stops_at_a_final_rule(face: str) -> None:
    rules = done(RuleSet(Settings(**compiled([RULES[6], RULES[-3]], [], "x-forwarded-for"))))
    fast, slow = both(rules, face, ("/static/a", "GET", "192.0.2.1", "x-forwarded-for", []))
    assert fast is not None
    assert slow is not None
    assert fast.charges == slow.charges
    assert [str(charge.limit) for charge in fast.charges] == [str(limit) for limit in parse("1000/hour; 50/minute")]


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
def test_a_gate_with_on_decision_has_no_fast_path(gate: type[Gate] | type[AsyncGate]) -> None:
    assert gate(Settings(limits="5/minute")).fast_rules is not None
    assert gate(Settings(limits="5/minute", on_decision=lambda _event: None)).fast_rules is None


def test_a_repeated_proxy_header_in_other_case_skips_the_fast_path() -> None:
    rules = done(RuleSet(Settings(**compiled([], ["10.0.0.0/8"], "x-forwarded-for"))))
    raw = scope("/", "GET", "10.0.0.1", "x-forwarded-for", ["192.0.2.1"])
    assert asgi._fast_plan(rules, raw) is not None
    raw["headers"].append((b"X-Forwarded-For", b"192.0.2.2"))
    assert asgi._fast_plan(rules, raw) is None


def test_a_server_that_merges_header_underscores_skips_the_fast_path() -> None:
    rules = done(RuleSet(Settings(**compiled([], ["10.0.0.0/8"], "x-forwarded-for"))))
    raw = environ("/", "GET", "10.0.0.1", "x-forwarded-for", ["192.0.2.1"])
    assert wsgi._fast_plan(rules, raw) is not None
    assert wsgi._fast_plan(rules, {**raw, "SERVER_SOFTWARE": "gunicorn/20.1.0"}) is None


@pytest.mark.promise(2)
def test_a_refusal_is_decided_and_logged_once_if_another_rule_may_delay(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ratelimit_mw.refusals")
    takes: list[Any] = []

    class Store(MemoryStore):
        async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            takes.append(charges)
            return await super().atake(charges)

    app = asgi.RateLimitMiddleware(
        bare,
        store=Store(),
        limits="1/day",
        rules=[{"path": "/slow", "limits": {"limit": "1/minute using gcra", "max_delay": 5}}],
    )
    done(app._gate.rule_set)
    statuses = [asyncio.run(status(app, scope("/", "GET", "192.0.2.1", "x", []))) for _ in range(2)]
    assert (statuses, len(takes)) == ([200, 429], 2)
    assert len([one for one in caplog.records if one.name == "ratelimit_mw.refusals"]) == 1


@pytest.mark.parametrize("face", ["asgi", "wsgi"])
def test_on_refused_receives_the_client_behind_the_proxy(face: str) -> None:
    seen: list[str | None] = []

    def refused(request: Request, _verdict: Verdict) -> Any:
        seen.append(request.client)
        return 418, {}, "no tea"

    options: dict[str, Any] = {"limits": "1/day", "trusted_proxies": ["10.0.0.0/8"], "on_refused": refused}
    request = ("/", "GET", "10.0.0.1", "x-forwarded-for", ["192.0.2.1"])
    app: Any
    if face == "asgi":
        app = asgi.RateLimitMiddleware(bare, **options)
        done(app._gate.rule_set)
        statuses = [asyncio.run(status(app, scope(*request))) for _ in range(2)]
    else:
        app = wsgi.RateLimitMiddleware(bare_wsgi, **options)
        done(app._gate.rule_set)
        started: list[str] = []
        for _ in range(2):
            app(environ(*request), lambda line, *_: started.append(line))
        statuses = [int(line[:3]) for line in started]
    assert (statuses, seen) == ([200, 418], ["192.0.2.1"])


def bare_wsgi(_environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return []


async def bare(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def status(app: Any, raw: dict[str, Any]) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app(raw, receive, send)
    return int(sent[0]["status"])


STYLES: dict[str, list[str]] = {
    "ietf": ["ratelimit-policy", "ratelimit"],
    "legacy": ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
    "both": ["ratelimit-policy", "ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
    "none": [],
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("face", ["asgi", "wsgi"])
def test_the_fast_path_sends_the_same_fields_in_each_header_style(
    face: str, style: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request takes the general path, the second the fast path. Both get the same header fields."""
    names: list[list[str]] = []
    states: list[Any] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            names.append([name.decode().lower() for name, _ in message.get("headers", ())])

    def start_response(_status: str, fields: list[tuple[str, str]], _error: Any = None) -> Any:
        names.append([name.lower() for name, _ in fields])

    app: Any
    if face == "asgi":
        app = asgi.RateLimitMiddleware(bare, limits="10/day", headers=style)
    else:
        app = wsgi.RateLimitMiddleware(bare_wsgi, limits="10/day", headers=style)
    done(app._gate.rule_set)
    fast_rules, app._fast_rules = app._fast_rules, None
    for path in ("general", "fast"):
        if path == "fast":
            monkeypatch.setattr(app, "_decide", None)
            app._fast_rules = fast_rules or app._fast_rules  # the ASGI middleware sets them at its first request
        request = ("/", "GET", "192.0.2.1", "x", list[str]())
        if face == "asgi":
            raw: Any = {**scope(*request), "state": {}}
            asyncio.run(app(raw, None, send))
            states.append(raw["state"]["ratelimit"])
        else:
            raw = environ(*request)
            app(raw, start_response)
            states.append(raw["ratelimit_mw"])
    assert names == [STYLES[style]] * 2
    assert [(one.verdict.remaining, one.headers_claimed) for one in states] == [
        (9, style != "none"),
        (8, style != "none"),
    ]

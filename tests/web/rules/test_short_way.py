"""Tests that the short way charges a request as the longer way does, and which requests it decides."""

import asyncio
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from ratelimit_mw import Charge, Decision, MemoryStore, asgi, parse, wsgi
from ratelimit_mw.engine.entrance import enter_asgi, enter_wsgi
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.http.request import Request
from ratelimit_mw.http.views import AsgiRequest, WsgiRequest
from ratelimit_mw.rules.plan import Plan, make_plan
from ratelimit_mw.rules.rule_set import RuleSet, ShortWay
from ratelimit_mw.rules.rule_table import EndpointRules
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.endpoint_limits import EndpointLimit

FACES = pytest.mark.parametrize("face", ["asgi", "wsgi"])
HEADER = "x-forwarded-for"


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
    *(["2001:db8::2, 10.0.0.9", "127.0.0.1"], ["[2001:db8::2]:80, 10.0.0.1"], ["for=192.0.2.1", "for=10.0.0.1"]),
]
PROXIES: list[Any] = [[], ["10.0.0.0/8", "127.0.0.1"], ["unix:"], 1, 2]
HEADERS = [HEADER, "forwarded", "x-real-ip"]
OPTIONAL: list[dict[str, Any]] = [  # settings, each of which is in every second example
    {"exempt": ["/static/{rest:path}", "/users/me", "/slash/"]},
    {"safelist": ["192.0.2.2", "2001:db8::/64"]},
    {"blocklist": ["192.0.2.0/31", "10.0.0.1"]},
    {"ignore_case": True},
    {"ipv6_prefix": 56},
    {"shadow": True},
    {"key": "user | ip"},
    {"limits": ["3/minute", "50/hour", "100/day using gcra"]},
    {"app_limits": {"limit": "9/second", "key": "all"}},
    {"key_secret": "a secret of a few characters"},
]
ENDPOINTS: list[tuple[EndpointLimit, ...]] = [
    (),
    (EndpointLimit("7/minute", methods=["POST"]), EndpointLimit("8/minute", final=False)),
    (EndpointLimit("9/minute", key="all"), EndpointLimit("11/minute", cost=2)),
    (EndpointLimit("12/minute", when=never),),
    (EndpointLimit("13/minute", key="ip + route"),),
    (EndpointLimit.exemption(),),
]


def scope(
    path: str = "/",
    method: str = "GET",
    peer: str | None = "192.0.2.1",
    header: str = HEADER,
    values: Sequence[str] = (),
) -> dict[str, Any]:
    fields = [(b"Accept", b"*/*"), *((header.encode(), value.encode()) for value in values), (b"host", b"a.example")]
    client = None if peer is None else (peer, 1)
    return {"type": "http", "method": method, "path": path, "headers": fields, "client": client, "root_path": ""}


def environ(
    path: str = "/",
    method: str = "GET",
    peer: str | None = "192.0.2.1",
    header: str = HEADER,
    values: Sequence[str] = (),
) -> dict[str, Any]:
    name = "HTTP_" + header.upper().replace("-", "_")
    return {
        "REQUEST_METHOD": method,
        "PATH_INFO": path.encode().decode("latin-1"),
        "REMOTE_ADDR": peer,
        "HTTP_HOST": "a.example",
        **({name: ",".join(values)} if values else {}),
    }


def both(
    rules: RuleSet, face: str, raw: dict[str, Any], endpoint_rules: EndpointRules = ()
) -> tuple[ShortWay, Request, Any]:
    """Return what the short way finds; and the request after the longer way has matched it, and its `Match`."""
    request: Request
    if face == "asgi":
        short = enter_asgi(rules, raw, endpoint_rules)
        request = AsgiRequest(raw, raw["client"][0] if raw["client"] else None)
    else:
        short = enter_wsgi(rules, raw, endpoint_rules)
        request = WsgiRequest(raw, raw["REMOTE_ADDR"] or None)
    return short, request, rules.match(request, endpoint_rules)


@pytest.mark.promise(10)
@FACES
@pytest.mark.parametrize("seed", range(12))
def test_the_short_way_charges_as_the_longer_way(face: str, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # not for cryptography
    decided = 0
    for _ in range(12):
        proxies = chance.choice(PROXIES)
        header = chance.choice(HEADERS[: 2 if isinstance(proxies, int) else 3])
        settings = {
            "limits": "100/minute",
            "app_limits": "1000/hour",
            "trusted_proxies": proxies,
            "proxy_header": header,
        }
        for more in OPTIONAL:
            settings |= more if chance.random() < 0.5 else {}
        rules = RuleSet(Settings(**settings, rules=chance.sample(RULES, chance.randrange(len(RULES)))))
        rules._proxy_check, rules.reads_headers = None, rules._finder is not None  # as after the first requests
        endpoints = [rules.compile_endpoint_limits(limits, "endpoint") if limits else () for limits in ENDPOINTS]
        for _ in range(150):
            parts = (
                chance.choice(PATHS),
                chance.choice(METHODS),
                chance.choice(PEERS),
                header,
                chance.choice(FORWARDED),
            )
            raw = (scope if face == "asgi" else environ)(*parts)
            (way, charges, client), request, match = both(rules, face, raw, chance.choice(endpoints))
            if way is None:
                continue
            decided += 1
            assert client == request.client, parts
            if match is None:
                assert (way.verdict, [*charges]) == (None, []), parts
                continue
            longer = Plan((), (), ()) if match.denied else make_plan(match, request, {})
            assert (way.match, [*charges], way.policies) == (match, [*longer.charges], [*longer.policies]), parts
            refused = None if way.verdict is None else (way.verdict.allowed, way.verdict.rule, way.verdict.source)
            assert refused == ((False, "blocklist", "store") if match.denied else None), parts
            assert [*way.plan(charges).compiled_limits] == [*longer.compiled_limits], parts
    assert decided > 100


DECIDED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str] | None]] = {
    # settings, request, and the limits that it is charged; None if it is refused
    "one limit": ({}, {}, ["5/minute"]),
    "any path": ({}, {"path": "//a/../b"}, ["5/minute"]),
    "several limits": ({"limits": ["5/minute", "9/hour", "11/day"]}, {}, ["5/minute", "9/hour", "11/day"]),
    "all": ({"app_limits": {"limit": "7/second", "key": "all"}}, {}, ["7/second", "5/minute"]),
    "user or address": ({"key": "user | ip"}, {}, ["5/minute"]),
    "shadow": ({"shadow": True}, {}, ["5/minute"]),
    "no limits": ({"limits": []}, {}, []),
    "a final rule": ({"rules": [RULES[1]]}, {"path": "/users/7"}, ["10/minute"]),
    "two rules": ({"rules": [RULES[6], RULES[-3]]}, {"path": "/static/a/b.css"}, ["50/minute"]),
    "beside a rule": ({"rules": [RULES[1]]}, {"path": "/none"}, ["5/minute"]),
    "another method than a rule's": ({"rules": [RULES[0]]}, {"path": "/login"}, ["5/minute"]),
    "a rule's method": ({"rules": [RULES[0]]}, {"path": "/login", "method": "POST"}, ["5/minute"]),
    "a rule that adds": ({"rules": [RULES[4]]}, {"path": "/files/a"}, ["40/minute", "5/minute"]),
    "exempt": ({"exempt": ["/health"]}, {"path": "/health"}, []),
    "exempt, below a rule": (
        {"exempt": ["/users/me"], "rules": [{"path": "/users/{rest:path}", "limits": "2/day"}]},
        {"path": "/users/you"},
        ["2/day"],
    ),
    "safelist": ({"safelist": ["192.0.2.0/24"]}, {}, []),
    "blocklist before safelist": ({"safelist": ["192.0.2.1"], "blocklist": ["192.0.2.0/24"]}, {}, None),
    "not listed": ({"safelist": ["192.0.2.2"], "blocklist": ["192.0.2.3"]}, {}, ["5/minute"]),
    "IPv6": ({}, {"peer": "2001:db8::1"}, ["5/minute"]),
    "IPv6 in a list": ({"blocklist": ["2001:db8::/32"]}, {"peer": "2001:DB8::1"}, None),
    "IPv4 in IPv6": ({"blocklist": ["192.0.2.1"]}, {"peer": "::ffff:192.0.2.1"}, None),
    "a peer that is no proxy": (
        {"trusted_proxies": ["10.0.0.0/8"], "blocklist": ["192.0.2.7"]},
        {"values": ["192.0.2.7"]},
        ["5/minute"],
    ),
    "behind a proxy": (
        {"trusted_proxies": ["10.0.0.0/8"], "blocklist": ["192.0.2.7"]},
        {"peer": "10.0.0.1", "values": ["192.0.2.7"]},
        None,
    ),
    "behind two proxies": (
        {"trusted_proxies": ["10.0.0.0/8"], "blocklist": ["192.0.2.7"]},
        {"peer": "10.0.0.1", "values": ["192.0.2.9, 192.0.2.7, 10.0.0.2"]},
        None,
    ),
    "IPv6 behind a proxy": (
        {"trusted_proxies": 1, "blocklist": ["2001:db8::/64"]},
        {"peer": "10.0.0.1", "values": ["192.0.2.9, 2001:db8::7"]},
        None,
    ),
    "several lines": (
        {"trusted_proxies": 2, "blocklist": ["192.0.2.7"]},
        {"peer": "10.0.0.1", "values": ["192.0.2.7", "10.0.0.2"]},
        None,
    ),
}


@FACES
@pytest.mark.parametrize("name", DECIDED)
def test_the_short_way_decides_from_the_first_request_on(face: str, name: str) -> None:
    settings, request, limits = DECIDED[name]
    gate = Gate(Settings(**{"limits": "5/minute", **settings}))
    assert gate.has_short_way
    (way, charges, _), _, _ = both(gate.rule_set, face, (scope if face == "asgi" else environ)(**request))
    assert way is not None
    assert (way.verdict is None) is (limits is not None)
    assert [str(charge.limit) for charge in charges] == [str(limit) for limit in map(parse_one, limits or ())]


def parse_one(limit: str) -> Any:
    return parse(limit)[0]


def some_limits(_: object) -> str:
    return "5/minute"


UNDECIDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "OPTIONS": ({}, {"method": "OPTIONS"}),
    "OPTIONS of an exempt path": ({"exempt": ["/"]}, {"method": "OPTIONS"}),
    "an unusual method": ({}, {"method": "PROPFIND"}),
    "a method in lower case": ({}, {"method": "get"}),
    "a host": ({"rules": [RULES[9]]}, {"path": "/hosted"}),
    "a condition": ({"rules": [RULES[10]]}, {"path": "/when"}),
    "a header": ({"rules": [RULES[11]]}, {"path": "/by-key"}),
    "a cookie": ({"key": "cookie:session | ip"}, {}),
    "the route": ({"key": "ip + route"}, {}),
    "the user alone": ({"key": "user"}, {}),
    "limits of a callable": ({"limits": some_limits}, {}),
    "a key of a callable": ({"key": some_limits}, {}),
    "a cost of a callable": ({"limits": {"limit": "5/minute", "cost": always}}, {}),
    "two prefixes": ({"limits": ["5/minute", {"limit": "9/minute", "key": "ip/48"}]}, {"peer": "2001:db8::1"}),
    "a delay": ({"limits": {"limit": "5/minute using gcra", "max_delay": 5}}, {}),
    "slots": ({"concurrent": 3}, {}),
    "a slash at the end": ({"rules": [RULES[8]]}, {"path": "/slash"}),
    "two slashes": ({"rules": [RULES[0]]}, {"path": "//login"}),
    "a dot": ({"rules": [RULES[0]]}, {"path": "/./login"}),
    "no slash": ({"rules": [RULES[0]]}, {"path": "login"}),
    "a parameter and literal text": ({"rules": RULES[1:3]}, {"path": "/users/me"}),
    "a number": ({"rules": [RULES[3]]}, {"path": "/users/7/posts"}),
    "exempt in another case": ({"exempt": ["/health"], "ignore_case": True}, {"path": "/HEALTH"}),
    "no address": ({}, {"peer": None}),
    "a name": ({}, {"peer": "testclient"}),
}


@FACES
@pytest.mark.parametrize("name", UNDECIDED)
def test_the_short_way_leaves_other_requests_undecided(face: str, name: str) -> None:
    settings, request = UNDECIDED[name]
    gate = Gate(Settings(**{"limits": "5/minute", **settings}))
    short, _, _ = both(gate.rule_set, face, (scope if face == "asgi" else environ)(**request))
    assert short == (None, (), None)


@pytest.mark.parametrize("gate", [Gate, AsyncGate])
@pytest.mark.parametrize(
    ("settings", "has_short_way"),
    [
        ({}, True),
        ({"safelist": ["192.0.2.1"], "blocklist": ["192.0.2.2"]}, True),
        ({"safelist": [{"header": "x-secret", "value": "0123456789abcdef"}]}, False),
        ({"blocklist": [never]}, False),
        ({"enabled": always}, False),
        ({"on_decision": lambda _event: None}, False),
    ],
    ids=lambda one: ",".join(one) if isinstance(one, dict) else str(one),
)
def test_callables_and_secrets_that_see_the_request_need_the_longer_way(
    gate: type[Gate] | type[AsyncGate], settings: dict[str, Any], has_short_way: bool
) -> None:
    assert gate(Settings(limits="5/minute", **settings)).has_short_way is has_short_way


def test_a_root_path_or_a_path_beyond_ascii_in_an_environ_needs_the_longer_way_if_paths_matter() -> None:
    plain, by_path = RuleSet(Settings(limits="5/minute")), RuleSet(Settings(limits="5/minute", exempt=["/health"]))
    for raw, face in (({**scope("/root/a"), "root_path": "/root"}, "asgi"), (environ("/\u00e9"), "wsgi")):
        assert [both(rules, face, raw)[0][0] is None for rules in (plain, by_path)] == [False, True]


def test_all_lines_of_a_proxy_header_count_in_any_case() -> None:
    rules = RuleSet(Settings(limits="5/minute", trusted_proxies=["10.0.0.0/8"]))
    raw = scope(peer="10.0.0.1", values=["192.0.2.1"])
    assert both(rules, "asgi", raw)[0][2] == "192.0.2.1"
    raw["headers"].append((b"X-Forwarded-For", b"192.0.2.2"))
    assert both(rules, "asgi", raw)[0][2] == "192.0.2.2"


def test_a_server_that_merges_header_underscores_needs_the_longer_way() -> None:
    rules = RuleSet(Settings(limits="5/minute", trusted_proxies=["10.0.0.0/8"]))
    raw = environ(peer="10.0.0.1", values=["192.0.2.1"])
    assert enter_wsgi(rules, raw)[0] is not None
    assert enter_wsgi(rules, {**raw, "SERVER_SOFTWARE": "gunicorn/20.1.0"})[0] is None


@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8"]])
def test_headers_are_read_for_a_thousand_requests_or_behind_proxies(proxies: list[str]) -> None:
    rules, asked = RuleSet(Settings(limits="5/minute", trusted_proxies=proxies)), list[str]()

    def lines(name: str) -> list[str]:
        asked.append(name)
        return []

    enter = partial(rules.short_way, "GET", "/", "10.0.0.1", lines)
    for _ in range(999):
        enter()
    assert rules.reads_headers
    asked.clear()
    enter()
    assert "x-real-ip" in asked
    assert rules.reads_headers is bool(proxies)
    asked.clear()
    enter()
    assert asked == [HEADER] * len(proxies)


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
    statuses = [asyncio.run(status(app, scope())) for _ in range(2)]
    assert (statuses, len(takes)) == ([200, 429], 2)
    assert len([one for one in caplog.records if one.name == "ratelimit_mw.refusals"]) == 1


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
def test_the_short_way_sends_the_same_fields_in_each_header_style(
    face: str, style: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request takes the longer way, the second the short one. Both get the same header fields."""
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
    for way in ("longer", "short"):
        if way == "short":
            monkeypatch.setattr(app, "_decide", None)
        elif face == "wsgi":
            app._takes_short_way = False
        request = ("/", "GET", "192.0.2.1", "x", list[str]())
        if face == "asgi":
            raw: Any = {**scope(*request), "state": {}}
            asyncio.run(app(raw, None, send))
            states.append(raw["state"]["ratelimit"])
        else:
            raw = environ(*request)
            app(raw, start_response)
            app._takes_short_way = True
            states.append(raw["ratelimit_mw"])
    assert names == [STYLES[style]] * 2
    assert [(one.verdict.remaining, one.headers_claimed) for one in states] == [
        (9, style != "none"),
        (8, style != "none"),
    ]

"""Tests the endpoints of the decision service, and which requests they reject."""

import asyncio
import sys
from typing import Any

import pytest

from ratelimit_mw.core.errors import ConfigError, StoreError
from ratelimit_mw.service import service
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.testing import Control
from service.calls import call, calls, made

FORWARDED = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/a?b", "X-Forwarded-For": "192.0.2.7"}
NGINX = {"X-Original-Method": "GET", "X-Original-Uri": "/a?b", "X-Forwarded-For": "192.0.2.7"}
SLOTS = {"concurrent": 2, "slot_lifetime": 5}


class Away(MemoryStore):
    """A store that always fails."""

    async def atake(self, charges: Any) -> Any:
        raise StoreError("away")

    apeek = areset = asettle = atake


@pytest.mark.parametrize(
    ("path", "headers", "detail"),
    [
        ("/v1/forward", {**FORWARDED, "X-Forwarded-Method": ""}, "x-forwarded-method: missing"),
        ("/v1/forward", NGINX, "x-forwarded-method: missing"),
        ("/v1/nginx", FORWARDED, "x-original-method: missing"),
        ("/v1/nginx", {**NGINX, "X-Original-Uri": ""}, "x-original-uri: missing"),
        ("/v1/forward", {name: FORWARDED[name] for name in list(FORWARDED)[:2]}, "x-forwarded-for: missing"),
        ("/v1/envoy/a", {}, "x-forwarded-for: missing"),
        ("/v1/forward", [*FORWARDED.items(), ("x-forwarded-uri", "/b")], "x-forwarded-uri: present twice"),
        # gunicorn takes the path from these headers, so the app would see another path than the rules
        ("/v1/forward", {**FORWARDED, "SCRIPT_NAME": "/a"}, "a header SCRIPT_NAME or PATH_INFO, with an underscore"),
        ("/v1/nginx", {**NGINX, "Path_Info": "/a"}, "a header SCRIPT_NAME or PATH_INFO, with an underscore"),
        ("/v1/envoy/a", {"X-Forwarded-For": "::1", "script_name": ""}, "a header SCRIPT_NAME or PATH_INFO, with an"),
    ],
)
def test_call_without_a_full_request_description_is_refused(
    path: str, headers: Any, detail: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    (answer,) = calls(made(), ("GET", path, {"headers": headers}))
    status = 403 if path == "/v1/nginx" else 400
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert answer.headers.get("x-ratelimit-status") == ("400" if path == "/v1/nginx" else None)
    assert answer.json()["detail"].startswith(detail)
    assert [text for text in caplog.messages if text.startswith(f"ratelimit_mw: service: refused a call: {detail}")]


@pytest.mark.parametrize(
    ("style", "names"),
    [
        ("ietf", ["ratelimit", "ratelimit-policy"]),
        ("legacy", ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        ("none", []),
    ],
)
def test_an_admitted_request_has_the_headers_of_the_settings(style: str, names: list[str]) -> None:
    answers = calls(made(headers=style), *[("GET", "/v1/forward", {"headers": FORWARDED})] * 2)
    for answer in answers:  # the first one takes the longer way
        assert sorted(name for name in answer.headers if "ratelimit" in name) == names


def test_a_call_of_an_unknown_path_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})
    answers = calls(made(), *[("GET", "/v1/forwards", {})] * 2, ("POST", "/v1/hit", {"json": {"limits": "1/s"}}))
    assert [answer.status_code for answer in answers] == [404, 404, 400]
    (logged,) = [text for text in caplog.messages if "refused a call" in text]
    assert logged.startswith("ratelimit_mw: service: refused a call: path: got '/v1/forwards', expected one of /v1/f")


def test_every_proxy_uses_the_same_bucket(ratelimit_clock: None) -> None:
    app = made(limits="10/day using fixed_window")
    asked = [
        ("GET", "/v1/forward", {"headers": FORWARDED}),
        ("POST", "/v1/forward", {"headers": FORWARDED}),
        ("GET", "/v1/nginx", {"headers": NGINX}),
        ("GET", "/v1/envoy/a?b", {"headers": {"X-Forwarded-For": "192.0.2.7"}}),
        ("GET", "/v1/envoy", {"headers": {"X-Forwarded-For": "203.0.113.1, 192.0.2.7"}}),
        ("GET", "/v1/forward", {"headers": {**FORWARDED, "X-Forwarded-Uri": "*", "X-Forwarded-Method": "OPTIONS"}}),
    ]
    answers = calls(app, *asked)
    assert [answer.status_code for answer in answers] == [200] * 6
    assert [answer.headers["ratelimit"].split(";")[1] for answer in answers] == [
        f"r={left}" for left in range(9, 3, -1)
    ]


@pytest.fixture
def ratelimit_clock(ratelimit: Control) -> None:
    ratelimit.freeze()


def test_forwarded_header_lines_are_joined_to_one_list(ratelimit_clock: None) -> None:
    app = made(limits="10/day using fixed_window", trusted_proxies=["127.0.0.1", "198.51.100.0/24"])
    lines = [("X-Forwarded-For", "203.0.113.9, 192.0.2.7"), ("X-Forwarded-For", "198.51.100.1")]
    described = list(FORWARDED.items())[:2]
    one, several = calls(
        app,
        ("GET", "/v1/forward", {"headers": FORWARDED}),
        ("GET", "/v1/forward", {"headers": [*described, *lines]}),
    )
    assert [answer.headers["ratelimit"].split(";")[1] for answer in (one, several)] == ["r=9", "r=8"]


def test_request_lacks_the_headers_that_describe_it() -> None:
    def refuse(request: Any, _: Any) -> Any:
        names = ("host", "x-forwarded-host", "x-forwarded-uri", "x-forwarded-method", "x-ratelimit-secret", "cookie")
        return 429, {}, repr({name: request.header_lines(name) for name in names if request.header_lines(name)})

    app = service({"limits": "1/day", "trusted_proxies": ["127.0.0.1"], "on_refused": refuse}, secret=TestSecret.SECRET)
    cookies = [("Cookie", "a=1"), ("Cookie", "b=2"), ("X-RateLimit-Secret", TestSecret.SECRET)]
    headers = [*FORWARDED.items(), *cookies, ("X-Forwarded-Host", "a.example")]
    asked = ("GET", "/v1/forward", {"headers": headers})
    _, refused = calls(app, asked, asked)
    assert refused.text == "{'host': ['a.example'], 'cookie': ['a=1', 'b=2']}"


@pytest.mark.parametrize("path", ["/v1/forward", "/v1/nginx", "/v1/envoy/a"])
def test_headers_of_an_untrusted_caller_are_refused(path: str) -> None:
    for app in (service({"limits": "1/day"}), made(trusted_proxies=["10.0.0.0/8"])):
        answers = calls(app, *[("GET", path, {"headers": {**FORWARDED, **NGINX}})] * 2)
        assert [answer.status_code for answer in answers] == [403, 403]
        assert answers[0].json()["detail"].startswith("trusted_proxies: the caller '127.0.0.1' is not one of them")
        for ip in ("192.0.2.7", "127.0.0.1"):
            peeked = call(app, "/v1/peek", {"path": "/a", "ip": ip, "cost": 0}).json()
            assert peeked["remaining"] == peeked["limit"]


LOST = "client: unknown, expected a caller that keeps its connection open until it is answered"


def reported(app: Any, server: tuple[str, int | None], path: str, headers: dict[str, str]) -> tuple[int, str]:
    """Return the status and body of a call whose server reports no client address, and `server` as its own address."""
    fields = [(name.lower().encode(), value.encode()) for name, value in {"Host": "h", **headers}.items()]
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": fields, "client": None, "server": server,
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"limits": "9/day", "key": "k"}'}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], sent[1]["body"].decode()


PROXIED = [("/v1/forward", FORWARDED), ("/v1/nginx", NGINX), ("/v1/envoy/a", {"X-Forwarded-For": "192.0.2.7"})]


@pytest.mark.parametrize(("path", "headers"), PROXIED)
@pytest.mark.promise(10)
def test_caller_without_an_address_is_not_taken_for_a_unix_socket(path: str, headers: dict[str, str]) -> None:
    """uvicorn reports no address for a TCP client that resets its connection at once, as for a unix socket."""
    app = made(limits="9/day", trusted_proxies=["unix:"])
    status, body = reported(app, ("127.0.0.1", 8900), path, headers)
    assert status == 403
    assert LOST in body
    untouched = call(app, "/v1/peek", {"path": "/a", "ip": "192.0.2.7", "cost": 0}).json()
    assert untouched["remaining"] == 9
    assert reported(app, ("/run/ratelimit.sock", None), path, headers)[0] == 200


@pytest.mark.parametrize("path", ["/v1/hit", "/v1/reset", "/metrics"])
def test_caller_without_an_address_is_refused_unless_on_loopback(path: str) -> None:
    app = made()
    for host in ("service.example", "192.0.2.1"):
        assert reported(app, (host, 8900), path, {})[0] == 403
    assert reported(app, ("127.0.0.1", 8900), "/v1/hit", {})[0] == 200
    assert reported(app, ("/run/ratelimit.sock", None), "/v1/hit", {})[0] == 200


def test_refusal_has_the_form_that_each_proxy_needs(ratelimit_clock: None) -> None:
    app = made(limits="1/day using fixed_window")
    asked: list[Any] = [
        ("GET", "/v1/forward", {"headers": FORWARDED}),
        ("GET", "/v1/forward", {"headers": FORWARDED}),
        ("GET", "/v1/nginx", {"headers": NGINX}),
        ("GET", "/v1/forward", {"headers": {**FORWARDED, "X-Forwarded-Method": "HEAD"}}),
        ("HEAD", "/v1/nginx", {"headers": NGINX}),
    ]
    _, forward, nginx, head, nginx_head = calls(app, *asked)
    assert (forward.status_code, forward.headers["retry-after"]) == (429, "86400")
    assert (nginx.status_code, nginx.headers["x-ratelimit-status"]) == (403, "429")
    assert nginx.headers["x-ratelimit-body"] == forward.text == nginx.text
    assert (head.status_code, head.text, head.headers["content-length"]) == (429, "", "0")
    assert (nginx_head.status_code, nginx_head.headers["retry-after"]) == (403, "86400")


@pytest.mark.parametrize("size", [8192, 8193])
def test_long_path_is_refused(ratelimit_clock: None, size: int) -> None:
    """Decoding and matching a path of 250 KB takes longer than a proxy waits."""
    app, uri = made(limits="100/day"), "/?" + "%" * (size - 2)
    forward, nginx = calls(
        app,
        ("GET", "/v1/forward", {"headers": {**FORWARDED, "X-Forwarded-Uri": uri}}),
        ("GET", "/v1/nginx", {"headers": {**NGINX, "X-Original-Uri": uri}}),
    )
    if size == 8192:
        assert [forward.status_code, nginx.status_code] == [200, 200]
    else:
        assert (forward.status_code, nginx.status_code, nginx.headers["x-ratelimit-status"]) == (414, 403, "414")
        assert forward.json()["detail"] == "path: expected at most 8192 bytes with the query"
        assert nginx.headers["x-ratelimit-body"] == forward.text


@pytest.mark.parametrize("kind", ["plain", "asgi"])
@pytest.mark.parametrize(("chosen", "sent"), [(200, 429), (204, 429), (302, 302), (451, 451), (503, 503)])
def test_custom_refusal_never_sends_a_status_that_admits(
    ratelimit_clock: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    chosen: int,
    sent: int,
) -> None:
    """Proxies admit a request after a 2xx."""
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})

    def plain(request: Any, verdict: Any) -> Any:
        return chosen, {"X-Own": "1"}, ""

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": chosen, "headers": [(b"x-own", b"1")]})
        await send({"type": "http.response.body"})

    app = made(limits="1/day", on_refused={"plain": plain, "asgi": asgi}[kind])
    first, general = FORWARDED, {**FORWARDED, "X-Forwarded-Uri": "/%61"}  # escapes take the longer way
    asked = [("GET", "/v1/forward", {"headers": headers}) for headers in (first, first, general)]
    admitted, *refused = calls(app, *asked, ("GET", "/v1/nginx", {"headers": NGINX}))
    assert admitted.status_code == 200
    assert [answer.status_code for answer in refused] == [sent, sent, 403]
    assert refused[2].headers["x-ratelimit-status"] == str(sent)
    assert [answer.headers["x-own"] for answer in refused] == ["1"] * 3
    logged = [record.getMessage() for record in caplog.records if "on_refused" in record.getMessage()]
    text = f"answered a refused request with {chosen}, which looks like an admission; answer with a status such as 429"
    assert [line.partition(": ")[2].partition(": ")[2] for line in logged] == ([] if chosen == sent else [text])


def test_path_with_escapes_is_admitted(ratelimit_clock: None) -> None:
    (answer,) = calls(made(), ("GET", "/v1/forward", {"headers": {**FORWARDED, "X-Forwarded-Uri": "/%61"}}))
    assert answer.status_code == 200


def test_long_or_multiline_body_is_not_sent_as_a_header() -> None:
    def refuse(request: Any, verdict: Any) -> Any:
        return 429, {}, "x\n" if request.path == "/n" else "y" * 9000

    app = made(limits="1/day", on_refused=refuse)
    first = ("GET", "/v1/nginx", {"headers": NGINX})
    answers = calls(app, first, first, ("GET", "/v1/nginx", {"headers": {**NGINX, "X-Original-Uri": "/n"}}))
    assert [answer.status_code for answer in answers] == [200, 403, 403]
    assert all("x-ratelimit-body" not in answer.headers for answer in answers)
    assert answers[1].text == "y" * 9000


def test_rule_matches_the_forwarded_host(ratelimit_clock: None) -> None:
    rule = {"path": "/{rest:path}", "host": "a.example", "limits": "5/day", "name": "host"}
    app = made(rules=[rule])
    a, b = calls(
        app,
        ("GET", "/v1/forward", {"headers": {**FORWARDED, "X-Forwarded-Host": "a.example"}}),
        ("GET", "/v1/nginx", {"headers": {**NGINX, "Host": "a.example", "X-Forwarded-Host": "b.example"}}),
    )
    assert a.headers["ratelimit"].startswith('"host";r=4')
    assert b.headers["ratelimit"].startswith('"host";r=3')


def test_check_joins_fields_of_one_name(ratelimit_clock: None) -> None:
    fields = [("Vary", "Origin"), ("Set-Cookie", "a=1"), ("vary", "Accept"), ("set-cookie", "b=2"), ("Link", "</a>")]
    app = made(limits="1/day", headers="none", on_refused=lambda _request, _verdict: (429, fields, ""))
    call(app, "/v1/check", {"path": "/a", "ip": "192.0.2.7"})
    refused = call(app, "/v1/check", {"path": "/a", "ip": "192.0.2.7"}).json()
    assert {name: refused["headers"][name] for name in ("Vary", "Set-Cookie", "Link")} == {
        "Vary": "Origin, Accept",
        "Set-Cookie": "b=2",
        "Link": "</a>",
    }
    assert {"vary", "set-cookie"}.isdisjoint(refused["headers"])


def test_check_returns_the_decision_status_and_headers(ratelimit_clock: None) -> None:
    app = made(
        limits="3/day using fixed_window", key="user | ip", rules=[{"path": "/free", "exempt": True, "name": "free"}]
    )
    first = call(app, "/v1/check", {"path": "/a", "ip": "192.0.2.7"}).json()
    assert first == {
        "allowed": True,
        "limit": 3,
        "remaining": 2,
        "retry_after": 0.0,
        "next_after": 86400.0,
        "reset_after": 86400.0,
        "delay": 0.0,
        "source": "store",
        "rule": "default",
        "status": 200,
        "headers": {"RateLimit-Policy": '"default";q=3;w=86400', "RateLimit": '"default";r=2;t=86400'},
        "body": "",
    }
    dear = call(app, "/v1/check", {"path": "/a", "ip": "192.0.2.7", "cost": 3}).json()
    assert (dear["allowed"], dear["status"], dear["remaining"]) == (False, 429, 2)
    assert dear["headers"]["Retry-After"] == "86400"
    assert '"violated-policies":["default"]' in dear["body"]
    assert call(app, "/v1/check", {"path": "/a", "cost": 4}).json()["retry_after"] is None
    assert call(app, "/v1/check", {"path": "/a", "ip": "192.0.2.7", "user": "bob"}).json()["remaining"] == 2
    free = call(app, "/v1/check", {"path": "/free", "ip": "192.0.2.7"}).json()
    assert (free["allowed"], free["limit"], free["rule"], free["headers"]) == (True, None, None, {})


def test_check_reads_headers_and_host(ratelimit_clock: None) -> None:
    rule = {
        "path": "/a",
        "methods": ["PUT"],
        "host": "x.example",
        "limits": "5/day",
        "key": "header:X-Key",
        "name": "k",
    }
    app = made(rules=[rule])
    parts = {"path": "/a?q", "method": "put", "host": "x.example", "headers": {"X-Key": "é", "Accept": ["a", "b"]}}
    assert call(app, "/v1/check", parts).json()["rule"] == "k"
    assert call(app, "/v1/check", {**parts, "headers": {"x-key": "é"}}).json()["remaining"] == 3
    assert call(app, "/v1/check", {**parts, "headers": {"x-key": "other"}}).json()["remaining"] == 4


def test_check_accepts_each_target_and_method_of_http(ratelimit_clock: None) -> None:
    """HTTP servers pass such targets and methods to an app, and the app sends them to the service unchanged."""
    app = made(limits="9/day", rules=[{"path": "/login", "limits": "5/day", "name": "login"}])
    requests: list[tuple[dict[str, str], str, int]] = [
        ({"path": "/", "method": "M-SEARCH"}, "default", 8),
        ({"path": "*", "method": "OPTIONS"}, "default", 7),
        ({"path": "http://x.example:80/login?a"}, "login", 6),  # of the default limit: an app may route the whole URL
        ({"path": "http://x.example"}, "default", 5),
        ({"path": "http://x.example?/login"}, "default", 4),
    ]
    answers = [call(app, "/v1/check", parts).json() for parts, *_ in requests]
    assert [(one["rule"], one["remaining"]) for one in answers] == [(rule, left) for _, rule, left in requests]


def test_check_returns_the_delay_without_waiting() -> None:
    app = made(limits=[{"limit": "1/hour using gcra", "max_delay": 7200}])
    call(app, "/v1/check", {"path": "/", "ip": "192.0.2.7"})
    waiting = call(app, "/v1/check", {"path": "/", "ip": "192.0.2.7"}).json()
    assert waiting["allowed"] is True
    assert 3500 < waiting["delay"] <= 3600


def test_request_is_peeked_and_reset(ratelimit_clock: None) -> None:
    app, parts = made(limits="3/day; 5/day using gcra"), {"path": "/a", "ip": "192.0.2.7"}
    call(app, "/v1/check", parts)
    for _ in range(2):
        left = call(app, "/v1/peek", {**parts, "cost": 0}).json()
        assert [(one["name"], one["remaining"]) for one in left["limits"]] == [("default", 2), ("default-2", 4)]
        assert left["limits"][1]["notation"] == "5/86400s using gcra"
    assert [call(app, "/v1/reset", parts).json() for _ in range(2)] == [{"reset": 2}, {"reset": 0}]
    assert call(app, "/v1/peek", {**parts, "cost": 0}).json()["remaining"] == 3
    assert call(made(enabled=False), "/v1/reset", parts).json() == {"reset": 0}
    assert call(made(enabled=False), "/v1/peek", parts).json()["limits"] == []


def test_key_is_hit_peeked_settled_and_reset(ratelimit_clock: None) -> None:
    app, body = made(), {"limits": ["5/day using fixed_window", "9/hour"], "key": ["mail", "bob"]}
    assert call(app, "/v1/hit", {**body, "cost": 3}).json()["remaining"] == 2
    refused = call(app, "/v1/hit", {**body, "cost": 3})
    assert refused.status_code == 200
    assert (refused.json()["allowed"], refused.json()["retry_after"]) == (False, 86400.0)
    assert call(app, "/v1/hit", {**body, "cost": 6}).json()["retry_after"] is None
    assert call(app, "/v1/settle", {**body, "delta": -2}).json() == {"settled": 2}
    assert call(app, "/v1/peek", body).json()["remaining"] == 4
    assert [call(app, "/v1/reset", body).json() for _ in range(2)] == [{"reset": 2}, {"reset": 0}]
    assert call(app, "/v1/peek", body).json()["remaining"] == 5
    assert call(app, "/v1/hit", {**body, "key": "mail"}).json()["remaining"] == 4


def test_slots_are_released_renewed_and_expire(ratelimit: Control) -> None:
    ratelimit.freeze()
    app, body = made(), {"limits": SLOTS, "key": "reports"}
    first, second, third = (call(app, "/v1/hit", body).json() for _ in range(3))
    assert [one["allowed"] for one in (first, second, third)] == [True, True, False]
    assert "slot" not in third
    assert call(app, "/v1/settle", {**body, "release": first["slot"]}).json() == {"settled": 1}
    assert call(app, "/v1/settle", {**body, "release": first["slot"]}).json() == {"settled": 1}  # has no effect
    assert call(app, "/v1/peek", body).json()["remaining"] == 1
    ratelimit.advance(3)
    call(app, "/v1/settle", {**body, "renew": second["slot"]})
    ratelimit.advance(3)
    assert call(app, "/v1/peek", body).json()["remaining"] == 1  # 6 s after the hit, 3 s after the renewal
    ratelimit.advance(3)
    assert call(app, "/v1/peek", body).json()["remaining"] == 2  # the slot has expired: 6 s after the renewal


def test_slots_of_several_units_are_taken_and_released_with_a_rate(ratelimit: Control) -> None:
    ratelimit.freeze()
    app, body = made(), {"limits": ["10/day", {**SLOTS, "name": "a"}, {"concurrent": 3, "name": "b"}], "key": "k"}
    taken = call(app, "/v1/hit", {**body, "cost": 2}).json()
    assert taken["slot"].count("x2") == 2
    assert call(app, "/v1/hit", body).json()["allowed"] is False
    assert call(app, "/v1/settle", {**body, "release": taken["slot"]}).json() == {"settled": 2}
    assert call(app, "/v1/hit", body).json()["allowed"] is True


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/v1/hit", {"limits": "10/mfoo", "key": "k"}, "limits: '10/mfoo': unknown period 'mfoo'"),
        ("/v1/hit", {"limits": [], "key": "k"}, "limits: got none"),
        ("/v1/hit", {"limits": ["1/s", {"concurrent": 0}], "key": "k"}, "limits[1].quota: got 0"),
        ("/v1/hit", {"limits": "1/s", "key": ""}, "key: got ''"),
        ("/v1/hit", {"limits": "1/s", "key": []}, "key: got ()"),
        ("/v1/hit", {"limits": "1/s"}, "body: Object missing required field `key`"),
        ("/v1/hit", {"limits": "1/s", "key": 5}, "key: Expected `str | array`, got `int`"),
        ("/v1/hit", {"limits": "1/s", "key": "k", "cost": -1}, "cost: got -1"),
        ("/v1/hit", {"limits": "1/s", "key": "k", "cost": 2**53}, f"cost: got {2**53}"),
        ("/v1/hit", {"limits": "1/s", "key": "k", "cost": 1.5}, "cost: Expected `int | null`, got `float`"),
        ("/v1/hit", {"limits": "1/s", "key": "k", "costs": 1}, "body: Object contains unknown field `costs`"),
        ("/v1/hit", [], "body: Expected `object`, got `array`"),
        ("/v1/settle", {"limits": "1/s", "key": "k"}, "delta: got 0 of the three"),
        ("/v1/settle", {"limits": "1/s", "key": "k", "delta": 1, "renew": "1x1"}, "delta: got 2 of the three"),
        ("/v1/settle", {"limits": "1/s", "key": "k", "delta": 2**60}, f"delta: got {2**60}"),
        ("/v1/settle", {"limits": "1/s", "key": "k", "release": "1x1"}, "release: got '1x1', expected the `slot`"),
        ("/v1/settle", {"limits": SLOTS, "key": "k", "release": "x"}, "release: got 'x', expected the `slot`"),
        ("/v1/settle", {"limits": SLOTS, "key": "k", "renew": "1x1.2x1"}, "renew: got '1x1.2x1', expected"),
        ("/v1/check", {"path": "a"}, "path: got 'a', expected text that begins with '/', a URL, or '*'"),
        ("/v1/check", {"path": "a:b/c"}, "path: got 'a:b/c', expected text that begins with '/', a URL, or '*'"),
        ("/v1/check", {"path": "/", "method": ""}, "method: got '', expected a method"),
        ("/v1/check", {"path": "/", "ip": "300.1.1.1"}, "ip: got '300.1.1.1', expected an address"),
        ("/v1/check", {"path": "/", "method": "G T"}, "method: got 'G T', expected a method"),
        ("/v1/check", {"path": "/", "headers": {"a": 1}}, "headers[...]: Expected `str | array`, got `int`"),
        ("/v1/check", {"path": "/", "cost": -5}, "cost: got -5"),
        ("/v1/peek", {"path": 5}, "path: Expected `str`, got `int`"),
        ("/v1/reset", {"key": "k"}, "body: Object missing required field `limits`"),
    ],
)
def test_invalid_input_is_an_error_with_its_place(path: str, body: Any, detail: str) -> None:
    answer = call(made(), path, body)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["detail"].startswith(detail)
    assert answer.json()["status"] == 400


@pytest.mark.parametrize(
    ("content", "detail"),
    [
        (b"", "body: invalid JSON"),
        (b"{", "body: invalid JSON"),
        (b"\xff\xfe", "body: invalid JSON"),
        (b'{"limits": "1/s", "key": "\\ud800"}', "body: invalid JSON"),
        (b"[" * 60_000, "body: "),
        (b'{"key": ' + b"[" * 60_000, "key[0]: Expected `str`, got `array`"),
        (b"null", "body: Expected `object`, got `null`"),
        (b"1" * 5000, "body: "),
    ],
)
@pytest.mark.parametrize("path", ["/v1/hit", "/v1/peek"])
def test_invalid_body_is_an_error(path: str, content: bytes, detail: str) -> None:
    (answer,) = calls(made(), ("POST", path, {"content": content}))
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(detail)


def test_unknown_paths_methods_and_origins_are_refused() -> None:
    app = made()
    asked: list[Any] = [
        ("GET", "/healthz", {}),
        ("HEAD", "/healthz", {}),
        ("POST", "/healthz", {}),
        ("GET", "/", {}),
        ("GET", "/v1/envoyer", {}),
        ("GET", "/v1/hit", {}),
        ("POST", "/v1/hit", {"json": {"limits": "1/s", "key": "k"}, "headers": {"Origin": "https://evil.example"}}),
    ]
    answers = calls(app, *asked)
    assert [answer.status_code for answer in answers] == [200, 200, 405, 404, 404, 405, 403]
    assert answers[0].json() == {"status": "ok"}
    assert (answers[2].headers["allow"], answers[5].headers["allow"]) == ("GET, HEAD", "POST")


def test_metrics_endpoint_counts_requests_by_outcome() -> None:
    app = made(metrics=True, rules=[{"path": "/m", "limits": "1/day", "name": "counted-by-the-service"}])
    headers = {**FORWARDED, "X-Forwarded-Uri": "/m"}
    asked = [("GET", "/v1/forward", {"headers": headers})] * 3
    answer = calls(app, *asked, ("GET", "/metrics", {}))[-1]
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    for outcome, count in (("admitted", 1), ("refused", 2)):
        counted = (
            f'ratelimit_requests_total{{outcome="{outcome}",rule="counted-by-the-service",source="store"}} {count}.0'
        )
        assert counted in answer.text
    (off,) = calls(made(), ("GET", "/metrics", {}))
    assert (off.status_code, off.json()["detail"][:14]) == (404, "metrics: false")


def test_metrics_without_prometheus_client_name_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    (answer,) = calls(made(metrics=True), ("GET", "/metrics", {}))
    assert answer.status_code == 404
    assert answer.json()["detail"] == (
        "metrics: this part of ratelimit_mw needs prometheus_client: pip install 'ratelimit-mw[prometheus]'"
    )


@pytest.mark.parametrize("mode", ["allow", "deny", "local"])
def test_failing_store_is_handled_as_on_store_error_specifies(mode: str) -> None:
    app = made(store=Away(), on_store_error=mode, limits="1/day")
    body, parts = {"limits": "1/day", "key": "k"}, {"path": "/", "ip": "192.0.2.7"}
    hits = [call(app, "/v1/hit", body).json() for _ in range(2)]
    checks = [call(app, "/v1/check", parts).json() for _ in range(2)]
    allowed = {"allow": [True, True], "deny": [False, False], "local": [True, False]}[mode]
    source = {"allow": "allowed_on_error", "deny": "denied_on_error", "local": "local"}[mode]
    for answers in (hits, checks):
        assert [one["allowed"] for one in answers] == allowed
        assert {one["source"] for one in answers} == {source}
    if mode == "deny":
        assert (hits[0]["retry_after"], checks[0]["status"]) == (1.0, 503)
    for path, call_body in (
        ("/v1/peek", body),
        ("/v1/reset", body),
        ("/v1/settle", {**body, "delta": 1}),
        ("/v1/peek", parts),
    ):
        answer = call(app, path, call_body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def test_slots_of_the_fallback_store_are_released_in_it() -> None:
    app, body = made(store=Away()), {"limits": {"concurrent": 1}, "key": "k"}
    slot = call(app, "/v1/hit", body).json()["slot"]
    assert slot.startswith("local:")
    assert call(app, "/v1/hit", body).json()["allowed"] is False
    assert call(app, "/v1/settle", {**body, "release": slot}).status_code == 200
    assert call(app, "/v1/hit", body).json()["allowed"] is True


class TestSecret:
    SECRET = "sixteen-letters!"

    def test_calls_without_the_secret_are_refused(self) -> None:
        app = service({"limits": "1/day"}, secret=self.SECRET)
        paths = ["/healthz", "/metrics", "/v1/forward", "/v1/nginx", "/v1/envoy/a", "/nothing"]
        wrong = [
            {},
            {"X-RateLimit-Secret": "wrong"},
            {"X-RateLimit-Secret": self.SECRET[:-1]},
            {"Authorization": self.SECRET},
        ]
        asked: list[Any] = [("GET", path, {"headers": headers}) for path in paths for headers in wrong]
        asked += [("POST", "/v1/hit", {"json": {"limits": "1/s", "key": "k"}})]
        asked += [("GET", "/healthz", {"headers": [("X-RateLimit-Secret", self.SECRET), ("X-RateLimit-Secret", "x")]})]
        for answer in calls(app, *asked):
            assert answer.status_code == 403
            assert answer.headers.get("x-ratelimit-status") == ("403" if answer.url.path == "/v1/nginx" else None)
            assert answer.json()["detail"].startswith("X-RateLimit-Secret: missing or wrong")

    def test_calls_with_the_secret_are_accepted_from_any_address(self) -> None:
        app = service({"limits": "1/day"}, secret=self.SECRET)
        (answer,) = calls(app, ("GET", "/healthz", {"headers": {"X-RateLimit-Secret": self.SECRET}}), peer="192.0.2.1")
        assert answer.status_code == 200

    @pytest.mark.parametrize(
        ("peer", "status"), [("127.0.0.9", 200), ("::1", 200), ("192.0.2.1", 403), ("fe80::1", 403)]
    )
    def test_service_without_a_secret_accepts_only_loopback(self, peer: str, status: int) -> None:
        (answer,) = calls(service({"limits": "1/day"}), ("GET", "/healthz", {}), peer=peer)
        assert answer.status_code == status

    @pytest.mark.parametrize(
        "secret", ["short", "with a space in it", "nicht-ascii-überall", "line\nbreak-in-the-middle"]
    )
    def test_invalid_secret_is_an_error(self, secret: str) -> None:
        with pytest.raises(ConfigError, match=r"secret: expected at least 16 ASCII characters"):
            service({"limits": "1/day"}, secret=secret)


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ({"concurrent": 5}, "concurrent: counts requests in progress"),
            ({"rules": [{"path": "/a", "concurrent": 5, "name": "a"}]}, r"rules\[0\] \(a\).concurrent: counts"),
        ],
    )
    def test_concurrent_is_an_error(self, options: dict[str, Any], problem: str) -> None:
        with pytest.raises(ConfigError, match=problem):
            made(**options)

    def test_options_that_need_a_response_are_logged_and_charge(self, caplog: pytest.LogCaptureFixture) -> None:
        rule = {"path": "/a", "limits": "1/day", "count_status": [401], "name": "a"}
        app = made(rules=[rule], messages="1/second")
        assert [record.getMessage().removeprefix("ratelimit_mw: ") for record in caplog.records] == [
            "rules[0] (a).count_status: the service does not see responses, so every request stays charged",
            (
                "messages: the service does not see messages of websockets, so they are not limited; limit them in the "
                "app, and remove this option"
            ),
        ]
        parts = {"path": "/a", "ip": "192.0.2.7"}
        assert [call(app, "/v1/check", parts).json()["allowed"] for _ in range(2)] == [True, False]
        headers = {**FORWARDED, "X-Forwarded-Uri": "/a", "X-Forwarded-For": "192.0.2.8"}
        answers = calls(app, *[("GET", "/v1/forward", {"headers": headers})] * 2)
        assert [answer.status_code for answer in answers] == [200, 429]

    def test_settings_come_from_an_object_a_mapping_or_a_file(self, tmp_path: Any) -> None:
        file = tmp_path / "limits.toml"
        file.write_text('limits = "7/day"')
        for settings in (Settings(limits="7/day"), {"limits": "7/day"}, file, str(file)):
            assert call(service(settings), "/v1/check", {"path": "/"}).json()["limit"] == 7
        with pytest.raises(ConfigError, match="limits: required"):
            service({})

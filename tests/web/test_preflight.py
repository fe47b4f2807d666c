"""CORS preflights: what is one, and which limits it meets."""

from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from ratelimit_mw import asgi
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import WEBSOCKET, App200, talk
from web.faces import FACES, _hello, _over_httpx
from web.messages import message_of
from web.scenario import Step

ORIGIN, METHOD = ("Origin", "https://example.com"), ("Access-Control-Request-Method", "PUT")
ALL = pytest.mark.parametrize("face", FACES)


def names_of(store: RecordingStore) -> list[str]:
    return [charge.key.rpartition(":")[2] for _, charges in store.calls for charge in charges]


@ALL
@pytest.mark.parametrize(
    ("method", "lines", "name"),
    [
        ("OPTIONS", (ORIGIN, METHOD), "preflight"),
        ("OPTIONS", (METHOD, ORIGIN, ("Access-Control-Request-Headers", "x-a")), "preflight"),
        ("OPTIONS", (("ORIGIN", "null"), ("ACCESS-CONTROL-REQUEST-METHOD", "")), "preflight"),
        ("OPTIONS", (ORIGIN, ORIGIN, METHOD, METHOD), "preflight"),
        ("OPTIONS", (), "default"),
        ("OPTIONS", (ORIGIN,), "default"),
        ("OPTIONS", (METHOD,), "default"),
        ("OPTIONS", (ORIGIN, ("Access-Control-Request-Headers", "x-a")), "default"),
        ("GET", (ORIGIN, METHOD), "default"),
        ("POST", (ORIGIN, METHOD), "default"),
        ("PUT", (ORIGIN, METHOD, ("X-HTTP-Method-Override", "OPTIONS")), "default"),
    ],
)
@pytest.mark.parametrize("rules", [[], [{"path": "/other", "limits": "5/hour"}]], ids=["no rules", "rules"])
def test_what_is_a_preflight(
    face: str, method: str, lines: tuple[tuple[str, str], ...], name: str, rules: list[Any]
) -> None:
    store = RecordingStore(clock=Clock())
    FACES[face]({"limits": "9/hour", "store": store, "rules": rules})(Step(method=method, lines=lines))
    assert names_of(store) == [name]


def test_a_handshake_is_none() -> None:
    store = RecordingStore(clock=Clock())
    app = asgi.RateLimitMiddleware(App200({"type": "websocket.accept"}), limits="9/hour", store=store)
    talk(app, WEBSOCKET, headers=[(b"origin", b"https://example.com"), (b"access-control-request-method", b"GET")])
    assert names_of(store) == ["default"]


@ALL
@pytest.mark.promise(9)
def test_preflights_have_no_bucket_that_a_rule_has(face: str) -> None:
    """A browser's questions leave a page's own limits whole, and its requests leave theirs."""
    store = RecordingStore(clock=Clock())
    rule = {"path": "/{rest:path}", "limits": "3/hour", "name": "page"}
    send = FACES[face]({"limits": "2/hour", "store": store, "rules": [rule]})
    statuses = [send(Step(method="OPTIONS", path="/a", lines=(ORIGIN, METHOD))).status for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert [send(Step(path="/a")).status for _ in range(4)] == [200, 200, 200, 429]
    assert names_of(store) == ["preflight"] * 4 + ["page"] * 4


@ALL
def test_a_preflight_whose_callables_say_nothing_meets_its_own_default(face: str) -> None:
    store = RecordingStore(clock=Clock())
    rule = {"path": "/", "preflight": True, "limits": lambda _: None, "when": lambda _: None}
    FACES[face]({"limits": "9/hour", "store": store, "rules": [rule]})(Step(method="OPTIONS", lines=(ORIGIN, METHOD)))
    assert names_of(store) == ["preflight"]


@ALL
def test_without_limits_a_preflight_has_none(face: str) -> None:
    store = RecordingStore(clock=Clock())
    send = FACES[face]({"limits": [], "store": store, "rules": [{"path": "/", "limits": "5/hour"}]})
    send(Step(method="OPTIONS", lines=(ORIGIN, METHOD)))
    assert names_of(store) == []


@ALL
@pytest.mark.promise(8)
@pytest.mark.parametrize(("mode", "status"), [("allow", 200), ("deny", 503), ("local", 200)])
def test_a_preflight_while_the_store_is_down(face: str, mode: str, status: int) -> None:
    store = RecordingStore(clock=Clock())
    store.error = ConnectionError("down")
    send = FACES[face]({"limits": "1/hour", "store": store, "on_store_error": mode})
    preflight = Step(method="OPTIONS", lines=(ORIGIN, METHOD))
    assert [send(preflight).status, send(preflight).status] == [status, 429 if mode == "local" else status]
    assert send(Step()).status == status


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"preflight": "yes"}, "rules[0].preflight: found 'yes', allowed is true or false"),
        ({"preflight": True, "methods": ["OPTIONS"]},
         "rules[0].methods: found ['OPTIONS']; a rule with preflight = true is for OPTIONS alone"),
        ({"name": "preflight"},
         "rules[0].name: found 'preflight', which has a meaning of its own here; choose another"),
    ],
)  # fmt: skip
def test_a_wrong_rule(rule: dict[str, Any], message: str) -> None:
    assert message_of(limits=[], rules=[{"path": "/", "limits": "5/hour", **rule}]) == message


@pytest.mark.parametrize(("outside", "names"), [(True, ["default"]), (False, ["preflight", "default"])])
def test_with_starlettes_own_cors(outside: bool, names: list[str]) -> None:
    """Outside it answers preflights itself; inside, they are counted before."""
    store = RecordingStore(clock=Clock())
    ours = Middleware(asgi.RateLimitMiddleware, limits="9/hour", store=store)
    cors = Middleware(CORSMiddleware, allow_origins=["*"], allow_methods=["PUT"], expose_headers=["*"])
    app = Starlette(
        routes=[Route("/{rest:path}", _hello, methods=["PUT"])], middleware=[cors, ours] if outside else [ours, cors]
    )
    send = _over_httpx(app)
    asked = send(Step(method="OPTIONS", lines=(ORIGIN, METHOD)))
    assert (asked.status, asked.field("access-control-allow-methods")) == (200, ["PUT"])
    assert send(Step(method="PUT", lines=(ORIGIN,))).field("access-control-allow-origin") == ["*"]
    assert names_of(store) == names


@pytest.mark.parametrize("outside", [True, False])
def test_a_refusal_can_be_read_by_a_browser_only_when_cors_stands_outside(outside: bool) -> None:
    store = RecordingStore(clock=Clock())
    ours = Middleware(asgi.RateLimitMiddleware, limits="1/hour", store=store)
    cors = Middleware(CORSMiddleware, allow_origins=["*"], expose_headers=["RateLimit"])
    middleware = [cors, ours] if outside else [ours, cors]
    send = _over_httpx(Starlette(routes=[Route("/{rest:path}", _hello)], middleware=middleware))
    answers = [send(Step(lines=(ORIGIN,))) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 429]
    assert [answer.field("access-control-allow-origin") for answer in answers] == [["*"], ["*"] if outside else []]

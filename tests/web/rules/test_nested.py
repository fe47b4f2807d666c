"""Tests a middleware inside another: what a request is charged, and what its response contains."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import http_sf
import pytest
from msgspec import json
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from ratelimit_mw import MemoryStore, asgi, wsgi
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import HTTP, WEBSOCKET, App200, talk
from web.faces import _hello, _over_httpx
from web.scenario import Answer, Step
from web.wsgi_talk import Server, read

Layers = Sequence[Mapping[str, Any]]  # settings, the outermost first
Nested = Callable[..., Answer]
PLAIN = [("x-app", "1")]


def over_asgi(layers: Layers, own: Sequence[tuple[str, str]] = PLAIN) -> Nested:
    headers = [(name.encode(), value.encode()) for name, value in own]
    start = {"type": "http.response.start", "status": 200, "headers": headers}
    app: Any = App200(start, {"type": "http.response.body", "body": b"hello"})
    for layer in reversed(layers):
        app = asgi.RateLimitMiddleware(app, layer)

    def send(**more: Any) -> Answer:
        first, body = talk(app, HTTP, **more).sent
        fields = [(name.decode().lower(), value.decode()) for name, value in first["headers"]]
        return Answer(first["status"], fields, body["body"])

    return send


def over_wsgi(layers: Layers, own: Sequence[tuple[str, str]] = PLAIN) -> Nested:
    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", list(own))
        return [b"hello"]

    for layer in reversed(layers):
        app = wsgi.RateLimitMiddleware(app, layer)

    def send(**more: Any) -> Answer:
        client = more.pop("client", ("192.0.2.1", 0))
        server = Server(REMOTE_ADDR=client[0], **({"PATH_INFO": more["path"]} if more else {}))
        body = read(server.ask(app))
        ((status, fields),) = server.started
        return Answer(int(status[:3]), [(name.lower(), value) for name, value in fields], body)

    return send


BOTH = pytest.mark.parametrize("nested", [over_asgi, over_wsgi], ids=["asgi", "wsgi"])


def stored(**settings: Any) -> tuple[RecordingStore, dict[str, Any]]:
    store = RecordingStore(clock=Clock())
    return store, {"store": store, "plain_keys": True, **settings}


def taken(store: RecordingStore) -> list[list[str]]:
    return [
        [f"{charge.key} {charge.limit.notation}" for charge in charges]
        for verb, charges in store.calls
        if verb == "take"
    ]


def settled_by(store: RecordingStore) -> list[list[tuple[str, int]]]:
    return [
        [(charge.limit.notation, charge.cost) for charge in charges]
        for verb, charges in store.calls
        if verb == "settle"
    ]


def items(answer: Answer, name: str) -> list[tuple[str, dict[str, int]]]:
    if not answer.field(name):
        return []
    found: Any = http_sf.parse(", ".join(answer.field(name)).encode(), tltype="list")
    return list(found)


@BOTH
@pytest.mark.promise(2)
@pytest.mark.parametrize("deep", [1, 2, 3])
def test_identical_nested_middlewares_charge_a_request_once(nested: Any, deep: int) -> None:
    store, settings = stored(limits="2/minute")
    send = nested([settings] * deep)
    assert [send().status for _ in range(3)] == [200, 200, 429]
    assert taken(store) == [["{ip=192.0.2.1}:default 2/60s using sliding_window_counter"]] * 3


@BOTH
def test_identical_nested_middlewares_add_their_header_fields_once(nested: Any) -> None:
    _, settings = stored(limits="2/minute", headers="both")
    send = nested([settings] * 3)
    for status, remaining in ((200, 1), (200, 0), (429, 0)):
        answer = send()
        assert answer.status == status
        assert items(answer, "ratelimit") == [("default", {"r": remaining, "t": 60})]
        assert items(answer, "ratelimit-policy") == [("default", {"q": 2, "w": 60})]
        assert answer.field("x-ratelimit-remaining") == [str(remaining)]


@BOTH
@pytest.mark.promise(9)
def test_an_inner_middleware_enforces_its_own_limits(nested: Any) -> None:
    store, outer = stored(limits="9/minute")
    inner = {**outer, "limits": "2/hour"}
    send = nested([outer, inner, outer])
    assert [send().status for _ in range(3)] == [200, 200, 429]
    client = "{ip=192.0.2.1}:default "
    own, other = f"{client}9/60s using sliding_window_counter", f"{client}2/3600s using sliding_window_counter"
    assert taken(store) == [[own], [other]] * 3


@BOTH
def test_header_fields_list_the_limits_of_both_middlewares(nested: Any) -> None:
    _, outer = stored(limits=[{"limit": "9/minute", "name": "edge"}])
    inner = {**outer, "limits": [{"limit": "2/hour", "name": "api"}, {"limit": "9/minute", "name": "edge"}]}
    send = nested([outer, inner])
    answer = send()
    assert items(answer, "ratelimit") == [("api", {"r": 1, "t": 3600}), ("edge", {"r": 8, "t": 60})]
    assert items(answer, "ratelimit-policy") == [("api", {"q": 2, "w": 3600}), ("edge", {"q": 9, "w": 60})]
    send()
    refused = send()
    assert refused.status == 429
    assert json.decode(refused.body)["violated-policies"] == ["api"]
    assert refused.field("retry-after") == ["3600"]
    assert items(refused, "ratelimit") == [("api", {"r": 0, "t": 3600}), ("edge", {"r": 6, "t": 60})]
    assert len(refused.field("cache-control")) == 1


@BOTH
@pytest.mark.promise(2)
def test_an_inner_refusal_does_not_refund_the_outer_charge(nested: Any) -> None:
    store, outer = stored(limits=[{"limit": "9/minute using fixed_window", "cost": 3}], app_limits=["8/minute"])
    inner = {**outer, "limits": "1/hour", "app_limits": []}
    send = nested([outer, inner])
    answers = [send() for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 429, 429, 429]
    assert [json.decode(answer.body)["violated-policies"] for answer in answers[1:]] == [["default"]] * 3
    assert answers[2].field("retry-after") == ["3600"]
    assert answers[3].field("retry-after") == ["60"]  # the outer middleware refuses
    assert [verb for verb, _ in store.calls] == ["take"] * 7


@BOTH
@pytest.mark.promise(2)
def test_the_outer_limit_bounds_the_work_between_two_middlewares(nested: Any) -> None:
    """An example of such work is checking a password."""
    worked = []

    def work(request: Any) -> str:
        worked.append(request)
        return "alice"

    _, outer = stored(limits="20/minute")
    send = nested([outer, {"limits": "2/minute", "key": work, "store": MemoryStore(clock=Clock())}])
    assert [send().status for _ in range(30)] == [200] * 2 + [429] * 28
    assert len(worked) == 20


@pytest.mark.promise(2)
@pytest.mark.parametrize("settled", [0, 5], ids=["less", "more"])
def test_an_app_can_settle_the_outer_charge_after_an_inner_refusal(settled: int) -> None:
    """Only the charges of the outer middleware are settled: the inner one has charged nothing."""
    store, outer = stored(limits=[{"limit": "9/minute", "cost": 3}])
    inner = asgi.RateLimitMiddleware(App200(), {**outer, "limits": "1/hour"})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)
        outcome = scope["state"]["ratelimit"]
        if not outcome.verdict.allowed:
            outcome.settle(settled)

    both = asgi.RateLimitMiddleware(app, outer)
    assert [talk(both, HTTP).sent[0]["status"] for _ in range(2)] == [200, 429]
    assert settled_by(store)[-1] == [("9/60s using sliding_window_counter", settled - 3)]


def test_a_settle_callable_is_not_called_if_its_middleware_charged_nothing() -> None:
    called: list[str] = []

    def outer_cost(_: object, __: object) -> int:
        called.append("outer")
        return 2

    def inner_cost(_: object, __: object) -> int:
        called.append("inner")
        return 2

    store, outer = stored(limits="9/minute", settle=outer_cost)
    send = over_asgi([outer, {**outer, "limits": "1/hour", "settle": inner_cost}])
    assert [send().status, sorted(called)] == [200, ["inner", "outer"]]
    called.clear()
    assert [send().status, called] == [429, ["outer"]]
    assert settled_by(store)[-1] == [("9/60s using sliding_window_counter", 1)]


@BOTH
@pytest.mark.promise(4)
@pytest.mark.parametrize(
    "using", ["sliding_window_counter", "fixed_window", "token_bucket", "gcra", "sliding_window_log"]
)
@pytest.mark.parametrize("deep", [1, 2], ids=["last", "one left"])
def test_retry_after_of_an_inner_refusal_is_accurate(nested: Any, using: str, deep: int) -> None:
    """The outer limit also determines the wait, because it charges the retry, too."""
    clock = Clock()
    outer = {"limits": f"{deep + 1} per 8 seconds using {using}", "store": MemoryStore(clock=clock)}
    send = nested([outer, {**outer, "limits": f"1/second using {using}"}])
    assert send().status == 200
    refused = send()
    assert refused.status == 429
    (wait,) = refused.field("retry-after")
    assert int(wait) == 1 or deep == 1
    assert f"Try again in {wait} second" in json.decode(refused.body)["detail"]
    clock.advance(int(wait))
    assert send().status == 200


@BOTH
@pytest.mark.promise(4)
def test_inner_retry_after_ignores_the_slot_of_the_request_itself(nested: Any) -> None:
    store = MemoryStore(clock=Clock())
    outer = {"limits": [], "rules": [{"path": "/", "concurrent": 1}], "slot_retry": 30, "store": store}
    send = nested([outer, {"limits": "1/second", "store": store}])
    assert [send().status, send().field("retry-after")] == [200, ["1"]]


def test_an_inner_refusal_makes_no_further_call_to_an_async_outer_store(
    caplog: pytest.LogCaptureFixture, speaks_again: None
) -> None:
    """The inner middleware decides in memory, without awaiting; the outer store can only be awaited."""
    asked: list[str] = []

    class Awaited:
        """An AsyncStore with no other methods."""

        def __init__(self) -> None:
            self._store = MemoryStore(clock=Clock())

        async def atake(self, charges: Any) -> Any:
            asked.append("take")
            return await self._store.atake(charges)

        async def apeek(self, charges: Any) -> Any:
            asked.append("peek")
            return await self._store.apeek(charges)

        async def asettle(self, charges: Any) -> Any:
            asked.append("settle")
            return await self._store.asettle(charges)

        async def areset(self, charges: Any) -> None:
            await self._store.areset(charges)

        async def aclose(self) -> None:
            """Nothing to close."""

    inner = {"limits": "1/hour", "store": MemoryStore(clock=Clock())}
    send = over_asgi([{"limits": "3/minute", "store": Awaited()}, inner])
    assert [send().status for _ in range(4)] == [200, 429, 429, 429]
    assert asked == ["take"] * 4
    assert caplog.text == ""


@BOTH
def test_an_outer_refusal_makes_no_inner_store_call(nested: Any) -> None:
    store, outer = stored(limits="1/minute")
    send = nested([outer, {**outer, "limits": "9/hour"}])
    assert [send().status for _ in range(2)] == [200, 429]
    assert len(store.calls) == 3


@BOTH
@pytest.mark.promise(9)
def test_an_inner_middleware_charges_requests_that_the_outer_exempts(nested: Any) -> None:
    store, settings = stored(limits="1/minute")
    send = nested([{**settings, "exempt": ["/"]}, settings])
    assert [send().status for _ in range(2)] == [200, 429]
    assert len(store.calls) == 2


@BOTH
@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("inner", "status"),
    [
        ({"blocklist": ["192.0.2.1"]}, 403),
        ({"key": "header:x-key", "missing_key": "deny"}, 403),
        ({"limits": lambda _: None}, 503),
        ({"on_store_error": "deny", "limits": "7/minute"}, 503),
    ],
    ids=["blocked", "no key", "no limits", "no store"],
)
def test_an_inner_middleware_can_refuse_without_a_decision_of_its_store(
    nested: Any, inner: dict[str, Any], status: int
) -> None:
    _, outer = stored(limits="9/minute")
    broken = RecordingStore(clock=Clock())
    broken.error = ConnectionError("down") if status == 503 else None
    assert nested([outer, {**outer, "store": broken, **inner}])().status == status


@BOTH
@pytest.mark.promise(9)
def test_an_inner_middleware_enforces_limits_that_the_outer_shadows(nested: Any) -> None:
    _, settings = stored(limits="3/minute")
    send = nested([{**settings, "shadow": True}, {**settings, "store": MemoryStore(clock=Clock())}])
    assert [send().status for _ in range(4)] == [200, 200, 200, 429]


@BOTH
@pytest.mark.promise(9)
def test_an_inner_middleware_charges_its_own_cost(nested: Any) -> None:
    _, outer = stored(limits="9/minute")
    send = nested([outer, {**outer, "limits": [{"limit": "9/minute", "cost": 5}]}])
    assert [send().status for _ in range(3)] == [200, 429, 429]


@BOTH
@pytest.mark.promise(8, 9)
def test_an_inner_middleware_charges_requests_admitted_by_an_outer_store_error(nested: Any) -> None:
    _, settings = stored(limits="1/minute")
    broken = RecordingStore(clock=Clock())
    broken.error = ConnectionError("down")
    send = nested([{**settings, "store": broken, "on_store_error": "allow"}, settings])
    assert [send().status for _ in range(2)] == [200, 429]


@BOTH
def test_nested_middlewares_count_each_client_separately(nested: Any) -> None:
    _, settings = stored(limits="1/minute")
    send = nested([settings, settings])
    assert [send(client=(client, 0)).status for client in ("192.0.2.1", "192.0.2.2", "192.0.2.1")] == [200, 200, 429]


@BOTH
def test_an_inner_middleware_with_another_key_charges_that_key(nested: Any) -> None:
    store, outer = stored(limits="9/minute")
    nested([outer, {**outer, "key": "all"}])()
    notation = "9/60s using sliding_window_counter"
    assert taken(store) == [[f"{{ip=192.0.2.1}}:default {notation}"], [f"{{all=all}}:default {notation}"]]


@BOTH
def test_an_inner_rule_of_another_name_has_its_own_bucket(nested: Any) -> None:
    rule = {"path": "/", "limits": "3/minute", "name": "root"}
    store, outer = stored(limits="9/minute", rules=[rule])
    nested([outer, {**outer, "rules": [{**rule, "name": "other"}], "app_limits": "5/minute"}])()
    names = [[charge.rpartition(":")[2].partition(" ")[0] for charge in charges] for charges in taken(store)]
    assert names == [["root"], ["app", "other"]]


@pytest.mark.promise(9)
@pytest.mark.parametrize("deep", [1, 2, 3])
def test_requests_that_share_a_state_are_all_charged(deep: int) -> None:
    _, settings = stored(limits="2/minute")
    send, shared = over_asgi([settings] * deep), {"db": object()}
    assert [send(state=shared).status for _ in range(4)] == [200, 200, 429, 429]
    assert [send(state={**shared}).status for _ in range(2)] == [429, 429]  # servers copy the state for each request


@pytest.mark.promise(9)
def test_client_headers_cannot_mark_a_request_as_charged() -> None:
    _, settings = stored(limits="1/minute")
    for nested in (over_asgi, over_wsgi):
        settings["store"] = MemoryStore(clock=Clock())
        send = nested([settings])
        send()
        assert send().status == 429
    forged = {**HTTP, "headers": [(b"ratelimit_mw", b"1"), (b"ratelimit", b"1")]}
    assert talk(asgi.RateLimitMiddleware(App200(), settings), forged).sent[0]["status"] == 429
    server = Server(HTTP_RATELIMIT_MW="1", HTTP_RATELIMIT="1")
    app = wsgi.RateLimitMiddleware(lambda _, __: [b""], settings)
    read(server.ask(app))
    ((status, _),) = server.started
    assert status == "429 Too Many Requests"


@pytest.mark.parametrize("more", [{}, {"state": {}}], ids=["no state", "state"])
def test_the_app_finds_one_verdict_on_the_charges_of_all_middlewares(more: dict[str, Any]) -> None:
    _, outer = stored(limits="9/minute")
    app = App200()
    layers = asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(app, outer, limits="5/minute"), outer)
    talk(layers, HTTP, **more)
    verdict = app.scopes[0]["state"]["ratelimit"].verdict
    assert [decision.remaining for decision in verdict.decisions] == [4, 8]
    assert verdict.limit == 5


@BOTH
def test_header_fields_show_a_shared_bucket_once_and_in_its_latest_state(nested: Any) -> None:
    _, outer = stored(limits="9/minute")
    dearer = {**outer, "limits": [{"limit": "9/minute", "cost": 5}]}
    answer = nested([outer, dearer, {**dearer, "limits": [{"limit": "9/minute", "cost": 6}]}])()
    assert items(answer, "ratelimit") == [("default", {"r": 3, "t": 60})]
    assert items(answer, "ratelimit-policy") == [("default", {"q": 9, "w": 60})]


@BOTH
def test_an_inner_middleware_adds_header_fields_if_the_outer_adds_none(nested: Any) -> None:
    _, outer = stored(limits="9/minute")
    for silent in ({**outer, "headers": "none"}, {**outer, "exempt": ["/"]}):
        answer = nested([silent, {**outer, "limits": "1/hour"}])()
        assert ("default", {"r": 0, "t": 3600}) in items(answer, "ratelimit")
        outer["store"] = MemoryStore(clock=Clock())


def test_identical_nested_middlewares_charge_a_websocket_once() -> None:
    store, settings = stored(limits="2/minute")
    app = App200({"type": "websocket.accept"})
    layers = asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(app, settings), settings)
    connect = {"type": "websocket.connect"}
    types = [talk(layers, WEBSOCKET, connect).types for _ in range(3)]
    assert types == [["websocket.accept"], ["websocket.accept"], ["websocket.close"]]
    assert len(store.calls) == 3


def test_middlewares_around_an_app_and_a_mounted_app_charge_each_limit_once() -> None:
    """Two middlewares wrap the Starlette app, and one wraps the app that is mounted in it."""
    store, settings = stored(limits="9/minute")
    part: Any = Starlette(routes=[Route("/{rest:path}", _hello)])
    part.add_middleware(asgi.RateLimitMiddleware, settings, limits="2/minute")
    app = Starlette(routes=[Mount("/part", part), Route("/{rest:path}", _hello)])
    app.add_middleware(asgi.RateLimitMiddleware, settings)
    app.add_middleware(asgi.RateLimitMiddleware, settings)
    send = _over_httpx(app)
    statuses = [send(Step(path=path)).status for path in ("/part/x", "/part/y", "/part/z", "/x")]
    assert statuses == [200, 200, 429, 200]
    assert [len(charges) for charges in taken(store)] == [1] * 7


# header fields of the app


@BOTH
@pytest.mark.parametrize("style", ["ietf", "both"])
def test_ratelimit_fields_of_the_app_precede_those_of_the_middleware(nested: Any, style: str) -> None:
    _, settings = stored(limits="2/minute", headers=style)
    own = [("RateLimit-Policy", '"daily";q=9;w=86400'), ("RateLimit", '"daily";r=8;t=80000')]
    answer = nested([settings], own)()
    assert answer.field("ratelimit")[0] == '"daily";r=8;t=80000'
    assert items(answer, "ratelimit") == [("daily", {"r": 8, "t": 80000}), ("default", {"r": 1, "t": 60})]
    assert items(answer, "ratelimit-policy") == [("daily", {"q": 9, "w": 86400}), ("default", {"q": 2, "w": 60})]


@BOTH
@pytest.mark.parametrize("style", ["legacy", "both"])
@pytest.mark.parametrize("name", ["X-RateLimit-Remaining", "x-ratelimit-remaining"])
def test_an_x_ratelimit_field_of_the_app_replaces_that_of_the_middleware(nested: Any, style: str, name: str) -> None:
    _, settings = stored(limits="2/minute", headers=style)
    answer = nested([settings], [(name, "77")])()
    assert answer.field("x-ratelimit-remaining") == ["77"]


@BOTH
@pytest.mark.parametrize("style", ["legacy", "both"])
def test_x_ratelimit_fields_of_the_app_and_the_middleware_are_not_mixed(nested: Any, style: str) -> None:
    _, settings = stored(limits="2/minute", headers=style)
    answer = nested([settings], [("X-RateLimit-Limit", "88"), ("X-RateLimit-Remaining", "77")])()
    assert answer.field("x-ratelimit-limit") == ["88"]
    assert answer.field("x-ratelimit-remaining") == ["77"]
    assert answer.field("x-ratelimit-reset") == []


@BOTH
@pytest.mark.parametrize("style", ["legacy", "both"])
def test_x_ratelimit_fields_of_an_inner_middleware_are_kept(nested: Any, style: str) -> None:
    _, outer = stored(limits="9/minute", headers=style)
    answer = nested([outer, {**outer, "limits": "2/hour"}])()
    assert answer.field("x-ratelimit-limit") == ["2"]
    assert answer.field("x-ratelimit-remaining") == ["1"]


@BOTH
def test_retry_after_of_the_app_is_kept(nested: Any) -> None:
    _, settings = stored(limits="2/minute")
    assert nested([settings], [("Retry-After", "5")])().field("retry-after") == ["5"]

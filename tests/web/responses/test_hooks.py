"""Tests which events on_decision and on_store_event receive, and that an error in them affects no request."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ratelimit_mw import ConfigError, StoreError, asgi
from ratelimit_mw.core.events import DecisionEvent, StoreEvent
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import RecordingStore
from redis_servers import RedisServer
from web.asgi_talk import HTTP, App200, talk
from web.faces import FACES
from web.plain_request import PlainRequest
from web.scenario import Step
from web.serving import Serving, over_asgi, over_wsgi

pytestmark = [pytest.mark.promise(8), pytest.mark.one_redis, pytest.mark.usefixtures("speaks_again")]

DECISIONS: list[DecisionEvent] = []
Make = Callable[..., Callable[[Request], Any]]


def collect(event: DecisionEvent) -> None:
    DECISIONS.append(event)


def threads(**settings: Any) -> Callable[[Request], Any]:
    return Gate(Settings(**settings)).admit


def tasks(**settings: Any) -> Callable[[Request], Any]:
    gate = AsyncGate(Settings(**settings))
    return lambda request: asyncio.run(gate.admit(request))


BOTH = pytest.mark.parametrize("make", [threads, tasks])


@pytest.fixture(autouse=True)
def nothing_collected() -> Iterator[None]:
    DECISIONS.clear()
    yield
    DECISIONS.clear()


@BOTH
def test_on_decision_receives_each_decision(make: Make) -> None:
    store = RecordingStore()
    rules = [{"path": "/login", "limits": "9/hour", "on_store_error": "deny"}, {"path": "/free", "limits": []}]
    admit = make(
        limits="1/hour", rules=rules, exempt="/health", blocklist=["198.51.100.7"], store=store, on_decision=collect
    )
    requests = [PlainRequest("/a"), PlainRequest("/a"), PlainRequest("/health"), PlainRequest("/free")]
    for request in requests:
        admit(request)
    store.error = StoreError("down")
    for request in (PlainRequest("/a"), PlainRequest("/login"), PlainRequest("/a", client="198.51.100.7")):
        admit(request)
    assert [(one.verdict.allowed, one.verdict.rule, one.verdict.source) for one in DECISIONS] == [
        (True, "default", "store"),
        (False, "default", "store"),
        (False, "default", "local"),  # the store refused this client just before
        (False, "login", "denied_on_error"),
        (False, "blocklist", "store"),
    ]
    assert [one.request for one in DECISIONS[:2]] == requests[:2]
    assert all(one.seconds > 0 for one in DECISIONS)


@BOTH
def test_on_decision_receives_shadow_refusals(make: Make) -> None:
    admit = make(limits="9/hour", rules=[{"path": "/", "limits": "1/hour", "shadow": True}], on_decision=collect)
    for _ in range(2):
        admit(PlainRequest("/"))
    assert [(one.verdict.allowed, one.shadow_refused) for one in DECISIONS] == [(True, False), (True, True)]


def test_a_store_failure_is_no_shadow_refusal() -> None:
    store = RecordingStore()
    store.error = StoreError("down")
    send = threads(limits="1/hour", shadow=True, store=store, on_store_error="deny", on_decision=collect)
    for _ in range(2):
        send(PlainRequest())
    assert [(one.verdict.source, one.shadow_refused) for one in DECISIONS] == [("allowed_on_error", False)] * 2


def test_on_decision_receives_requests_after_the_proxy_header_checks_end() -> None:
    app = asgi.RateLimitMiddleware(App200(), limits="1/hour", on_decision=collect)
    for _ in range(1100):  # the first thousand are checked for proxy headers
        talk(app, HTTP)
    assert len(DECISIONS) == 1100
    assert [one.verdict.allowed for one in DECISIONS[:3]] == [True, False, False]
    assert DECISIONS[-1].request.path == "/"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.usefixtures("at_first_and_settled")
def test_every_framework_calls_on_decision_once_per_request(face: str) -> None:
    send = FACES[face]({"limits": "1/hour", "on_decision": collect})
    assert [send(Step(path="/")).status for _ in range(2)] == [200, 429]
    assert [one.verdict.allowed for one in DECISIONS] == [True, False]


@BOTH
def test_hooks_can_be_given_by_name(make: Make) -> None:
    make(limits="1/hour", on_decision="call:json:dumps")(PlainRequest())
    with pytest.raises(ConfigError, match="on_store_event: got 'call:nowhere:f', expected"):
        make(limits="1/hour", on_store_event="call:nowhere:f")


async def awaited(_: object) -> None: ...


@pytest.mark.parametrize("setting", ["on_decision", "on_store_event"])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (awaited, "got awaited, which is async; expected a plain function"),
        ("json:dumps", "got 'json:dumps', expected a callable, or call:PACKAGE.MODULE:FUNCTION"),
        (7, "got 7, expected a callable, or call:PACKAGE.MODULE:FUNCTION"),
    ],
)
def test_an_invalid_hook_raises_a_config_error(setting: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Settings(**{"limits": "1/hour", setting: value})
    assert str(raised.value) == f"{setting}: {said}"


SECRET = "the key of a client"


def raises(_: object) -> None:
    raise RuntimeError(SECRET)


def hands_on(event: object) -> Any:
    return awaited(event)


@BOTH
@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (raises, "raised an exception: no request is affected, this event is lost"),
        (hands_on, "returned an awaitable, which is not awaited: expected a plain function"),
    ],
)
def test_a_failing_hook_is_logged_once_and_affects_no_request(
    make: Make, hook: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RecordingStore()
    admit = make(limits="9/hour", store=store, on_decision=hook, on_store_event=hook)
    verdicts = [admit(PlainRequest()) for _ in range(3)]
    store.error = StoreError("down")
    verdicts += [admit(PlainRequest()) for _ in range(3)]
    assert [verdict.source for verdict in verdicts] == ["store"] * 3 + ["local"] * 3
    assert caplog.messages == [
        f"ratelimit_mw: on_decision: {said}",
        "ratelimit_mw: store: failed (down); on_store_error decides",
        f"ratelimit_mw: on_store_event: {said}",
    ]
    assert SECRET not in caplog.text


@BOTH
def test_on_store_event_receives_failures_of_a_custom_store(make: Make) -> None:
    heard: list[StoreEvent] = []
    store = RecordingStore()
    admit = make(limits="9/hour", store=store, on_store_event=heard.append)
    admit(PlainRequest())
    for error in (StoreError("down"), OSError("redis://:password@host")):
        store.error = error
        admit(PlainRequest())
    assert heard == [StoreEvent("failed", "down"), StoreEvent("failed", "OSError")]


@pytest.mark.parametrize("serving", [over_asgi, over_wsgi])
def test_on_store_event_receives_the_events_of_an_outage(serving: Serving, redis_server: RedisServer) -> None:
    heard: list[StoreEvent] = []
    settings = {"limits": "1000/hour", "store": redis_server.url, "store_timeout": 1.0, "local_share": 0.5}
    with serving(**settings, on_store_event=heard.append) as send:
        assert send()[1] == "store"
        redis_server.kill()
        found = [send()[1:] for _ in range(50)]
        assert found[0] == ("local", '"default";r=499;t=3600')
        assert {source for source, _ in found} == {"local"}
        redis_server.restart()
        end = time.monotonic() + 60
        while send()[1] != "store":
            assert time.monotonic() < end
    kinds = [event.kind for event in heard]
    assert kinds[:4] == ["failed"] * 3 + ["open"]
    assert kinds[-2:] == ["probe", "closed"]
    assert kinds.count("failed") < 50  # the store is not queried for each request


@pytest.mark.parametrize(
    ("kind", "gate"), [(RedisStore, Gate), (AsyncRedisStore, AsyncGate)], ids=["threads", "asyncio"]
)
def test_gates_that_share_a_store_and_a_hook_call_the_hook_once(kind: Any, gate: Any) -> None:
    heard: list[StoreEvent] = []
    store = kind("redis://127.0.0.1:1")
    settings = Settings(limits="1/hour", store=store, on_store_event=heard.append)
    gates = [gate(settings), gate(settings)]
    for made in (*gates, gates[1].nested):
        assert made._on_store_event is None
    breaker = store.guard.breaker
    assert len(breaker._listeners) == 1
    admitted = gates[0].admit(PlainRequest())
    if gate is AsyncGate:
        asyncio.run(admitted)
    assert [event.kind for event in heard] == ["failed"]


def test_on_decision_receives_websocket_message_decisions() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        for _ in range(2):
            await receive()

    middleware = asgi.RateLimitMiddleware(
        app, limits="9/hour", messages="1/hour", on_message_refused="drop", on_decision=collect
    )
    messages: Sequence[Any] = [
        {"type": "websocket.connect"},
        *[{"type": "websocket.receive", "text": json.dumps(number)} for number in range(2)],
        {"type": "websocket.disconnect"},
    ]
    waiting = iter(messages)

    async def receive() -> Any:
        return next(waiting)

    async def send(_: Any) -> None: ...

    scope = {**HTTP, "type": "websocket", "state": {}, "client": ("192.0.2.1", 1)}
    asyncio.run(middleware(scope, receive, send))
    assert [one.verdict.allowed for one in DECISIONS] == [True, True, False]
    assert {one.request.path for one in DECISIONS} == {"/"}

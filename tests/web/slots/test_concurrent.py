"""`concurrent` limits how many requests of a key are in progress. A slot is released when its request ends."""

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any
from wsgiref.util import FileWrapper

import pytest
from flask import Flask

from ratelimit_mw import Concurrency, ConfigError, MemoryStore, fastapi, starlette
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.limit import Charge
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.slot_queue import SlotDemand
from ratelimit_mw.engine.slots import ASYNC_SLOT_RENEWER, SLOT_RENEWER
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.http.request import Request
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import BODY, CONNECT, HTTP, START, WEBSOCKET, App200, Talk
from web.faces import FACES, AppError
from web.plain_request import PlainRequest
from web.scenario import Step
from web.wsgi_talk import Server, limited, read

ONE: dict[str, Any] = {"limits": [], "concurrent": 1}
PART = {**BODY, "more_body": True}
POLICY = '"default-concurrent";q=1;qu="concurrent-requests"'


def verbs(store: RecordingStore) -> list[tuple[str, int]]:
    """Return the calls of the store, each with the cost of its only charge."""
    return [(verb, charge.cost) for verb, (charge,) in store.calls]


@pytest.mark.promise(2)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("path", ["/", "/stream", "/error"])
def test_each_integration_releases_the_slot_of_an_ended_request(face: str, path: str) -> None:
    store = RecordingStore(clock=Clock())
    send = FACES[face]({**ONE, "store": store})
    for _ in range(3):
        answer = send(Step(path=path, fails=path == "/error"))
        assert answer.status == (500 if path == "/error" else 200)
    assert verbs(store) == [("take", 1), ("settle", -1)] * 3


@pytest.mark.parametrize("face", FACES)
def test_request_without_a_free_slot_is_refused_with_retry_after(face: str) -> None:
    """Another request of the same client is in progress elsewhere."""
    store = MemoryStore(clock=Clock())
    seen: list[Charge] = []
    send = FACES[face](
        {**ONE, "store": store, "slot_retry": 2, "on_decision": lambda one: seen.extend(one.verdict.charges)}
    )
    send(Step(path="/"))
    (decision,) = store.take(seen)
    refused = send(Step(path="/"))
    headers = dict(refused.headers)
    assert refused.status == 429
    assert headers["retry-after"] == "2"
    assert headers["ratelimit-policy"] == POLICY
    assert headers["ratelimit"] == '"default-concurrent";r=0;t=2'
    assert b'"violated-policies":["default-concurrent"]' in refused.body
    store.settle([Charge(seen[0].key, seen[0].limit, -1, at=decision.at)])
    admitted = dict(send(Step(path="/")).headers)
    assert (admitted["ratelimit-policy"], admitted["ratelimit"]) == (POLICY, '"default-concurrent";r=0;t=2')


class Busy:
    """An app whose requests continue when the test sets `go`."""

    def __init__(self) -> None:
        self.working = self.most = 0
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            await self.go.wait()
            await send(START)
            await send(BODY)
        finally:
            self.working -= 1


async def settled() -> None:
    """Let each task run as far as it can without new events."""
    for _ in range(20):
        await asyncio.sleep(0)


def statuses(talks: list[Talk]) -> list[int]:
    return [talk.sent[0]["status"] for talk in talks if talk.sent]


def test_requests_beyond_the_slots_are_refused() -> None:
    async def run() -> None:
        has_waiters = Busy()
        app = RateLimitMiddleware(has_waiters, limits=[], concurrent=3)
        talks = [Talk() for _ in range(10)]
        tasks = [asyncio.create_task(talk.with_app(app, HTTP)) for talk in talks]
        await settled()
        assert (has_waiters.working, statuses(talks)) == (3, [429] * 7)
        has_waiters.go.set()
        await asyncio.gather(*tasks)
        assert sorted(statuses(talks)) == [200] * 3 + [429] * 7
        assert statuses([await Talk().with_app(app, HTTP)]) == [200]

    asyncio.run(run())


def test_each_key_has_slots_of_its_own() -> None:
    async def run() -> None:
        has_waiters = Busy()
        app = RateLimitMiddleware(has_waiters, limits=[], concurrent=1)
        tasks = [asyncio.create_task(Talk().with_app(app, HTTP, client=(f"192.0.2.{n}", 1))) for n in range(5)]
        await settled()
        assert has_waiters.working == 5
        has_waiters.go.set()
        await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.promise(2)
def test_refusal_for_lack_of_slots_charges_no_unit() -> None:
    async def run() -> None:
        has_waiters = Busy()
        app = RateLimitMiddleware(has_waiters, limits="2/minute", concurrent=1, store=MemoryStore(clock=Clock()))
        first = asyncio.create_task(Talk().with_app(app, HTTP))
        await settled()
        assert statuses([await Talk().with_app(app, HTTP) for _ in range(3)]) == [429] * 3
        has_waiters.go.set()
        await first
        talks = [await Talk().with_app(app, HTTP) for _ in range(3)]
        assert statuses(talks) == [200, 429, 429]  # the second unit is left, and no third

    asyncio.run(run())


HELD: dict[str, Any] = {"limits": [], "rules": [{"path": "/work", "limits": [], "concurrent": 1}]}
AT_WORK: dict[str, Any] = {**HTTP, "path": "/work"}


@pytest.mark.parametrize(
    "messages",
    [(START, BODY), (START, PART, BODY), ({**START, "trailers": True}, BODY)],
    ids=["whole", "parts", "trailers"],
)
def test_slot_is_held_until_the_last_message_of_the_response(messages: Any) -> None:
    """Work of the app after the last byte is not part of the request."""

    async def run() -> None:
        seen: list[int] = []
        last = (
            {"type": "http.response.trailers", "headers": []}
            if len(messages) == 2 and "trailers" in messages[0]
            else None
        )

        async def app(scope: Any, _: Any, send: Any) -> None:
            if not scope["query_string"]:
                return
            for message in (*messages, *([last] if last else [])):
                seen.append(await refused())
                await send(message)
            seen.append(await refused())

        limited_app = RateLimitMiddleware(app, **HELD)

        async def refused() -> int:
            talk = await Talk().with_app(limited_app, AT_WORK, query_string=b"")
            return len(talk.sent) > 0  # an admitted request sends nothing

        await Talk().with_app(limited_app, AT_WORK, query_string=b"first")
        assert seen == [True] * (len(seen) - 1) + [False]
        assert len(seen) == len(messages) + 1 + (last is not None)

    asyncio.run(run())


@pytest.mark.parametrize("when", ["before", "midway", "waiting"])
def test_canceled_request_releases_its_slot(when: str) -> None:
    async def run() -> None:
        forever = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if not scope["query_string"]:
                return
            if when == "midway":
                await send(START)
                await send(PART)
            await (receive() if when == "waiting" else forever.wait())

        limited_app = RateLimitMiddleware(app, **HELD)
        talk = Talk()
        talk.receive = forever.wait  # type: ignore[assignment, method-assign]  # a client that sends nothing
        task = asyncio.create_task(talk.with_app(limited_app, AT_WORK, query_string=b"first"))
        await settled()
        assert (await Talk().with_app(limited_app, AT_WORK, query_string=b"")).sent
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not (await Talk().with_app(limited_app, AT_WORK, query_string=b"")).sent

    asyncio.run(run())


def test_websocket_holds_its_slot_until_it_ends() -> None:
    async def run() -> None:
        over = asyncio.Event()

        async def app(_: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "websocket.accept"})
            await over.wait()

        limited_app = RateLimitMiddleware(app, limits=[], concurrent=1)
        first = asyncio.create_task(Talk(CONNECT).with_app(limited_app, WEBSOCKET))
        await settled()
        assert (await Talk(CONNECT).with_app(limited_app, WEBSOCKET)).types == ["websocket.close"]
        over.set()
        await first
        assert (await Talk(CONNECT).with_app(limited_app, WEBSOCKET)).types == ["websocket.accept"]

    asyncio.run(run())


@pytest.mark.parametrize("how", ["close", "closed before", "denied"])
def test_websocket_releases_its_slot_when_the_app_closes_it(how: str) -> None:
    """The slot is released, as after the last byte of a response."""
    part = {"type": "websocket.http.response.body", "body": b"", "more_body": True}
    ways: dict[str, list[dict[str, Any]]] = {
        "close": [{"type": "websocket.accept"}, {"type": "websocket.send", "text": ""}, {"type": "websocket.close"}],
        "closed before": [{"type": "websocket.close"}],
        "denied": [
            {"type": "websocket.http.response.start", "status": 403, "headers": []},
            part,
            {**part, "more_body": False},
        ],
    }
    messages = ways[how]

    async def run() -> None:
        store, over = RecordingStore(clock=Clock()), asyncio.Event()
        seen: list[int] = []

        async def app(_: Any, receive: Any, send: Any) -> None:
            await receive()
            for message in messages:
                seen.append(len(store.calls))
                await send(message)
            await over.wait()

        limited_app = RateLimitMiddleware(app, **ONE, store=store)
        lingers = asyncio.create_task(Talk(CONNECT).with_app(limited_app, WEBSOCKET))
        await settled()
        assert (seen, verbs(store)) == ([1] * len(messages), [("take", 1), ("settle", -1)])
        over.set()
        await lingers
        assert len(store.calls) == 2

    asyncio.run(run())


PACED: dict[str, Any] = {"limit": "1/hour burst 3 using leaky_bucket", "max_delay": 86400}


@pytest.mark.parametrize(("apart", "status"), [(False, 429), (True, None)])
def test_delayed_request_holds_a_slot_unless_an_inner_middleware_has_the_slots(apart: bool, status: int | None) -> None:
    async def run() -> None:
        has_waiters, store = Busy(), MemoryStore(clock=Clock())
        has_waiters.go.set()
        if apart:
            app = RateLimitMiddleware(RateLimitMiddleware(has_waiters, **ONE, store=store), limits=PACED, store=store)
        else:
            app = RateLimitMiddleware(has_waiters, limits=PACED, concurrent=1, store=store)
        assert statuses([await Talk().with_app(app, HTTP)]) == [200]
        talks = [Talk(), Talk()]
        for talk in talks:  # each would be delayed for an hour or more
            talk.receive = asyncio.Event().wait  # type: ignore[assignment, method-assign]  # the clients send nothing
        tasks = [asyncio.create_task(talk.with_app(app, HTTP)) for talk in talks]
        await settled()
        assert [talk.sent[0]["status"] if talk.sent else None for talk in talks] == [None, status]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_request_canceled_during_its_delay_releases_its_slot() -> None:
    """The slot is released even if the task keeps the request alive. A request in the queue is woken at once."""

    async def run() -> None:
        store = RecordingStore(clock=Clock())
        app = RateLimitMiddleware(App200(), limits=PACED, concurrent=2, queue=1, queue_timeout=60, store=store)
        assert statuses([await Talk().with_app(app, HTTP)]) == [200]
        held = ASYNC_SLOT_RENEWER._loops.get().registry._active
        talk = Talk()
        talk.receive = asyncio.Event().wait  # type: ignore[assignment, method-assign]  # the client sends nothing
        task = asyncio.create_task(talk.with_app(app, HTTP))
        await settled()
        (hold,) = held
        woken: list[Any] = []
        queues, bucket = app._gate._queues, (hold.charges[0].key, hold.charges[0].limit.bucket)
        queues.join(SlotDemand({bucket: 1}, 60), [bucket], lambda: woken.append(1), queues.release_count)
        task.cancel()
        await asyncio.wait([task])
        assert (len(held), woken) == (0, [1])
        assert [charge.cost for charge in store.calls[-1][1]] == [-1, -1]

    asyncio.run(run())


def test_thread_interrupted_during_a_delay_releases_its_slot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(Settings(limits=PACED, concurrent=2, queue=1, store=MemoryStore(clock=Clock())))
    assert gate.admit(PlainRequest()) is not None
    before, request = set(SLOT_RENEWER._registry._active), PlainRequest()
    woken: list[Any] = []
    monkeypatch.setattr(gate._queues, "wake", woken.extend)

    def ends(_: float) -> None:
        assert len(set(SLOT_RENEWER._registry._active) - before) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr("ratelimit_mw.engine.runtime.time.sleep", ends)
    with pytest.raises(KeyboardInterrupt):
        gate.admit(request)
    assert set(SLOT_RENEWER._registry._active) <= before
    assert (len(request.on_end), len(woken)) == (1, 1)  # the request still exists


def at_work(app: Any) -> int:
    """Return the status of one more request."""
    server = Server()
    read(server.ask(app))
    return int(server.started[0][0][:3])


def in_parts(_: Any, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    yield b"one"
    yield b"two"


def test_wsgi_slot_is_held_until_the_response_is_closed() -> None:
    store = RecordingStore(clock=Clock())
    app = limited(in_parts, **ONE, store=store)
    server = Server()
    body = iter(server.ask(app))
    assert next(body) == b"one"
    assert at_work(app) == 429
    assert list(body) == [b"two"]
    assert at_work(app) == 429  # the response is not closed yet
    body.close()
    body.close()
    assert verbs(store) == [("take", 1)] * 3 + [("settle", -1)]
    assert at_work(app) == 200


def test_wsgi_response_closed_midway_releases_its_slot() -> None:
    app = limited(in_parts, **ONE)
    body = Server().ask(app)
    next(iter(body))
    body.close()
    server = Server()
    assert b"".join(server.ask(app)) == b"onetwo"
    assert server.started[0][0] == "200 OK"


@pytest.mark.promise(7)
def test_wsgi_slot_of_a_dropped_response_is_not_renewed_even_without_gc() -> None:
    """The server did not close the response. The request still exists, and its app keeps `start_response`."""

    def keeps(environ: Any, start_response: Any) -> Iterator[bytes]:
        environ["kept"] = start_response
        return in_parts(environ, start_response)

    app = limited(keeps, **ONE)
    before = set(SLOT_RENEWER._registry._active)
    server = Server()
    body = server.ask(app)
    (hold,) = set(SLOT_RENEWER._registry._active) - before
    known = weakref.ref(hold)
    del hold, before
    gc.disable()
    try:
        assert known() is not None
        del body
        assert known() is None
    finally:
        gc.enable()
    assert {"ratelimit_mw", "kept"} <= set(server.environ)
    assert at_work(app) == 429  # until the slot's lifetime ends


@pytest.mark.promise(11)
def test_wsgi_file_response_passes_unchanged_and_releases_its_slot(tmp_path: Any) -> None:
    (tmp_path / "f").write_bytes(b"a file")

    def files(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return environ["wsgi.file_wrapper"]((tmp_path / "f").open("rb"))

    app = limited(files, **ONE)
    body = Server(**{"wsgi.file_wrapper": FileWrapper}).ask(app)
    assert type(body) is FileWrapper
    assert at_work(app) == 429
    assert body.filelike.read() == b"a file"  # as a server that sends the file itself
    body.close()
    body = Server(**{"wsgi.file_wrapper": FileWrapper}).ask(app)
    assert type(body) is FileWrapper
    body.close()


def test_wsgi_app_that_raises_releases_its_slot() -> None:
    def raises(_: Any, __: Any) -> Any:
        raise AppError

    app = limited(raises, **ONE)
    for _ in range(2):
        with pytest.raises(AppError):
            Server().ask(app)


@pytest.mark.promise(7)
def test_unclosed_request_loses_its_slot_after_slot_lifetime() -> None:
    """The server never closes the response. The slot is not renewed once the request is garbage-collected."""
    clock = Clock()
    gate = Gate(Settings(limits=[], concurrent=1, slot_lifetime=10, store=MemoryStore(clock=clock)))
    request: Request = PlainRequest()
    verdict = gate.admit(request)
    assert verdict is not None
    assert verdict.allowed
    assert len(request.on_end) == 1
    del request
    gc.collect()
    clock.advance(9.999999)
    refused = gate.admit(PlainRequest())
    assert refused is not None
    assert not refused.allowed
    clock.advance(0.000001)
    again = gate.admit(PlainRequest())
    assert again is not None
    assert again.allowed


def test_shadow_slots_are_counted_but_never_refuse() -> None:
    async def run() -> None:
        has_waiters = Busy()
        heard: list[list[bool]] = []
        app = RateLimitMiddleware(
            has_waiters,
            limits=[],
            concurrent=1,
            shadow=True,
            on_decision=lambda one: heard.append([decision.allowed for decision in one.verdict.decisions]),
        )
        tasks = [asyncio.create_task(Talk().with_app(app, HTTP)) for _ in range(3)]
        await settled()
        assert has_waiters.working == 3
        has_waiters.go.set()
        await asyncio.gather(*tasks)
        assert heard == [[True], [False], [False]]

    asyncio.run(run())


def test_nested_middleware_takes_only_one_slot() -> None:
    store = RecordingStore(clock=Clock())
    inner = RateLimitMiddleware(Busy(), **ONE, store=store)

    async def run() -> None:
        inner.app.go.set()  # type: ignore[attr-defined]  # the app is a Busy
        app = RateLimitMiddleware(inner, **ONE, store=store)
        assert statuses([await Talk().with_app(app, HTTP)]) == [200]

    asyncio.run(run())
    assert verbs(store) == [("take", 1), ("settle", -1)]


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"concurrent": -1}, "concurrent: got -1, expected a whole number from 0 to 9007199254740991"),
        ({"concurrent": True}, "concurrent: got True, expected a whole number from 0 to 9007199254740991"),
        ({"concurrent": 10_001}, "concurrent: got 10001, expected at most 10000 slots"),
        ({"queue": -1}, "queue: got -1, expected a whole number from 0 to 9007199254740991"),
        ({"queue": 100_001}, "queue: got 100001, expected at most 100000 requests"),
        ({"queue_timeout": 0}, "queue_timeout: got 0, expected more than 0 seconds; queue = 0 turns waiting off"),
        ({"slot_retry": 0}, "slot_retry: got 0, expected more than 0 seconds"),
        (
            {"slot_lifetime": 0},
            "slot_lifetime: got 0, expected at least 1 second",
        ),
        (
            {"limits": [Concurrency(2)], "concurrent": 1},
            "concurrent: limits have a Concurrency already; expected only one of the two",
        ),
        (
            {"messages": [Concurrency(2)]},
            "messages: got a Concurrency, which counts requests in progress; a message has no duration",
        ),
        (
            {"rules": [{"path": "/", "exempt": True, "concurrent": 1}]},
            "rules[0].concurrent: a rule with exempt = true cannot have slots",
        ),
        (
            {"rules": [{"path": "/", "limits": Concurrency(1), "concurrent": 1}]},
            "rules[0].concurrent: limits have a Concurrency already; expected only one of the two",
        ),
        (
            {"limits": [{"limit": Concurrency(2), "lease": 1}]},
            "limits[0].lease: slots of 2 at once are held by requests in progress, and cannot be taken in advance",
        ),
        (
            {"limits": [{"limit": Concurrency(2), "cost": 0}]},
            "limits[0].cost: 0 takes no slot of 2 at once, so it limits nothing; expected at least 1",
        ),
        (
            {"limits": [{"limit": Concurrency(2), "max_delay": 1}]},
            "limits[0].max_delay: it is unknown when a slot of 2 at once is free; use `queue` to let requests wait",
        ),
        (
            {"concurrent": 1, "rules": [{"path": "/", "limits": "5/minute", "queue": 3}]},
            "rules[0].queue: the rule has no slots to wait for; add `concurrent` to it",
        ),
        (
            {"concurrent": 1, "rules": [{"path": "/", "limits": "5/minute", "queue": 0, "queue_timeout": 3}]},
            "rules[0].queue_timeout: the rule has no slots to wait for; add `concurrent` to it",
        ),
        (
            {"concurrent": 1, "rules": [{"path": "/", "limits": "5/minute", "fair_share": "ip"}]},
            "rules[0].fair_share: the rule has no slots to share; add `concurrent` to it",
        ),
        (
            {"concurrent": 1, "fair_share": "all"},
            "fair_share: got 'all', which all clients have in common, expected a key such as 'ip'",
        ),
    ],
)
def test_wrong_slot_settings_are_errors(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as error:
        Settings(**{"limits": [], **settings})
    assert str(error.value) == says


@pytest.mark.parametrize(
    "rule",
    [
        {"limits": [], "queue": 0},  # no request waits
        {"concurrent": 1, "queue": 3, "queue_timeout": 1},
        {"limits": {"free": Concurrency(1), "paid": "9/minute"}, "tier": "ip", "queue": 3},
    ],
)
def test_valid_slot_settings_are_accepted(rule: dict[str, Any]) -> None:
    Settings(limits=[], rules=[{"path": "/", **rule}])


@pytest.mark.promise(9)
def test_queue_on_a_view_without_slots_is_an_error() -> None:
    with pytest.raises(ConfigError, match="queue: the rule has no slots to wait for"):
        RateLimiter(limits=[]).limit("5/minute", queue=2)


def test_concurrency_works_in_a_list_of_limits_and_alone_in_a_rule() -> None:
    gate = Gate(
        Settings(
            limits=["9/minute", Concurrency(2)],
            app_limits=[{"limit": Concurrency(5, name="all"), "key": "all"}],
            rules=[{"path": "/work", "concurrent": 3, "cost": 7}],
        )
    )
    verdict = gate.admit(PlainRequest(path="/work"))
    assert verdict is not None
    assert [(charge.limit, charge.cost) for charge in verdict.charges] == [
        (Concurrency(5, name="all"), 1),
        (Concurrency(3), 1),
    ]
    verdict = gate.admit(PlainRequest(path="/"))
    assert verdict is not None
    assert [(policy.name, charge.cost) for policy, charge in zip(verdict.policies, verdict.charges, strict=True)] == [
        ("all", 1),
        ("default", 1),
        ("default-2", 1),
    ]


@pytest.mark.promise(9)
@pytest.mark.parametrize("limits", [{"limits": [], "concurrent": 2}, {"limits": Concurrency(2)}])
@pytest.mark.parametrize("mark", [starlette.limit, fastapi.RateLimit])
def test_starlette_and_fastapi_endpoint_limits_reject_slots(mark: Any, limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="concurrent: the end of a response is not observed here"):
        mark(**limits)


def test_flask_view_takes_and_releases_slots() -> None:
    store = RecordingStore(clock=Clock())
    app = Flask(__name__)
    limiter = RateLimiter(app, limits=[], store=store)

    @app.get("/")
    @limiter.limit([], concurrent=1)
    def hello() -> str:
        return "hello"

    for _ in range(3):
        with app.test_client().get("/") as answer:
            assert answer.status_code == 200
    assert verbs(store) == [("take", 1), ("settle", -1)] * 3

"""Settling after the response, beyond the scenarios: limits on endpoints, threads, websockets, failing stores."""

import asyncio
import math
from collections.abc import Callable, Sequence
from random import Random
from threading import current_thread, main_thread
from typing import Any
from weakref import WeakSet

import pytest
from django.http import HttpResponse
from django.urls import path
from fastapi import Depends, FastAPI
from fastapi import Request as FastAPIRequest
from flask import Flask
from rest_framework.response import Response as RestResponse
from rest_framework.views import APIView
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

import ratelimit_mw.django
from ratelimit_mw import ConfigError, MemoryStore, asgi, wsgi
from ratelimit_mw.algorithms.notation import parse
from ratelimit_mw.asgi import tracking as inside
from ratelimit_mw.core.identity import bucket_key
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.django import Throttle
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.fastapi import RateLimit as Dependency
from ratelimit_mw.flask import RateLimiter
from ratelimit_mw.settings import Settings
from ratelimit_mw.settings.features import parse_penalty
from ratelimit_mw.starlette import RateLimit, RateLimitMiddleware, limit
from ratelimit_mw.stores.redis import AsyncRedisStore
from ratelimit_mw.testing import Clock, RecordingStore
from redis_servers import RedisServer
from web.asgi_talk import BODY, HTTP, START, App200
from web.django_ask import under_asgi, under_wsgi
from web.faces import FACES
from web.in_process import answers, recording
from web.scenario import Step
from web.websocket_talk import GONE, limited, says, spoken
from web.wsgi_talk import Server, hello, read


def settled_by_one(_: Any) -> int:
    return 1


def settled_by_three(_: Any, __: Any, c: Any) -> int:
    return int(c)


def true_cost_of_any(*_: Any) -> int:
    return 1


class SettledByMethod:
    def settle(self, _: Any, __: Any) -> int:
        return 1


FAILED: dict[str, Any] = {"count_status": [401]}
SLOW_STARTS = 1001  # the ASGI middleware decides its first thousand requests off the fast path


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset global state: no limit on an endpoint needs tracking, and no log line is throttled."""
    monkeypatch.setattr(inside.MIDDLEWARE_REGISTRY, "tracking_required", False)
    monkeypatch.setattr(inside.MIDDLEWARE_REGISTRY, "_middleware", WeakSet())
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})


def corrected(store: RecordingStore) -> list[list[int]]:
    """Return the costs in each call of `settle`."""
    return [[charge.cost for charge in charges] for verb, charges in store.calls if verb == "settle"]


# limits on endpoints


async def plain(request: Request) -> Response:
    return PlainTextResponse("", int(request.query_params.get("s", "200")))


def on_an_endpoint() -> Any:
    @limit("3/minute", count_status=[401])
    async def login(request: Request) -> Response:
        return PlainTextResponse("", int(request.query_params.get("s", "200")))

    return Starlette(routes=[Route("/", login)])


def on_a_route() -> Any:
    return Starlette(
        routes=[Mount("/", routes=[Route("/", plain)], middleware=[Middleware(RateLimit, "3/minute", **FAILED)])]
    )


def on_a_dependency() -> Any:
    app = FastAPI()

    @app.get("/", dependencies=[Depends(Dependency("3/minute", **FAILED))])
    def endpoint(response: FastAPIRequest) -> Any:
        return PlainTextResponse("", int(response.query_params.get("s", "200")))

    return app


@pytest.mark.parametrize("make", [on_an_endpoint, on_a_route, on_a_dependency])
@pytest.mark.parametrize("before", [True, False])
def test_the_middleware_settles_limits_on_endpoints_and_routes(make: Callable[[], Any], before: bool) -> None:
    """The middleware may be created before or after the limits."""
    store, settings = recording()
    holder: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await holder[0](scope, receive, send)

    if before:
        around = RateLimitMiddleware(app, settings)
    holder.append(make())
    if not before:
        around = RateLimitMiddleware(app, settings)
    got = answers(around, "/?s=200", "/?s=401", "/?s=200", "/?s=200", "/?s=401", "/?s=401", "/?s=200")
    assert [one.status for one in got] == [200, 401, 200, 200, 401, 401, 429]
    assert corrected(store) == [[-1], [-1], [-1]]


def test_the_middlewares_penalty_counts_refusals_by_endpoint_limits() -> None:
    @limit("1/minute using fixed_window")
    async def few(_: Request) -> Response:
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/few", few), Route("/", plain)])
    _, settings = recording(penalty="2/hour: 1 hour")
    got = answers(RateLimitMiddleware(app, settings), "/few", "/", "/few", "/", "/few", "/", "/few")
    assert [one.status for one in got] == [200, 200, 429, 200, 429, 429, 429]
    assert [one.field("retry-after") for one in got] == [[], [], ["60"], [], ["3600"], ["3600"], ["3600"]]


def test_a_settled_endpoint_limit_makes_every_middleware_track_responses() -> None:
    around = RateLimitMiddleware(App200(), limits="9/hour")
    assert not inside.MIDDLEWARE_REGISTRY.tracking_required
    limit("3/minute")(plain)
    Dependency("3/minute")
    assert not inside.MIDDLEWARE_REGISTRY.tracking_required
    limit("3/minute", count_status=[401])(plain)
    assert inside.MIDDLEWARE_REGISTRY.tracking_required
    assert around._tracks_all  # although created before the limit
    assert RateLimitMiddleware(App200(), limits="9/hour")._tracks_all


def test_endpoint_limits_without_the_middleware_charge_all_and_warn(caplog: pytest.LogCaptureFixture) -> None:
    got = answers(on_an_endpoint(), *["/?s=200"] * 4)
    assert [one.status for one in got] == [200, 200, 200, 429]
    assert "settle and count_status on endpoints need RateLimitMiddleware around the app" in caplog.text


def test_the_flask_extension_settles_limits_on_views() -> None:
    store, settings = recording()
    app = Flask(__name__)
    limiter = RateLimiter(app, settings)

    @app.get("/<int:status>")
    @limiter.limit("2/minute", count_status=["4xx"])
    def view(status: int) -> Any:
        return "", status

    client = app.test_client()
    found = []
    for status in (200, 404, 200, 401, 200):
        with client.get(f"/{status}") as response:
            found.append(response.status_code)
    assert found == [200, 404, 200, 401, 429]
    assert corrected(store) == [[-1], [-1]]


@ratelimit_mw.django.limit("2/minute", count_status=[404])
def marked(request: Any, status: int) -> HttpResponse:
    return HttpResponse("", status=status)


@ratelimit_mw.django.limit("2/minute", count_status=[404])
async def amarked(request: Any, status: int) -> HttpResponse:
    return HttpResponse("", status=status)


class Few(Throttle):
    limits = "2/minute"
    count_status = (404,)


class Throttled(APIView):
    authentication_classes = ()
    throttle_classes = (Few,)  # type: ignore[assignment]  # REST framework accepts any object with these methods

    def get(self, _: Any, status: int) -> RestResponse:
        return RestResponse("", status=status)


@pytest.mark.parametrize("site", [under_wsgi, under_asgi])
@pytest.mark.parametrize("view", [marked, amarked, Throttled.as_view()], ids=["plain", "async", "throttled"])
def test_the_django_middleware_settles_limits_on_views_and_throttles(site: Any, view: Any) -> None:
    store = RecordingStore(clock=Clock())
    ask = site([path("<int:status>", view)], {"limits": [], "store": store})
    assert [ask(f"/{status}").status for status in (200, 404, 200, 404, 200)] == [200, 404, 200, 404, 429]
    assert corrected(store) == [[-1], [-1]]


# the app settles


def test_a_sync_fastapi_endpoint_settles_in_redis(redis_servers: Any) -> None:
    """The endpoint runs in a thread without an event loop. The store's event loop sends the settlement."""
    server: RedisServer = next(iter(redis_servers.values()))
    server.flush()
    app = FastAPI()
    threads = []

    @app.get("/{tokens}")
    def endpoint(request: FastAPIRequest, tokens: int) -> str:
        threads.append(current_thread())
        request.state.ratelimit.settle(tokens)
        return "done"

    async def main() -> list[int]:
        store = AsyncRedisStore(server.url, timeout=60.0)
        around = asgi.RateLimitMiddleware(app, limits="100/hour using fixed_window", store=store)
        found = []
        for number in ("/30", "/1", "/20"):
            scope = {**HTTP, "path": number, "query_string": b""}
            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            await around(scope, None, send)  # type: ignore[arg-type]  # nothing is received
            found.append(sent[0]["status"])
        for _ in range(500):  # the settlement may be sent after the response
            left = (
                await store.apeek(
                    [Charge(bucket_key("ip=192.0.2.1", "default"), parse("100/hour using fixed_window")[0], 0)]
                )
            )[0].remaining
            if left == 49:
                break
            await asyncio.sleep(0.01)
        await store.aclose()
        return [*found, left]

    assert asyncio.run(main()) == [200, 200, 200, 49]
    assert main_thread() not in threads


class Slow(MemoryStore):
    """An AsyncStore whose takes suspend. It records settlements, and applies them once `go` is set."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.settled: list[list[int]] = []
        self.go = asyncio.Event()
        self.error: Exception | None = None

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        await asyncio.sleep(0)
        return self.take(charges)

    async def asettle(self, charges: Sequence[Charge]) -> None:
        self.settled.append([charge.cost for charge in charges])
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.settle(charges)


async def until(done: Callable[[], bool]) -> None:
    """Run the event loop until `done` returns true."""
    for _ in range(5000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it is not so")


def test_responses_do_not_wait_for_settlements_which_are_sent_in_batches() -> None:
    async def app(scope: Any, _: Any, send: Any) -> None:
        scope["state"]["ratelimit"].settle(int(scope["path"][1:]))
        await send(START)
        await send(BODY)

    async def main() -> None:
        store = Slow()
        around = asgi.RateLimitMiddleware(app, limits="1000/hour", store=store, store_timeout=60.0)
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        for number in range(2, 202):
            await around({**HTTP, "path": f"/{number}"}, None, send)  # type: ignore[arg-type]
        assert sent == ["http.response.start", "http.response.body"] * 200
        assert store.settled == [[1]]  # of the first request; this call is in flight
        store.go.set()
        await until(lambda: len(store.settled) == 3)
        assert store.settled[1:] == [list(range(2, 130)), list(range(130, 201))]

    asyncio.run(main())


def test_closing_the_gate_sends_pending_settlements() -> None:
    async def main() -> None:
        store = Slow()
        store.go.set()
        gate = AsyncGate(Settings(limits="9/hour", store=store))
        gate.settle("store", [Charge("k", parse("9/hour")[0], 2)])
        assert store.settled == []
        await gate.close()
        assert store.settled == [[2]]
        await gate.close()

    asyncio.run(main())


@pytest.mark.promise(8)
def test_failed_settlements_under_asgi_are_logged_and_fail_no_request(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = Slow()
        around = asgi.RateLimitMiddleware(
            App200(), limits="2/hour", store=store, store_timeout=0.01, count_status=[401], plain_keys=True
        )
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message.get("status"))

        await around(dict(HTTP), None, send)  # type: ignore[arg-type]
        await until(lambda: bool(caplog.records))  # the call exceeds its timeout
        assert (
            "a settlement may not have reached the store (TimeoutError); if so, the estimate stays charged"
            in caplog.text
        )
        store.error = ConnectionError("secret")
        store.go.set()
        await around(dict(HTTP), None, send)  # type: ignore[arg-type]
        await until(lambda: len(store.settled) == 2)
        assert sent == [200, None, 200, None]
        (estimates,) = store.peek([Charge("{ip=192.0.2.1}:default", parse("2/hour")[0])])
        assert (estimates.allowed, estimates.remaining) == (False, 0)  # both requests stay charged

    asyncio.run(main())
    assert "secret" not in caplog.text


@pytest.mark.promise(8)
def test_failed_settlements_under_wsgi_are_logged_and_fail_no_request(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(RecordingStore):
        def settle(self, charges: Sequence[Charge]) -> None:
            raise ConnectionError("secret")

    app = wsgi.RateLimitMiddleware(hello, limits="2/hour", store=Broken(clock=Clock()), count_status=[401])
    for _ in range(2):
        assert read(Server().ask(app)) == b"hello"
    assert (
        "settle: a settlement may not have reached the store (ConnectionError); if so, the estimate stays charged"
        in caplog.text
    )
    assert "secret" not in caplog.text


@pytest.mark.parametrize("nonsense", [-1, -2.0, math.inf, "7", None, True])
def test_settling_to_an_invalid_cost_is_logged_and_ignored(nonsense: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = RecordingStore(clock=Clock())

    def app(environ: Any, start_response: Any) -> Any:
        environ["ratelimit_mw"].settle(nonsense)
        return hello(environ, start_response)

    assert read(Server().ask(wsgi.RateLimitMiddleware(app, limits="9/hour", store=store))) == b"hello"
    assert corrected(store) == []
    assert f"settle: got {type(nonsense).__name__}, expected a finite number, 0 or more" in caplog.text


def test_repeated_settle_calls_in_a_wsgi_app_send_only_the_last_cost() -> None:
    store = RecordingStore(clock=Clock())

    def app(environ: Any, start_response: Any) -> Any:
        for actual in (5, 50, 1, 1.5):  # rounded up
            environ["ratelimit_mw"].settle(actual)
        assert corrected(store) == []
        return hello(environ, start_response)

    read(Server().ask(wsgi.RateLimitMiddleware(app, limits="9/hour", store=store)))
    assert corrected(store) == [[1]]


@pytest.mark.parametrize("limits", ["9999/hour", {"limit": "9999/hour", "key": "header:Host"}], ids=["fast", "general"])
def test_repeated_settle_calls_in_an_asgi_app_send_only_the_last_cost(limits: Any) -> None:
    store = RecordingStore(clock=Clock())

    async def app(scope: Any, _: Any, send: Any) -> None:
        for actual in (5, 50, 1, 2):
            scope["state"]["ratelimit"].settle(actual)
        await send(START)
        await send(BODY)
        sent = len(corrected(store))
        scope["state"]["ratelimit"].settle(4)
        assert len(corrected(store)) == sent
        raise RuntimeError

    async def send(_: Any) -> None: ...

    async def main() -> None:
        middleware = asgi.RateLimitMiddleware(app, limits=limits, store=store)
        for number in range(SLOW_STARTS + 1):
            assert corrected(store) == [[3]] * number
            with pytest.raises(RuntimeError):
                await middleware(dict(HTTP), None, send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert corrected(store) == [[3]] * (SLOW_STARTS + 1)


@pytest.mark.parametrize("limits", ["9999/hour", {"limit": "9999/hour", "key": "header:Host"}], ids=["fast", "general"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_settle_call_while_the_app_returns_is_sent(limits: Any, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may call `settle()` just before or just after the middleware notes that the app has returned."""
    store = RecordingStore(clock=Clock())

    class State(RateLimitState, gc=False):
        def __setattr__(self, name: str, value: Any) -> None:
            ends = name == "in_app" and self.in_app and not value
            if ends and moment == "before":
                self.settle(5)
            super().__setattr__(name, value)
            if ends and moment == "after":
                self.settle(5)

    monkeypatch.setattr(asgi, "RateLimitState", State)

    async def app(_: Any, __: Any, send: Any) -> None:
        await send(START)
        await send(BODY)

    async def send(_: Any) -> None: ...

    async def main() -> None:
        middleware = asgi.RateLimitMiddleware(app, limits=limits, store=store)
        for _ in range(SLOW_STARTS + 1):
            await middleware(dict(HTTP), None, send)  # type: ignore[arg-type]

    asyncio.run(main())
    assert corrected(store) == [[4]] * (SLOW_STARTS + 1)


def test_settle_calls_during_the_body_send_differences_and_refund_once() -> None:
    store = RecordingStore(clock=Clock())
    seen = []

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        for actual in (5, 5, 7, 2, 1, 0, 30, 0):
            environ["ratelimit_mw"].settle(actual)
            seen.append(corrected(store)[-1:])
            yield b""

    read(Server().ask(wsgi.RateLimitMiddleware(app, limits={"limit": "9/hour", "cost": 3}, store=store)))
    assert seen == [[[2]], [[2]], [[2]], [[-1]], [[-1]], [[-1]], [[24]], [[24]]]


def test_settling_without_limits_has_no_effect() -> None:
    outcome = RateLimitState(None)
    outcome.settle(7)
    assert outcome.verdict is None


def test_each_websocket_message_is_settled_separately() -> None:
    store = RecordingStore(clock=Clock())

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            scope["state"]["ratelimit"].message.settle(3)

    async def main() -> None:
        await spoken(limited(app, limits=[], messages="9/minute", store=store), says("one"), says("two"), GONE)

    asyncio.run(main())
    assert corrected(store) == [[2], [2]]


# callables


def test_an_async_settle_callable_works_under_asgi_only() -> None:
    store = RecordingStore(clock=Clock())

    async def tokens(request: Any, response: Any) -> int:
        await asyncio.sleep(0)
        return len(request.path) + int(response.status)

    async def main() -> None:
        around = asgi.RateLimitMiddleware(App200(), limits="900/hour", store=store, settle=tokens)

        async def send(_: Any) -> None: ...

        await around(dict(HTTP), None, send)  # type: ignore[arg-type]
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert corrected(store) == [[200]]
    with pytest.raises(ConfigError, match=r"settle: got .*tokens, which is async; expected a plain function"):
        wsgi.RateLimitMiddleware(hello, limits="9/hour", settle=tokens)


@pytest.mark.promise(9)
@pytest.mark.parametrize("raises", [ValueError, KeyError])
def test_a_raising_settle_callable_leaves_the_estimate_charged(raises: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = RecordingStore(clock=Clock())

    def fails(*_: Any) -> int:
        raise raises("secret of a client".upper())

    app = wsgi.RateLimitMiddleware(hello, limits="9/hour", store=store, settle=fails)
    assert read(Server().ask(app)) == b"hello"
    assert corrected(store) == []
    assert "raised an error: the estimate stays charged" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_request_canceled_before_its_response_stays_charged() -> None:
    store = RecordingStore(clock=Clock())

    async def app(*_: Any) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        around = asgi.RateLimitMiddleware(app, limits="9/hour", store=store, count_status=[401])
        task = asyncio.ensure_future(around(dict(HTTP), None, None))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert [verb for verb, _ in store.calls] == ["take"]


def test_two_middleware_each_settle_their_own_limit_once() -> None:
    store = RecordingStore(clock=Clock())
    asked = []

    def tokens(_: Any, response: Any) -> int:
        asked.append(response.status)
        return 4

    inner = wsgi.RateLimitMiddleware(hello, limits={"limit": "9/hour", "name": "inner"}, store=store, settle=tokens)
    app = wsgi.RateLimitMiddleware(inner, limits={"limit": "9/minute", "name": "outer"}, store=store, settle=tokens)
    read(Server().ask(app))
    assert asked == [200]
    assert sorted(corrected(store)) == [[3], [3]]


def test_a_refusal_by_an_inner_middleware_is_refunded_once() -> None:
    """The outer middleware tracks the response. After the inner one refuses, nothing is left to settle."""
    store = RecordingStore(clock=Clock())
    inner = wsgi.RateLimitMiddleware(hello, limits={"limit": "1/hour", "name": "inner"}, store=store)
    app = wsgi.RateLimitMiddleware(inner, limits={"limit": "9/hour", "name": "outer"}, store=store, **FAILED)
    read(Server().ask(app))
    read(Server().ask(app))
    assert corrected(store) == [[-1], [-1]]  # for the status 200, and for the inner refusal


def test_a_bucket_charged_by_two_middleware_is_settled_once() -> None:
    """The inner middleware takes only what the outer one has not charged."""
    store = RecordingStore(clock=Clock())

    def app(environ: Any, start_response: Any) -> Any:
        environ["ratelimit_mw"].settle(10)
        return hello(environ, start_response)

    inner = wsgi.RateLimitMiddleware(app, limits={"limit": "99/hour", "cost": 4}, store=store)
    read(Server().ask(wsgi.RateLimitMiddleware(inner, limits="99/hour", store=store)))
    assert [[charge.cost for charge in charges] for _, charges in store.calls] == [[1], [3], [6]]


def test_the_charges_of_a_verdict_peek_and_reset_a_ban() -> None:
    store, verdicts = RecordingStore(clock=Clock()), []
    app = wsgi.RateLimitMiddleware(
        hello,
        limits=[],
        rules=[{"path": "/", "limits": "1/minute using fixed_window", "penalty": "1/minute: 1 hour"}],
        store=store,
        on_decision=lambda event: verdicts.append(event.verdict),
    )
    statuses = []

    def ask() -> None:
        server = Server()
        read(server.ask(app))
        statuses.append(server.started[0][0][:3])

    for _ in range(3):
        ask()
    ban = [charge for charge in verdicts[-1].charges if charge.role == "penalty"]
    assert [one.reset_after for one in store.peek(ban)] == [3600.0]
    store.reset(verdicts[-1].charges)
    ask()
    assert statuses == ["200", "429", "429", "200"]
    assert [verdict.retry_after for verdict in verdicts] == [0.0, 3600.0, 3600.0, 0.0]


def _called_with(taken: str, name: str) -> str:
    return f"settle: {taken}; it is called with the request and the response: def {name}(request, response)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"settle": 7}, "settle: got 7, expected a callable, or call:PACKAGE.MODULE:FUNCTION"),
        (
            {"settle": "call:os:getcwd"},
            _called_with("call:os:getcwd takes no parameter", "getcwd"),
        ),
        (
            {"settle": settled_by_one},
            _called_with("settled_by_one takes (_)", "settled_by_one"),
        ),
        (
            {"settle": settled_by_three},
            _called_with("settled_by_three takes (_, __, c)", "settled_by_three"),
        ),
        ({"count_status": 401}, 'count_status: got 401, expected a list of statuses such as [401, "4xx"]'),
        ({"count_status": "401"}, "count_status: got '401', expected a list of statuses such as [401, \"4xx\"]"),
        (
            {"count_status": [200, 99]},
            'count_status[1]: got 99, expected a status from 100 to 599, or a class such as "4xx"',
        ),
        (
            {"count_status": ["6xx"]},
            "count_status[0]: got '6xx', expected a status from 100 to 599, or a class such as \"4xx\"",
        ),
        (
            {"count_status": [True]},
            'count_status[0]: got True, expected a status from 100 to 599, or a class such as "4xx"',
        ),
        (
            {"count_status": [600]},
            'count_status[0]: got 600, expected a status from 100 to 599, or a class such as "4xx"',
        ),
        ({"penalty": 7}, "penalty: got 7, expected text such as '10 refusals per minute: 15 minutes', or a Ban"),
        (
            {"penalty": "10 per minute"},
            (
                "penalty: got '10 per minute', which has no duration; expected text such as "
                "'10 refusals per minute: 15 minutes', or a Ban"
            ),
        ),
        (
            {"penalty": "10/minute for 5 minutes"},
            (
                "penalty: got '10/minute for 5 minutes', which has no duration: write a colon in "
                "place of 'for'; expected text such as '10 refusals per minute: 15 minutes', or a Ban"
            ),
        ),
        *(
            (
                {"penalty": text},
                (
                    f"penalty: got {text!r}, where {number} has no unit: write '{number} seconds', or another unit; "
                    "expected text such as '10 refusals per minute: 15 minutes', or a Ban"
                ),
            )
            for text, number in (
                ("10/minute for 5", "5"),
                ("10/minute: 5", "5"),
                ("10 per minute: 1.5", "1.5"),
                ("10 refusals per 60: 15 minutes", "60"),
            )
        ),
        (
            {"penalty": "10 refusals per minute using gcra: 1 hour"},
            (
                "penalty: got '10 refusals per minute using gcra: 1 hour', expected text such as '10 refusals per "
                "minute: 15 minutes', or a Ban"
            ),
        ),
    ],
)
def test_the_error_for_a_wrong_settle_or_penalty_setting_names_its_place(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as top:
        Settings(limits="9/hour", **words)
    assert str(top.value) == message
    with pytest.raises(ConfigError) as rule:
        Settings(limits="9/hour", rules=[{"path": "/", "limits": "9/hour", **words}])
    assert str(rule.value) == f"rules[0].{message}"


@pytest.mark.parametrize("call", [true_cost_of_any, max, SettledByMethod().settle, lambda *_, more=1: more])
def test_settle_accepts_callables_that_take_request_and_response(call: Any) -> None:
    """The parameters of a function in C, such as `max`, may be unknown."""
    assert Settings(limits="9/hour", settle=call).settle is call


NOTHING_TAKEN = (
    "cost: got 0 for 9/3600s using gcra beside settle or count_status: a request that charges nothing is never "
    "refused, whatever it is settled to later; expected an estimate of at least 1, or settle = false in the "
    "limit's table"
)


@pytest.mark.promise(9)
@pytest.mark.parametrize("how", [{"settle": max}, {"count_status": [401]}])
@pytest.mark.parametrize("top", [False, True])
def test_a_settled_limit_with_cost_zero_is_a_config_error(how: dict[str, Any], top: bool) -> None:
    free: dict[str, Any] = {"limit": "9/hour using gcra", "cost": 0}

    def made(limits: Any, **rule: Any) -> Settings:
        own = {"path": "/", "limits": limits, **({} if top else how), **rule}
        return Settings(limits="9/hour", rules=[own], **(how if top else {}))

    for limits, rule in ((free, {}), ("9/hour using gcra", {"cost": 0}), ([{"limit": "5/day"}, free], {})):
        with pytest.raises(ConfigError) as error:
            made(limits, **rule)
        assert str(error.value) == f"rules[0].{NOTHING_TAKEN}"
    with pytest.raises(ConfigError) as error:
        made({"free": "5/hour", "paid": free}, tier="user")
    assert str(error.value) == f"rules[0].{NOTHING_TAKEN}"
    with pytest.raises(ConfigError) as error:
        Settings(limits=free, **how)
    assert str(error.value) == f"limits.{NOTHING_TAKEN}"
    allowed: list[tuple[Any, dict[str, Any]]] = [
        ({**free, "settle": False}, {}),
        ({"limit": "9/hour using gcra", "cost": 1}, {"cost": 0}),
        ("9/hour using gcra", {"cost": lambda _: 0}),
        ([], {"cost": 0}),
    ]
    for limits, rule in allowed:
        made(limits, **rule)
    Settings(limits=free)
    Settings(limits="9/hour", rules=[{"path": "/", "limits": free}])
    if top and "count_status" in how:
        made(free, count_status=[])  # the rule charges every response, so it settles nothing


@pytest.mark.parametrize("limits", [{"exempt": True}, {"limits": []}])
def test_a_rule_without_limits_cannot_have_a_penalty(limits: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"rules\[0\].penalty: a rule without limits never refuses, so it cannot have a penalty"
    ):
        Settings(limits="9/hour", rules=[{"path": "/", "penalty": "1/minute: 1 hour", **limits}])


@pytest.mark.parametrize(
    ("text", "ban"),
    [
        ("10 refusals per minute: 15 minutes", (10, 60, 900)),
        ("1 refusal per 2 hours:1 day", (1, 7200, 86400)),
        ("5/10s: 90s", (5, 10, 90)),
        ("3 per 0.5 second : 0.25 seconds", (3, 0.5, 0.25)),
    ],
)
def test_a_penalty_is_parsed_from_text(text: str, ban: tuple[int, float, float]) -> None:
    found = parse_penalty(text)
    assert found is not None
    assert (found.quota, found.window, found.ban) == ban
    assert parse_penalty(found) is found


# ten thousand requests


REQUESTS = 10_000


def many_over_asgi(around: Any, costs: Sequence[tuple[int, int]]) -> None:
    async def main() -> None:
        async def send(_: Any) -> None: ...

        for estimate, actual in costs:
            await around({**HTTP, "path": f"/{estimate}/{actual}"}, None, send)

    asyncio.run(main())


def many_over_wsgi(around: Any, costs: Sequence[tuple[int, int]]) -> None:
    for estimate, actual in costs:
        read(Server(PATH_INFO=f"/{estimate}/{actual}").ask(around))


def estimated(request: Any) -> int:
    return int(request.path.split("/")[1])


def true_cost(request: Any, _: Any) -> int:
    return int(request.path.split("/")[2])


def said_by_the_app(environ: Any, start_response: Any) -> Any:
    environ["ratelimit_mw"].settle(int(environ["PATH_INFO"].split("/")[2]))
    return hello(environ, start_response)


async def asaid_by_the_app(scope: Any, _: Any, send: Any) -> None:
    scope["state"]["ratelimit"].settle(int(scope["path"].split("/")[2]))
    await send(START)
    await send(BODY)


@pytest.mark.promise(3)
@pytest.mark.parametrize(
    ("make", "many", "app", "settle"),
    [
        (asgi.RateLimitMiddleware, many_over_asgi, App200(), true_cost),
        (asgi.RateLimitMiddleware, many_over_asgi, asaid_by_the_app, None),
        (wsgi.RateLimitMiddleware, many_over_wsgi, hello, true_cost),
        (wsgi.RateLimitMiddleware, many_over_wsgi, said_by_the_app, None),
    ],
    ids=["asgi, a callable", "asgi, the app", "wsgi, a callable", "wsgi, the app"],
)
def test_settling_ten_thousand_requests_charges_the_exact_total(make: Any, many: Any, app: Any, settle: Any) -> None:
    random = Random(str(settle))  # noqa: S311  # tests need no secrets
    costs = [(random.randint(0, 900), random.randint(0, 900)) for _ in range(REQUESTS)]
    store = MemoryStore(clock=Clock())
    settings: dict[str, Any] = {"limits": "900000000/day using gcra", "cost": estimated, "plain_keys": True}
    rule = {"path": "/{estimate}/{actual}", "name": "all", **{key: settings[key] for key in ("limits", "cost")}}
    many(make(app, limits=[], rules=[rule], store=store, plain_keys=True, settle=settle), costs)
    (left,) = store.peek([Charge("{ip=192.0.2.1}:all", parse(settings["limits"])[0], 0)])
    assert left.limit - left.remaining == sum(actual for _, actual in costs)


@pytest.mark.parametrize("face", FACES)
def test_settling_in_each_integration_charges_the_exact_total(face: str) -> None:
    """The test sends only a hundred requests, because some integrations are slow."""
    random = Random(face)  # noqa: S311  # tests need no secrets
    costs = [(random.randint(0, 900), random.randint(0, 900)) for _ in range(100)]
    store = MemoryStore(clock=Clock())
    limits = "900000000/day using fixed_window"
    rule = {"path": "/{e}/{a}", "name": "all", "limits": limits, "cost": estimated, "settle": true_cost}
    send = FACES[face]({"limits": [], "rules": [rule], "store": store, "plain_keys": True})
    for estimate, actual in costs:
        assert send(Step(path=f"/{estimate}/{actual}")).status == 200
    (left,) = store.peek([Charge("{ip=192.0.2.1}:all", parse(limits)[0], 0)])
    assert left.limit - left.remaining == sum(actual for _, actual in costs)


def test_the_state_has_the_remaining_units_or_none_without_a_limit() -> None:
    left: list[int | None] = []

    def app(environ: Any, start_response: Any) -> Any:
        left.append(environ["ratelimit_mw"].remaining)
        return hello(environ, start_response)

    for options in ({}, {"enabled": False}, {"exempt": ["/"]}, {"safelist": ["192.0.2.1"]}):
        read(Server().ask(wsgi.RateLimitMiddleware(app, limits="9/hour", key="ip", store=MemoryStore(), **options)))
    assert left == [8, None, None, None]

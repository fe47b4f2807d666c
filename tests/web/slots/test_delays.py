"""Requests that are delayed instead of refused: how long, how many at once, and the refund if a client leaves."""

import asyncio
import time
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from werkzeug.test import Client

from ratelimit_mw import Charge, Decision, MemoryStore, Verdict, parse
from ratelimit_mw import flask as flask_face
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.verdict import refunds_for
from ratelimit_mw.engine.delays import refused_for_capacity
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.fastapi import RateLimit
from ratelimit_mw.settings import Settings
from ratelimit_mw.starlette import limit as starlette_limit
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock
from web.asgi_talk import BODY, HTTP, START, App200, Talk, header
from web.faces import FACES
from web.scenario import Step
from web.waits import GONE, PART, REST, WHOLE, Waits
from web.websocket_talk import chat

PACED: dict[str, Any] = {"limit": "50/second burst 3 using leaky_bucket", "max_delay": 1}  # one request every 20 ms
SLOW: dict[str, Any] = {"limit": "1/hour burst 3 using leaky_bucket", "max_delay": 86400}  # no test waits that long


class Heard:
    """A hook that records all verdicts."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def __call__(self, event: Any) -> None:
        self.verdicts.append(event.verdict)

    def __getitem__(self, index: int) -> Verdict:
        return self.verdicts[index]

    @property
    def delays(self) -> list[float]:
        return [verdict.delay for verdict in self.verdicts]


@pytest.mark.parametrize("face", FACES)
def test_each_integration_delays_requests_and_refuses_those_over_the_burst(face: str) -> None:
    heard = Heard()
    ask = FACES[face]({"limits": PACED, "store": MemoryStore(clock=Clock()), "on_decision": heard})
    began = time.monotonic()
    answers = [ask(Step()) for _ in range(4)]
    assert time.monotonic() - began >= 0.06
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert heard.delays == [0.0, 0.02, 0.04, 0.0]
    assert heard[3].retry_after == 0.02
    assert [dict(answer.headers).get("retry-after") for answer in answers] == [None, None, None, "1"]


@pytest.mark.parametrize("face", FACES)
def test_requests_are_refused_instead_of_delayed_if_max_waiting_is_0(face: str) -> None:
    heard = Heard()
    clock = Clock()
    settings = {"limits": PACED, "max_waiting": 0, "store": MemoryStore(clock=clock), "on_decision": heard}
    ask = FACES[face](settings)
    assert [ask(Step()).status for _ in range(2)] == [200, 429]
    assert (heard[1].retry_after, heard[1].remaining) == (0.02, 0)
    clock.advance(0.02)
    assert ask(Step()).status == 200


@pytest.mark.parametrize("face", FACES)
def test_shadow_limit_delays_no_request(face: str) -> None:
    ask = FACES[face]({"limits": [{**SLOW, "shadow": True}], "store": MemoryStore(clock=Clock())})
    assert [ask(Step()).status for _ in range(5)] == [200] * 5


def test_limits_on_endpoints_delay_requests() -> None:
    heard = Heard()

    async def page(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    star = Starlette(routes=[Route("/", starlette_limit(PACED)(page))])
    fast = FastAPI()
    fast.add_api_route("/", page, dependencies=[Depends(RateLimit(PACED))])
    for app in (star, fast):
        app.add_middleware(RateLimitMiddleware, limits=[], on_decision=heard, store=MemoryStore(clock=Clock()))
        assert asyncio.run(_statuses(app, 4)) == [200, 200, 200, 429]
    web = Flask(__name__)
    web.add_url_rule("/", view_func=flask_face.limit(PACED)(lambda: "hello"), endpoint="page")
    flask_face.RateLimiter(web, limits=[], on_decision=heard, store=MemoryStore(clock=Clock()))
    assert [Client(web).get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert heard.delays == [0.0, 0.02, 0.04, 0.0] * 3


async def _statuses(app: Any, requests: int) -> list[int]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        return [(await client.get("/")).status_code for _ in range(requests)]


class Held:
    """An app behind the middleware, and requests to it, some of which are delayed."""

    def __init__(self, **settings: Any) -> None:
        self.app = App200()
        self.store = MemoryStore(clock=Clock())
        self.middleware = RateLimitMiddleware(self.app, **{"limits": SLOW, "store": self.store, **settings})

    def start(self, *given: Any, **scope: Any) -> Waits:
        return Waits(self.middleware, *given, **scope)


@pytest.mark.promise(11)
@pytest.mark.parametrize("given", [[WHOLE], [PART, REST], [REST], []])
def test_request_that_ends_during_its_delay_frees_capacity_and_is_refunded(given: list[Any]) -> None:
    async def main() -> None:
        held = Held(max_waiting=1)
        assert (await held.start(WHOLE).goes_on()).status == 200
        waits = await held.start(*given).goes_on()
        assert (waits.status, len(held.app.scopes)) == (None, 1)
        assert (await held.start(WHOLE).goes_on()).status == 429  # no capacity
        if given == [PART, REST]:  # at most one message of a body is read
            assert waits.receives == 1
            waits.task.cancel()
            await asyncio.wait([waits.task])
        else:
            waits.queue.put_nowait(GONE)
            await waits.goes_on()
            assert waits.task.done()
            assert (waits.status, waits.talk.types[1:]) == (499, ["http.response.body"])
        assert len(held.app.scopes) == 1
        last = await held.start(WHOLE).goes_on()  # there is capacity, and the turn of the client that left is free
        assert (last.status, await _turn(held)) == (None, 7200.0)
        last.task.cancel()
        await asyncio.wait([last.task])

    asyncio.run(main())


async def _turn(held: Held) -> float:
    """Return the delay that the next request would get, in seconds."""
    limit = parse("1/hour burst 3 using leaky_bucket at_once 0")[0]
    (shelf,) = held.store._maps.values()
    (key,) = shelf.current
    return held.store.peek([Charge(key, limit, max_delay=10.0**6)])[0].delay


@pytest.mark.promise(11)
def test_messages_received_during_a_delay_reach_the_app_once_in_order() -> None:
    got: list[Any] = []

    async def app(_: Any, receive: Any, send: Any) -> None:
        while True:
            got.append(await receive())
            if not got[-1].get("more_body"):
                break
        early = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        early.cancel()  # as apps do to look for a disconnect; no message is lost
        await asyncio.wait([early])
        await send(START)
        await send(BODY)
        got.append(await receive())

    async def main() -> None:
        middleware = RateLimitMiddleware(app, limits=PACED, store=MemoryStore(clock=Clock()))
        for given in ([PART, PART, REST], [WHOLE], [PART, REST]):  # the first request is not delayed
            waits = Waits(middleware, *given)
            while waits.status is None:  # noqa: ASYNC110  # until its turn
                await asyncio.sleep(0.001)
            waits.queue.put_nowait(GONE)
            await asyncio.wait_for(waits.task, 10)
            assert got == [*given, GONE]
            assert all(one is other for one, other in zip(got, [*given, GONE], strict=True))
            got.clear()

    asyncio.run(main())


def test_delay_does_not_receive_the_body_of_a_100_continue_request() -> None:
    async def main() -> None:
        held = Held()
        expects = [(b"Expect", b"100-continue")]
        await held.start(WHOLE).goes_on()
        waits = await held.start(GONE, headers=expects).goes_on()
        assert (waits.receives, waits.status) == (0, None)
        waits.task.cancel()
        await asyncio.wait([waits.task])

    asyncio.run(main())


def test_exception_of_the_servers_receive_reaches_the_app() -> None:
    async def app(_: Any, receive: Any, send: Any) -> None:
        with pytest.raises(OSError, match="broken"):
            await receive()
        await send(START)
        await send(BODY)

    async def broken() -> Any:
        raise OSError("broken")

    async def main() -> None:
        middleware = RateLimitMiddleware(app, limits=PACED, store=MemoryStore(clock=Clock()))
        for _ in range(2):
            talk = Talk()
            await middleware(dict(HTTP), broken, talk.send)
            assert talk.sent[0]["status"] == 200

    asyncio.run(main())


def test_one_client_gets_half_of_the_delay_capacity_under_asyncio() -> None:
    async def main() -> None:
        held = Held(max_waiting=4)
        bad, good = [{"client": (f"192.0.2.{number}", 5000)} for number in (66, 1)]
        for scope in (bad, good):
            assert (await held.start(WHOLE, **scope).goes_on()).status == 200
        asked = [await held.start(WHOLE, **scope).goes_on() for scope in [bad] * 4 + [good] * 3]
        assert [one.status for one in asked] == [None, None, 429, 429, None, None, 429]
        asked[0].queue.put_nowait(GONE)
        await asked[0].goes_on()
        assert (await held.start(WHOLE, **good).goes_on()).status == 429  # the client uses its half already
        more = await held.start(WHOLE, **bad).goes_on()
        assert more.status is None
        for one in (*asked, more):
            one.task.cancel()
        await asyncio.wait([one.task for one in (*asked, more)])
        assert (held.middleware._gate.delay_capacity._free, held.middleware._gate.delay_capacity._used_by_key) == (
            4,
            {},
        )

    asyncio.run(main())


@pytest.mark.promise(1)
def test_request_without_delay_capacity_costs_one_store_call() -> None:
    calls: list[str] = []

    class Store(MemoryStore):
        async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            calls.append("take")
            return self.take(charges)

        async def asettle(self, charges: Sequence[Charge]) -> None:
            calls.append("settle")
            self.settle(charges)

    async def main() -> None:
        held = Held(max_waiting=1, store=Store(clock=Clock()))
        first, second, third = [await held.start(WHOLE).goes_on() for _ in range(3)]
        assert (first.status, second.status, third.status) == (200, None, 429)
        assert header(third.talk.sent[0], "retry-after") == ["7200"]  # until no request is ahead of it
        assert calls == ["take"] * 3
        second.task.cancel()
        await asyncio.wait([second.task])
        assert calls == ["take"] * 3 + ["settle"]

    asyncio.run(main())


@pytest.mark.promise(2)
def test_loser_of_a_race_for_delay_capacity_is_refunded_and_refused() -> None:
    """The store delays both requests. One is refunded, and refused as without a delay."""
    may_answer = asyncio.Event()

    class Slow(MemoryStore):
        async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            decisions = self.take(charges)
            await may_answer.wait()
            return decisions

    async def main() -> None:
        heard = Heard()
        limits = [SLOW, "10/minute using fixed_window"]
        store = Slow(clock=Clock())
        held = Held(max_waiting=1, limits=limits, store=store, on_decision=heard, store_timeout=60.0)
        asked = [await held.start(WHOLE).goes_on() for _ in range(3)]
        may_answer.set()
        await asked[2].goes_on()
        assert [one.status for one in asked] == [200, None, 429]
        assert [(one.allowed, one.delay) for one in heard.verdicts] == [(True, 0.0), (True, 3600.0), (False, 0.0)]
        assert (heard[2].retry_after, [one.allowed for one in heard[2].decisions]) == (7200.0, [False, True])
        assert heard[2].decisions[1].remaining == 8
        assert store.peek([Charge(heard[2].charges[1].key, heard[2].charges[1].limit, 0)])[0].remaining == 8
        asked[1].task.cancel()
        await asyncio.wait([asked[1].task])

    asyncio.run(main())


def test_refusal_for_lack_of_delay_capacity_shows_uncharged_quotas() -> None:
    bucket, window = parse("1/s burst 1 using gcra; 10/minute")
    charges = [Charge("k", bucket, max_delay=9.0), Charge("k", window, 2), Charge("k", window, role="shadow")]
    decisions = [
        Decision(True, 1, 0, 0.0, 2.5, 2.5, 1.5, 7),
        Decision(True, 10, 7, 0.0, 60.0, 60.0, 0.0, 5),
        Decision(False, 10, 0, 9.0, 60.0, 60.0, 0.0, 5),
    ]
    verdict = refused_for_capacity(Verdict(True, charges, decisions))
    assert (verdict.allowed, verdict.retry_after, verdict.delay, verdict.binding) == (False, 1.5, 0.0, 0)
    assert [one.allowed for one in verdict.decisions] == [False, True, False]
    assert [one.remaining for one in verdict.decisions] == [0, 9, 0]
    assert verdict.decisions[2] is decisions[2]


def test_only_charged_limits_and_shadows_are_refunded() -> None:
    """Shadows are charged together or not at all. Penalties count refusals, so they are not refunded."""
    limit, window = parse("1/s burst 1 using gcra; 10/minute")
    charges = [
        Charge("k", limit, 2),
        Charge("k", window, 0),
        Charge("s", window, role="shadow"),
        Charge("p", window, role="penalty"),
    ]
    passed = Decision(True, 1, 0, 0.0, 1.0, 1.0, 0.5, 7)
    for admits, roles in ((True, ["limit", "shadow"]), (False, ["limit"])):
        decisions = [passed, passed, Decision(admits, 10, 0, 0.0, 9.0, 9.0, 0.0, 5), passed]
        back = refunds_for(Verdict(True, charges, decisions))
        assert [charge.role for charge in back] == roles
        assert (back[0].cost, back[0].at) == (-2, 7)


@pytest.mark.parametrize("over", ["memory", "redis"])
def test_request_canceled_during_its_delay_is_refunded(over: str, request: pytest.FixtureRequest) -> None:
    clock = Clock()

    async def main() -> None:
        store: Any = MemoryStore(clock=clock)
        if over == "redis":
            server = next(iter(request.getfixturevalue("redis_servers").values()))
            server.flush()
            store = AsyncRedisStore(server.url, clock=clock, timeout=60.0)
        heard = Heard()
        held = Held(limits=[SLOW, "10/minute"], store=store, on_decision=heard, store_timeout=60.0)
        await held.start(WHOLE).task
        waits = held.start(WHOLE)
        while len(heard.verdicts) < 2:  # noqa: ASYNC110  # until it is delayed
            await asyncio.sleep(0.001)
        waits.task.cancel()
        await asyncio.wait([waits.task])
        assert waits.task.cancelled()
        again = held.start(WHOLE)
        while len(heard.verdicts) < 3:  # noqa: ASYNC110  # until it is delayed
            await asyncio.sleep(0.001)
        assert heard.delays == [0.0, 3600.0, 3600.0]
        assert heard[2].decisions[1].remaining == 8
        again.task.cancel()
        await asyncio.wait([again.task])
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("over", "more", "places"),
    [("memory", {}, 2), ("redis", {}, 2), ("memory", {"max_waiting": 3}, 3)],
    ids=["memory", "redis", "max_waiting"],
)
def test_two_threads_may_be_delayed_unless_max_waiting_is_set(
    over: str,
    more: dict[str, Any],
    places: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleeping, may_go = [Event() for _ in range(places)], Event()
    slept: list[float] = []

    def sleep(delay: float) -> None:
        slept.append(delay)
        sleeping[len(slept) - 1].set()
        may_go.wait(10)

    store: Any = MemoryStore(clock=Clock())
    if over == "redis":
        server = next(iter(request.getfixturevalue("redis_servers").values()))
        server.flush()
        store = RedisStore(server.url, clock=Clock(), timeout=5.0)
    paced = {"limit": "1/hour burst 9 using leaky_bucket", "max_delay": 86400, "key": "all"}
    ask = FACES["wsgi"]({"limits": paced, "store": store, **more})
    *waiting, last = [Step(client=f"192.0.2.{number}") for number in range(places + 1)]
    assert ask(waiting[0]).status == 200
    monkeypatch.setattr("ratelimit_mw.engine.runtime.time.sleep", sleep)
    threads = [Thread(target=ask, args=[client]) for client in waiting]
    for thread, asleep in zip(threads, sleeping, strict=True):
        thread.start()
        assert asleep.wait(10)
    refused = ask(last)
    assert (refused.status, refused.field("retry-after")) == (429, [str(3600 * (places + 1))])  # after the others
    may_go.set()
    for thread in threads:
        thread.join()
    assert sorted(slept) == [3600.0 * turn for turn in range(1, places + 1)]
    monkeypatch.undo()
    store.close()


@pytest.mark.parametrize("face", ["wsgi", "flask", "django"])
@pytest.mark.parametrize("key", ["ip", "all"])
def test_one_client_gets_half_of_the_delay_capacity_of_threads(
    face: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients have their own buckets, or share one bucket."""
    sleeping, may_go = [Event(), Event()], Event()
    slept: list[float] = []

    def sleep(delay: float) -> None:
        slept.append(delay)
        sleeping[len(slept) - 1].set()
        may_go.wait(10)

    store = MemoryStore(clock=Clock())
    paced = {"limit": "1/hour burst 9 using leaky_bucket", "max_delay": 86400, "key": key}
    ask = FACES[face]({"limits": paced, "store": store})
    bad, good = Step(client="192.0.2.66"), Step(client="192.0.2.1")
    assert [ask(one).status for one in ((bad, good) if key == "ip" else (bad,))] == [200] * (1 + (key == "ip"))
    monkeypatch.setattr("ratelimit_mw.engine.runtime.time.sleep", sleep)
    answers: list[int] = []
    threads = [Thread(target=lambda one=one: answers.append(ask(one).status)) for one in (bad, good)]
    threads[0].start()
    assert sleeping[0].wait(10)
    assert [ask(bad).status for _ in range(3)] == [429] * 3
    threads[1].start()
    assert sleeping[1].wait(10)
    may_go.set()
    for thread in threads:
        thread.join()
    assert answers == [200, 200]


def test_interrupted_delay_of_a_thread_is_refunded(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    heard = Heard()
    store = MemoryStore(clock=Clock())
    ask = FACES["wsgi"]({"limits": [SLOW, "10/minute"], "store": store, "max_waiting": 1, "on_decision": heard})
    assert ask(Step()).status == 200
    monkeypatch.setattr("ratelimit_mw.engine.runtime.time.sleep", interrupted)
    for _ in range(3):  # the capacity is free each time
        with pytest.raises(KeyboardInterrupt):
            ask(Step())
    assert heard.delays == [0.0, 3600.0, 3600.0, 3600.0]
    assert [verdict.decisions[1].remaining for verdict in heard.verdicts] == [9, 8, 8, 8]


def test_websocket_messages_are_delayed() -> None:
    heard = Heard()
    settings = {"limits": [], "messages": PACED, "store": MemoryStore(clock=Clock()), "on_decision": heard}
    began = time.monotonic()
    echo, _ = chat(settings, "a", "b", "c")
    assert time.monotonic() - began >= 0.06
    assert (echo.texts, heard.delays) == (["a", "b", "c"], [0.0, 0.02, 0.04])


def test_limits_from_a_callable_can_delay_requests() -> None:
    for name in ("asgi", "wsgi"):
        heard = Heard()
        settings = {"limits": lambda _: PACED, "store": MemoryStore(clock=Clock()), "on_decision": heard}
        ask = FACES[name](settings)
        assert [ask(Step()).status for _ in range(4)] == [200, 200, 200, 429]
        assert heard.delays == [0.0, 0.02, 0.04, 0.0]


def test_the_short_way_is_taken_only_without_max_delay() -> None:
    """It does not check the capacity for delays."""
    plain, holding = AsyncGate(Settings(limits="5/minute using gcra")), AsyncGate(Settings(limits=PACED))
    assert (plain.may_hold, plain.sync_gate is None) == (False, False)
    assert (holding.may_hold, holding.sync_gate) == (True, None)
    ways = [gate.rule_set.short_way("GET", "/", "192.0.2.1", lambda _: ())[0] for gate in (plain, holding)]
    assert [way is None for way in ways] == [False, True]


@pytest.mark.promise(9)
@pytest.mark.parametrize("value", [-1, True, 1.0, "5"])
def test_wrong_max_waiting_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^max_waiting: got .*, expected a whole number from 0"):
        Settings(limits="5/minute", max_waiting=value)


@pytest.mark.parametrize(("gate", "places"), [(AsyncGate, (1000, 500)), (Gate, (2, 1))], ids=["asyncio", "threads"])
def test_default_max_waiting_is_1000_under_asyncio_and_2_for_threads(
    gate: type[AsyncGate | Gate], places: tuple[int, int]
) -> None:
    capacity = gate(Settings(limits=PACED)).delay_capacity
    assert (capacity._free, capacity._max_per_key) == places


def test_nested_gate_shares_the_delay_capacity_of_its_gate() -> None:
    nested = AsyncGate(Settings(limits=PACED, max_waiting=7))
    assert nested.nested.delay_capacity is nested.delay_capacity

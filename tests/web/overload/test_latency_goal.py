"""`latency_goal` refuses requests before any charge, and what is at work returns to 0 however a request ends."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.events import DecisionEvent
from ratelimit_mw.engine import shedding
from ratelimit_mw.engine.overload import OverloadGuard
from ratelimit_mw.metrics.registry import COUNTS
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from ratelimit_mw.wsgi import RateLimitMiddleware as WsgiMiddleware
from web.asgi_talk import BODY, CONNECT, HTTP, START, WEBSOCKET, Talk
from web.faces import FACES
from web.scenario import Step

GOAL: dict[str, Any] = {"limits": "100/minute", "latency_goal": 0.25}
PROBLEM = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"


class Guards:
    """The guards that a test has started."""

    def __init__(self) -> None:
        self.started: list[OverloadGuard] = []
        self._at_work, self._limit = 0, 60.0

    def __call__(self, goal: float, least: int, most: int, **options: Any) -> OverloadGuard:
        # the clock stands still, so that the first window does not end
        self.started.append(OverloadGuard(goal, least, most, Clock(), **options))
        self._fill(self.started[-1])  # Starlette starts it at the first request
        return self.started[-1]

    @property
    def at_work(self) -> int:
        """How many requests are at work."""
        return sum(len(guard.at_work) for guard in self.started)

    @property
    def measured(self) -> int:
        """How many latencies were measured."""
        return sum(len(guard._samples) for guard in self.started)

    def fill(self, requests: int, limit: float = 60.0) -> None:
        """Set how many requests are at work, and how many may be."""
        self._at_work, self._limit = requests, limit
        for guard in self.started:
            self._fill(guard)

    def _fill(self, guard: OverloadGuard) -> None:
        guard.limit = self._limit
        guard.at_work.clear()
        guard.at_work.update(dict.fromkeys(range(-self._at_work, 0), 0.0))


@pytest.fixture
def guards(monkeypatch: pytest.MonkeyPatch) -> Guards:
    found = Guards()
    monkeypatch.setattr(shedding, "OverloadGuard", found)
    return found


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("limits", ["100/minute", []])
@pytest.mark.parametrize("path", ["/", "/stream", "/error"])
def test_each_integration_counts_a_request_until_it_is_answered(
    face: str, path: str, limits: Any, guards: Guards
) -> None:
    send = FACES[face]({**GOAL, "limits": limits, "store": RecordingStore(clock=Clock())})
    for _ in range(3):
        assert send(Step(path=path, fails=path == "/error")).status == (500 if path == "/error" else 200)

    assert guards.at_work == 0
    assert guards.measured == 3 or path == "/error"


@pytest.mark.promise(2)
@pytest.mark.parametrize("face", FACES)
def test_a_request_without_room_is_refused_before_any_charge(face: str, guards: Guards) -> None:
    store, seen = RecordingStore(clock=Clock()), list[DecisionEvent]()
    send = FACES[face]({**GOAL, "store": store, "slot_retry": 2.5, "on_decision": seen.append})
    guards.fill(54)
    refused = send(Step(path="/"))
    headers = dict(refused.headers)

    assert refused.status == 503
    assert headers["retry-after"] == "3"
    assert headers["content-type"] == "application/problem+json"
    assert "ratelimit" not in headers
    assert f'"type":"{PROBLEM}"'.encode() in refused.body
    assert store.calls == []
    assert [(one.verdict.source, one.verdict.rule, one.verdict.allowed) for one in seen] == [
        ("latency_goal", "default", False)
    ]
    assert guards.at_work == 54
    guards.fill(53)
    assert send(Step(path="/")).status == 200
    assert guards.at_work == 53


@pytest.mark.parametrize("face", FACES)
def test_a_request_that_a_limit_refuses_is_not_at_work(face: str, guards: Guards) -> None:
    send = FACES[face]({**GOAL, "limits": "1/minute"})

    assert [send(Step(path="/")).status for _ in range(3)] == [200, 429, 429]
    assert (guards.at_work, guards.measured) == (0, 1)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("at_work", "served"),
    [(29, "critical normal low"), (30, "critical normal"), (53, "critical normal"), (54, "critical"), (60, "")],
)
def test_priorities_share_what_may_be_at_work(face: str, at_work: int, served: str, guards: Guards) -> None:
    """Critical requests may use all of it, normal ones 0.9, low ones half."""
    rules: list[Any] = [{"path": f"/{name}", "priority": name, "limits": []} for name in ("critical", "low")]
    send = FACES[face]({**GOAL, "rules": [*rules, {"path": "/normal", "limits": []}]})
    guards.fill(at_work)

    found = {name: send(Step(path=f"/{name}")).status for name in ("critical", "normal", "low")}
    assert [name for name, status in found.items() if status == 200] == served.split()
    assert set(found.values()) <= {200, 503}


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"exempt": ["/"]}, 200),
        ({"safelist": ["192.0.2.0/24"]}, 200),
        ({"blocklist": ["192.0.2.0/24"]}, 403),
        ({"shadow": True}, 200),
        ({"enabled": False}, 200),
    ],
)
def test_requests_that_nothing_limits_are_not_refused(face: str, more: Any, status: int, guards: Guards) -> None:
    send = FACES[face]({**GOAL, **more})
    guards.fill(60)

    assert send(Step(path="/")).status == status


def test_the_first_rule_with_a_priority_counts(guards: Guards) -> None:
    """A rule that is not final can give many paths a priority."""
    rules = [
        {"path": "/a/{rest:path}", "priority": "low", "limits": [], "final": False},
        {"path": "/a/b", "limits": []},
    ]
    send = FACES["starlette"]({**GOAL, "rules": rules})
    guards.fill(30)

    assert (send(Step(path="/a/b")).status, send(Step(path="/b")).status) == (503, 200)


async def turns() -> None:
    """Let each task run as far as it can without new events."""
    for _ in range(20):
        await asyncio.sleep(0)


class Slow:
    """An app that sends `first`, then waits until the test sets `go`, and may then raise."""

    def __init__(self, *first: Any, error: Exception | None = None) -> None:
        self.first, self.error = first, error
        self.go = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        for message in self.first:
            await send(message)
        await self.go.wait()
        if self.error is not None:
            raise self.error


PART = {**BODY, "more_body": True}
ACCEPT = {"type": "websocket.accept"}


@pytest.mark.parametrize("ending", ["cancelled", "raised", "returned"])
@pytest.mark.parametrize(
    ("scope", "first", "at_work"),
    [
        (HTTP, (), 1),
        (HTTP, (START, PART), 0),  # a stream for ever is not at work
        (WEBSOCKET, (), 1),
        (WEBSOCKET, (ACCEPT,), 0),
    ],
)
def test_what_is_at_work_returns_to_0(scope: Any, first: Any, at_work: int, ending: str, guards: Guards) -> None:
    async def run() -> None:
        app = Slow(*first, error=KeyError() if ending == "raised" else None)
        middleware = RateLimitMiddleware(app, **GOAL)
        for _ in range(3):  # the first request takes the longer way in any case
            app.go.clear()
            given = [CONNECT] if scope is WEBSOCKET else []
            task = asyncio.create_task(Talk(*given).with_app(middleware, scope))
            await turns()
            assert guards.at_work == at_work
            if ending == "cancelled":
                task.cancel()
            app.go.set()
            await asyncio.gather(task, return_exceptions=True)
            assert guards.at_work == 0

    asyncio.run(run())


@pytest.mark.parametrize("ending", ["closed", "raised", "never started"])
def test_under_wsgi_a_stream_for_ever_is_not_at_work(ending: str, guards: Guards) -> None:
    """It is at work until it calls `start_response`; one that raises before is not measured."""

    def app(_: Any, start_response: Any) -> Iterator[bytes]:
        assert guards.at_work == 1
        if ending == "never started":
            raise KeyError
        start_response("200 OK", [])
        assert guards.at_work == 0
        yield b"a"
        if ending == "raised":
            raise KeyError
        while True:
            yield b"b"

    middleware = WsgiMiddleware(app, **GOAL)
    for number in range(1, 4):
        body: Any = middleware(
            {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}, lambda *_: bytes
        )
        assert guards.at_work == 1  # a generator begins with its first part
        with contextlib.suppress(KeyError):
            next(body)
            next(body)
        assert guards.at_work == 0
        body.close()
        assert (guards.at_work, guards.measured) == (0, 0 if ending == "never started" else number)


@pytest.mark.parametrize(("seconds", "measured"), [(0.2, 0), (0.3, 1)])
def test_a_request_without_a_response_counts_if_it_was_slow(seconds: float, measured: int) -> None:
    """Else, clients that give up would hide that the app is too slow."""
    clock = Clock()
    guard = OverloadGuard(0.25, 4, 500, clock)
    assert guard.enter(1.0, 1)
    clock.now += seconds
    guard.left(1)

    assert (len(guard.at_work), len(guard._samples)) == (0, measured)


class StuckStore(RecordingStore):
    """A store that never answers."""

    suspends = True

    async def atake(self, charges: Any) -> Any:
        await asyncio.Event().wait()


def test_a_request_that_is_canceled_while_it_waits_for_the_store_is_not_at_work(guards: Guards) -> None:
    async def run() -> None:
        middleware = RateLimitMiddleware(Slow(), **GOAL, store=StuckStore(), store_timeout=100)
        for _ in range(3):
            task = asyncio.create_task(Talk().with_app(middleware, HTTP))
            await turns()
            assert guards.at_work == 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert guards.at_work == 0

    asyncio.run(run())


@pytest.mark.parametrize("style", ["none", "draft-7"])
def test_requests_are_counted_in_each_style_of_headers(style: str, guards: Guards) -> None:
    send = FACES["asgi"]({**GOAL, "headers": style})

    assert [send(Step(path="/")).status for _ in range(3)] == [200] * 3
    assert (guards.at_work, guards.measured) == (0, 3)


def test_requests_are_at_work_across_reloads() -> None:
    """To another goal, to none, and to one again."""

    async def run() -> None:
        app = Slow()
        app.go.set()
        middleware = RateLimitMiddleware(app, **GOAL)
        await Talk().with_app(middleware, HTTP)  # examines the routes
        for goal, at_work in ((0.5, [1, 1]), (0.0, [1]), (0.25, [0])):
            app.go.clear()
            before = middleware._gate.guard
            task = asyncio.create_task(Talk().with_app(middleware, HTTP))
            await turns()
            middleware._use(middleware._rebuild(Settings.of({**GOAL, "latency_goal": goal}, {})))
            guards = [guard for guard in (before, middleware._gate.guard) if guard is not None]
            assert [len(guard.at_work) for guard in guards] == at_work
            app.go.set()
            await task
            assert not any(guard.at_work for guard in guards)

    asyncio.run(run())


def test_metrics_show_what_is_shed_and_at_work(guards: Guards) -> None:
    COUNTS.forget()
    send = FACES["starlette"]({**GOAL, "metrics": True})
    send(Step(path="/"))
    guards.fill(54)
    guards.started[0].reached = 0.2
    send(Step(path="/"))
    counts = COUNTS.own_counts()

    assert counts["ratelimit_requests_total", ("default", "admitted", "store")] == 1
    assert counts["ratelimit_requests_total", ("default", "shed", "latency_goal")] == 1
    assert {name: count for (name, labels), count in counts.items() if "at_work" in name or "latency" in name} == {
        "ratelimit_latency_goals": 1,
        "ratelimit_at_work": 54,
        "ratelimit_at_work_limit": 60,
        "ratelimit_latency_goal_seconds": 250_000,
        "ratelimit_latency_reached_seconds": 200_000,
    }


def test_without_a_goal_nothing_is_replaced() -> None:
    """A gate without a goal runs none of the guard's code."""
    gate = RateLimitMiddleware(Slow(), limits="5/minute")._gate

    assert gate.guard is None
    assert "admit" not in vars(gate)
    assert "match" not in vars(gate.rule_set)

"""Tests `queue`: a request waits while all slots are in use. Waiting requests are admitted in FIFO order."""

import asyncio
import threading
import time
from typing import Any

import pytest

from ratelimit_mw import MemoryStore, StoreError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.limit import Charge, Decision
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.slot_queue import SlotBucket, SlotDemand
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.asgi_talk import BODY, HTTP, START, Talk
from web.plain_request import PlainRequest
from web.waits import GONE, PART, REST, WHOLE, Waits
from web.wsgi_talk import Server, limited

LONG = 60.0  # seconds; no request here waits that long
WAITING: dict[str, Any] = {"limits": [], "concurrent": 1, "queue": 10, "queue_timeout": LONG}


class Turns:
    """An app that records the paths of its requests. A request is in progress until `end` is called with its path."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.at_work = self.most = 0
        self.go: dict[str, asyncio.Event] = {}

    async def __call__(self, scope: Any, _: Any, send: Any) -> None:
        name = scope["path"]
        self.order.append(name)
        self.at_work += 1
        self.most = max(self.most, self.at_work)
        await self.go.setdefault(name, asyncio.Event()).wait()
        self.at_work -= 1
        await send(START)
        await send(BODY)

    def end(self, name: str) -> None:
        self.go[name].set()


async def settled() -> None:
    """Let all tasks run until they wait for an event."""
    for _ in range(30):
        await asyncio.sleep(0)


async def asked(app: Any, *names: str) -> tuple[list[Talk], list["asyncio.Task[Talk]"]]:
    """Start requests for these paths in order, and return their talks and tasks."""
    talks, tasks = [], []
    for name in names:
        talks.append(talk := Talk())
        tasks.append(asyncio.create_task(talk.with_app(app, HTTP, path=name)))
        await settled()
    return talks, tasks


def statuses(talks: list[Talk]) -> list[int | None]:
    return [talk.sent[0]["status"] if talk.sent else None for talk in talks]


def test_queued_requests_are_admitted_in_order_and_one_at_a_time() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **WAITING)
        names = [f"/{n}" for n in range(8)]
        talks, tasks = await asked(app, *names)
        for done, name in enumerate(names, 1):
            assert turns.order == names[:done]
            turns.end(name)
            await settled()
        await asyncio.gather(*tasks)
        assert (turns.most, statuses(talks)) == (1, [200] * 8)

    asyncio.run(run())


def test_a_request_is_refused_at_once_if_the_queue_is_full() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "queue": 2})
        talks, tasks = await asked(app, "/a", "/b", "/c", "/d")
        assert statuses(talks) == [None, None, None, 429]
        headers = dict(talks[3].sent[0]["headers"])
        assert headers[b"retry-after"] == b"1"
        assert headers[b"ratelimit"] == b'"default-concurrent";r=0;t=1'
        turns.end("/a")
        await settled()
        more, more_tasks = await asked(app, "/e", "/f")
        assert (turns.order, statuses(more)) == (["/a", "/b"], [None, 429])
        for name in ("/b", "/c", "/e"):
            turns.end(name)
            await settled()
        await asyncio.gather(*tasks, *more_tasks)
        assert turns.order == ["/a", "/b", "/c", "/e"]

    asyncio.run(run())


def test_a_later_request_does_not_overtake_queued_requests() -> None:
    """The later request waits even if a slot is free but the request before it has not woken up yet."""

    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **WAITING)
        _, tasks = await asked(app, "/a", "/b")
        turns.end("/a")
        late = asyncio.create_task(Talk().with_app(app, HTTP, path="/late"))
        await settled()
        assert turns.order == ["/a", "/b"]
        turns.end("/b")
        await settled()
        turns.end("/late")
        await asyncio.gather(*tasks, late)

    asyncio.run(run())


def test_a_canceled_request_leaves_the_queue_and_later_ones_move_up() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "queue": 2})
        _, tasks = await asked(app, "/a", "/b", "/c")
        tasks[1].cancel()
        await settled()
        talks, more = await asked(app, "/d")
        assert statuses(talks) == [None]
        for name in ("/a", "/c", "/d"):
            turns.end(name)
            await settled()
        await asyncio.gather(tasks[0], tasks[2], *more)
        assert tasks[1].cancelled()
        assert turns.order == ["/a", "/c", "/d"]

    asyncio.run(run())


@pytest.mark.promise(11)
@pytest.mark.parametrize("given", [[WHOLE], [REST], []])
def test_the_request_of_a_disconnected_client_leaves_the_queue_unserved(given: list[Any]) -> None:
    """The server sends only `http.disconnect`. Both the first and the last request of a queue leave at once."""

    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "queue": 2})
        first, second, third = [await Waits(app, *given, path=path).goes_on() for path in ("/a", "/b", "/c")]
        assert (await Waits(app, WHOLE, path="/full").goes_on()).status == 429
        for one in (third, second):  # the last in the queue, then the first
            one.queue.put_nowait(GONE)
            await one.goes_on()
            assert (one.task.done(), one.status, one.talk.types[1:]) == (True, 499, ["http.response.body"])
        last, more = [await Waits(app, WHOLE, path=path).goes_on() for path in ("/d", "/e")]
        assert (last.status, more.status, turns.order) == (None, None, ["/a"])  # both places are free again
        for name in ("/a", "/d", "/e"):
            assert turns.order[-1] == name
            turns.end(name)
            await settled()
        assert [one.status for one in (first, last, more)] == [200] * 3
        assert turns.order == ["/a", "/d", "/e"]

    asyncio.run(run())


def test_the_request_behind_a_disconnected_client_gets_the_next_slot() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **WAITING)
        _, gone, behind = [await Waits(app, WHOLE, path=path).goes_on() for path in ("/a", "/b", "/c")]
        gone.queue.put_nowait(GONE)
        turns.end("/a")
        await behind.goes_on()
        assert turns.order == ["/a", "/c"]
        turns.end("/c")
        await behind.goes_on()
        assert behind.status == 200

    asyncio.run(run())


@pytest.mark.promise(11)
@pytest.mark.parametrize("given", [[WHOLE], [PART, PART, REST], [REST]])
def test_a_queued_request_reads_one_body_message_and_the_app_gets_all_of_them(given: list[Any]) -> None:
    """A queued request reads no more, however often it wakes up, because a whole body may be large."""

    async def run() -> None:
        got: list[Any] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/first":
                await over.wait()
            elif scope["path"] == "/":
                while True:
                    got.append(await receive())
                    if not got[-1].get("more_body"):
                        break
            await send(START)
            await send(BODY)

        over = asyncio.Event()
        middleware = RateLimitMiddleware(app, **WAITING)
        ahead = await Waits(middleware, WHOLE, path="/first").goes_on()
        waits = await Waits(middleware, *given).goes_on()
        for _ in range(5):  # the request wakes up each time, and gets no slot
            middleware._gate._queues.wake([_bucket_of(middleware)])
            await waits.goes_on()
        assert (waits.receives, waits.status) == (1 if given[0] is PART else 2, None)
        over.set()
        await waits.goes_on()
        assert (ahead.status, waits.status) == (200, 200)
        assert got == given
        assert all(one is other for one, other in zip(got, given, strict=True))

    asyncio.run(run())


def _bucket_of(middleware: RateLimitMiddleware) -> SlotBucket:
    """Return the bucket of the only queue."""
    (bucket,) = middleware._gate._queues._by_bucket
    return bucket


def test_a_queued_request_that_expects_100_continue_reads_no_body() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **WAITING)
        first = await Waits(app, WHOLE, path="/a").goes_on()
        waits = await Waits(app, GONE, path="/b", headers=[(b"Expect", b"100-continue")]).goes_on()
        assert (waits.receives, waits.status) == (0, None)
        for one, name in ((first, "/a"), (waits, "/b")):
            turns.end(name)
            await waits.goes_on()
            assert one.status == 200

    asyncio.run(run())


def test_a_request_is_refused_and_leaves_the_queue_after_queue_timeout() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "queue_timeout": 0.05})
        talks, tasks = await asked(app, "/a", "/b", "/c")
        await asyncio.gather(*tasks[1:])
        assert statuses(talks) == [None, 429, 429]
        turns.end("/a")
        await asyncio.gather(*tasks)
        talks, tasks = await asked(app, "/d")
        turns.end("/d")
        await asyncio.gather(*tasks)
        assert turns.order == ["/a", "/d"]

    asyncio.run(run())


def test_each_key_has_its_own_queue() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "key": "header:x-user", "queue": 1})
        tasks = []
        for user in (b"one", b"two"):
            for n in range(3):
                fields = [(b"x-user", user)]
                scope = {**HTTP, "path": f"/{user.decode()}{n}", "headers": fields}
                tasks.append(asyncio.create_task(Talk().with_app(app, scope)))
                await settled()
        assert turns.order == ["/one0", "/two0"]
        assert statuses([tasks[2].result(), tasks[5].result()]) == [429, 429]
        for name in ("/one0", "/two0", "/one1", "/two1"):
            await settled()
            turns.end(name)
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_a_request_does_not_wait_if_another_limit_refuses_it() -> None:
    async def run() -> None:
        turns = Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "limits": "2/minute", "store": MemoryStore(clock=Clock())})
        talks, tasks = await asked(app, "/a", "/b", "/c")
        assert statuses(talks) == [None, None, None]  # one request was left when /c arrived
        turns.end("/a")
        await settled()
        turns.end("/b")
        await asyncio.gather(*tasks)
        assert statuses(talks) == [200, 200, 429]
        assert dict(talks[2].sent[0]["headers"])[b"retry-after"] == b"60"
        assert statuses((await asked(app, "/d"))[0]) == [429]

    asyncio.run(run())


class Failing(MemoryStore):
    """Decides the first `answers` takes, then fails."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers

    async def atake(self, charges: Any) -> Any:
        self.answers -= 1
        if self.answers < 0:
            raise StoreError("it is down")
        return self.take(charges)


@pytest.mark.promise(8)
@pytest.mark.parametrize(("on_error", "status"), [("allow", 200), ("deny", 503)])
def test_on_store_error_applies_if_the_store_fails_while_a_request_waits(on_error: Any, status: int) -> None:
    async def run() -> None:
        turns = Turns()
        turns.go["/b"] = asyncio.Event()
        turns.end("/b")
        app = RateLimitMiddleware(turns, **{**WAITING, "store": Failing(2), "on_store_error": on_error})
        talks, tasks = await asked(app, "/a", "/b")
        await asyncio.wait_for(tasks[1], 5)  # the request queries the store again, which fails
        assert statuses(talks) == [None, status]
        turns.end("/a")
        await tasks[0]

    asyncio.run(run())


def test_a_slot_released_by_another_process_admits_a_queued_request() -> None:
    """Two gates share a store but not their queues, as two processes do."""

    async def run() -> None:
        store, turns = MemoryStore(), Turns()
        here, there = (RateLimitMiddleware(turns, **{**WAITING, "store": store}) for _ in range(2))
        _, tasks = await asked(here, "/a")
        _, more = await asked(there, "/b")
        assert turns.order == ["/a"]
        turns.end("/a")
        turns.go["/b"] = asyncio.Event()
        turns.end("/b")
        await asyncio.wait_for(asyncio.gather(*tasks, *more), 5)
        assert turns.order == ["/a", "/b"]

    asyncio.run(run())


@pytest.mark.promise(1)
def test_a_request_makes_one_store_call_before_joining_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratelimit_mw.engine.slot_queue._PAUSES", (3600,))  # no second query after a pause
    monkeypatch.setattr("ratelimit_mw.engine.slot_queue._MAX_PAUSE", 3600)

    async def run() -> None:
        store, turns = RecordingStore(), Turns()
        app = RateLimitMiddleware(turns, **{**WAITING, "store": store, "queue_timeout": 3600})
        _, tasks = await asked(app, *[f"/{n}" for n in range(10)])
        assert [verb for verb, _ in store.calls] == ["take", "take", *["peek"] * 8]  # the admitted one, then the queue
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


def test_threads_wait_in_the_queue() -> None:
    """Ten threads share two slots: at most two requests are in progress at a time, and all get a response."""
    lock, state = threading.Lock(), {"at work": 0, "most": 0}

    def app(_: Any, start_response: Any) -> list[bytes]:
        with lock:
            state["at work"] += 1
            state["most"] = max(state["most"], state["at work"])
        time.sleep(0.0005)  # so that other threads run meanwhile
        start_response("200 OK", [])
        return [b"done"]

    class Counted:
        """The body that the server closes. The request is in progress until then."""

        def __init__(self, body: Any) -> None:
            self.body = body

        def close(self) -> None:
            with lock:
                state["at work"] -= 1
            self.body.close()

    middleware = limited(app, **{**WAITING, "concurrent": 2, "store": MemoryStore()})
    found: list[str] = []

    def work() -> None:
        for _ in range(20):
            server = Server()
            body = server.ask(middleware)
            found.append(server.started[0][0])
            Counted(body).close()

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (state["at work"], found) == (0, ["200 OK"] * 200)
    assert state["most"] <= 2


def test_a_thread_is_refused_after_queue_timeout() -> None:
    gate = Gate(Settings(limits=[], concurrent=1, queue=1, queue_timeout=0.05))
    first = PlainRequest()
    verdicts = [gate.admit(request) for request in (first, PlainRequest())]
    assert [verdict.allowed for verdict in verdicts if verdict is not None] == [True, False]
    assert first.on_end


def test_a_request_is_refused_if_a_queued_request_awaits_the_free_slot() -> None:
    """The queue is full, so the request cannot wait behind the queued one."""
    gate = Gate(
        Settings(limits="5/minute", concurrent=1, queue=1, queue_timeout=0.05, store=MemoryStore(clock=Clock()))
    )
    first = gate.admit(PlainRequest())
    assert first is not None
    slot = next(charge for charge in first.charges if charge.limit.is_concurrency)
    bucket = slot.key, slot.limit.bucket
    place = gate._queues.join(
        SlotDemand({bucket: 1}, LONG), [bucket], lambda: None, gate._queues.release_count
    )  # a request waits
    assert place is not None
    taken: Decision = first.decisions[1]
    gate._store.settle([Charge(slot.key, slot.limit, -1, at=taken.at)])  # the slot is free
    verdict = gate.admit(PlainRequest())
    assert verdict is not None
    assert [(one.allowed, one.remaining) for one in verdict.decisions] == [
        (True, 4),
        (False, 0),
    ]  # nothing is charged

"""Tests penalties and rate limits with queues for slots: what counts as a refusal, and which requests may wait."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from ratelimit_mw import Concurrency, MemoryStore
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.core.limit import Decision
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import RecordingStore
from web.asgi_talk import BODY, START
from web.faces import FACES
from web.plain_request import PlainRequest
from web.scenario import Step
from web.waits import WHOLE, Waits

LONG = 60.0  # seconds: no request waits for that long here
BAD, GOOD = ("192.0.2.66", 5000), ("192.0.2.1", 5000)
PENALTY = "3 per minute: 15 minutes"
OVER_SLOTS: dict[str, Any] = {
    "path": "/{rest:path}",
    "name": "slow",
    "limits": "100/minute",
    "concurrent": 1,
    "queue": 4,
    "queue_timeout": LONG,
    "penalty": PENALTY,
}


class Busy:
    """An app whose requests are in progress until `go` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.at_work = 0

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        self.at_work += 1
        await self.go.wait()
        await send(START)
        await send(BODY)


@pytest.fixture(params=["memory", "redis"])
def where(request: pytest.FixtureRequest) -> str:
    """The URL of a store."""
    if request.param == "memory":
        return "memory://"
    server = next(iter(request.getfixturevalue("redis_servers").values()))
    server.flush()
    return str(server.url)


def async_store(where: str) -> Any:
    return MemoryStore() if where == "memory://" else AsyncRedisStore(where, timeout=60.0)


@pytest.fixture
def store(where: str) -> Iterator[Any]:
    with closing(MemoryStore() if where == "memory://" else RedisStore(where, timeout=60.0)) as found:
        yield found


def ban_of(verdict: Verdict) -> Decision:
    (found,) = [one for charge, one in zip(verdict.charges, verdict.decisions, strict=True) if charge.role == "penalty"]
    return found


def test_parallel_requests_that_wait_for_a_slot_cause_no_ban(where: str) -> None:
    async def run() -> None:
        store, busy = async_store(where), Busy()
        app = RateLimitMiddleware(busy, limits=[], rules=[OVER_SLOTS], store=store, store_timeout=60.0)
        asked = [Waits(app, WHOLE, client=BAD) for _ in range(4)]
        await asyncio.sleep(1.0)  # long enough for several attempts to get a slot
        busy.go.set()
        await asyncio.wait([one.task for one in asked])
        assert [one.status for one in asked] == [200] * 4
        more = Waits(app, WHOLE, client=BAD)
        await asyncio.wait([more.task])
        assert more.status == 200
        await store.aclose()

    asyncio.run(run())


def test_a_request_refused_by_the_queue_counts_as_one_refusal(store: Any) -> None:
    """One of two threads waits until `queue_timeout`, and the other finds the queue full. Each is one refusal."""
    rule = {**OVER_SLOTS, "queue": 1, "queue_timeout": 0.3}
    gate = Gate(Settings(limits=[], rules=[rule], store=store, store_timeout=60.0))
    first = PlainRequest()
    assert (found := gate.admit(first)) is not None
    assert (found.allowed, ban_of(found).remaining) == (True, 3)
    verdicts: list[Verdict | None] = []
    threads = [threading.Thread(target=lambda: verdicts.append(gate.admit(PlainRequest()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [verdict.allowed for verdict in verdicts if verdict is not None] == [False, False]
    assert sorted(ban_of(verdict).remaining for verdict in verdicts if verdict is not None) == [1, 2]
    third = gate.admit(PlainRequest())
    assert third is not None
    assert (third.allowed, third.retry_after, ban_of(third).remaining) == (False, 900.0, 0)  # the ban begins


def test_refusals_for_a_slot_shared_by_all_clients_cause_no_ban(store: Any) -> None:
    shared = {"limit": Concurrency(1), "key": "all"}
    options: dict[str, Any] = {"app_limits": [shared], "queue": 1, "queue_timeout": 0.05, "penalty": "1/minute: 1 hour"}
    gate = Gate(Settings(limits=[], **options, store=store, store_timeout=60.0))
    first = PlainRequest(client=GOOD[0])
    assert gate.admit(first) is not None
    for _ in range(2):
        refused = gate.admit(PlainRequest(client=BAD[0]))
        assert refused is not None
        assert (refused.allowed, refused.retry_after, ban_of(refused).remaining) == (False, 1.0, 1)


@pytest.mark.parametrize("banned", [False, True])
def test_a_banned_or_over_limit_client_does_not_join_the_queue(where: str, banned: bool) -> None:
    """All clients share the queue. A client that may wait gets at most half of the places."""

    async def run() -> None:
        store, busy = async_store(where), Busy()
        shared = {"limit": Concurrency(1), "key": "all"}
        rule = {"path": "/{rest:path}", "limits": "1/hour", "penalty": "1 per minute: 1 hour" if banned else None}
        options: dict[str, Any] = {"app_limits": [shared], "queue": 6, "queue_timeout": LONG, "store_timeout": 5}
        app = RateLimitMiddleware(busy, limits=[], rules=[rule], store=store, **options)
        busy.go.set()
        spent = [Waits(app, WHOLE, client=BAD) for _ in range(1 + banned)]
        for one in spent:
            await one.task
        busy.go.clear()
        assert [one.status for one in spent] == [200, 429][: 1 + banned]
        at_work = Waits(app, WHOLE, client=client(0))
        await until(lambda: busy.at_work == 1)
        line = [Waits(app, WHOLE, client=client(1))]
        await until(lambda: in_line(app) == 1)
        flood = [Waits(app, WHOLE, client=BAD) for _ in range(15)]
        await asyncio.wait([one.task for one in flood])
        assert [one.status for one in flood] == [429] * 15
        line += [Waits(app, WHOLE, client=client(number)) for number in range(2, 7)]
        await until(lambda: in_line(app) == 6)
        busy.go.set()
        await asyncio.wait([one.task for one in (at_work, *line)])
        assert [one.status for one in (at_work, *line)] == [200] * 7
        await store.aclose()

    asyncio.run(run())


def client(number: int) -> tuple[str, int]:
    return f"198.51.100.{number}", 5000


def in_line(app: RateLimitMiddleware) -> int:
    return sum(map(len, app._gate._queues._queues.values()))


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not there():  # noqa: ASYNC110  # a server answers meanwhile
            await asyncio.sleep(0.005)


@pytest.mark.promise(1)
def test_an_admitted_request_makes_one_store_call_and_a_refused_one_makes_two() -> None:
    async def run() -> None:
        store = RecordingStore()
        rule = {**OVER_SLOTS, "limits": "1/minute"}
        gate = AsyncGate(Settings(limits=[], rules=[rule], store=store))
        assert (await gate.admit(PlainRequest())) is not None
        assert [verb for verb, _ in store.calls] == ["take"]
        store.calls.clear()
        refused = await gate.admit(PlainRequest())
        assert refused is not None
        assert (refused.allowed, ban_of(refused).remaining) == (False, 2)
        assert [verb for verb, _ in store.calls] == ["take", "take"]

    asyncio.run(run())


@pytest.mark.parametrize("face", FACES)
def test_each_integration_counts_one_refusal_per_queue_timeout(face: str) -> None:
    verdicts: list[Verdict] = []
    store = MemoryStore()
    rule = {**OVER_SLOTS, "queue_timeout": 0.3}
    options: dict[str, Any] = {"store": store, "on_decision": lambda event: verdicts.append(event.verdict)}
    ask = FACES[face]({"limits": [], "rules": [rule], **options})
    assert ask(Step(path="/x")).status == 200
    (slot,) = [charge for charge in verdicts[0].charges if charge.limit.is_concurrency]
    store.reset([slot])
    store.take([slot])  # another request is in progress
    assert [ask(Step(path="/x")).status for _ in range(2)] == [429, 429]
    store.reset([slot])
    assert ask(Step(path="/x")).status == 200
    assert [ban_of(verdict).remaining for verdict in verdicts] == [3, 2, 1, 1]

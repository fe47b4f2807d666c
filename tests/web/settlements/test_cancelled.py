"""Requests that are canceled while their units and slots are refunded: the refund is completed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from ratelimit_mw import AsyncLimiter, Charge, Concurrency, Decision, MemoryStore
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.engine.gate import AsyncGate
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock
from web.asgi_talk import WEBSOCKET, Talk
from web.plain_request import PlainRequest

LONG = 60.0  # seconds
PACED: list[Any] = [{"limit": "1/hour burst 30 using leaky_bucket", "max_delay": 10**6}, "20/hour using fixed_window"]


class Slow(MemoryStore):
    """A store that completes takes and settlements when the test sets an event."""

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.may_take, self.may_settle = asyncio.Event(), asyncio.Event()
        self.may_take.set()
        self.settling = 0

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        decisions = self.take(charges)
        await self.may_take.wait()
        return decisions

    async def asettle(self, charges: Sequence[Charge]) -> None:
        self.settling += 1
        await self.may_settle.wait()
        self.settle(charges)


async def turns_of_the_loop() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def taken(store: MemoryStore) -> list[int]:
    """Return the slots in use and the units charged to windows, sorted."""
    found = []
    for shelf in list(store._maps.values()):
        for key in [] if shelf.limit.can_delay else list(shelf.current):
            (decision,) = store.peek([Charge(key, shelf.limit, 0)])
            found.append(decision.limit - decision.remaining)
    return sorted(found)


@pytest.mark.promise(2)
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("when", ["no place", "waits"])
def test_request_canceled_during_its_refund_completes_the_refund(when: str, times: int) -> None:
    """The request is refunded for lack of delay capacity or because it was canceled. Then it is canceled again."""

    async def run() -> None:
        store = Slow()
        options: dict[str, Any] = {
            "concurrent": 9,
            "store": store,
            "store_timeout": LONG,
            "max_waiting": 2,
            "key": "ip",
        }
        gate = AsyncGate(Settings(limits=PACED, **options))
        await gate.admit(PlainRequest())
        assert taken(store) == [1, 1]
        store.may_take.clear()
        tasks = [asyncio.create_task(gate.admit(PlainRequest())) for _ in range(5)]
        await turns_of_the_loop()
        store.may_take.set()
        await turns_of_the_loop()
        assert (taken(store), store.settling) == ([6, 6], 4)  # one is delayed; there is no capacity for the other four
        cancelled = tasks[:1] if when == "waits" else tasks[1:]
        for _ in range(times + (when == "waits")):
            for task in cancelled:
                task.cancel()
            await turns_of_the_loop()
        assert all(task.cancelled() for task in cancelled)
        store.may_settle.set()
        await turns_of_the_loop()
        assert taken(store) == ([1, 1] if when == "waits" else [2, 2])
        tasks[0].cancel()
        await asyncio.wait(tasks)
        await turns_of_the_loop()
        assert (taken(store), gate.delay_capacity._free) == ([1, 1], 2)

    asyncio.run(run())


@pytest.mark.promise(2)
def test_closing_the_gate_waits_for_refunds() -> None:
    async def run() -> None:
        store = Slow()
        gate = AsyncGate(Settings(limits=PACED, concurrent=9, store=store, store_timeout=LONG))
        await gate.admit(PlainRequest())
        waits = asyncio.create_task(gate.admit(PlainRequest()))
        await turns_of_the_loop()
        for _ in range(2):
            waits.cancel()
            await turns_of_the_loop()
        closing = asyncio.create_task(gate.close())
        await turns_of_the_loop()
        assert (waits.cancelled(), closing.done(), taken(store)) == (True, False, [2, 2])
        store.may_settle.set()
        await closing
        assert taken(store) == [1, 1]

    asyncio.run(run())


@pytest.mark.promise(2)
def test_websocket_canceled_before_its_app_runs_releases_its_slot() -> None:
    """The task is canceled while a callable of its messages is awaited."""

    async def run() -> None:
        store = MemoryStore()
        asked = asyncio.Event()

        async def cost(_: Any) -> int:
            asked.set()
            await asyncio.Event().wait()
            return 1

        async def app(*_: Any) -> None:
            raise AssertionError

        rule = {"path": "/", "limits": [], "concurrent": 1, "messages": [{"limit": "9/minute", "cost": cost}]}
        middleware = RateLimitMiddleware(app, limits=[], rules=[rule], store=store)
        task = asyncio.create_task(Talk().with_app(middleware, WEBSOCKET))
        await asyncio.wait_for(asked.wait(), LONG)
        assert taken(store) == [1]
        task.cancel()
        await asyncio.wait([task])
        assert taken(store) in ([], [0])

    asyncio.run(run())


def test_slot_of_a_canceled_take_goes_to_the_next_queued_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queued request gets the slot at once, before its own next retry."""
    monkeypatch.setattr("ratelimit_mw.engine.slot_queue._PAUSES", (3600,))
    monkeypatch.setattr("ratelimit_mw.engine.slot_queue._MAX_PAUSE", 3600)

    async def run() -> None:
        store = Slow()
        options: dict[str, Any] = {"concurrent": 1, "queue": 5, "queue_timeout": 3600}
        gate = AsyncGate(Settings(limits=[], **options, store=store, store_timeout=LONG))
        store.may_take.clear()
        first = asyncio.create_task(gate.admit(PlainRequest()))
        second = asyncio.create_task(gate.admit(PlainRequest()))
        await turns_of_the_loop()
        first.cancel()
        store.may_take.set()
        await turns_of_the_loop()
        assert (second.done(), store.settling) == (False, 1)
        store.may_settle.set()
        verdict = await asyncio.wait_for(second, LONG)
        assert verdict is not None
        assert verdict.allowed

    asyncio.run(run())


@pytest.mark.promise(2)
@pytest.mark.parametrize("how", ["acquire", "turn", "slot", "limit"])
def test_canceled_limiter_calls_complete_their_refund(how: str) -> None:
    """The call is canceled twice: while it waits or holds its slot, and while it refunds."""

    async def run() -> None:
        store = Slow()
        limiter = AsyncLimiter(store)
        if how == "slot":
            limits: Any = Concurrency(5)

            async def work() -> None:
                async with limiter.slot(limits, "k"):
                    await asyncio.Event().wait()
        elif how == "limit":
            limits = "1/hour burst 1 using gcra"
            work = limiter.limit(limits, key="k", wait=True)(asyncio.Event().wait)  # type: ignore[arg-type]
        elif how == "turn":
            limits = "1/hour burst 1 using gcra"

            async def work() -> None:
                async with limiter.turn(limits, "k"):
                    raise AssertionError
        else:
            limits = "1/hour burst 1 using gcra"

            async def work() -> None:
                await limiter.acquire(limits, "k")

        if how != "slot":
            await limiter.hit(limits, "k")
        before = store.peek([Charge(*_bucket(limiter, limits), 0)])[0]
        task = asyncio.create_task(work())
        await turns_of_the_loop()
        assert store.peek([Charge(*_bucket(limiter, limits), 0)])[0].reset_after != before.reset_after
        for _ in range(2):
            task.cancel()
            await turns_of_the_loop()
        assert task.cancelled()
        store.may_settle.set()
        await turns_of_the_loop()
        after = store.peek([Charge(*_bucket(limiter, limits), 0)])[0]
        assert (after.remaining, after.reset_after) == (before.remaining, before.reset_after)

    asyncio.run(run())


def _bucket(limiter: AsyncLimiter, limits: Any) -> tuple[str, Any]:
    (charge,) = limiter._charges(limits, "k", 0)
    return charge.key, charge.limit

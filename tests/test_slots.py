"""Slots without middleware: a block or a call holds a slot, renews the slot while it runs, and always releases it."""

import asyncio
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from ratelimit_mw import (
    GCRA,
    AsyncLimiter,
    Charge,
    Concurrency,
    ConfigError,
    Limit,
    Limiter,
    MemoryStore,
    RateLimited,
    StoreError,
    Verdict,
)
from ratelimit_mw.core.limit import Decision
from ratelimit_mw.engine import slots as held
from ratelimit_mw.engine.runtime import ThreadRuntime
from ratelimit_mw.engine.slots import (
    ASYNC_SLOT_RENEWER,
    SLOT_RENEWER,
    AsyncSlotRenewer,
    HeldSlots,
    SlotRegistry,
    SlotRenewer,
    slot_charges,
)
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore

pytestmark = pytest.mark.one_redis

TWO = Concurrency(2)
PATIENCE = 60.0  # seconds; so long that no test depends on the speed of the machine


class AppError(Exception):
    """Raised in a block."""


def left(limiter: Limiter, limit: Concurrency = TWO) -> int:
    return limiter.peek(limit, "k").remaining


@pytest.fixture(params=["memory", "redis"])
def limiter(request: pytest.FixtureRequest, redis_url: str) -> Iterator[Limiter]:
    store = MemoryStore() if request.param == "memory" else RedisStore(redis_url, timeout=PATIENCE)
    yield Limiter(store)
    store.close()


def test_a_block_holds_a_slot_until_it_ends(limiter: Limiter) -> None:
    with limiter.slot(TWO, "k") as first:
        assert (first.allowed, first.remaining, left(limiter)) == (True, 1, 1)
        with limiter.slot(TWO, "k") as second:
            assert second.remaining == 0
            with pytest.raises(RateLimited) as refused, limiter.slot(TWO, "k"):
                raise AssertionError("there is no third slot")
            assert refused.value.verdict.retry_after == 1.0
        assert left(limiter) == 1
    with pytest.raises(AppError), limiter.slot(TWO, "k", 2):
        raise AppError(left(limiter))
    assert left(limiter) == 2


def test_rate_limits_beside_a_slot_stay_charged_after_the_block(limiter: Limiter) -> None:
    limits: list[str | Limit] = [TWO, "5/hour"]
    with limiter.slot(limits, "k"):
        assert [one.remaining for one in limiter.peek(limits, "k").decisions] == [1, 4]
    assert [one.remaining for one in limiter.peek(limits, "k").decisions] == [2, 4]


def test_reset_frees_all_slots(limiter: Limiter) -> None:
    with limiter.slot(TWO, "k", 2):
        limiter.reset(TWO, "k")
        assert left(limiter) == 2
    assert left(limiter) == 2


def test_number_of_slots_may_change_while_some_are_taken(limiter: Limiter) -> None:
    with limiter.slot(TWO, "k"):
        assert left(limiter, Concurrency(5)) == 4
        assert left(limiter, Concurrency(1)) == 0
        assert left(limiter, Concurrency(5, name="other")) == 5


def test_slot_without_a_concurrency_limit_raises_a_config_error() -> None:
    for each in (Limiter(), AsyncLimiter()):
        with pytest.raises(ConfigError, match="limits: got no Concurrency, expected at least one"):
            each.slot("5/hour", "k")


@pytest.mark.promise(9)
def test_slot_limit_with_a_cost_of_zero_raises_a_config_error() -> None:
    for each in (Limiter(), AsyncLimiter()):
        with pytest.raises(ConfigError, match="cost: got 0, which takes no slot; expected at least 1"):
            each.slot([TWO, "5/hour"], "k", cost=0)
        with pytest.raises(ConfigError, match="cost: got 0, which takes no slot of '2 at once'; expected at least 1"):
            each.limit(["5/hour", TWO], key="k", cost=0)
        each.limit("5/hour", key="k", cost=0)  # a rate limit accepts cost 0: the call only shows the remaining units


def test_call_with_a_computed_cost_of_zero_holds_no_slot(limiter: Limiter) -> None:
    @limiter.limit(TWO, key="k", cost=lambda units: units)
    def work(units: int) -> int:
        return left(limiter) + 10 * units

    assert [work(0), work(1), work(2)] == [2, 11, 20]
    aio = AsyncLimiter()

    @aio.limit(TWO, key="k", cost=lambda units: units)
    async def awork(units: int) -> int:
        return (await aio.peek(TWO, "k")).remaining + 10 * units

    assert [asyncio.run(awork(units)) for units in (0, 1, 2)] == [2, 11, 20]
    assert left(limiter) == 2


@pytest.mark.promise(9)
def test_slot_limit_on_a_generator_raises_a_config_error() -> None:
    def items() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigError) as error:
        Limiter().limit(["5/hour", TWO])(items)
    assert str(error.value) == (
        "limit: got test_slot_limit_on_a_generator_raises_a_config_error.<locals>.items, a generator function, "
        "whose call returns before its body runs; use `with limiter.slot(...)` in it"
    )
    assert list(Limiter().limit("5/hour")(items)()) == [1]  # a rate limit charges the call


def test_block_cannot_be_entered_twice(limiter: Limiter) -> None:
    """A second `with` raises inside the block and after its end, and neither takes nor loses a slot."""
    for block, of in ((limiter.slot(TWO, "k"), "slot"), (limiter.turn("5/hour using gcra", "k"), "turn")):
        again = f"^{of}: this context manager was entered before; create one for each `with`$"
        with block, pytest.raises(RuntimeError, match=again), block:
            raise AssertionError("it is not entered")
        with pytest.raises(RuntimeError, match=again), block:
            raise AssertionError("it is not entered")
    assert (left(limiter), limiter.peek("5/hour using gcra", "k").remaining) == (2, 4)


def test_async_block_cannot_be_entered_twice() -> None:
    async def run() -> None:
        limiter = AsyncLimiter()
        for block, of in ((limiter.slot(TWO, "k"), "slot"), (limiter.turn("5/hour using gcra", "k"), "turn")):
            again = f"^{of}: this context manager was entered before; create one for each `with`$"
            async with block:
                with pytest.raises(RuntimeError, match=again):
                    await block.__aenter__()
            with pytest.raises(RuntimeError, match=again):
                await block.__aenter__()
        assert (await limiter.peek(TWO, "k")).remaining == 2
        assert (await limiter.peek("5/hour using gcra", "k")).remaining == 4

    asyncio.run(run())


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    ("limits", "found", "fix"),
    [
        (Concurrency(1), "'1 at once'", "use slot(), which does not wait"),
        (
            [Concurrency(1), "9/minute using fixed_window"],
            "'1 at once', '9/60s using fixed_window'",
            "use a bucket, such as '9/60s using gcra'",
        ),
    ],
)
def test_acquire_rejects_limits_that_cannot_delay_requests(limits: Any, found: str, fix: str) -> None:
    with pytest.raises(ConfigError) as error:
        Limiter().acquire(limits, "k")
    assert str(error.value) == (f"limits: got {found}, which cannot delay a request; {fix}")


def test_a_call_holds_a_slot_until_it_returns(limiter: Limiter) -> None:
    @limiter.limit(TWO, key="k")
    def work(deeper: int) -> int:
        return left(limiter) if not deeper else work(deeper - 1)

    assert [work(0), work(1)] == [1, 0]
    with pytest.raises(RateLimited):
        work(2)
    assert left(limiter) == 2


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_tasks_hold_slots_until_they_end_or_are_canceled(kind: str, redis_url: str) -> None:
    async def run() -> None:
        store = MemoryStore() if kind == "memory" else AsyncRedisStore(redis_url, timeout=PATIENCE)
        limiter, working, most = AsyncLimiter(store), 0, 0

        async def work() -> bool:
            nonlocal working, most
            try:
                async with limiter.slot(TWO, "k"):
                    working += 1
                    most = max(most, working)
                    await asyncio.sleep(0.001)
                    working -= 1
            except RateLimited:
                return False
            return True

        @limiter.limit(TWO, key="k")
        async def call() -> int:
            return (await limiter.peek(TWO, "k")).remaining

        done = await asyncio.gather(*[work() for _ in range(50)])
        assert most == 2
        assert sum(done) >= 2
        assert await call() == 1
        inside = asyncio.Event()

        async def cancelled() -> None:
            async with limiter.slot(TWO, "k"):
                inside.set()
                await asyncio.Event().wait()

        held = asyncio.create_task(cancelled())
        await inside.wait()
        assert (await limiter.peek(TWO, "k")).remaining == 1
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        assert (await limiter.peek(TWO, "k")).remaining == 2
        await store.aclose()

    asyncio.run(run())


def test_cancellation_during_a_delay_returns_units_and_slots() -> None:
    """As with `acquire`, the next call waits as long as the canceled call."""
    limiter = AsyncLimiter(MemoryStore(clock=Clock()))
    limits = [TWO, GCRA(1, 10, max_delay=100)]

    async def run() -> Verdict:
        async with limiter.slot(limits, "k"):
            pass
        waiting = asyncio.ensure_future(limiter.slot(limits, "k").__aenter__())
        await asyncio.sleep(0.01)
        assert (await limiter.peek(TWO, "k")).remaining == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await limiter.peek(TWO, "k")).remaining == 2
        return await limiter.peek(limits, "k", 1)

    assert asyncio.run(run()).delay == 10.0


def test_cancellation_before_the_store_replies_releases_the_slot() -> None:
    """The store takes the slot nevertheless, and the limiter releases it."""

    async def run() -> None:
        store = MemoryStore()
        answer = asyncio.Event()

        class Slow:
            """A store that delays the decisions of a take."""

            async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
                found = store.take(charges)
                await answer.wait()
                return found

            apeek, asettle, areset, aclose = store.apeek, store.asettle, store.areset, store.aclose

        limiter = AsyncLimiter(Slow())

        async def work() -> None:
            async with limiter.slot(TWO, "k"):
                raise AssertionError("it is cancelled before")

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (await limiter.peek(TWO, "k")).remaining == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer.set()
        for _ in range(10):
            await asyncio.sleep(0)
        assert (await limiter.peek(TWO, "k")).remaining == 2

    asyncio.run(run())


def until(holds: Callable[[], bool]) -> bool:
    """Wait until `holds` returns true, for at most `PATIENCE` seconds. Return whether it does."""
    end = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()


def test_slot_is_renewed_while_its_thread_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread renews the slot, and ends after the release of the last slot. The test uses a renewer of its own."""
    keeper, before = SlotRenewer(), set(threading.enumerate())
    monkeypatch.setattr(ThreadRuntime, "slot_renewer", keeper)
    store = RecordingStore(clock=Clock())
    limiter, limit = Limiter(store), Concurrency(1, 0.03)
    with limiter.slot(limit, "k"):
        assert "ratelimit_mw slots" in {thread.name for thread in set(threading.enumerate()) - before}
        assert until(lambda: len(store.calls) >= 4)
    renewals, last = store.calls[1:-1], store.calls[-1]
    (taken,) = store.calls[0][1]
    assert {(verb, charge.cost, charge.limit, charge.key) for verb, (charge,) in renewals} == {
        ("settle", 1, limit, taken.key)
    }
    assert (last[0], last[1][0].cost) == ("settle", -1)
    assert {charge.at for _, (charge,) in store.calls[1:]} == {1_000_000_000_000_000}
    assert until(lambda: set(threading.enumerate()) <= before)


def test_slot_is_renewed_while_its_task_works() -> None:
    async def run() -> None:
        store = RecordingStore(clock=Clock())
        limiter = AsyncLimiter(store)
        threads = threading.active_count()
        async with limiter.slot(Concurrency(1, 0.03), "k"):
            async with asyncio.timeout(PATIENCE):
                while len(store.calls) < 4:  # noqa: ASYNC110  # the store has no event
                    await asyncio.sleep(0.005)
        assert [verb for verb, _ in store.calls[:4]] == ["take", "settle", "settle", "settle"]
        assert [charge.cost for _, (charge,) in store.calls[1:4]] == [1, 1, 1]
        async with asyncio.timeout(PATIENCE):
            while store.calls[-1][1][0].cost != -1:  # noqa: ASYNC110  # a renewal in progress releases the slot
                await asyncio.sleep(0.005)
        count = len(store.calls)
        await asyncio.sleep(0.05)  # a released slot is not renewed
        assert (len(store.calls), threading.active_count()) == (count, threads)

    asyncio.run(run())


def test_slot_with_a_shorter_lifetime_is_renewed_in_time() -> None:
    """The renewer sets the loop's timer again, although it has slots that are due later."""

    async def run() -> None:
        store = RecordingStore(clock=Clock())
        limiter, short = AsyncLimiter(store), Concurrency(1, 0.03)
        async with limiter.slot(Concurrency(1, 86_400), "a day"), limiter.slot(Concurrency(1, 3600), "an hour"):
            async with limiter.slot(short, "short"), asyncio.timeout(PATIENCE):
                while len(store.calls) < 6:  # noqa: ASYNC110  # the store has no event
                    await asyncio.sleep(0.005)
            renewals = [(charges[0].limit, charges[0].cost) for _, charges in store.calls[3:6]]
            assert renewals == [(short, 1)] * 3

    asyncio.run(run())


class Timed(asyncio.SelectorEventLoop):
    """An event loop that records the timers of slot renewers, with a clock that can be set ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []
        self.ahead = 0.0  # seconds

    def time(self) -> float:
        return super().time() + self.ahead

    def call_at(  # type: ignore[override]  # any callback
        self, when: float, callback: Any, *given: Any, **more: Any
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *given, **more)
        if callback.__module__ == held.__name__:
            self.timers.append(timer)
        return timer

    @property
    def cancelled(self) -> list[bool]:
        return [timer.cancelled() for timer in self.timers]


def test_renewer_has_one_timer_while_slots_are_held_and_none_after() -> None:
    loop = Timed()

    async def run() -> None:
        keeper, store = AsyncSlotRenewer(), MemoryStore(clock=Clock())
        holds = [HeldSlots(store, [Charge("k", Concurrency(1, window), at=7)]) for window in (3600, 7200, 600)]
        # the second slot is due later than the first, the third sooner
        for hold, cancelled in zip(holds, ([False], [False], [True, False]), strict=True):
            keeper.add(hold)
            assert loop.cancelled == cancelled
        for hold in holds:
            await keeper.release(hold)
        loop.ahead = 600
        for _ in range(3):  # the timer fires
            await asyncio.sleep(0)
        assert (loop.cancelled, len(asyncio.all_tasks())) == ([True, False], 1)
        keeper.add(holds[0])
        assert loop.cancelled == [True, False, False]

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())


def test_failed_renewal_is_repeated_and_does_not_end_the_block(caplog: pytest.LogCaptureFixture) -> None:
    store = RecordingStore(clock=Clock())
    with Limiter(store).slot(Concurrency(1, 0.03), "k"):
        store.error = StoreError("it is down")
        assert until(lambda: len(store.calls) >= 4)
    assert (
        "slots may not have been renewed, and more than the limit may be taken when their lifetime ends: it is down"
        in caplog.text
    )


def hold_of(window: float, charges: int = 1) -> HeldSlots:
    limit = Concurrency(10, window)
    return HeldSlots(MemoryStore(), [Charge(f"k{n}", limit, at=7) for n in range(charges)])


def test_slots_are_due_after_a_third_of_their_lifetime() -> None:
    """Each renewal is a call to one store, with about five hundred charges."""
    holds = SlotRegistry()
    assert holds.next_renewal(0) is None
    one, other = hold_of(9), hold_of(3)
    one.last_attempt_at = other.last_attempt_at = 100.0
    holds.add(one)
    holds.add(other)
    assert (holds.next_renewal(100.25), holds.next_renewal(104)) == (0.75, 0.0)
    assert holds.due(100.9) == []
    assert holds.due(101) == [[other]]
    assert holds.due(101) == []  # its renewal is in progress
    assert holds.finish([other], 101.5) == []
    assert holds.due(102.4) == []
    assert sorted(map(len, holds.due(103))) == [1, 1]  # two stores
    many = [hold_of(3, 300) for _ in range(5)]
    for each in many:
        each.last_attempt_at = 200.0
        each.store = many[0].store  # type: ignore[misc]  # all use one store
        holds.add(each)
    assert [len(call) for call in holds.due(201)] == [2, 2, 1]


def test_slot_that_ends_during_its_renewal_is_released_afterwards() -> None:
    """Otherwise a renewal that the store receives after the release would take the slot again."""
    holds = SlotRegistry()
    one, other = hold_of(3), hold_of(3)
    for each in (one, other):
        each.last_attempt_at = 0.0
        holds.add(each)
    assert holds.end(other) is True
    assert holds.end(other) is False  # `other` was ended before
    assert holds.due(1) == [[one]]
    assert holds.end(one) is False
    assert holds.finish([one], 1) == [one]
    assert holds.next_renewal(1) is None


@pytest.mark.promise(7)
@pytest.mark.parametrize("renewals", [0, 1])
@pytest.mark.parametrize("keeper", [SLOT_RENEWER, ASYNC_SLOT_RENEWER])
def test_slot_without_references_is_not_renewed(keeper: SlotRenewer | AsyncSlotRenewer, renewals: int) -> None:
    """The renewer keeps no reference to the slot before the first renewal, nor while it waits for the next renewal."""

    async def run() -> None:
        store = RecordingStore(clock=Clock())
        hold = HeldSlots(store, [Charge("k", Concurrency(1, 0.03), at=7)])
        alive = weakref.ref(hold)
        keeper.add(hold)
        for _ in range(10_000):
            if len(store.calls) >= renewals:
                break
            await asyncio.sleep(0.005)
        assert len(store.calls) >= renewals
        del hold
        for _ in range(1000):  # a renewal in progress refers to the slot
            gc.collect()
            if alive() is None:
                break
            await asyncio.sleep(0.01)
        assert alive() is None
        store.calls.clear()
        await asyncio.sleep(0.05)
        assert store.calls == []

    asyncio.run(run())


def test_slot_charges_returns_the_slots_that_a_group_took() -> None:
    """The charges of one bucket are added up."""
    store, limit = MemoryStore(clock=Clock()), Concurrency(5)
    charges = [
        Charge("a", limit, 2),
        Charge("a", limit, 1),
        Charge("b", limit, 0),
        Charge("c", limit, role="shadow"),
        Charge("d", Limiter().peek("5/hour", "d").charges[0].limit),
    ]
    decisions = store.take(charges)
    at = 1_000_000_000_000_000
    assert slot_charges(charges, decisions) == [Charge("a", limit, 3, at=at), Charge("c", limit, at=at)]
    refused = [Charge("a", limit, 3), Charge("e", limit)]
    assert slot_charges(refused, store.take(refused)) == []
    assert slot_charges(charges, []) == []  # on an error there are no decisions


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_child_process_does_not_renew_slots_of_its_parent() -> None:
    """A thread of the child renews the slots that the child took."""
    store = RecordingStore(clock=Clock())
    with Limiter(store).slot(Concurrency(1, 0.03), "k"):
        child = os.fork()
        if child == 0:  # pragma: no cover  # another process
            count = len(store.calls)
            time.sleep(0.05)
            own = RecordingStore(clock=Clock())
            with Limiter(own).slot(Concurrency(1, 0.03), "k"):
                renewed_at = until(lambda: len(own.calls) >= 3)
            os._exit(0 if renewed_at and len(store.calls) == count else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

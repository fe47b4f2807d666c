"""Tests the reservations, sleeps and refunds of `acquire`, `turn`, `limit(wait=...)` and `settle`."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pytest

from ratelimit_mw import (
    AsyncLimiter,
    Charge,
    ConfigError,
    Decision,
    LeakyBucket,
    Limiter,
    MemoryStore,
    RateLimited,
    StoreError,
    TokenBucket,
    Verdict,
    parse,
)
from ratelimit_mw.stores.redis import AsyncRedisStore, RedisStore
from ratelimit_mw.testing import Clock, RecordingStore

PACE = "1/second burst 1 using gcra"
BUCKETS = ["gcra", "token_bucket", "leaky_bucket"]


class Sleeps(list[float]):
    """A replacement for `sleep` that records the seconds of each call. It raises `ends` if that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: BaseException | None = None

    def __call__(self, delay: float) -> None:
        self.append(delay)
        if self.ends is not None:
            raise self.ends

    async def asleep(self, delay: float) -> None:
        self(delay)


class Awaiting:
    """An AsyncLimiter with the methods of a Limiter: each call runs an event loop until it returns."""

    def __init__(self, store: Any = None) -> None:
        self._limiter = AsyncLimiter(store)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._limiter, name)
        return lambda *args, **kwargs: asyncio.run(method(*args, **kwargs))


Make = Callable[..., Any]


@pytest.fixture(params=[Limiter, Awaiting], ids=["threads", "asyncio"])
def make(request: pytest.FixtureRequest) -> Make:
    made: Make = request.param
    return made


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    sleeps = Sleeps()
    monkeypatch.setattr("ratelimit_mw.engine.runtime.time.sleep", sleeps)
    monkeypatch.setattr("ratelimit_mw.engine.runtime.asyncio.sleep", sleeps.asleep)
    return sleeps


def refusal(call: Callable[..., object], *args: Any, **kwargs: Any) -> Verdict:
    with pytest.raises(RateLimited) as caught:
        call(*args, **kwargs)
    return caught.value.verdict


def test_each_acquire_waits_behind_the_previous_ones(make: Make, slept: Sleeps) -> None:
    limiter = make(MemoryStore(clock=Clock()))
    delays = [limiter.acquire(PACE, "me").delay for _ in range(4)]
    assert delays == [0.0, 1.0, 2.0, 3.0]
    assert slept == [1.0, 2.0, 3.0]  # the first call does not sleep
    assert limiter.acquire(PACE, "you").delay == 0.0


def test_acquire_waits_for_all_units_of_a_cost(make: Make, slept: Sleeps) -> None:
    limiter = make(MemoryStore(clock=Clock()))
    limit = "2/second burst 4 using token_bucket"
    assert [limiter.acquire(limit, "me", cost).delay for cost in (3, 3, 1)] == [0.0, 1.0, 1.5]
    assert slept == [1.0, 1.5]


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_wait_over_the_timeout_is_refused_at_once_without_a_charge(make: Make, slept: Sleeps, algorithm: str) -> None:
    clock = Clock()
    limiter = make(MemoryStore(clock=clock))
    limit = LeakyBucket(1, 1, burst=5) if algorithm == "leaky_bucket" else parse(f"1/s burst 1 using {algorithm}")[0]
    assert [limiter.acquire(limit, "me", timeout=2).delay for _ in range(3)] == [0.0, 1.0, 2.0]
    verdict = refusal(limiter.acquire, limit, "me", timeout=2)
    assert (verdict.allowed, verdict.retry_after) == (False, 1.0)
    assert slept == [1.0, 2.0]
    assert limiter.acquire(limit, "me", timeout=3.000001).delay == 3.0
    assert refusal(limiter.acquire, limit, "me", timeout=3.999999).retry_after == 0.000001
    assert refusal(limiter.acquire, limit, "me", timeout=0).retry_after == 4.0
    clock.advance(4)
    assert limiter.acquire(limit, "me", timeout=0).delay == 0.0


@pytest.mark.promise(4)
def test_retry_after_of_a_refusal_is_exact(make: Make, slept: Sleeps) -> None:
    clock = Clock()
    limiter = make(MemoryStore(clock=clock))
    for _ in range(6):
        limiter.acquire("7/minute burst 2 using gcra", "me")
    wait = refusal(limiter.acquire, "7/minute burst 2 using gcra", "me", timeout=10).retry_after
    clock.now = clock.now + wait - 0.000001
    refusal(limiter.acquire, "7/minute burst 2 using gcra", "me", timeout=10)
    clock.advance(0.000001)
    assert limiter.acquire("7/minute burst 2 using gcra", "me", timeout=10).delay == slept[-1] <= 10


def test_acquire_without_a_timeout_has_the_longest_max_delay(make: Make, slept: Sleeps) -> None:
    for limit in (TokenBucket(1, 86400.0, burst=1), TokenBucket(999_999_937, 86400.0)):
        store = RecordingStore(clock=Clock())
        make(store).acquire(limit, "me")
        ((_, (charge,)),) = store.calls
        assert charge.limit.bucket == limit.bucket
        assert (
            charge.limit.delay_ticks(charge.effective_max_delay_us) > 2**51
            or charge.effective_max_delay_us == 100 * 365 * 86400 * 10**6
        )
        assert make(MemoryStore()).acquire(limit, "me", timeout=10.0**9).delay == 0.0  # as without a timeout
    assert slept == []


def test_leaky_bucket_queues_its_burst(make: Make, slept: Sleeps) -> None:
    limiter = make(MemoryStore(clock=Clock()))
    assert [limiter.acquire("10/second burst 3 using leaky_bucket", "me").delay for _ in range(3)] == [0.0, 0.1, 0.2]
    assert refusal(limiter.acquire, "10/second burst 3 using leaky_bucket", "me").retry_after == 0.1
    at_once = "10/second burst 3 using leaky_bucket at_once 2"
    assert [limiter.acquire(at_once, "you").delay for _ in range(3)] == [0.0, 0.0, 0.0]
    assert slept == [0.1, 0.2]


def test_timeout_replaces_the_max_delay_of_the_limit(make: Make, slept: Sleeps) -> None:
    limit = TokenBucket(1, 1, burst=1, max_delay=1)
    limiter = make(MemoryStore(clock=Clock()))
    assert [limiter.acquire(limit, "me", timeout=2).delay for _ in range(3)] == [0.0, 1.0, 2.0]
    assert limiter.hit(limit, "me").retry_after == 2.0
    assert slept == [1.0, 2.0]


def test_acquire_does_not_wait_for_a_window_beside_a_bucket(make: Make, slept: Sleeps) -> None:
    limits = [PACE, "2/minute using fixed_window"]
    limiter = make(MemoryStore(clock=Clock()))
    assert [limiter.acquire(limits, "me").delay for _ in range(2)] == [0.0, 1.0]
    assert refusal(limiter.acquire, limits, "me").retry_after == 60.0
    assert slept == [1.0]
    assert limiter.acquire(PACE, "me").delay == 2.0  # the refused call reserved nothing


@pytest.mark.parametrize("limits", ["5/hour", ["5/hour", "9/day using fixed_window"]])
def test_acquire_of_windows_alone_is_an_error(make: Make, slept: Sleeps, limits: Any) -> None:
    with pytest.raises(ConfigError) as told:
        make().acquire(limits, "me")
    assert str(told.value).startswith("limits: got '5/3600s using sliding_window_counter'")
    assert str(told.value).endswith("use a bucket, such as '5/3600s using gcra'")


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"timeout": -1}, "timeout: got -1, expected a finite number of seconds, 0 or more"),
        ({"timeout": True}, "timeout: got True, expected a finite number of seconds, 0 or more"),
        ({"timeout": "1"}, "timeout: got '1', expected a finite number of seconds, 0 or more"),
        ({"timeout": float("inf")}, "timeout: got inf, expected a finite number of seconds, 0 or more"),
        ({"cost": True}, "cost: got True, expected a whole number from 0 to 9007199254740991"),
        ({"cost": -1}, "cost: got -1, expected a whole number from 0 to 9007199254740991"),
    ],
)
def test_invalid_arguments_are_errors_even_after_equal_valid_ones(make: Make, terms: dict[str, Any], said: str) -> None:
    limiter = make(MemoryStore(clock=Clock()))
    limiter.acquire(PACE, "me", 1, 1)  # 1 is equal to True
    with pytest.raises(ConfigError) as told:
        limiter.acquire(PACE, "me", **terms)
    assert str(told.value) == said


def test_cost_over_the_burst_is_refused_at_once(make: Make, slept: Sleeps) -> None:
    assert refusal(make().acquire, PACE, "me", 2).retry_after == float("inf")
    assert make().acquire(PACE, "me", 0).delay == 0.0
    assert slept == []


@pytest.mark.parametrize("algorithm", BUCKETS)
def test_interrupted_wait_refunds_its_units(make: Make, slept: Sleeps, algorithm: str) -> None:
    clock = Clock()
    limit: Any = f"1/second burst 1 using {algorithm}"
    if algorithm == "leaky_bucket":
        limit = "1/second burst 5 using leaky_bucket at_once 0"
    limits = [limit, "4/hour using fixed_window"]
    limiter = make(MemoryStore(clock=clock))
    for _ in range(2):
        limiter.acquire(limits, "me")
    slept.ends = asyncio.CancelledError() if make is Awaiting else KeyboardInterrupt()
    with pytest.raises((asyncio.CancelledError, KeyboardInterrupt)):
        limiter.acquire(limits, "me")
    slept.ends = None
    assert limiter.peek("4/hour using fixed_window", "me").remaining == 2  # the unit of the window is refunded, too
    assert limiter.acquire(limits, "me").delay == 2.0


def test_failed_refund_does_not_hide_the_interruption(
    slept: Sleeps, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratelimit_mw.core.log._quiet_until", {})  # so that no log line is throttled

    class Forgetful(MemoryStore):
        def settle(self, charges: Sequence[Charge]) -> None:
            raise StoreError("gone")

    for made, error in ((Limiter, KeyboardInterrupt()), (Awaiting, asyncio.CancelledError())):
        limiter = made(Forgetful(clock=Clock()))
        limiter.acquire(PACE, "me")
        slept.ends = error
        with pytest.raises(type(error)):
            limiter.acquire(PACE, "me")
        slept.ends = None
    assert "its units may not have been refunded: gone" in caplog.text


def test_turn_waits_before_its_block_and_stays_charged(slept: Sleeps) -> None:
    limiter = Limiter(MemoryStore(clock=Clock()))
    with limiter.turn(PACE, "me") as verdict:
        assert (verdict.allowed, slept) == (True, [])
    with suppress(ZeroDivisionError), limiter.turn(PACE, "me"):
        assert slept == [1.0]
        _ = 1 / 0
    with pytest.raises(RateLimited), limiter.turn(PACE, "me", timeout=1.5):  # the blocks stay charged
        pytest.fail("its turn did not come")

    async def main() -> None:
        own = AsyncLimiter(MemoryStore(clock=Clock()))
        async with own.turn(PACE, "me") as first, own.turn(PACE, "me") as second:
            assert (first.delay, second.delay) == (0.0, 1.0)
        with pytest.raises(RateLimited):
            await own.turn(PACE, "me", timeout=1.5).__aenter__()

    asyncio.run(main())
    assert slept == [1.0, 1.0]


def test_decorator_waits(slept: Sleeps) -> None:
    limiter, own = Limiter(MemoryStore(clock=Clock())), AsyncLimiter(MemoryStore(clock=Clock()))

    @limiter.limit(PACE, wait=1.5)
    def call() -> str:
        return "done"

    @own.limit(PACE, wait=True)
    async def acall() -> str:
        return "done"

    @limiter.limit(PACE, key="refused")
    def refused() -> str:
        return "done"

    assert [call(), call(), slept] == ["done", "done", [1.0]]
    assert refusal(call).retry_after == 0.5
    assert [asyncio.run(acall()) for _ in range(3)] == ["done"] * 3
    assert slept == [1.0, 1.0, 2.0]
    assert refused() == "done"
    assert refusal(refused).retry_after == 1.0


@pytest.mark.parametrize("made", [Limiter, AsyncLimiter])
@pytest.mark.parametrize(
    ("limits", "wait", "said"),
    [
        ("5/hour", True, "limits: got '5/3600s using sliding_window_counter', which cannot delay a request"),
        (PACE, -1, "wait: got -1, expected a finite number of seconds, 0 or more"),
        (PACE, None, "wait: got None, expected a finite number of seconds, 0 or more"),
        (PACE, "1", "wait: got '1', expected a finite number of seconds, 0 or more"),
    ],
)
def test_decorator_with_an_invalid_wait_is_an_error_at_definition(made: Any, limits: str, wait: Any, said: str) -> None:
    with pytest.raises(ConfigError) as told:
        made().limit(limits, wait=wait)
    assert str(told.value).startswith(said)


def test_task_canceled_during_the_store_call_is_not_charged() -> None:
    class Slow(RecordingStore):
        """A store whose `atake` waits for `may_answer`."""

        def __init__(self, clock: Clock) -> None:
            super().__init__(clock=clock)
            self.may_answer = asyncio.Event()

        async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            await self.may_answer.wait()
            return self.take(charges)

    async def main() -> None:
        store = Slow(Clock())
        limiter = AsyncLimiter(store)
        first, second = (asyncio.ensure_future(limiter.acquire(PACE, "me")) for _ in range(2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()
        store.may_answer.set()
        assert (await first).delay == 0.0
        for _ in range(5):
            await asyncio.sleep(0)
        assert [verb for verb, _ in store.calls] == ["take", "take", "settle"]
        assert (await limiter.peek(PACE, "me", 1)).retry_after == 1.0  # only the first call is charged

    asyncio.run(main())


@pytest.fixture(params=["memory", "redis"])
def stores(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any, Clock]]:
    """Yield a store for threads and one for asyncio with the same states, and their clock."""
    clock = Clock()
    if request.param == "memory":
        both = MemoryStore(clock=clock)
        yield both, both, clock
        return
    server = next(iter(request.getfixturevalue("redis_servers").values()))
    server.flush()
    with closing(RedisStore(server.url, clock=clock, timeout=5)) as store:
        yield store, AsyncRedisStore(server.url, clock=clock, timeout=5), clock


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_counter", "sliding_window_log", *BUCKETS])
def test_settle_corrects_charges(stores: tuple[Any, Any, Clock], algorithm: str) -> None:
    store, other, clock = stores
    limiter = Limiter(store)
    limit = f"10/100 seconds using {algorithm}"
    limiter.hit(limit, "me", 3)
    clock.advance(0.5)
    limiter.hit(limit, "me", 4)
    limiter.settle(limit, "me", -5)
    assert limiter.peek(limit, "me").remaining == 8
    limiter.settle(limit, "me", 4)
    assert limiter.peek(limit, "me").remaining == 4
    limiter.settle(limit, "me", 0)
    limiter.settle(limit, "me", -100)
    assert limiter.peek(limit, "me").remaining == 10

    async def main() -> None:
        own = AsyncLimiter(other)
        await own.settle(limit, "me", 100)  # debt is at most one quota
        verdict = await own.peek(limit, "me", 1)
        assert (verdict.allowed, verdict.remaining) == (False, 0)
        await own.settle(limit, "me", -100)
        assert (await own.peek(limit, "me")).remaining == 10
        await own.store.aclose() if own.store is not store else None

    asyncio.run(main())


def test_refund_removes_the_newest_units_of_a_log(stores: tuple[Any, Any, Clock]) -> None:
    store, other, clock = stores
    limiter, limit = Limiter(store), "10/100 seconds using sliding_window_log"
    for _ in range(3):
        limiter.hit(limit, "me", 2)
        clock.advance(10)
    limiter.settle(limit, "me", -3)  # both units of the third hit, and one of the second
    clock.advance(70)  # the two units of the first hit expire
    assert limiter.peek(limit, "me").remaining == 9
    clock.advance(10)
    assert limiter.peek(limit, "me").remaining == 10
    if other is not store:
        asyncio.run(other.aclose())


@pytest.mark.parametrize("delta", [True, 1.0, "1", None])
def test_settle_requires_a_whole_number(make: Make, delta: Any) -> None:
    with pytest.raises(ConfigError, match=r"^delta: got .*, expected a whole number"):
        make().settle("5/hour", "me", delta)

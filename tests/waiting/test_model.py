"""Compares waiting for a turn with a model, for any number of requests, in simulated time."""

import asyncio
from contextlib import closing

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from profiles import PROOF
from ratelimit_mw import AsyncLimiter, Limiter, MemoryStore, RateLimited
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.redis import RedisStore
from ratelimit_mw.testing import Clock
from waiting.model import Ask, Bucket, Outcome, outcomes
from waiting.simulated_loop import ToldLoop, run_told

pytestmark = pytest.mark.one_redis

MS = 1000  # microseconds
SECOND = 1000 * MS
QUOTA = 100  # per second: a turn each 10 ms

NOTATIONS = st.sampled_from(["gcra", "token_bucket"])
BURSTS = st.integers(1, 5)


@st.composite
def crowds(draw: st.DrawFn) -> list[Ask]:
    """Generate requests: when they arrive and give up, their costs and timeouts. No two of the instants are equal."""
    asks, now = [], 0
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.integers(1, 30)) * MS
        cost = draw(st.sampled_from([1, 1, 1, 2, 3, 6]))
        timeout = draw(st.none() | st.integers(0, 100).map(lambda ms: ms * MS))
        leaves = draw(st.none() | st.integers(0, 80))
        asks.append(Ask(now, cost, timeout, None if leaves is None else leaves * MS + MS // 2 + number))
    return asks


def seconds(us: int | None) -> float | None:
    return None if us is None else us / SECOND


@settings(max_examples=20_000 if PROOF else 60, deadline=None)
@given(crowds(), NOTATIONS, BURSTS)
def test_tasks_get_the_outcomes_of_the_model(asks: list[Ask], algorithm: str, burst: int) -> None:
    expected = outcomes(Bucket(burst, SECOND // QUOTA), asks)
    assume(expected is not None)
    assert run_told(_tasks(asks, f"{QUOTA}/second burst {burst} using {algorithm}")) == expected


async def _tasks(asks: list[Ask], limit: str) -> list[Outcome]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ToldLoop)
    start = loop.now
    limiter = AsyncLimiter(MemoryStore(clock=loop.time))

    async def one(ask: Ask) -> Outcome:
        await asyncio.sleep((start + ask.at - loop.now) / SECOND)
        waiting = asyncio.ensure_future(limiter.acquire(limit, "key", ask.cost, seconds(ask.timeout)))
        if ask.leaves is not None:
            loop.call_at((loop.now + ask.leaves) / SECOND, waiting.cancel)
        try:
            await waiting
        except RateLimited:
            return Outcome("refused", loop.now - start)
        except asyncio.CancelledError:
            return Outcome("left", loop.now - start)
        return Outcome("turn", loop.now - start)

    return await asyncio.gather(*[one(ask) for ask in asks])


@settings(max_examples=20_000 if PROOF else 60, deadline=None)
@given(crowds(), NOTATIONS, BURSTS)
def test_no_window_has_more_turns_than_the_bound(asks: list[Ask], algorithm: str, burst: int) -> None:
    found = run_told(_tasks(asks, f"{QUOTA}/second burst {burst} using {algorithm}"))
    turns = sorted((one.at, ask.cost) for one, ask in zip(found, asks, strict=True) if one.what == "turn")
    for first, (at, _) in enumerate(turns):
        for last in range(first, len(turns)):
            units = sum(cost for _, cost in turns[first : last + 1])
            assert units <= burst + (turns[last][0] - at) * QUOTA / SECOND


@settings(max_examples=20_000 if PROOF else 60, deadline=None)
@given(crowds(), NOTATIONS, BURSTS)
def test_no_request_overtakes_another(asks: list[Ask], algorithm: str, burst: int) -> None:
    """No request gives up, because refunded units may give a later request an earlier turn."""
    stay = [ask._replace(leaves=None) for ask in asks]
    found = run_told(_tasks(stay, f"{QUOTA}/second burst {burst} using {algorithm}"))
    turns = [one.at for one in found if one.what == "turn"]
    assert turns == sorted(turns)


@settings(max_examples=20_000 if PROOF else 60, deadline=None)
@given(crowds(), NOTATIONS, BURSTS)
def test_canceled_request_delays_no_other_request(asks: list[Ask], algorithm: str, burst: int) -> None:
    limit = f"{QUOTA}/second burst {burst} using {algorithm}"
    patient = [ask._replace(timeout=None) for ask in asks]
    found = run_told(_tasks(patient, limit))
    stayed = run_told(_tasks([ask._replace(leaves=None) for ask in patient], limit))
    assert all(one.at <= other.at for one, other in zip(found, stayed, strict=True))


class Interrupted(BaseException):
    """Raised in place of KeyboardInterrupt, which would end pytest."""


class Line:
    """Runs requests as threads would make them, in order, but without threads and in simulated time."""

    def __init__(self, store: Store, clock: Clock, patch: pytest.MonkeyPatch) -> None:
        self._limiter, self._clock = Limiter(store), clock
        patch.setattr("ratelimit_mw.engine.runtime.time.sleep", self._sleep)

    def run(self, asks: list[Ask], limit: str, key: str) -> list[Outcome]:
        start, found = self._clock.now, []
        for ask in asks:
            self._clock.now = round(start * SECOND + ask.at) / SECOND  # a sum of floats would drift
            self._slept, self._leaves = 0, ask.leaves is not None
            try:
                self._limiter.acquire(limit, key, ask.cost, seconds(ask.timeout))
            except RateLimited:
                found.append(Outcome("refused", ask.at))
            except Interrupted:
                found.append(Outcome("left", ask.at))
            else:
                found.append(Outcome("turn", ask.at + self._slept))
        return found

    def _sleep(self, delay: float) -> None:
        if self._leaves:
            raise Interrupted
        self._slept = round(delay * SECOND)


@pytest.mark.promise(5)
def test_threads_get_the_outcomes_of_the_model_in_memory_and_redis(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, numbers = Clock(), iter(range(10**9))
    with closing(RedisStore(redis_url, clock=clock, timeout=5)) as server:
        stores: list[Store] = [MemoryStore(clock=clock), server]

        @settings(
            max_examples=5_000 if PROOF else 60,
            deadline=None,
            suppress_health_check=[HealthCheck.function_scoped_fixture],
        )
        @given(crowds(), NOTATIONS, BURSTS)
        def check(asks: list[Ask], algorithm: str, burst: int) -> None:
            at_once = [ask._replace(leaves=None if ask.leaves is None else 0) for ask in asks]
            expected = outcomes(Bucket(burst, SECOND // QUOTA), at_once)
            key, start = f"key {next(numbers)}", clock.now
            for store in stores:
                clock.now = start
                line = Line(store, clock, monkeypatch)
                assert line.run(at_once, f"{QUOTA}/second burst {burst} using {algorithm}", key) == expected

        check()

"""Tests when the circuit breaker opens, which request probes the store, and when the circuit breaker closes."""

import asyncio
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ratelimit_mw import Charge, ConfigError, Decision, FixedWindow, StoreError
from ratelimit_mw.core.errors import StoreNotQueried
from ratelimit_mw.core.events import Hook, StoreEvent
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.circuit_breaker import FAILURES_TO_OPEN, INITIAL_PAUSE, MAX_PAUSE, CircuitBreaker
from ratelimit_mw.stores.contract import SCRIPT_ERROR
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.guarded import AsyncGuardedStore, Guard, GuardedStore
from ratelimit_mw.testing import Clock, RecordingStore
from ratelimit_mw.testing.blocking import blocking

pytestmark = pytest.mark.promise(8)

CHARGE = Charge("k", FixedWindow(1000, 60))
DOWN = StoreError("down")
US = 0.000001


def longest(_: float, pause: float) -> float:
    return pause


def approx(seconds: float) -> Any:
    """Allow for a rounding error, because the injected clock is a float."""
    return pytest.approx(seconds, abs=US)


class Fixture:
    """A store in memory behind a circuit breaker, for threads or for asyncio, and the events of the breaker."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.inner = RecordingStore(clock=self.clock)
        self.breaker = CircuitBreaker(longest)
        self.events: list[StoreEvent] = []
        self.store: Store

    def guarded(self, kind: Any) -> Any:
        found = kind(self.inner, Guard(DenyCache(1.0), self.breaker, self.clock), 1.0)
        assert found.subscribe(Hook("on_store_event", self.events.append))
        return found

    @property
    def asked(self) -> int:
        return len(self.inner.calls)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def fail(self, times: int = 1, error: Exception = DOWN) -> None:
        """Send `times` requests in sequence. Each must reach the store and fail."""
        self.inner.error = error
        for _ in range(times):
            before = self.asked
            with pytest.raises(type(error)):
                self.store.take([CHARGE])
            assert self.asked == before + 1
            self.clock.advance(US)
        self.inner.error = None

    def refused(self) -> bool:
        """Send a request, and return whether the circuit breaker keeps it from the store."""
        before = self.asked
        try:
            self.store.take([CHARGE])
        except StoreNotQueried:
            assert self.asked == before
            return True
        assert self.asked == before + 1
        return False


@pytest.fixture(params=[GuardedStore, AsyncGuardedStore], ids=["threads", "asyncio"])
def it(request: pytest.FixtureRequest) -> Iterator[Fixture]:
    found = Fixture()
    if request.param is GuardedStore:
        found.store = found.guarded(GuardedStore)
        yield found
        return
    with blocking(found.guarded(AsyncGuardedStore)) as store:
        found.store = store
        yield found


def test_three_consecutive_failures_open_the_breaker_for_a_pause(it: Fixture) -> None:
    assert FAILURES_TO_OPEN == 3
    it.fail(2)
    assert not it.refused()  # a success resets the count of failures
    it.fail(3)
    it.clock.advance(INITIAL_PAUSE - 10 * US)
    assert it.refused()
    it.clock.advance(10 * US)
    assert not it.refused()
    assert it.kinds == ["failed"] * 5 + ["open", "probe", "closed"]


def test_pauses_double_up_to_half_a_second_and_restart_after_a_success(it: Fixture) -> None:
    it.fail(3)
    pauses = []
    for _ in range(5):
        it.clock.advance(MAX_PAUSE)
        it.fail()
        pauses.append(it.events[-1].pause)
    assert pauses == [0.2, 0.4, 0.5, 0.5, 0.5]
    it.clock.advance(MAX_PAUSE)
    assert not it.refused()
    it.fail(2)
    assert not it.refused()
    it.fail(3)
    assert it.events[-1].pause == INITIAL_PAUSE


def test_jitter_shortens_a_pause_by_at_most_half() -> None:
    asked: list[tuple[float, float]] = []

    def jitter(low: float, high: float) -> float:
        asked.append((low, high))
        return low

    breaker = CircuitBreaker(jitter)
    for now in (1.0, 2.0, 3.0):
        breaker.failed(DOWN, now, now)
    assert asked == [(INITIAL_PAUSE / 2, INITIAL_PAUSE)]
    with pytest.raises(StoreNotQueried):
        breaker.enter(3.0 + INITIAL_PAUSE / 2 - US)
    breaker.enter(3.0 + INITIAL_PAUSE / 2)
    assert 2 * MAX_PAUSE <= 1.0  # in the worst case, the store is used again after two pauses, within a second


def test_one_request_probes_and_the_others_fail_at_once(it: Fixture) -> None:
    it.fail(3)
    it.clock.advance(INITIAL_PAUSE)
    it.breaker.enter(it.clock())
    assert it.refused()
    it.clock.advance(MAX_PAUSE - 10 * US)
    assert it.refused()
    it.clock.advance(20 * US)  # the probe has had no outcome
    assert not it.refused()


def test_only_one_of_many_threads_probes() -> None:
    breaker = CircuitBreaker(longest)
    for now in (1.0, 2.0, 3.0):
        breaker.failed(DOWN, now, now)
    passed: list[int] = []
    together = threading.Barrier(20)

    def ask(number: int) -> None:
        together.wait()
        try:
            breaker.enter(3.0 + INITIAL_PAUSE)
        except StoreNotQueried:
            return
        passed.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(passed) == 1


def test_failures_of_concurrent_requests_count_once() -> None:
    breaker = CircuitBreaker(longest)
    for _ in range(100):
        breaker.failed(DOWN, 1.0, 1.05)
    for _ in range(100):
        breaker.failed(DOWN, 1.05, 1.1)
        breaker.failed(DOWN, 1.04, 1.1)  # sent before the first failure was counted
        breaker.failed(DOWN, 1.05, 1.099)  # from a thread that read the clock a moment earlier
    breaker.enter(1.1)
    breaker.failed(DOWN, 1.1, 1.15)
    with pytest.raises(StoreNotQueried):
        breaker.enter(1.15)


def test_failures_of_earlier_requests_do_not_fail_the_probe() -> None:
    breaker = CircuitBreaker(longest)
    events: list[StoreEvent] = []
    breaker.subscribe(events.append)
    for now in (1.0, 2.0, 3.0):
        breaker.failed(DOWN, now, now)
    breaker.enter(3.2)
    breaker.failed(DOWN, 3.0, 3.21)
    breaker.replied([], 3.2, 3.25)
    assert [event.kind for event in events] == ["failed", "failed", "failed", "open", "probe", "failed", "closed"]
    breaker.enter(3.25)


def test_a_clock_that_steps_back_ends_the_pause(it: Fixture) -> None:
    it.fail(3)
    it.clock.now -= 3600
    assert not it.refused()
    it.fail(3)
    assert it.refused()


@pytest.mark.parametrize("error", [ConfigError("cost"), StoreNotQueried("closed"), ZeroDivisionError()], ids=repr)
def test_errors_that_the_store_did_not_cause_are_not_failures(it: Fixture, error: Exception) -> None:
    it.fail(5, error)
    assert not it.refused()
    assert it.events == []


def test_script_errors_count_as_successes(it: Fixture) -> None:
    for _ in range(3):
        it.fail(2)
        it.fail(1, StoreError(f"ResponseError: {SCRIPT_ERROR}cost"))
    assert not it.refused()
    it.fail(3)
    it.clock.advance(INITIAL_PAUSE)
    it.fail(1, StoreError(f"ResponseError: {SCRIPT_ERROR}cost"))
    assert it.kinds[-2:] == ["probe", "closed"]


def test_canceling_a_probe_lets_another_request_probe() -> None:
    it = Fixture()

    class Hangs(RecordingStore):
        hangs = False

        async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
            if self.hangs:
                await asyncio.sleep(3600)
            return await super().atake(charges)

    async def main() -> None:
        it.inner = inner = Hangs(clock=it.clock)
        store = it.guarded(AsyncGuardedStore)
        inner.error = DOWN
        for _ in range(3):
            with pytest.raises(StoreError):
                await store.atake([CHARGE])
        inner.error, inner.hangs = None, True
        it.clock.advance(INITIAL_PAUSE)
        probe = asyncio.create_task(store.atake([CHARGE]))
        await asyncio.sleep(0)
        with pytest.raises(StoreNotQueried):
            await store.atake([CHARGE])
        probe.cancel()
        with pytest.raises(asyncio.CancelledError):
            await probe
        inner.hangs = False
        assert (await store.atake([CHARGE]))[0].allowed

    asyncio.run(main())
    assert it.kinds == ["failed"] * 3 + ["open", "probe", "probe", "closed"]


def test_a_cached_refusal_does_not_close_the_breaker() -> None:
    breaker = CircuitBreaker(longest)
    for now in (1.0, 2.0, 3.0):
        breaker.failed(DOWN, now, now)
    breaker.enter(3.1)
    breaker.replied(Answer([], "remembered"), 3.1, 3.1)
    breaker.enter(3.1)  # another request probes
    with pytest.raises(StoreNotQueried):
        breaker.enter(3.1)


def test_the_deny_cache_refuses_while_the_breaker_is_open(it: Fixture) -> None:
    full = Charge("full", FixedWindow(1, 60))
    it.store.take([full])
    assert not it.store.take([full])[0].allowed
    it.fail(3)
    assert it.refused()
    answer = it.store.take([full])
    assert isinstance(answer, Answer)
    assert (answer.source, answer[0].allowed) == ("remembered", False)


def test_an_open_breaker_stops_peeks_but_not_settlements_and_resets(it: Fixture) -> None:
    it.fail(3)
    before = it.asked
    with pytest.raises(StoreNotQueried):
        it.store.peek([CHARGE])
    assert it.asked == before
    it.store.settle([Charge("k", CHARGE.limit, -1, at=0)])
    it.store.reset([CHARGE])
    assert [verb for verb, _ in it.inner.calls[before:]] == ["settle", "reset"]
    it.clock.advance(INITIAL_PAUSE)
    it.store.peek([CHARGE])  # a peek does not probe
    assert not it.refused()
    assert it.kinds[-2:] == ["probe", "closed"]


def test_opening_and_closing_are_logged_once_each(it: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ratelimit_mw")
    it.fail(3)
    for _ in range(3):
        it.clock.advance(MAX_PAUSE)
        it.fail()
    it.clock.advance(MAX_PAUSE)
    assert not it.refused()
    assert caplog.messages == [
        "ratelimit_mw: store: unavailable, probing until it answers: down",
        "ratelimit_mw: store: available again after 2.0 seconds",
    ]


def test_log_messages_of_a_flapping_store_are_throttled(it: Fixture, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        it.fail(3)
        it.clock.advance(INITIAL_PAUSE)
        assert not it.refused()
    assert len(caplog.messages) == 2
    it.clock.advance(10)
    it.fail(3)
    assert len(caplog.messages) == 3


def test_events_have_the_error_and_the_time_since_the_first_failure(it: Fixture) -> None:
    it.fail(1, StoreError("no\nanswer\x1b[31m" + "x" * 500))
    it.clock.advance(2 - US)
    it.fail(2)
    (first, _, _, opened) = it.events
    assert first == StoreEvent("failed", ("no answer [31m" + "x" * 500)[:400], 0.0, 0.0)
    assert opened == StoreEvent("open", "down", approx(2.000001), INITIAL_PAUSE)
    it.clock.advance(1)
    assert not it.refused()
    probe, closed = it.events[-2:]
    assert probe == StoreEvent("probe", "down", approx(3.000002), 0.0)
    assert closed == StoreEvent("closed", "", approx(3.000002), 0.0)


def test_a_hook_subscribed_twice_is_called_once_and_needs_a_breaker() -> None:
    it = Fixture()
    it.store = it.guarded(GuardedStore)
    it.store.subscribe(Hook("on_store_event", it.events.append))  # type: ignore[attr-defined]  # it is a GuardedStore
    it.fail()
    assert it.kinds == ["failed"]
    assert not GuardedStore(it.inner, Guard(DenyCache(1.0)), 1.0).subscribe(it.events.append)


def test_clear_closes_the_breaker(it: Fixture) -> None:
    it.fail(3)
    it.breaker.clear()
    assert not it.refused()


def test_a_hook_may_call_the_breaker_without_a_deadlock() -> None:
    breaker = CircuitBreaker(longest)
    heard: list[str] = []

    def ask(event: StoreEvent) -> None:
        heard.append(event.kind)
        breaker.check(0.0)
        if event.kind == "open":
            breaker.replied([], 3.0, 3.0)

    breaker.subscribe(ask)
    for now in (1.0, 2.0, 3.0):
        breaker.failed(DOWN, now, now)
    assert heard == ["failed"] * 3 + ["open", "closed"]

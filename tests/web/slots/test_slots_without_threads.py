"""Slots while no thread can be started, for example at a process limit: no request fails or exceeds the limit."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ratelimit_mw import Charge, Concurrency, Limiter, MemoryStore, RateLimited
from ratelimit_mw.core.runtime import run
from ratelimit_mw.engine.slots import HeldSlots, SlotRenewer
from ratelimit_mw.testing import Clock
from web.wsgi_talk import Server, limited, read

LIFETIME = 15.0  # seconds


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlotRenewer]:
    """A slot renewer for this test. It cannot start a thread until `may_start` is called."""
    found = SlotRenewer()
    monkeypatch.setattr("ratelimit_mw.engine.slots.SLOT_RENEWER", found)
    monkeypatch.setattr("ratelimit_mw.engine.runtime.ThreadRuntime.slot_renewer", found)
    with monkeypatch.context() as patch:
        found.may_start = patch.undo  # type: ignore[attr-defined]
        patch.setattr(threading.Thread, "start", no_thread)
        yield found


def no_thread(_: Any) -> None:
    raise RuntimeError("can't start new thread")


def in_parts(_: Any, start_response: Any) -> Iterator[bytes]:
    start_response("200 OK", [])
    yield b"one"
    yield b"two"


def later(keeper: SlotRenewer, clock: Clock, seconds: float) -> None:
    """Advance the time of the store and of the slot renewer."""
    clock.advance(seconds)
    for hold in list(keeper._registry._active):
        hold.last_attempt_at -= seconds
        keeper._registry._schedule(hold, hold.last_attempt_at)


@pytest.mark.promise(8)
def test_wsgi_requests_keep_their_slots_beyond_the_lifetime(keeper: SlotRenewer) -> None:
    clock = Clock()
    app = limited(in_parts, limits=[], concurrent=2, store=MemoryStore(clock=clock), slot_lifetime=LIFETIME)
    at_work = []
    for _ in range(2):
        server = Server()
        at_work.append(server.ask(app))
        assert next(iter(at_work[-1])) == b"one"
        assert server.started[0][0] == "200 OK"
    for _ in range(3):
        later(keeper, clock, LIFETIME)  # without a renewal the slots are free by then
        server = Server()
        server.ask(app)
        assert server.started[0][0] == "429 Too Many Requests"
    for body in at_work:
        body.close()
    server = Server()
    assert read(server.ask(app)) == b"onetwo"
    assert server.started[0][0] == "200 OK"


def test_a_limiter_keeps_its_slot_beyond_the_lifetime(keeper: SlotRenewer) -> None:
    clock = Clock()
    limiter, one = Limiter(MemoryStore(clock=clock)), Concurrency(1, LIFETIME)
    with limiter.slot(one, "k"):
        for _ in range(3):
            later(keeper, clock, LIFETIME)
            with pytest.raises(RateLimited), limiter.slot(one, "k"):
                raise AssertionError
    with limiter.slot(one, "k"):
        pass


def test_renewals_resume_when_threads_can_be_started_again(keeper: SlotRenewer) -> None:
    renewed_at, calls = threading.Event(), []

    class Store(MemoryStore):
        def settle(self, charges: Sequence[Charge]) -> None:
            calls.append(charges)
            if len(calls) == 3:
                renewed_at.set()
            super().settle(charges)

    hold = HeldSlots(Store(), [Charge("k", Concurrency(1, 0.03), at=7)])
    keeper.add(hold)
    assert (keeper._running, calls) == (False, [])
    keeper.may_start()  # type: ignore[attr-defined]
    keeper.renew_due()
    assert renewed_at.wait(20)
    run(keeper.release(hold))
    assert {charge.cost for call in calls[:3] for charge in call} == {1}

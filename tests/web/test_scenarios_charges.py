"""Runs the scenarios of charges in handlers on each integration."""

import asyncio
from typing import Any

import pytest

from ratelimit_mw import Concurrency, ConfigError, Limiter, MemoryStore
from ratelimit_mw.core.verdict import RateLimited
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.http.response import headers
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import FACES
from web.plain_request import PlainRequest
from web.scenario import Scenario
from web.scenarios_charges import CHARGES
from web.table import play, rows, tell_time


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scenario", rows(CHARGES))
def test_the_integration_passes_the_scenario(face: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    play(face, scenario, tell_time(clock, monkeypatch.setattr)(), clock)


def state_of(**settings: Any) -> tuple[RateLimitState, RecordingStore]:
    """Return the state of a request that no limit applied to, and its store."""
    store = RecordingStore()
    return RateLimitState(None, Gate(Settings(**{"limits": [], "store": store, **settings}))), store


def test_a_cost_of_0_looks_and_takes_nothing() -> None:
    state, store = state_of()
    assert state.charge("5/hour", key="a", cost=3).remaining == 2
    assert [state.charge("5/hour", key="a", cost=0).remaining for _ in range(2)] == [2, 2]
    assert [verb for verb, _ in store.calls] == ["take", "peek", "peek"]


def test_without_raises_the_verdict_refuses() -> None:
    state, _ = state_of()
    verdict = state.charge("5/hour", key="a", cost=6, raises=False)
    assert (verdict.allowed, verdict.rule) == (False, "charge")
    with pytest.raises(RateLimited) as caught:
        state.charge("5/hour", key="a", cost=6)
    assert caught.value.verdict.retry_after == verdict.retry_after


def test_the_buckets_are_those_of_a_limiter_over_the_same_store() -> None:
    state, store = state_of()
    state.charge(["5/hour", "9/day"], key=("tool", "search"), cost=3)
    assert Limiter(store).peek("5/hour", ("tool", "search")).remaining == 2


def test_in_a_thread_a_gate_for_asyncio_returns_the_verdict() -> None:
    store = RecordingStore()
    state = RateLimitState(None, AsyncGate(Settings(limits=[], store=store)))
    assert state.charge("5/hour", key="a").remaining == 4

    async def handler() -> int:
        remaining: int = (await state.charge("5/hour", key="a")).remaining
        return remaining

    assert asyncio.run(handler()) == 3


def test_nothing_is_charged_if_the_middleware_is_off() -> None:
    state, store = state_of(enabled=False)
    assert state.charge("5/hour", key="a", cost=9).allowed
    assert store.calls == []


def test_slots_cannot_be_charged() -> None:
    state, _ = state_of()
    with pytest.raises(ConfigError, match="whose slots a charge cannot release"):
        state.charge(Concurrency(2), key="a")


def test_a_table_is_no_limit_of_a_charge_and_the_text_says_where_the_name_goes() -> None:
    state, _ = state_of()
    with pytest.raises(ConfigError, match="expected text such as '100/minute', a Limit, which may have a name, or a"):
        state.charge({"limit": "5/hour", "name": "search"}, key="a")


def test_headers_show_the_refusal_of_a_limiter_beside_the_limits_of_the_request_under_its_own_name() -> None:
    gate = Gate(Settings(limits=["9/minute", "70/hour"], store=MemoryStore(clock=Clock())))
    state = RateLimitState(gate.admit(PlainRequest()), gate)
    limiter = Limiter(name="models")
    with limiter.slot(Concurrency(1), "a"), pytest.raises(RateLimited) as caught, limiter.slot(Concurrency(1), "a"):
        pass
    state.refusal_of(caught.value, gate)
    assert headers(state.verdict) == [
        ("RateLimit-Policy", '"models";q=1;qu="concurrent-requests", "default";q=9;w=60, "default-2";q=70;w=3600'),
        ("RateLimit", '"models";r=0;t=1, "default";r=8;t=60, "default-2";r=69;t=3600'),
    ]

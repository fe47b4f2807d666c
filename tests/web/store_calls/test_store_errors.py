"""`on_store_error`: decisions while the store fails, once or repeatedly."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ratelimit_mw import ConfigError, StoreError, Verdict
from ratelimit_mw.engine import base_gate
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.stores.fallback import FallbackStore
from ratelimit_mw.testing import Clock, RecordingStore
from web.plain_request import PlainRequest

pytestmark = [pytest.mark.promise(8), pytest.mark.usefixtures("speaks_again")]

Admit = Callable[[], Verdict | None]


def threads(settings: Settings) -> Admit:
    made = Gate(settings)
    return lambda: made.admit(PlainRequest("/path"))


def tasks(settings: Settings) -> Admit:
    made = AsyncGate(settings)
    return lambda: asyncio.run(made.admit(PlainRequest("/path")))


@pytest.fixture(params=[threads, tasks])
def gate_of(request: pytest.FixtureRequest, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Admit]:
    monkeypatch.setattr(base_gate, "FallbackStore", lambda share: FallbackStore(share, clock=clock))
    return lambda **settings: request.param(Settings(**settings))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> RecordingStore:
    return RecordingStore(clock=clock)


def seen(verdict: Verdict | None) -> tuple[bool, str]:
    assert verdict is not None
    return verdict.allowed, verdict.source


def test_an_unstable_store_does_not_renew_quotas(gate_of: Callable[..., Admit], store: RecordingStore) -> None:
    admit = gate_of(limits="4/hour using fixed_window", store=store)
    found = []
    for turn in range(20):
        store.error = StoreError("down") if turn % 2 else None
        found.append(seen(admit()))
    assert found.count((True, "store")) == 4
    assert found.count((True, "local")) == 4
    assert found[8:] == [(False, "store"), (False, "local")] * 6


def test_refusals_of_the_store_apply_during_an_outage_until_they_expire(
    gate_of: Callable[..., Admit], store: RecordingStore, clock: Clock
) -> None:
    admit = gate_of(limits="1/minute using fixed_window", store=store)
    assert [seen(admit()) for _ in range(2)] == [(True, "store"), (False, "store")]
    store.error = StoreError("down")
    clock.advance(59)
    verdict = admit()
    assert seen(verdict) == (False, "local")
    assert verdict is not None
    assert verdict.retry_after == 1.0
    clock.advance(1)
    assert [seen(admit()) for _ in range(2)] == [(True, "local"), (False, "local")]


def test_a_later_admission_by_the_store_ends_its_earlier_refusal(
    gate_of: Callable[..., Admit], store: RecordingStore, clock: Clock
) -> None:
    admit = gate_of(limits="1/minute using fixed_window", store=store)
    assert [seen(admit()) for _ in range(2)] == [(True, "store"), (False, "store")]
    store.reset([charge for _, (charge,) in store.calls])
    assert seen(admit()) == (True, "store")
    store.error = StoreError("down")
    assert seen(admit()) == (True, "local")


def test_on_store_error_allow_admits_clients_that_the_store_refused(
    gate_of: Callable[..., Admit], store: RecordingStore
) -> None:
    admit = gate_of(limits="1/minute", store=store, on_store_error="allow")
    assert [seen(admit()) for _ in range(2)] == [(True, "store"), (False, "store")]
    store.error = StoreError("down")
    assert seen(admit()) == (True, "allowed_on_error")


def test_verdicts_and_policies_show_the_local_share(gate_of: Callable[..., Admit], store: RecordingStore) -> None:
    admit = gate_of(limits="10/minute", store=store, local_share=0.25)
    store.error = StoreError("down")
    verdict = admit()
    assert verdict is not None
    assert (verdict.limit, verdict.remaining, [policy.quota for policy in verdict.policies]) == (2, 1, [2])
    store.error = None
    verdict = admit()
    assert verdict is not None
    assert (verdict.limit, verdict.remaining, [policy.quota for policy in verdict.policies]) == (10, 9, [10])


@pytest.mark.parametrize("share", [0, 0.0, -0.5, 1.01, True, "0.5", None, float("nan")])
def test_local_share_must_be_a_number_above_0_and_up_to_1(share: Any) -> None:
    with pytest.raises(ConfigError, match=r"^local_share: got .*, expected a number above 0 and up to 1"):
        Settings(limits="1/minute", local_share=share)


def test_the_log_omits_the_message_of_a_foreign_store_error(
    store: RecordingStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.error = OSError("redis://:password@host\nforged line")
    Gate(Settings(limits="1/minute", store=store)).admit(PlainRequest())
    assert caplog.messages == ["ratelimit_mw: store: failed (OSError); on_store_error decides"]

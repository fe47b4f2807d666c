"""What `take` decides on the charges of the short way equals what `admit` decides."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ratelimit_mw import Charge, Decision, StoreError, Verdict
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.engine import base_gate
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.plain_request import PlainRequest

ADDRESS = "192.0.2.1"


class Short:
    """A gate that decides on the short way, and lets one of the other kind await."""

    def __init__(self, kind: type[Gate] | type[AsyncGate], settings: Settings) -> None:
        self._gate = kind(settings)

    def take(self, client: str = ADDRESS) -> Verdict | None:
        """Return the verdict of the short way, which must decide."""
        assert self._gate.has_short_way
        way, charges, _ = self._gate.rule_set.short_way("GET", "/", client, lambda _: ())
        assert way is not None
        gate = self._gate
        return gate.take(way, charges) if isinstance(gate, Gate) else asyncio.run(gate.take(way, charges))

    def admit(self, request: PlainRequest) -> Verdict | None:
        gate = self._gate
        return gate.admit(request) if isinstance(gate, Gate) else asyncio.run(gate.admit(request))


Make = Callable[..., Short]


@pytest.fixture(params=[Gate, AsyncGate], ids=["threads", "asyncio"])
def gate(request: pytest.FixtureRequest) -> Make:
    def make(**settings: Any) -> Short:
        return Short(
            request.param, Settings(**{"limits": "3/minute", "store": RecordingStore(clock=Clock()), **settings})
        )

    return make


def told(verdict: Verdict | None) -> Any:
    """Return the contents of a verdict. Policies are compared by name, because they are equal only to themselves."""
    assert verdict is not None
    names = [policy.name for policy in verdict.policies]
    return verdict.allowed, verdict.charges, verdict.decisions, verdict.rule, verdict.source, names


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"limits": ["3/minute", "2/hour"]},
        {"app_limits": {"limit": "2/second", "key": "all"}},
        {"shadow": True},
        {"limits": [{"limit": "1/minute", "shadow": True}, "2/minute"]},
        {"limits": {"limit": "3/minute using gcra", "cost": 2}},
        {"key": "ip"},
        {"missing_key": "exempt"},
        {"limits": [{"limit": "1/minute", "key": "all"}, "2/hour"]},
        {"limits": [{"limit": "9/minute", "cost": 4}, {"limit": "9/hour", "key": "user | ip"}]},
    ],
    ids=str,
)
def test_take_returns_the_same_verdict_as_admit(settings: dict[str, Any], gate: Make) -> None:
    short, long = gate(**settings), gate(**settings)
    for _ in range(5):
        assert told(short.take()) == told(long.admit(PlainRequest(client=ADDRESS)))


@pytest.mark.parametrize("client", [ADDRESS, "2001:db8::1", "2001:DB8::2", "::ffff:192.0.2.1", "[2001:db8::1%eth0]:80"])
def test_take_charges_the_same_bucket_as_admit(client: str, gate: Make) -> None:
    assert told(gate().take(client)) == told(gate().admit(PlainRequest(client=client)))


@pytest.mark.parametrize("settings", [{"limits": []}, {"exempt": ["/"]}, {"safelist": [ADDRESS]}], ids=str)
def test_an_unlimited_request_has_no_verdict(settings: dict[str, Any], gate: Make) -> None:
    store = RecordingStore()
    asked = gate(**settings, store=store)
    assert (asked.take(), asked.admit(PlainRequest(client=ADDRESS)), store.calls) == (None, None, [])


@pytest.mark.promise(2)
def test_a_blocked_request_is_refused_without_the_store(gate: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ratelimit_mw.refusals")
    store = RecordingStore()
    asked = gate(blocklist=[ADDRESS], store=store)
    assert told(asked.take()) == told(asked.admit(PlainRequest(client=ADDRESS)))
    assert (told(asked.take())[0], store.calls) == (False, [])
    assert len([one for one in caplog.records if one.name == "ratelimit_mw.refusals"]) == 3


@pytest.mark.promise(2)
def test_a_refusal_is_observed_and_reported_once(
    gate: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "ratelimit_mw.refusals")
    observed: list[Verdict] = []
    monkeypatch.setattr(base_gate, "observer", lambda *_, **__: observed.append)
    asked = gate(limits="1/minute")
    assert [told(verdict) for verdict in (asked.take(), asked.take())] == [told(verdict) for verdict in observed]
    assert [verdict.allowed for verdict in observed] == [True, False]
    assert len([one for one in caplog.records if one.name == "ratelimit_mw.refusals"]) == 1


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("mode", "source", "allowed"),
    [("local", "local", True), ("allow", "allowed_on_error", True), ("deny", "denied_on_error", False)],
)
@pytest.mark.usefixtures("speaks_again")
def test_take_applies_on_store_error(mode: str, source: str, allowed: bool, gate: Make) -> None:
    store = RecordingStore()
    store.error = StoreError("down")
    verdict = gate(store=store, on_store_error=mode).take()
    assert verdict is not None
    assert (verdict.source, verdict.allowed) == (source, allowed)


class TwoForOne(RecordingStore):
    def take(self, charges: Any) -> Any:
        return [*super().take(charges), Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 0)]

    async def atake(self, charges: Any) -> Any:
        return self.take(charges)


class Answering(RecordingStore):
    """A store that admits from a lease and refuses from memory."""

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        decisions = super().take(charges)
        return Answer(decisions, "lease" if decisions[0].allowed else "remembered")

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self.take(charges)


def test_verdict_names_the_source_of_a_leased_or_remembered_decision(gate: Make) -> None:
    asked = gate(limits="1/minute", store=Answering(clock=Clock()))
    found = [asked.take() for _ in range(2)]
    assert [(verdict.allowed, verdict.source) for verdict in found if verdict is not None] == [
        (True, "lease"),
        (False, "remembered"),
    ]


@pytest.mark.promise(8)
@pytest.mark.usefixtures("speaks_again")
def test_refused_client_stays_refused_while_the_store_fails(gate: Make) -> None:
    store = RecordingStore(clock=Clock())
    asked = gate(limits="1/minute", store=store, on_store_error="local")
    first, second = (asked.take() for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.allowed, second.allowed) == (True, False)
    store.error = StoreError("down")
    verdict, other = asked.take(), asked.take("192.0.2.2")
    assert verdict is not None
    assert (verdict.allowed, verdict.source) == (False, "local")
    assert other is not None
    assert (other.allowed, other.source) == (True, "local")


@pytest.mark.promise(8)
@pytest.mark.usefixtures("speaks_again")
def test_readmitted_client_stays_admitted_while_the_store_fails(gate: Make) -> None:
    store = RecordingStore(clock=Clock())
    asked = gate(limits="1/minute", store=store, on_store_error="local")
    found = [asked.take() for _ in range(2)]
    store.reset([charge for _, (charge,) in store.calls])
    found.append(asked.take())
    store.error = StoreError("down")
    found.append(asked.take())
    assert [(verdict.allowed, verdict.source) for verdict in found if verdict is not None] == [
        (True, "store"),
        (False, "store"),
        (True, "store"),
        (True, "local"),
    ]


@pytest.mark.promise(8)
@pytest.mark.usefixtures("speaks_again")
def test_surplus_decisions_of_a_store_count_as_a_store_error(gate: Make) -> None:
    verdict = gate(store=TwoForOne()).take()
    assert verdict is not None
    assert (verdict.source, verdict.allowed) == ("local", True)


@pytest.mark.parametrize("limits", ["3/minute", ["3/minute", "2/hour"]])
def test_a_verdict_can_be_sent_to_another_process(gate: Make, limits: Any) -> None:
    verdict = gate(limits=limits).take()
    assert told(pickle.loads(pickle.dumps(verdict))) == told(verdict)  # noqa: S301  # made here

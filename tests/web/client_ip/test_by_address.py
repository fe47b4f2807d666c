"""If limits depend only on the client address, the request is not read. The verdict equals that of `admit`."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ratelimit_mw import Charge, Decision, StoreError, Verdict
from ratelimit_mw.core.verdict import Answer
from ratelimit_mw.engine.gate import AsyncGate, Gate
from ratelimit_mw.rules import rule_set
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import Clock, RecordingStore
from web.plain_request import PlainRequest

ADDRESS = "192.0.2.1"


@pytest.fixture(autouse=True)
def _no_proxy_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the check for proxy headers, as after the first thousand requests."""
    monkeypatch.setattr(rule_set, "ProxyHeaderCheck", lambda _: None)


def yes(_: object) -> bool:
    """A callable whose result does not matter."""
    return True


class Awaited:
    """An AsyncGate with the synchronous methods of a Gate."""

    def __init__(self, settings: Settings) -> None:
        self._gate = AsyncGate(settings)

    def admit_by_address(self, client: str | None, method: str | None) -> Verdict | None:
        async def come() -> Verdict | None:
            rules = self._gate.fast_rules
            by_address = rules is not None and rules.plans_by_address is not None  # the path does not matter
            plans = rules.plans_for(method or "GET", "/") if rules is not None and by_address else None
            return None if plans is None else await self._gate.admit_plan(plans[client])

        return asyncio.run(come())

    def admit(self, request: PlainRequest) -> Verdict | None:
        return asyncio.run(self._gate.admit(request))


Make = Callable[..., Gate | Awaited]


@pytest.fixture(params=[Gate, Awaited], ids=["threads", "asyncio"])
def gate(request: pytest.FixtureRequest) -> Make:
    def make(**settings: Any) -> Gate | Awaited:
        kind: Callable[[Settings], Gate | Awaited] = request.param
        return kind(Settings(**{"limits": "3/minute", "store": RecordingStore(clock=Clock()), **settings}))

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
    ],
    ids=str,
)
def test_admit_by_address_returns_the_same_verdict_as_admit(settings: dict[str, Any], gate: Make) -> None:
    short, long = gate(**settings), gate(**settings)
    for _ in range(5):
        assert told(short.admit_by_address(ADDRESS, "GET")) == told(long.admit(PlainRequest(client=ADDRESS)))


@pytest.mark.parametrize("client", [ADDRESS, "2001:db8::1", "x" * 256, "x" * 5000, ""])
def test_admit_by_address_charges_the_same_bucket_as_admit(client: str, gate: Make) -> None:
    assert told(gate().admit_by_address(client, "GET")) == told(gate().admit(PlainRequest(client=client)))


@pytest.mark.promise(9)
@pytest.mark.parametrize(
    "settings",
    [
        {"rules": [{"path": "/a", "limits": "1/minute"}]},
        {"trusted_proxies": ["10.0.0.0/8"]},
        {"blocklist": [ADDRESS]},
        {"safelist": [ADDRESS]},
        {"exempt": ["/health"]},
        {"enabled": yes},
        {"key": "header:X-Api-Key"},
        {"key": yes},
        {"limits": yes},
        {"limits": {"limit": "3/minute", "cost": yes}},
    ],
    ids=",".join,
)
def test_admit_by_address_returns_none_if_more_than_the_address_matters(settings: dict[str, Any], gate: Make) -> None:
    store = RecordingStore()
    assert gate(**settings, store=store).admit_by_address(ADDRESS, "GET") is None
    assert store.calls == []


def test_admit_by_address_returns_none_for_options_requests(gate: Make) -> None:
    store = RecordingStore()
    assert gate(store=store).admit_by_address(ADDRESS, "OPTIONS") is None
    assert store.calls == []


def test_admit_by_address_returns_none_without_limits(gate: Make) -> None:
    assert gate(limits=[]).admit_by_address(ADDRESS, "GET") is None


def test_admit_by_address_returns_none_without_an_address() -> None:
    """test_lost_peers.py tests the same for the middleware under asyncio."""
    store = RecordingStore()
    gate = Gate(Settings(limits="2/minute", store=store, missing_key="deny"))
    assert gate.admit_by_address(None, "GET") is None  # the client may be a lost peer
    assert store.calls == []


@pytest.mark.promise(8)
@pytest.mark.parametrize(
    ("mode", "source", "allowed"),
    [("local", "local", True), ("allow", "allowed_on_error", True), ("deny", "denied_on_error", False)],
)
@pytest.mark.usefixtures("speaks_again")
def test_admit_by_address_applies_on_store_error(mode: str, source: str, allowed: bool, gate: Make) -> None:
    store = RecordingStore()
    store.error = StoreError("down")
    verdict = gate(store=store, on_store_error=mode).admit_by_address(ADDRESS, "GET")
    assert verdict is not None
    assert (verdict.source, verdict.allowed) == (source, allowed)


class TwoForOne(RecordingStore):
    def take(self, charges: Any) -> Any:
        return [*super().take(charges), Decision(True, 5, 4, 0.0, 60.0, 60.0, 0.0, 0)]

    async def atake(self, charges: Any) -> Any:
        return self.take(charges)


@pytest.mark.parametrize("kind", [Gate, Awaited])
def test_admit_by_address_returns_none_with_an_on_decision_hook(kind: Callable[[Settings], Gate | Awaited]) -> None:
    heard: list[object] = []
    own = kind(Settings(limits="3/minute", store=RecordingStore(), on_decision=heard.append))
    assert (own.admit_by_address(ADDRESS, "GET"), heard) == (None, [])
    assert own.admit(PlainRequest(client=ADDRESS)) is not None
    assert len(heard) == 1


class Answering(RecordingStore):
    """A store that admits from a lease and refuses from memory."""

    def take(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        decisions = super().take(charges)
        return Answer(decisions, "lease" if decisions[0].allowed else "remembered")

    async def atake(self, charges: Sequence[Charge]) -> Sequence[Decision]:
        return self.take(charges)


def test_verdict_names_the_source_of_a_leased_or_remembered_decision(gate: Make) -> None:
    asked = gate(limits="1/minute", store=Answering(clock=Clock()))
    found = [asked.admit_by_address(ADDRESS, "GET") for _ in range(2)]
    assert [(verdict.allowed, verdict.source) for verdict in found if verdict is not None] == [
        (True, "lease"),
        (False, "remembered"),
    ]


@pytest.mark.promise(8)
@pytest.mark.usefixtures("speaks_again")
def test_refused_client_stays_refused_while_the_store_fails(gate: Make) -> None:
    store = RecordingStore(clock=Clock())
    asked = gate(limits="1/minute", store=store, on_store_error="local")
    first, second = (asked.admit_by_address(ADDRESS, "GET") for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.allowed, second.allowed) == (True, False)
    store.error = StoreError("down")
    verdict, other = asked.admit_by_address(ADDRESS, "GET"), asked.admit_by_address("192.0.2.2", "GET")
    assert verdict is not None
    assert (verdict.allowed, verdict.source) == (False, "local")
    assert other is not None
    assert (other.allowed, other.source) == (True, "local")


@pytest.mark.promise(8)
@pytest.mark.usefixtures("speaks_again")
def test_readmitted_client_stays_admitted_while_the_store_fails(gate: Make) -> None:
    store = RecordingStore(clock=Clock())
    asked = gate(limits="1/minute", store=store, on_store_error="local")
    found = [asked.admit_by_address(ADDRESS, "GET") for _ in range(2)]
    store.reset([charge for _, (charge,) in store.calls])
    found.append(asked.admit_by_address(ADDRESS, "GET"))
    store.error = StoreError("down")
    found.append(asked.admit_by_address(ADDRESS, "GET"))
    assert [(verdict.allowed, verdict.source) for verdict in found if verdict is not None] == [
        (True, "store"),
        (False, "store"),
        (True, "store"),
        (True, "local"),
    ]


@pytest.mark.promise(8)
@pytest.mark.usefixtures("speaks_again")
def test_surplus_decisions_of_a_store_count_as_a_store_error(gate: Make) -> None:
    verdict = gate(store=TwoForOne()).admit_by_address(ADDRESS, "GET")
    assert verdict is not None
    assert (verdict.source, verdict.allowed) == ("local", True)

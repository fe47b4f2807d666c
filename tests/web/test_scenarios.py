"""Every scenario over every framework."""

from types import SimpleNamespace
from typing import Any

import http_sf
import pytest

from ratelimit_mw import MemoryStore, gate, notices, response
from ratelimit_mw.testing import Clock, RecordingStore
from web.faces import FACES
from web.scenario import Answer, Scenario, Step
from web.scenarios import SCENARIOS

REFUSALS = (403, 429, 503)
FIELDS = ("ratelimit", "ratelimit-policy")
PARAMETERS = ("q", "w", "ratelimit-mw-burst")
LEGACY = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
ROWS = [
    pytest.param(scenario, id=scenario.name, marks=[pytest.mark.promise(n) for n in scenario.promises])
    for scenario in SCENARIOS
]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The one clock of the store, the local stand-in and the legacy headers."""
    clock = Clock()

    class Told(MemoryStore):
        def __init__(self) -> None:
            super().__init__(clock=clock)

    monkeypatch.setattr(gate, "MemoryStore", Told)
    monkeypatch.setattr(response, "time", SimpleNamespace(time=clock))
    monkeypatch.setattr(notices, "_said", {})
    return clock


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("scenario", ROWS)
def test_scenario(face: str, scenario: Scenario, clock: Clock) -> None:
    store = RecordingStore(clock=clock)
    send = FACES[face]({"store": store, **scenario.settings})
    for number, step in enumerate(scenario.steps):
        clock.advance(step.wait)
        store.error = ConnectionError("down") if step.broken else None
        store.calls.clear()
        answer = send(step)
        where = f"step {number}: {answer}"
        assert answer.status == step.status, where
        assert [verb for verb, _ in store.calls] == ["take"] * step.asked, where
        check_fields(step, answer, clock.now, where)
        if step.status in REFUSALS:
            check_refusal(step, answer, where)
        else:
            assert answer.field("retry-after") == [], where
            assert step.status != 200 or answer.field("x-source") == [step.source], where


def check_fields(step: Step, answer: Answer, now: float, where: str) -> None:
    expected = [[(name, {"r": r, "t": t}) for name, r, t in step.state]] if step.state else []
    assert [parsed(line) for line in answer.field("ratelimit")] == expected, where
    policies = [parsed(line) for line in answer.field("ratelimit-policy")]
    assert [[name for name, _ in items] for items in policies] == [[name for name, _ in items] for items in expected]
    if step.policy is not None:
        named = [(name, dict(zip(PARAMETERS, numbers, strict=False))) for name, *numbers in step.policy]
        assert policies == [named], where
    legacy = [answer.field(name) for name in LEGACY]
    if step.legacy is None:
        assert legacy == [[], [], []], where
    else:
        limit, remaining, reset = step.legacy
        assert legacy == [[str(limit)], [str(remaining)], [str(int(now) + reset)]], where


def check_refusal(step: Step, answer: Answer, where: str) -> None:
    assert answer.body == step.body, where
    plain = {name: value for name, value in answer.headers if name not in (*FIELDS, *LEGACY)}
    assert plain == step.plain_headers, where
    assert len(dict(answer.headers)) == len(answer.headers), where


def parsed(line: str) -> list[Any]:
    found: Any = http_sf.parse(line.encode("ascii"), tltype="list")
    return list(found)

"""Settling each limit of a request at its own cost: names that no limit has."""

from typing import Any

import pytest

from ratelimit_mw import ConfigError
from ratelimit_mw.core.verdict import Verdict
from ratelimit_mw.engine.gate import Gate
from ratelimit_mw.engine.state import RateLimitState
from ratelimit_mw.settings import Settings
from ratelimit_mw.testing import RecordingStore
from web.plain_request import PlainRequest

TOKENS: dict[str, Any] = {
    "name": "llm",
    "path": "/chat",
    "limits": [{"limit": "100/hour", "name": "input"}, {"limit": "9/minute", "name": "calls", "settle": False}],
}


def decided(**settings: Any) -> tuple[RateLimitState, RecordingStore]:
    """Return the state of a request under these settings, and its store."""
    store = RecordingStore()
    gate = Gate(Settings(**{"limits": "9/hour", "rules": [TOKENS], "store": store, **settings}))
    return RateLimitState(gate.admit(PlainRequest("/chat", "POST")), gate), store


def settled(store: RecordingStore) -> list[int]:
    """Return the units of each settlement."""
    return [charge.cost for verb, charges in store.calls if verb == "settle" for charge in charges]


@pytest.mark.parametrize("name", ["ouput", "calls", ""])
def test_a_name_of_no_settled_limit_is_an_error_and_settles_nothing(name: str) -> None:
    state, store = decided()
    with pytest.raises(ConfigError) as caught:
        state.settle({"input": 9, name: 3})
    assert str(caught.value) == (f"settle: got {name!r}, expected the names of limits that are settled: default, input")
    assert settled(store) == []


def test_names_of_limits_that_do_not_apply_to_the_request_are_valid() -> None:
    state, store = decided()
    state.settle({"input": 9, "default": 3})
    assert settled(store) == [8]
    state, store = decided(enabled=False)
    state.settle({"input": 9})
    assert settled(store) == []


def test_names_are_not_checked_if_a_callable_chooses_the_limits() -> None:
    rule = {**TOKENS, "limits": lambda _: "100/hour"}
    state, store = decided(rules=[rule])
    state.settle({"other": 3, "llm": 5})
    assert settled(store) == [4]


def test_names_are_valid_while_the_store_fails() -> None:
    state, store = decided(on_store_error="allow")
    state.verdict = Verdict(True, (), (), "llm", "allowed_on_error")
    state.settle({"input": 9})
    assert settled(store) == []


def test_an_invalid_cost_keeps_the_estimate_and_the_others_are_settled(caplog: pytest.LogCaptureFixture) -> None:
    state, store = decided(rules=[{**TOKENS, "limits": [*TOKENS["limits"], {"limit": "50/hour", "name": "output"}]}])
    state.settle({"input": 2.5, "output": -1})
    assert settled(store) == [2]
    assert [record.getMessage() for record in caplog.records if "settle" in record.getMessage()] == [
        "ratelimit_mw: settle: got int, expected a finite number, 0 or more: the estimate stays charged"
    ]
